"""The planner's view of L1 and above, from Postgres, at one instant.

What it says of files comes from the sums that the database keeps (`0006_sums.sql`), so a view reads no extent for
them. The extents of compacted partitions are kept from one view to the next (`known_extents.py`).

The objects of a view with hundreds of thousands of extents take seconds to make. So `compaction_view` reads all rows
first and makes the objects after the transaction, because an open transaction slows the commits of L0 files. It makes
them on a thread, because the caller's leases need heartbeats meanwhile.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.broker import retention_check_ms
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.postgres.connection import Database
from metadata.postgres.driver import driver_of
from metadata.postgres.erasures.pending import erasing_files
from metadata.postgres.log.broker_configs import BROKER_CONFIGS_SET, TOPICS_IN_FORCE
from metadata.postgres.merges.known_extents import ExtentRows, KnownExtents, learnt, read_extents
from metadata.postgres.rows import any_of, now_ms
from metadata.postgres.tables import LOG_STARTS, PARTITION_SUMS, PARTITIONS, TOPICS, WATERMARKS
from metadata.postgres.transactions.tables import ABORTED_TRANSACTIONS, TRANSACTION_PARTITIONS
from metadata.rules.retention import TIMESTAMP_MS_MAX, retention_policy

# A file expires when the last of its live extents does, and never if one of them never does.
_FILES = f"""SELECT f.file_id, f.level, f.class, f.lo, f.hi, f.job_id, f.size_bytes, f.created_ms, f.max_ts_ms,
        f.trouble_until_ms, f.trouble, s.live_bytes, s.uncompressed_bytes AS cap_bytes, s.oldest_dead_ms,
        CASE WHEN x.all_expire THEN greatest(
            x.timed_ms, least(f.created_ms, {TIMESTAMP_MS_MAX}) + x.untimed_after_ms
        ) END AS expires_ms, f.inline IS NOT NULL AS is_inline
    FROM files f LEFT JOIN file_sums s ON s.file_id = f.file_id LEFT JOIN (
        SELECT t.file_id, bool_and(r.after_ms IS NOT NULL) AS all_expire,
            max(least(t.max_ts_ms, {TIMESTAMP_MS_MAX}) + r.after_ms) FILTER (WHERE t.max_ts_ms >= 0) AS timed_ms,
            max(r.after_ms) FILTER (WHERE t.untimed_extents > 0) AS untimed_after_ms
        FROM file_topic_sums t LEFT JOIN (
            SELECT topic_id, least(after_ms, {TIMESTAMP_MS_MAX - 1}) AS after_ms
            FROM unnest($1::uuid[], $2::bigint[]) AS r (topic_id, after_ms) WHERE after_ms IS NOT NULL
        ) AS r ON r.topic_id = t.topic_id
        GROUP BY t.file_id
    ) AS x ON x.file_id = f.file_id
    WHERE f.state = 'live' ORDER BY f.file_id"""  # noqa: S608 - our own numbers

BUSY_INPUTS = sa.text(
    """SELECT i.job_id, i.file_id, i.extent_id, e.file_id AS of_file FROM merge_inputs i
    LEFT JOIN extents e ON e.extent_id = i.extent_id ORDER BY i.job_id, i.file_id, i.extent_id"""
)

_LIVE_JOBS = sa.text(
    """SELECT kind, array_agg(input_bytes ORDER BY job_id) AS sizes FROM merge_jobs
    WHERE state IN ('ready', 'running') GROUP BY kind"""
)

_LAST_DAILY = sa.text("SELECT max(created_ms) FROM merge_jobs WHERE kind = 'daily' AND state <> 'failed'")


_FIRST_OPEN = (
    sa.select(sa.func.min(TRANSACTION_PARTITIONS.c.first_offset))
    .where(TRANSACTION_PARTITIONS.c.partition_id == PARTITIONS.c.partition_id)
    .scalar_subquery()
    .label("first_open_offset")
)


class PlannerViews:
    """Part of `PostgresCompactors`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Mapping[int, KnownExtents] = {}
        """By id of a compacted partition, as the last view left it."""

    async def compaction_view(self) -> CompactionView:
        while True:
            known = self._known

            async def work(connection: AsyncConnection, known: Mapping[int, KnownExtents] = known) -> _ViewRows | _Part:
                return await _read_view(connection, known, timeline=self._database.seen.timeline)

            rows = await self._database.read(work, repeatable=True)
            view, self._known = await asyncio.to_thread(_view, rows, known)
            if view is not None:
                return view


class PartitionRows(NamedTuple):
    topics: Mapping[uuid.UUID, Any]
    """Rows of topics by topic id."""
    partitions: Sequence[Any]
    """Rows of these topics' partitions, ordered by topic and partition number."""
    aborted: Mapping[int, Sequence[tuple[int, int, int]]]
    """By partition id, as in `PartitionView`."""


class _Part(NamedTuple):
    """An attempt that read a part of the extents."""

    partitions: PartitionRows
    extents: ExtentRows


class _ViewRows(NamedTuple):
    partitions: PartitionRows
    extents: ExtentRows
    now_ms: int
    files: Sequence[Any]
    busy: Sequence[Any]
    live_jobs: Sequence[Any]
    retention_check_ms: int | None
    last_daily_ms: int | None
    erasing_files: Mapping[int, int]


async def _read_view(
    connection: AsyncConnection, known: Mapping[int, KnownExtents], *, timeline: int
) -> _ViewRows | _Part:
    at_ms = await now_ms(connection)
    topics = (await connection.execute(TOPICS_IN_FORCE.order_by(TOPICS.c.created_ms, TOPICS.c.name))).all()
    policies = {topic.topic_id: retention_policy(topic.configs) for topic in topics}
    partitions = await partition_rows(connection, [each for each in topics if policies[each.topic_id].compacts])
    extents = await read_extents(connection, partitions.partitions, known, timeline=timeline)
    if extents.is_part:
        return _Part(partitions, extents)
    after_ms = [policy.expires_after_ms for policy in policies.values()]
    return _ViewRows(
        partitions=partitions,
        extents=extents,
        now_ms=at_ms,
        files=await (await driver_of(connection)).fetch(_FILES, list(policies), after_ms),
        busy=(await connection.execute(BUSY_INPUTS)).all(),
        live_jobs=(await connection.execute(_LIVE_JOBS)).all(),
        retention_check_ms=retention_check_ms((await connection.execute(BROKER_CONFIGS_SET)).scalar_one()),
        last_daily_ms=await connection.scalar(_LAST_DAILY),
        erasing_files=await erasing_files(connection),
    )


def _view(
    rows: _ViewRows | _Part, known: Mapping[int, KnownExtents]
) -> tuple[CompactionView | None, Mapping[int, KnownExtents]]:
    """The view, or None if the attempt does not suffice for one, and what is known now."""
    partitions = rows.partitions.partitions
    known = learnt(partitions, rows.extents, known)
    if isinstance(rows, _Part) or any(
        each.changed is not None and each.partition_id not in known for each in partitions
    ):
        return None, known
    view = CompactionView(
        now_ms=rows.now_ms,
        files=[_file_view(row) for row in rows.files],
        partitions=partition_views_of(rows.partitions, {id_: each.extents for id_, each in known.items()}),
        busy_files=frozenset(
            row.of_file if row.file_id is None else row.file_id
            for row in rows.busy
            if row.file_id is not None or row.of_file is not None
        ),
        busy_extents=frozenset(row.extent_id for row in rows.busy if row.extent_id is not None),
        live_jobs={row.kind: row.sizes for row in rows.live_jobs},
        retention_check_ms=rows.retention_check_ms,
        last_daily_ms=rows.last_daily_ms,
        erasing_files=rows.erasing_files,
    )
    return view, known


async def partition_rows(connection: AsyncConnection, topics: Iterable[Any]) -> PartitionRows:
    by_id = {topic.topic_id: topic for topic in topics}
    if not by_id:
        return PartitionRows({}, (), {})
    sums = (PARTITION_SUMS.c.changed, PARTITION_SUMS.c.live_extents, PARTITION_SUMS.c.live_bytes)
    query = (
        sa.select(
            PARTITIONS.c.topic_id, PARTITIONS.c.partition, LOG_STARTS, WATERMARKS.c.next_offset, *sums, _FIRST_OPEN
        )
        .join(LOG_STARTS, LOG_STARTS.c.partition_id == PARTITIONS.c.partition_id)
        .join(WATERMARKS, WATERMARKS.c.partition_id == PARTITIONS.c.partition_id)
        .join(PARTITION_SUMS, PARTITION_SUMS.c.partition_id == PARTITIONS.c.partition_id, isouter=True)
        .where(any_of(PARTITIONS.c.topic_id, by_id))
        .order_by(PARTITIONS.c.topic_id, PARTITIONS.c.partition)
    )
    rows = (await connection.execute(query)).all()
    return PartitionRows(by_id, rows, await _aborted(connection, rows))


async def _aborted(
    connection: AsyncConnection, partitions: Sequence[Any]
) -> Mapping[int, Sequence[tuple[int, int, int]]]:
    stable = {row.partition_id: _stable_offset(row) for row in partitions}
    query = sa.select(ABORTED_TRANSACTIONS).where(any_of(ABORTED_TRANSACTIONS.c.partition_id, stable))
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in await connection.execute(query.order_by(ABORTED_TRANSACTIONS.c.first_offset)):
        if row.first_offset < stable[row.partition_id]:
            found[row.partition_id].append((row.producer_id, row.first_offset, row.last_offset))
    return found


def _stable_offset(row: Any) -> int:
    return row.next_offset if row.first_open_offset is None else max(row.first_open_offset, row.log_start_offset)


def partition_views_of(rows: PartitionRows, extents: Mapping[int, Sequence[LeveledExtent]]) -> list[PartitionView]:
    """`extents` by partition id; the others have none."""
    return [
        _partition_view(
            row, rows.topics[row.topic_id], extents.get(row.partition_id, ()), rows.aborted.get(row.partition_id, ())
        )
        for row in rows.partitions
    ]


def _partition_view(
    row: Any, topic: Any, extents: Sequence[LeveledExtent], aborted: Sequence[tuple[int, int, int]]
) -> PartitionView:
    return PartitionView(
        partition_id=row.partition_id,
        topic_id=topic.topic_id,
        topic_name=topic.name,
        partition=row.partition,
        configs=topic.configs,
        config_version=topic.config_version,
        log_start_offset=row.log_start_offset,
        last_stable_offset=_stable_offset(row),
        high_watermark=row.next_offset,
        cleaned_through_offset=row.cleaned_through_offset,
        last_cleaned_ms=row.last_cleaned_ms,
        last_forced_ms=row.last_forced_ms,
        passes_needed=row.passes_needed,
        requested_through_offset=row.requested_through_offset,
        extents=extents,
        last_pass_took_ms=row.last_pass_took_ms,
        aborted=aborted,
    )


def _file_view(row: Mapping[str, Any]) -> FileView:
    (file_id, level, file_class, lo, hi, job_id, size_bytes, created_ms, max_timestamp_ms, *rest) = row.values()
    trouble_until_ms, trouble, live_bytes, cap_bytes, oldest_dead_ms, expires_ms, is_inline = rest
    return FileView(
        file_id=file_id,
        level=level,
        file_class=None if file_class is None else FileClass(file_class),
        lo=lo,
        hi=hi,
        run_id=file_id if job_id is None else job_id,
        size_bytes=size_bytes,
        live_bytes=(live_bytes or 0) if level else size_bytes,
        oldest_dead_ms=oldest_dead_ms,
        max_timestamp_ms=-1 if max_timestamp_ms is None else max_timestamp_ms,
        expires_ms=expires_ms,
        created_ms=created_ms,
        trouble_until_ms=trouble_until_ms or 0,
        trouble=trouble or "",
        uncompressed_bytes=cap_bytes or 0,
        is_inline=is_inline,
    )
