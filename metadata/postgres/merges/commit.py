"""The commit of a merge in Postgres: one transaction, without any call to the object store.

The steps, in this order (the locks are those of `metadata/postgres/rows.py`):

1. lock the job's row: answer a repeat, or refuse an epoch other than the present one;
2. lock the partitions, the input extents and the input files, then read the present state of the inputs;
3. read the clock and decide (`metadata/rules/merge_commit.py`);
4. insert the outputs; a key that another file or an abort took meanwhile is a refusal;
5. kill the inputs, move the cleaning marks, end the job and free its inputs;
6. append the MERGED change, if L0 files died or partitions were deduped.

A refusal rolls everything back, and a second transaction fails the job. A crash between the two leaves a job whose
lease runs out, and whose next attempt is refused again.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.jobs import (
    CleanedPartition,
    CommitMerge,
    JobLostError,
    MergeCommitted,
    MergeRefusedError,
    OutputExtent,
)
from metadata.contract.tail import ChangeKind
from metadata.erasures.stamps import StampedRange, raised
from metadata.postgres.connection import Database
from metadata.postgres.erasures.pending import open_stamps
from metadata.postgres.merges.jobs import end_failed, running
from metadata.postgres.rows import (
    INTS,
    LONGS,
    any_of,
    append_change,
    begin_killing,
    kill_extents,
    lock_extents,
    lock_files,
    lock_partitions,
    now_ms,
    statement,
)
from metadata.postgres.tables import CLUSTER, FILES, LOG_STARTS, MERGE_INPUTS, MERGE_JOBS
from metadata.rules.jobs import PAST_LIMIT, REFUSED_RETRY_MS, job_late, job_lost
from metadata.rules.merge_commit import (
    CleanedState,
    InputRange,
    MergeDecision,
    check_output_keys,
    cleaned,
    decide_commit,
    merged_detail,
    pass_took_ms,
)
from metadata.rules.packed_index import iter_index

_INPUT_L0 = statement(
    """SELECT f.file_id, f.index AS packed, f.lo, f.hi FROM merge_inputs i JOIN files f ON f.file_id = i.file_id
    WHERE i.job_id = :job_id""",
    job_id=sa.BigInteger,
)
_INPUT_EXTENTS = statement(
    """SELECT e.extent_id, e.partition_id, e.base_offset, e.last_offset, e.erased_through, f.lo, f.hi
    FROM merge_inputs i JOIN extents e ON e.extent_id = i.extent_id JOIN files f ON f.file_id = e.file_id
    WHERE i.job_id = :job_id""",
    job_id=sa.BigInteger,
)
_LIVE_L0 = statement("SELECT file_id FROM files WHERE file_id = ANY (:file_ids) AND state = 'live'", file_ids=LONGS)
_LIVE_EXTENTS = statement(
    "SELECT extent_id FROM extents WHERE extent_id = ANY (:extent_ids) AND state = 'live'", extent_ids=LONGS
)
_KILL_L0 = statement(
    "UPDATE files SET state = 'dead', dead_ms = :now_ms, live_extents = 0 WHERE file_id = ANY (:file_ids)",
    now_ms=sa.BigInteger,
    file_ids=LONGS,
)
_EXTENT_COLUMNS: Mapping[str, Any] = {
    "partition_id": sa.Integer,
    "base_offset": sa.BigInteger,
    "last_offset": sa.BigInteger,
    "file_id": sa.BigInteger,
    "position": sa.BigInteger,
    "length": sa.BigInteger,
    "block_index_position": sa.BigInteger,
    "block_index_length": sa.Integer,
    "record_count": sa.BigInteger,
    "crc32c": sa.BigInteger,
    "min_ts_ms": sa.BigInteger,
    "max_ts_ms": sa.BigInteger,
    "has_tombstones": sa.Boolean,
    "flagged_reason": sa.Text,
    "uncompressed_bytes": sa.BigInteger,
    "committed_ms": sa.BigInteger,
    "earliest_horizon_ms": sa.BigInteger,
    "erased_through": sa.BigInteger,
    "state": sa.Text,
    "dead_ms": sa.BigInteger,
}
_FILE_COLUMNS: Mapping[str, Any] = {
    "key": sa.Text,
    "level": sa.SmallInteger,
    "state": sa.Text,
    "class": sa.Text,
    "lo": sa.BigInteger,
    "hi": sa.BigInteger,
    "size_bytes": sa.BigInteger,
    "crc32c": sa.BigInteger,
    "created_ms": sa.BigInteger,
    "dead_ms": sa.BigInteger,
    "max_ts_ms": sa.BigInteger,
    "job_id": sa.BigInteger,
    "live_extents": sa.Integer,
    "config_version": sa.BigInteger,
}


def _insert(table: str, columns: Mapping[str, Any], ending: str = "") -> sa.TextClause:
    """An INSERT of many rows, with one array parameter per column."""
    names, parameters = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    text = f"INSERT INTO {table} ({names}) SELECT * FROM unnest({parameters}) {ending}"  # noqa: S608 - our own names
    return statement(text, **{name: ARRAY(type_) for name, type_ in columns.items()})


_INSERT_EXTENTS = _insert("extents", _EXTENT_COLUMNS)
_INSERT_FILES = _insert("files", _FILE_COLUMNS, "ON CONFLICT ON CONSTRAINT files_key DO NOTHING RETURNING file_id, key")
_CLEANED = statement(
    """UPDATE log_starts l SET cleaned_through_offset = n.through, last_cleaned_ms = n.cleaned_ms,
        passes_needed = n.passes, requested_through_offset = n.requested, last_pass_took_ms = n.took_ms
    FROM unnest(:partition_ids, :through, :cleaned_ms, :passes, :requested, :took_ms)
        AS n (partition_id, through, cleaned_ms, passes, requested, took_ms)
    WHERE n.partition_id = l.partition_id""",
    partition_ids=INTS,
    through=LONGS,
    cleaned_ms=LONGS,
    passes=INTS,
    requested=LONGS,
    took_ms=LONGS,
)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs that a job holds. Nothing here changes while the job lives."""

    l0_files: Mapping[int, bytes]
    """Packed index by file id."""
    extents: Mapping[int, tuple[int, int, int]]
    """(partition id, base offset, last offset) by extent id."""
    erased_through: Mapping[int, int]
    """By extent id."""
    lo: int
    hi: int

    @property
    def partition_ids(self) -> set[int]:
        of_l0 = {row.partition_id for index in self.l0_files.values() for row in iter_index(index)}
        return of_l0 | {partition_id for partition_id, _, _ in self.extents.values()}

    def ranges(self, live_files: set[int], live_extents: set[int]) -> Iterable[InputRange]:
        for file_id, index in self.l0_files.items():
            for row in iter_index(index):
                yield InputRange(row.partition_id, row.base_offset, row.last_offset, file_id in live_files)
        for extent_id, where in self.extents.items():
            yield InputRange(*where, extent_id in live_extents)

    def stamped(self) -> Mapping[int, list[StampedRange]]:
        """By partition id."""
        found: dict[int, list[StampedRange]] = defaultdict(list)
        for index in self.l0_files.values():
            for row in iter_index(index):
                found[row.partition_id].append(StampedRange(row.base_offset, row.last_offset, 0))
        for extent_id, (partition_id, base_offset, last_offset) in self.extents.items():
            found[partition_id].append(StampedRange(base_offset, last_offset, self.erased_through[extent_id]))
        return found


class MergeCommitter:
    """Part of `PostgresCompactors`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        async def work(connection: AsyncConnection) -> MergeCommitted:
            return await _commit(connection, commit)

        try:
            committed = await self._database.write(work)
        except MergeRefusedError as error:
            await self._fail(commit, str(error), REFUSED_RETRY_MS)
            raise
        except _PastLimitError as error:
            await self._fail(commit, PAST_LIMIT, None)
            raise job_late(commit.job_id) from error
        for file_id in committed.file_ids:
            self._database.saw_file(file_id)
        return committed

    async def _fail(self, commit: CommitMerge, error: str, retry_after_ms: int | None) -> None:
        """Fail the job. If Postgres is unavailable now, the job's lease runs out instead."""

        async def work(connection: AsyncConnection) -> None:
            ours = sa.select(MERGE_JOBS.c.job_id).where(*running(commit.job_id, commit.epoch)).with_for_update()
            # Another claim may hold the job by now; then only that claim may end it.
            if (await connection.execute(ours)).first() is not None:
                await end_failed(connection, commit.job_id, error, retry_after_ms=retry_after_ms)

        with contextlib.suppress(MetadataUnavailableError):
            await self._database.write(work)


class _PastLimitError(JobLostError):
    """The job is ours, but past its time limit."""


async def _commit(connection: AsyncConnection, commit: CommitMerge) -> MergeCommitted:
    await begin_killing(connection)
    job = await _locked_job(connection, commit)
    # A repeat after a lost answer: the same ids again.
    if job.state == "done":
        return MergeCommitted(file_ids=tuple(job.output_file_ids), trimmed_extents=job.trimmed_extents)
    inputs = await _inputs(connection, commit.job_id)
    extent_ids, l0_files = sorted(inputs.extents), sorted(inputs.l0_files)
    written = {extent.partition_id for output in commit.outputs for extent in output.extents}
    # Every partition that anything below reads or moves is locked now, in one order.
    written |= {*commit.covered, *(pass_.partition_id for pass_ in commit.cleaned)}
    log_starts = await lock_partitions(connection, inputs.partition_ids | written)
    await lock_extents(connection, extent_ids)
    await lock_files(connection, extent_ids=extent_ids, file_ids=l0_files)
    at_ms = await now_ms(connection)  # only now: the waits for the locks count towards the limit
    if at_ms > (job.deadline_ms if commit.commit_by_ms is None else min(job.deadline_ms, commit.commit_by_ms)):
        raise _PastLimitError(PAST_LIMIT)
    live_files = set((await connection.execute(_LIVE_L0, {"file_ids": l0_files})).scalars())
    live_extents = set((await connection.execute(_LIVE_EXTENTS, {"extent_ids": extent_ids})).scalars())
    decision = decide_commit(commit, inputs.ranges(live_files, live_extents), log_starts)

    commit = await _stamped(connection, commit, inputs)
    file_ids = await _insert_outputs(connection, commit, decision, inputs, at_ms)
    await _insert_extents(connection, commit, decision, file_ids, at_ms)
    await kill_extents(connection, sorted(live_extents), at_ms=at_ms)
    await connection.execute(_KILL_L0, {"file_ids": l0_files, "now_ms": at_ms})
    await _move_cleaned(connection, commit.cleaned, at_ms, pass_took_ms(job.kind, job.started_ms, at_ms))
    done = {
        "state": "done",
        "finished_ms": at_ms,
        "lease_until_ms": None,
        "result": dict(commit.summary),
        "output_file_ids": file_ids,
        "trimmed_extents": decision.trimmed_extents,
    }
    await connection.execute(sa.update(MERGE_JOBS).where(MERGE_JOBS.c.job_id == commit.job_id).values(done))
    await connection.execute(sa.delete(MERGE_INPUTS).where(MERGE_INPUTS.c.job_id == commit.job_id))
    detail = merged_detail(commit, l0_files)
    if detail is not None:
        await append_change(connection, ChangeKind.MERGED, None, detail)
    return MergeCommitted(file_ids=tuple(file_ids), trimmed_extents=decision.trimmed_extents)


async def _locked_job(connection: AsyncConnection, commit: CommitMerge) -> Any:
    """Lock and read the job's row. The job is ours: running, or done by this same commit. Raises JobLostError."""
    query = sa.select(MERGE_JOBS).where(MERGE_JOBS.c.job_id == commit.job_id).with_for_update()
    job = (await connection.execute(query)).one_or_none()
    if job is None or job.epoch != commit.epoch or job.state not in {"running", "done"}:
        raise job_lost(commit.job_id, commit.epoch)
    return job


async def _inputs(connection: AsyncConnection, job_id: int) -> _Inputs:
    of_job = {"job_id": job_id}
    files = (await connection.execute(_INPUT_L0, of_job)).all()
    extents = (await connection.execute(_INPUT_EXTENTS, of_job)).all()
    return _Inputs(
        {row.file_id: row.packed for row in files},
        {row.extent_id: (row.partition_id, row.base_offset, row.last_offset) for row in extents},
        {row.extent_id: row.erased_through for row in extents},
        min((row.lo for row in chain(files, extents)), default=0),
        max((row.hi for row in chain(files, extents)), default=0),
    )


async def _stamped(connection: AsyncConnection, commit: CommitMerge, inputs: _Inputs) -> CommitMerge:
    """The commit, with the stamps of its outputs raised as `metadata/erasures/stamps.py` says."""
    partition_ids = {extent.partition_id for output in commit.outputs for extent in output.extents}
    erasures = await open_stamps(connection, sorted(partition_ids))
    if not erasures:
        return commit
    read = inputs.stamped()

    def stamped(extent: OutputExtent) -> OutputExtent:
        if extent.partition_id not in erasures:
            return extent
        range_ = StampedRange(extent.base_offset, extent.last_offset, extent.erased_through)
        stamp = raised(range_, read.get(extent.partition_id, ()), erasures[extent.partition_id])
        return replace(extent, erased_through=stamp)

    outputs = [replace(output, extents=[stamped(each) for each in output.extents]) for output in commit.outputs]
    return replace(commit, outputs=outputs)


async def _insert_outputs(
    connection: AsyncConnection, commit: CommitMerge, decision: MergeDecision, inputs: _Inputs, at_ms: int
) -> list[int]:
    """Insert the output files and return their ids, in order. Raises MergeRefusedError."""
    keys = [output.key for output in commit.outputs]
    known = sa.select(FILES.c.key).where(any_of(FILES.c.key, keys))
    check_output_keys(keys, known=(await connection.execute(known)).scalars(), forgotten_key_hour=0)
    ids: dict[str, int] = {}
    if keys:
        rows = [
            (
                *(output.key, output.level, "live" if live else "dead", output.file_class.value, inputs.lo, inputs.hi),
                *(output.size_bytes, output.crc32c, at_ms, None if live else at_ms),
                max((extent.max_timestamp_ms for extent in output.extents), default=-1),
                *(commit.job_id, live, output.config_version),
            )
            for number, output in enumerate(commit.outputs)
            for live in [decision.live_extents(number)]
        ]
        for row in await connection.execute(_INSERT_FILES, _by_column(_FILE_COLUMNS, rows)):
            ids[row.key] = row.file_id
    # Checked again after the insert, which may have waited for an abort of one of the keys. Only a later statement
    # sees that abort, and the rows that were forgotten meanwhile.
    forgotten = (await connection.execute(sa.select(CLUSTER.c.forgotten_key_hour))).scalar_one()
    check_output_keys(keys, known={*keys} - {*ids}, forgotten_key_hour=forgotten)
    return [ids[key] for key in keys]


async def _insert_extents(
    connection: AsyncConnection,
    commit: CommitMerge,
    decision: MergeDecision,
    file_ids: Sequence[int],
    at_ms: int,
) -> None:
    rows = [
        (
            *(extent.partition_id, extent.base_offset, extent.last_offset, file_id, extent.position, extent.length),
            *(extent.block_index_position, extent.block_index_length, extent.record_count, extent.crc32c),
            *(extent.min_timestamp_ms, extent.max_timestamp_ms, extent.has_tombstones, extent.flagged_reason),
            *(extent.uncompressed_bytes, extent.committed_ms, extent.earliest_horizon_ms, extent.erased_through),
            *(("dead", at_ms) if is_trimmed else ("live", None)),
        )
        for output, trimmed, file_id in zip(commit.outputs, decision.trimmed, file_ids, strict=True)
        for extent, is_trimmed in zip(output.extents, trimmed, strict=True)
    ]
    if rows:
        await connection.execute(_INSERT_EXTENTS, _by_column(_EXTENT_COLUMNS, rows))


def _by_column(names: Iterable[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """One parameter per column. One per value would pass the limit of 32,767 parameters in a statement."""
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


_ABORTED_GONE = statement(
    """DELETE FROM aborted_transactions a USING unnest(:partition_ids, :offsets) AS g (partition_id, last_offset)
    WHERE a.partition_id = g.partition_id AND a.last_offset = g.last_offset""",
    partition_ids=INTS,
    offsets=LONGS,
)


async def _move_cleaned(
    connection: AsyncConnection, passes: Sequence[CleanedPartition], at_ms: int, took_ms: int | None
) -> None:
    if not passes:
        return
    by_id = {pass_.partition_id: pass_ for pass_ in passes}
    query = sa.select(LOG_STARTS).where(any_of(LOG_STARTS.c.partition_id, by_id))
    states = {
        row.partition_id: cleaned(
            CleanedState(
                cleaned_through_offset=row.cleaned_through_offset,
                last_cleaned_ms=row.last_cleaned_ms,
                passes_needed=row.passes_needed,
                requested_through_offset=row.requested_through_offset,
                last_pass_took_ms=row.last_pass_took_ms,
            ),
            by_id[row.partition_id],
            now_ms=at_ms,
            took_ms=took_ms,
        )
        for row in await connection.execute(query)
    }
    values = {
        "partition_ids": list(states),
        "through": [state.cleaned_through_offset for state in states.values()],
        "cleaned_ms": [state.last_cleaned_ms for state in states.values()],
        "passes": [state.passes_needed for state in states.values()],
        "requested": [state.requested_through_offset for state in states.values()],
        "took_ms": [state.last_pass_took_ms for state in states.values()],
    }
    await connection.execute(_CLEANED, values)
    gone = [(pass_.partition_id, at) for pass_ in passes for at in pass_.aborted_gone]
    if gone:
        ids, offsets = zip(*gone, strict=True)
        await connection.execute(_ABORTED_GONE, {"partition_ids": list(ids), "offsets": list(offsets)})
