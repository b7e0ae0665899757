"""The planner's view of L1 and above, from Postgres, at one instant.

The objects of a view with hundreds of thousands of extents take seconds to make. So `compaction_view` reads all rows
first and makes the objects after the transaction, because an open transaction slows the commits of L0 files. It makes
them on a thread, because the caller's leases need heartbeats meanwhile.
"""

from __future__ import annotations

import asyncio
import uuid
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
from metadata.postgres.rows import LEVELED_FOR_MERGES, LONGS, UUIDS, any_of, now_ms, statement
from metadata.postgres.tables import LOG_STARTS, PARTITIONS, TOPICS, WATERMARKS
from metadata.rules.retention import TIMESTAMP_MS_MAX, retention_policy

# A file expires when the last of its live extents does, and never if one of them never does.
_FILES = statement(
    f"""SELECT f.file_id, f.level, f.class, f.lo, f.hi, f.job_id, f.size_bytes, f.created_ms, f.max_ts_ms,
        f.trouble_until_ms, f.trouble, x.live_bytes, x.cap_bytes, x.oldest_dead_ms, x.expires_ms
    FROM files f LEFT JOIN (
        SELECT e.file_id, (sum(e.length) FILTER (WHERE e.state = 'live'))::bigint AS live_bytes,
            (sum(coalesce(e.uncompressed_bytes, e.length)) FILTER (WHERE e.state = 'live'))::bigint AS cap_bytes,
            min(e.dead_ms) AS oldest_dead_ms,
            CASE WHEN bool_and(r.expires_after_ms IS NOT NULL) FILTER (WHERE e.state = 'live') THEN max(
                least(CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE l.created_ms END, {TIMESTAMP_MS_MAX})
                + least(r.expires_after_ms, {TIMESTAMP_MS_MAX - 1})
            ) FILTER (WHERE e.state = 'live') END AS expires_ms
        FROM files l JOIN extents e ON e.file_id = l.file_id
        LEFT JOIN partitions p ON p.partition_id = e.partition_id
        LEFT JOIN unnest(:topic_ids, :expires_after_ms) AS r (topic_id, expires_after_ms) ON r.topic_id = p.topic_id
        WHERE l.state = 'live' AND l.level > 0
        GROUP BY e.file_id
    ) AS x ON x.file_id = f.file_id
    WHERE f.state = 'live' ORDER BY f.file_id""",  # noqa: S608 - our own numbers
    topic_ids=UUIDS,
    expires_after_ms=LONGS,
)

_OF_PARTITIONS = f"""{LEVELED_FOR_MERGES} WHERE e.partition_id = ANY ($1::integer[]) AND e.state = 'live'
    ORDER BY e.partition_id, e.base_offset"""

BUSY_INPUTS = sa.text(
    """SELECT i.job_id, i.file_id, i.extent_id, e.file_id AS of_file FROM merge_inputs i
    LEFT JOIN extents e ON e.extent_id = i.extent_id ORDER BY i.job_id, i.file_id, i.extent_id"""
)

_LIVE_JOBS = sa.text(
    """SELECT kind, array_agg(input_bytes ORDER BY job_id) AS sizes FROM merge_jobs
    WHERE state IN ('ready', 'running') GROUP BY kind"""
)

_LAST_DAILY = sa.text("SELECT max(created_ms) FROM merge_jobs WHERE kind = 'daily' AND state <> 'failed'")


class PlannerViews:
    """Part of `PostgresCompactors`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compaction_view(self) -> CompactionView:
        async def work(connection: AsyncConnection) -> _ViewRows:
            at_ms = await now_ms(connection)
            topics = (await connection.execute(TOPICS_IN_FORCE.order_by(TOPICS.c.created_ms, TOPICS.c.name))).all()
            policies = {topic.topic_id: retention_policy(topic.configs) for topic in topics}
            expiries = {
                "topic_ids": list(policies),
                "expires_after_ms": [policy.expires_after_ms for policy in policies.values()],
            }
            files = (await connection.execute(_FILES, expiries)).all()
            compacted = [topic for topic in topics if policies[topic.topic_id].compacts]
            return _ViewRows(
                now_ms=at_ms,
                files=files,
                partitions=await partition_rows(connection, compacted),
                busy=(await connection.execute(BUSY_INPUTS)).all(),
                live_jobs=(await connection.execute(_LIVE_JOBS)).all(),
                retention_check_ms=retention_check_ms((await connection.execute(BROKER_CONFIGS_SET)).scalar_one()),
                last_daily_ms=await connection.scalar(_LAST_DAILY),
                erasing_files=await erasing_files(connection),
            )

        return await asyncio.to_thread(_view, await self._database.read(work, repeatable=True))


class PartitionRows(NamedTuple):
    topics: Mapping[uuid.UUID, Any]
    """Rows of topics by topic id."""
    partitions: Sequence[Any]
    """Rows of these topics' partitions, ordered by topic and partition number."""
    extents: Sequence[Any]
    """Rows of these partitions' live extents, ordered by partition and offset."""


class _ViewRows(NamedTuple):
    now_ms: int
    files: Sequence[Any]
    partitions: PartitionRows
    busy: Sequence[Any]
    live_jobs: Sequence[Any]
    retention_check_ms: int | None
    last_daily_ms: int | None
    erasing_files: Mapping[int, int]


def _view(rows: _ViewRows) -> CompactionView:
    return CompactionView(
        now_ms=rows.now_ms,
        files=[_file_view(row) for row in rows.files],
        partitions=partition_views_of(rows.partitions),
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


async def partition_rows(connection: AsyncConnection, topics: Iterable[Any]) -> PartitionRows:
    by_id = {topic.topic_id: topic for topic in topics}
    if not by_id:
        return PartitionRows({}, (), ())
    query = (
        sa.select(PARTITIONS.c.topic_id, PARTITIONS.c.partition, LOG_STARTS, WATERMARKS.c.next_offset)
        .join(LOG_STARTS, LOG_STARTS.c.partition_id == PARTITIONS.c.partition_id)
        .join(WATERMARKS, WATERMARKS.c.partition_id == PARTITIONS.c.partition_id)
        .where(any_of(PARTITIONS.c.topic_id, by_id))
        .order_by(PARTITIONS.c.topic_id, PARTITIONS.c.partition)
    )
    rows = (await connection.execute(query)).all()
    return PartitionRows(by_id, rows, await extent_rows(connection, [row.partition_id for row in rows]))


async def extent_rows(connection: AsyncConnection, partition_ids: Sequence[int]) -> Sequence[Any]:
    """The live extents of these partitions: rows with the columns of `LeveledExtent`."""
    return await (await driver_of(connection)).fetch(_OF_PARTITIONS, partition_ids)


def partition_views_of(rows: PartitionRows) -> list[PartitionView]:
    extents: dict[int, list[LeveledExtent]] = {row.partition_id: [] for row in rows.partitions}
    for extent in map(LeveledExtent._make, rows.extents):
        extents[extent.partition_id].append(extent)
    return [_partition_view(row, rows.topics[row.topic_id], extents[row.partition_id]) for row in rows.partitions]


def _partition_view(row: Any, topic: Any, extents: Sequence[LeveledExtent]) -> PartitionView:
    high = row.next_offset
    return PartitionView(
        partition_id=row.partition_id,
        topic_id=topic.topic_id,
        topic_name=topic.name,
        partition=row.partition,
        configs=topic.configs,
        config_version=topic.config_version,
        log_start_offset=row.log_start_offset,
        last_stable_offset=high if row.last_stable_offset is None else row.last_stable_offset,
        high_watermark=high,
        cleaned_through_offset=row.cleaned_through_offset,
        last_cleaned_ms=row.last_cleaned_ms,
        last_forced_ms=row.last_forced_ms,
        passes_needed=row.passes_needed,
        requested_through_offset=row.requested_through_offset,
        extents=extents,
        last_pass_took_ms=row.last_pass_took_ms,
    )


def _file_view(row: Any) -> FileView:
    return FileView(
        file_id=row.file_id,
        level=row.level,
        file_class=None if row[2] is None else FileClass(row[2]),
        lo=row.lo,
        hi=row.hi,
        run_id=row.file_id if row.job_id is None else row.job_id,
        size_bytes=row.size_bytes,
        live_bytes=(row.live_bytes or 0) if row.level else row.size_bytes,
        oldest_dead_ms=row.oldest_dead_ms,
        max_timestamp_ms=-1 if row.max_ts_ms is None else row.max_ts_ms,
        expires_ms=row.expires_ms,
        created_ms=row.created_ms,
        trouble_until_ms=row.trouble_until_ms or 0,
        trouble=row.trouble or "",
        uncompressed_bytes=row.cap_bytes or 0,
    )
