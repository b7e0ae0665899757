"""The life of merge jobs in Postgres; the commit is in `metadata/postgres/merges/commit.py`.

A claim is one transaction under the job's row lock (`FOR UPDATE SKIP LOCKED`). Every later step names the epoch of its
claim, so a holder that lost the job can change nothing. A crash anywhere leaves a job whose lease runs out. Only live
jobs have rows in `merge_inputs`: the step that ends a job removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.jobs import (
    JOB_ATTEMPTS_MAX,
    ClaimedJob,
    InputPartition,
    JobLostError,
    JobState,
    L0Input,
    MergeJob,
    NewJob,
)
from metadata.contract.leases import JOB_LEASE_MS, WriterLease
from metadata.postgres.connection import Database
from metadata.postgres.rows import INTS, LEVELED_FOR_MERGES, LONGS, any_of, leveled, lock_partitions, statement
from metadata.postgres.tables import (
    LOG_STARTS,
    MERGE_INPUTS,
    MERGE_JOBS,
)
from metadata.rules import jobs as job_rules
from metadata.rules.packed_index import iter_index

NOW_MS = sa.text("clock_ms()")

_LEASE_END = sa.literal_column(f"clock_ms() + {JOB_LEASE_MS}", sa.BigInteger)

_LEASED_MS_MAX = job_rules.LEASE_SLACK * JOB_LEASE_MS

# FOR SHARE, in the order of ids: none of them may die before `merge_inputs` says who holds it.
_LIVE_EXTENTS = statement(
    """SELECT extent_id, file_id FROM extents
    WHERE state = 'live' AND (extent_id = ANY (:extent_ids) OR file_id = ANY (:file_ids))
    ORDER BY extent_id FOR SHARE""",
    extent_ids=LONGS,
    file_ids=LONGS,
)

_LIVE_L0 = statement(
    """SELECT file_id FROM files WHERE state = 'live' AND level = 0 AND file_id = ANY (:file_ids)
    ORDER BY file_id FOR SHARE""",
    file_ids=LONGS,
)

_INSERT_INPUTS = statement(
    """INSERT INTO merge_inputs (job_id, file_id, extent_id)
    SELECT CAST(:job_id AS bigint), i, NULL FROM unnest(:file_ids) AS i
    UNION ALL SELECT CAST(:job_id AS bigint), NULL, i FROM unnest(:extent_ids) AS i""",
    file_ids=LONGS,
    extent_ids=LONGS,
)

_NOT_HELD = f"""(state = 'ready' OR state = 'running'
    AND NOT (lease_until_ms > clock_ms() AND lease_until_ms <= clock_ms() + {_LEASED_MS_MAX}))"""

# Upper bounds in both: a lease or a rest that seems longer than one can be dates from before the clock went back.
_CLAIMABLE = f"""state IN ('ready', 'running') AND CASE state
    WHEN 'running' THEN NOT (lease_until_ms > clock_ms() AND lease_until_ms <= clock_ms() + {_LEASED_MS_MAX})
    ELSE NOT (not_before_ms > clock_ms() AND not_before_ms <= clock_ms() + {job_rules.REST_MS_MAX}) END"""

_INPUT_L0 = statement(
    """SELECT f.file_id, f.key, f.size_bytes, f.created_ms, f.index, coalesce(f.inline, '') AS inline
    FROM merge_inputs i JOIN files f ON f.file_id = i.file_id
    WHERE i.job_id = :job_id AND f.state = 'live' ORDER BY f.file_id""",
    job_id=sa.BigInteger,
)

_INPUT_EXTENTS = statement(
    f"""{LEVELED_FOR_MERGES} JOIN merge_inputs i ON i.extent_id = e.extent_id
    WHERE i.job_id = :job_id AND e.state = 'live' ORDER BY e.partition_id, e.base_offset""",
    job_id=sa.BigInteger,
)

_INPUT_PARTITIONS = statement(
    """SELECT p.partition_id, p.topic_id, t.name, p.partition, c.topic_defaults || t.configs AS configs,
        t.config_version, l.log_start_offset,
        greatest(l.log_start_offset, coalesce((
            SELECT x.first_offset FROM transaction_partitions x
            WHERE x.partition_id = p.partition_id AND x.first_offset IS NOT NULL
            ORDER BY x.partition_id, x.first_offset LIMIT 1
        ), w.next_offset)) AS last_stable_offset, w.next_offset
    FROM cluster c, partitions p JOIN topics t ON t.topic_id = p.topic_id
    JOIN watermarks w ON w.partition_id = p.partition_id JOIN log_starts l ON l.partition_id = p.partition_id
    WHERE p.partition_id = ANY (:partition_ids)""",
    partition_ids=INTS,
).columns(topic_id=sa.Uuid, configs=JSONB)

# Locked in the order of ids first: an UPDATE alone takes its rows in any order and could deadlock with a merge.
_TROUBLE = statement(
    """UPDATE files f SET trouble = :error, trouble_until_ms = clock_ms()
        + CASE WHEN f.trouble_until_ms > clock_ms() - :within_ms THEN :again_after_ms ELSE :retry_after_ms END
    FROM (
        SELECT file_id FROM files WHERE state = 'live' AND file_id = ANY (:file_ids)
        ORDER BY file_id FOR NO KEY UPDATE
    ) AS locked
    WHERE f.file_id = locked.file_id""",
    retry_after_ms=sa.BigInteger,
    again_after_ms=sa.BigInteger,
    within_ms=sa.BigInteger,
    error=sa.Text,
    file_ids=LONGS,
)

_INPUT_FILES = statement(
    """SELECT DISTINCT coalesce(i.file_id, e.file_id) FROM merge_inputs i
    LEFT JOIN extents e ON e.extent_id = i.extent_id WHERE i.job_id = :job_id""",
    job_id=sa.BigInteger,
)


class Jobs:
    """Part of `PostgresCompactors`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_job(self, job: NewJob) -> int:
        l0_files = sorted(set(job.l0_file_ids))

        async def work(connection: AsyncConnection) -> int:
            # First: rows of `log_starts` come before extents and files in the order of locks.
            await _mark_forced(connection, job.forced_partition_ids)
            wanted = {"extent_ids": list(set(job.extent_ids)), "file_ids": list(set(job.file_ids))}
            live = {row.extent_id: row.file_id for row in await connection.execute(_LIVE_EXTENTS, wanted)}
            found = (await connection.execute(_LIVE_L0, {"file_ids": l0_files})).scalars().all()
            # An input that is not live means that the plan is out of date.
            missing = {*job.extent_ids} - {*live} or {*job.file_ids} - {*live.values()} or {*l0_files} - {*found}
            if missing:
                raise job_rules.inputs_not_live(missing)
            row: dict[str, Any] = {
                "kind": job.kind,
                "spec": dict(job.spec),
                "limit_ms": job.limit_ms,
                "input_files": len({*l0_files, *live.values()}),
                "input_bytes": job.input_bytes,
                "forced_partition_ids": list(job.forced_partition_ids),
            }
            if job.rest_ms:
                row["not_before_ms"] = sa.literal_column(f"clock_ms() + {int(job.rest_ms)}", sa.BigInteger)
            made = sa.insert(MERGE_JOBS).values(**row, created_ms=NOW_MS).returning(MERGE_JOBS.c.job_id)
            job_id: int = (await connection.execute(made)).scalar_one()
            inputs = {"job_id": job_id, "file_ids": l0_files, "extent_ids": sorted(live)}
            try:
                await connection.execute(_INSERT_INPUTS, inputs)
            # Unique keys over the inputs are the rule MERGE-1: of two planners at once, one fails here.
            except IntegrityError as error:
                raise job_rules.inputs_held() from error
            return job_id

        return await self._database.write(work)

    async def claim_job(
        self,
        lease: WriterLease,
        *,
        kinds: Sequence[str] = (),
        job_id: int | None = None,
        bytes_min: int = 0,
        bytes_below: int | None = None,
    ) -> ClaimedJob | None:
        claimable = sa.select(MERGE_JOBS).where(sa.text(_CLAIMABLE if job_id is None else _NOT_HELD))
        if job_id is not None:
            claimable = claimable.where(MERGE_JOBS.c.job_id == job_id)
        if kinds:
            claimable = claimable.where(MERGE_JOBS.c.kind.in_(kinds))
        if bytes_min > 0:
            claimable = claimable.where(MERGE_JOBS.c.input_bytes >= bytes_min)
        if bytes_below is not None:
            claimable = claimable.where(MERGE_JOBS.c.input_bytes < bytes_below)
        claimable = claimable.order_by(MERGE_JOBS.c.job_id).limit(1).with_for_update(skip_locked=True)

        async def work(connection: AsyncConnection) -> ClaimedJob | None:
            # A job without attempts left is failed on the way, and the next one is tried.
            while (found := (await connection.execute(claimable)).one_or_none()) is not None:
                if found.attempts < JOB_ATTEMPTS_MAX:
                    return await _claimed(connection, found.job_id, lease)
                await end_failed(
                    connection,
                    found.job_id,
                    job_rules.given_up(found.attempts),
                    retry_after_ms=job_rules.EXHAUSTED_RETRY_MS,
                    again_after_ms=job_rules.EXHAUSTED_AGAIN_RETRY_MS,
                )
            return None

        return await self._database.write(work)

    async def beat_job(self, job_id: int, epoch: int, *, progress: Mapping[str, Any] | None = None) -> None:
        async def work(connection: AsyncConnection) -> JobLostError | None:
            values: dict[str, Any] = {"lease_until_ms": _LEASE_END}
            if progress is not None:
                values["progress"] = dict(progress)
            beat = sa.update(MERGE_JOBS).where(*running(job_id, epoch)).values(values)
            row = (await connection.execute(beat.returning((MERGE_JOBS.c.deadline_ms < NOW_MS).label("late")))).first()
            if row is None:
                return job_rules.job_lost(job_id, epoch)
            if row.late:  # commit the failure first: an error raised in here would roll it back
                await end_failed(connection, job_id, job_rules.past_limit(progress), retry_after_ms=None)
                return job_rules.job_late(job_id)
            return None

        lost = await self._database.write(work)
        if lost is not None:
            raise lost

    async def give_back_job(self, job_id: int, epoch: int, *, trouble: str = "", file_ids: Sequence[int] = ()) -> None:
        async def work(connection: AsyncConnection) -> None:
            ours = sa.select(MERGE_JOBS.c.give_backs).where(*running(job_id, epoch)).with_for_update()
            give_backs = (await connection.execute(ours)).scalar_one_or_none()
            # Another claim holds the job by now: there is nothing to give back.
            if give_backs is None:
                return
            if trouble and give_backs + 1 >= job_rules.GIVE_BACKS_MAX:
                retry_after_ms = job_rules.UNREADABLE_RETRY_MS if file_ids else job_rules.UNWRITTEN_RETRY_MS
                blamed = file_ids or None
                await end_failed(connection, job_id, trouble, retry_after_ms=retry_after_ms, file_ids=blamed)
                return
            given_back = ready_again(*running(job_id, epoch))
            if trouble:
                rest_ms = job_rules.give_back_rest_ms(give_backs + 1)
                rested = sa.literal_column(f"clock_ms() + {rest_ms}", sa.BigInteger)
                given_back = given_back.values(not_before_ms=rested, give_backs=give_backs + 1, error=trouble)
            await connection.execute(given_back)

        await self._database.write(work)

    async def fail_job(
        self, job_id: int, epoch: int, *, error: str, file_ids: Sequence[int] = (), retry_after_ms: int = 60_000
    ) -> None:
        async def work(connection: AsyncConnection) -> None:
            locked = sa.select(MERGE_JOBS.c.job_id).where(*running(job_id, epoch)).with_for_update()
            if (await connection.execute(locked)).first() is not None:
                await end_failed(connection, job_id, error, retry_after_ms=retry_after_ms, file_ids=file_ids)

        await self._database.write(work)

    async def job(self, job_id: int) -> MergeJob | None:
        async def work(connection: AsyncConnection) -> MergeJob | None:
            row = (await connection.execute(sa.select(MERGE_JOBS).where(MERGE_JOBS.c.job_id == job_id))).one_or_none()
            return None if row is None else job_of(row)

        return await self._database.read(work)


def running(job_id: int, epoch: int) -> tuple[sa.ColumnElement[bool], ...]:
    """The job runs under this epoch, so it is ours."""
    return MERGE_JOBS.c.job_id == job_id, MERGE_JOBS.c.epoch == epoch, MERGE_JOBS.c.state == "running"


async def end_failed(
    connection: AsyncConnection,
    job_id: int,
    error: str,
    *,
    retry_after_ms: int | None,
    again_after_ms: int | None = None,
    file_ids: Iterable[int] | None = None,
) -> None:
    """Fail a live job and free its inputs. The caller holds the job's row.

    No job takes `file_ids` (None: all inputs) for `retry_after_ms` (None: no pause). For files that were in trouble
    lately the pause is `again_after_ms`.
    """
    if retry_after_ms is not None:
        if file_ids is None:
            file_ids = (await connection.execute(_INPUT_FILES, {"job_id": job_id})).scalars()
        values = {
            "retry_after_ms": retry_after_ms,
            "again_after_ms": retry_after_ms if again_after_ms is None else again_after_ms,
            "within_ms": job_rules.AGAIN_WITHIN_MS,
            "error": error,
            "file_ids": sorted(set(file_ids)),
        }
        await connection.execute(_TROUBLE, values)
    ended = {"state": "failed", "finished_ms": NOW_MS, "lease_until_ms": None, "error": error}
    await connection.execute(sa.update(MERGE_JOBS).where(MERGE_JOBS.c.job_id == job_id).values(ended))
    await connection.execute(sa.delete(MERGE_INPUTS).where(MERGE_INPUTS.c.job_id == job_id))


def ready_again(*which: sa.ColumnElement[bool]) -> sa.Update:
    """Make these running jobs ready. Does not count as an attempt, because the holder itself gave the job back."""
    attempts = sa.func.greatest(MERGE_JOBS.c.attempts - 1, 0)
    values = {"state": "ready", "attempts": attempts, "deadline_ms": None, "lease_until_ms": None}
    return sa.update(MERGE_JOBS).where(MERGE_JOBS.c.state == "running", *which).values(values)


async def _mark_forced(connection: AsyncConnection, partition_ids: Sequence[int]) -> None:
    if partition_ids:
        await lock_partitions(connection, partition_ids)
        forced = sa.update(LOG_STARTS).where(any_of(LOG_STARTS.c.partition_id, partition_ids))
        await connection.execute(forced.values(last_forced_ms=NOW_MS))


async def _claimed(connection: AsyncConnection, job_id: int, lease: WriterLease) -> ClaimedJob:
    """Claim a job and read its inputs. The caller holds the job's row. The partitions are read last, so that their
    watermarks are no older than the inputs."""
    claim: dict[str, Any] = {
        "state": "running",
        "epoch": MERGE_JOBS.c.epoch + 1,
        "holder": lease.writer_id,
        "attempts": MERGE_JOBS.c.attempts + 1,
        "started_ms": NOW_MS,
        "deadline_ms": sa.literal_column("clock_ms()", sa.BigInteger) + MERGE_JOBS.c.limit_ms,
        "lease_until_ms": _LEASE_END,
        "progress": {},
        "error": "",
    }
    claimed = sa.update(MERGE_JOBS).where(MERGE_JOBS.c.job_id == job_id).values(claim).returning(MERGE_JOBS)
    job = job_of((await connection.execute(claimed)).one())
    of_job = {"job_id": job_id}
    l0_files = [L0Input(**row) for row in (await connection.execute(_INPUT_L0, of_job)).mappings()]
    extents = await leveled(connection, _INPUT_EXTENTS, of_job)
    held = {row.partition_id for file in l0_files for row in iter_index(file.index)}
    held |= {extent.partition_id for extent in extents}
    rows = await connection.execute(_INPUT_PARTITIONS, {"partition_ids": sorted(held)})
    return ClaimedJob(
        job=job,
        now_ms=job.started_ms or 0,
        l0_files=l0_files,
        extents=extents,
        partitions={row.partition_id: _input_partition(row) for row in rows},
    )


def _input_partition(row: Any) -> InputPartition:
    return InputPartition(
        partition_id=row.partition_id,
        topic_id=row.topic_id,
        topic_name=row.name,
        partition=row.partition,
        configs=row.configs,
        config_version=row.config_version,
        log_start_offset=row.log_start_offset,
        last_stable_offset=row.last_stable_offset,
        high_watermark=row.next_offset,
    )


def job_of(row: Any) -> MergeJob:
    names = (
        *("job_id", "kind", "epoch", "spec", "holder", "attempts", "created_ms", "started_ms", "deadline_ms"),
        *(
            "finished_ms",
            "lease_until_ms",
            "not_before_ms",
            "input_files",
            "input_bytes",
            "progress",
            "result",
            "error",
        ),
    )
    return MergeJob(state=JobState(row.state), **{name: getattr(row, name) for name in names})
