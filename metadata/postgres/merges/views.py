"""What Postgres shows of L1 and above: to the planner, to readers, to the invariants. Each view is of one instant.

With hundreds of thousands of extents the objects of a view take seconds to make. So its rows are read first, all of
them, and made into a view when the transaction is over (a snapshot that is held costs the commits of L0 files dear), on
a thread, for the leases of whoever asks must be beaten meanwhile.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.topic import as_int, resolve
from metadata.contract import compaction as c
from metadata.contract.service import UnknownTopicError
from metadata.postgres.admin import TOPICS_IN_FORCE
from metadata.postgres.connection import Database
from metadata.postgres.driver import driver_of
from metadata.postgres.log.log import WATERMARKS_QUERY, l0_file_of, watermarks_of
from metadata.postgres.rows import INTS, LEVELED, LONGS, UUIDS, any_of, leveled, lock_partitions, now_ms, statement
from metadata.postgres.tables import FILES, LOG_STARTS, PARTITIONS, PINS, TOPICS, WATERMARKS
from metadata.rules.packed_index import iter_index
from metadata.rules.retention import TIMESTAMP_MS_MAX, cleanable_through, retention_policy

_FILES = statement(
    f"""SELECT f.file_id, f.level, f.class, f.lo, f.hi, f.job_id, f.size_bytes, f.created_ms, f.max_ts_ms,
        f.trouble_until_ms, f.trouble, x.live_bytes, x.oldest_dead_ms, x.expires_ms
    FROM files f LEFT JOIN (
        SELECT e.file_id, (sum(e.length) FILTER (WHERE e.state = 'live'))::bigint AS live_bytes,
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
_OF_PARTITIONS = f"""{LEVELED} WHERE e.partition_id = ANY ($1::integer[]) AND e.state = 'live'
    ORDER BY e.partition_id, e.base_offset"""
_FROM_OFFSET = statement(
    f"""{LEVELED} WHERE e.partition_id = :partition_id AND e.state = 'live' AND e.last_offset >= :from_offset
    ORDER BY e.last_offset LIMIT :limit""",
    partition_id=sa.Integer,
    from_offset=sa.BigInteger,
    limit=sa.BigInteger,
)
_FROM_TIMESTAMP = statement(
    f"""{LEVELED} WHERE e.partition_id = :partition_id AND e.state = 'live' AND e.last_offset >= :from_offset
        AND e.max_ts_ms >= :timestamp_ms AND e.record_count > 0
    ORDER BY e.last_offset LIMIT :limit""",
    partition_id=sa.Integer,
    from_offset=sa.BigInteger,
    timestamp_ms=sa.BigInteger,
    limit=sa.BigInteger,
)
_LARGEST_TIMESTAMP = statement(
    f"""{LEVELED} WHERE e.partition_id = :partition_id AND e.state = 'live' AND e.record_count > 0
    ORDER BY e.max_ts_ms DESC, e.base_offset LIMIT 1""",
    partition_id=sa.Integer,
)
_ALL_LIVE = sa.text(f"{LEVELED} WHERE e.state = 'live' ORDER BY e.partition_id, e.base_offset")
_BUSY = sa.text(
    """SELECT i.job_id, i.file_id, i.extent_id, e.file_id AS of_file FROM merge_inputs i
    LEFT JOIN extents e ON e.extent_id = i.extent_id ORDER BY i.job_id, i.file_id, i.extent_id"""
)
_LIVE_JOBS = sa.text(
    """SELECT kind, array_agg(input_bytes ORDER BY job_id) AS sizes FROM merge_jobs
    WHERE state IN ('ready', 'running') GROUP BY kind"""
)
_LAST_DAILY = sa.text("SELECT max(created_ms) FROM merge_jobs WHERE kind = 'daily' AND state <> 'failed'")
_REQUEST = statement(
    """UPDATE log_starts l SET requested_through_offset = greatest(l.requested_through_offset, r.through)
    FROM unnest(:partition_ids, :through) AS r (partition_id, through)
    WHERE l.partition_id = r.partition_id AND r.through > l.log_start_offset AND (
        r.through > l.cleaned_through_offset OR l.passes_needed > 1
        OR EXISTS (
            SELECT FROM extents e
            WHERE e.partition_id = l.partition_id AND e.state = 'live' AND e.has_tombstones
                AND e.base_offset < r.through
        ))""",
    partition_ids=INTS,
    through=LONGS,
)


class PostgresCompaction:
    """Part of `PostgresMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compaction_view(self) -> c.CompactionView:
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
                partitions=await _partition_rows(connection, compacted),
                busy=(await connection.execute(_BUSY)).all(),
                live_jobs=(await connection.execute(_LIVE_JOBS)).all(),
                last_daily_ms=await connection.scalar(_LAST_DAILY),
            )

        return await asyncio.to_thread(_view, await self._database.read(work, repeatable=True))

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[c.PartitionView]:
        async def work(connection: AsyncConnection) -> _PartitionRows:
            return await _partition_rows(connection, [await _topic(connection, topic_id)])

        return await asyncio.to_thread(_partition_views, await self._database.read(work, repeatable=True))

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        async def work(connection: AsyncConnection) -> Mapping[int, int]:
            topic = await _topic(connection, topic_id)
            if not retention_policy(topic.configs).compacts:
                raise c.NotCompactedError(f"topic {topic.name!r} is not compacted", remedy="set cleanup.policy=compact")
            ids = (
                await connection.execute(
                    sa.select(PARTITIONS.c.partition_id)
                    .where(PARTITIONS.c.topic_id == topic_id)
                    .order_by(PARTITIONS.c.partition)
                )
            ).scalars()
            starts = await lock_partitions(connection, partition_ids := list(ids))
            marks = await connection.execute(
                sa.text(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY (:ids)").bindparams(
                    sa.bindparam("ids", partition_ids, INTS)
                )
            )
            ends = {mark["partition_id"]: watermarks_of(mark).last_stable_offset for mark in marks.mappings()}
            min_lag_ms = as_int(resolve(topic.configs), "min.compaction.lag.ms")
            stretches = await _stretches(connection, starts) if min_lag_ms > 0 else {}
            at_ms = await now_ms(connection)
            through = {
                partition_id: cleanable_through(
                    stretches.get(partition_id, ()), end_offset=ends[partition_id], min_lag_ms=min_lag_ms, now_ms=at_ms
                )
                for partition_id in partition_ids
                if partition_id in ends
            }
            await connection.execute(_REQUEST, {"partition_ids": list(through), "through": list(through.values())})
            return through

        return await self._database.write(work)

    # -- reading L1 and L2

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[c.LeveledExtent]:
        return await self._leveled(_FROM_OFFSET, partition_id=partition_id, from_offset=offset, limit=limit)

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[c.LeveledExtent]:
        return await self._leveled(
            _FROM_TIMESTAMP,
            partition_id=partition_id,
            from_offset=from_offset,
            timestamp_ms=timestamp_ms,
            limit=limit,
        )

    async def largest_leveled_timestamp(self, partition_id: int) -> c.LeveledExtent | None:
        return next(iter(await self._leveled(_LARGEST_TIMESTAMP, partition_id=partition_id)), None)

    async def _leveled(self, query: sa.TextClause, **values: int) -> Sequence[c.LeveledExtent]:
        async def work(connection: AsyncConnection) -> Sequence[c.LeveledExtent]:
            return await leveled(connection, query, values)

        return await self._database.read(work)

    # -- the invariants

    async def system_view(self) -> c.SystemView:
        async def work(connection: AsyncConnection) -> c.SystemView:
            at_ms = await now_ms(connection)
            live = sa.select(FILES).where(FILES.c.state == "live").order_by(FILES.c.file_id)
            l0 = (await connection.execute(live.where(FILES.c.level == 0))).mappings()
            counts = live.with_only_columns(FILES.c.file_id, FILES.c.live_extents).where(FILES.c.level > 0)
            pins = sa.select(PINS.c.created_ms).where(PINS.c.expires_ms > at_ms)
            marks = (await connection.execute(sa.text(f"{WATERMARKS_QUERY} ORDER BY 1"))).mappings()
            return c.SystemView(
                now_ms=at_ms,
                watermarks=[watermarks_of(row) for row in marks],
                l0_files=[l0_file_of(row, row["file_id"], row["key"]) for row in l0],
                extents=await leveled(connection, _ALL_LIVE, {}),
                live_extents={row.file_id: row.live_extents for row in await connection.execute(counts)},
                job_inputs=[
                    (row.job_id, row.of_file if row.file_id is None else row.file_id, row.extent_id)
                    for row in await connection.execute(_BUSY)
                    if row.file_id is not None or row.of_file is not None
                ],
                pins=list((await connection.execute(pins)).scalars()),
            )

        return await self._database.read(work, repeatable=True)


async def _topic(connection: AsyncConnection, topic_id: uuid.UUID) -> Any:
    """The topic's row, with its configs in force. Raises UnknownTopicError."""
    topic = (await connection.execute(TOPICS_IN_FORCE.where(TOPICS.c.topic_id == topic_id))).one_or_none()
    if topic is None:
        raise UnknownTopicError(f"there is no topic with id {topic_id}")
    return topic


class _PartitionRows(NamedTuple):
    topics: Mapping[uuid.UUID, Any]
    """By id."""
    partitions: Sequence[Any]
    """Of these topics, by partition number."""
    extents: Sequence[Any]
    """Of these partitions, by offset."""


class _ViewRows(NamedTuple):
    now_ms: int
    files: Sequence[Any]
    partitions: _PartitionRows
    busy: Sequence[Any]
    live_jobs: Sequence[Any]
    last_daily_ms: int | None


def _view(rows: _ViewRows) -> c.CompactionView:
    return c.CompactionView(
        now_ms=rows.now_ms,
        files=[_file_view(row) for row in rows.files],
        partitions=_partition_views(rows.partitions),
        busy_files=frozenset(
            row.of_file if row.file_id is None else row.file_id
            for row in rows.busy
            if row.file_id is not None or row.of_file is not None
        ),
        busy_extents=frozenset(row.extent_id for row in rows.busy if row.extent_id is not None),
        live_jobs={row.kind: row.sizes for row in rows.live_jobs},
        last_daily_ms=rows.last_daily_ms,
    )


async def _partition_rows(connection: AsyncConnection, topics: Iterable[Any]) -> _PartitionRows:
    by_id = {topic.topic_id: topic for topic in topics}
    if not by_id:
        return _PartitionRows({}, (), ())
    query = (
        sa.select(PARTITIONS.c.topic_id, PARTITIONS.c.partition, LOG_STARTS, WATERMARKS.c.next_offset)
        .join(LOG_STARTS, LOG_STARTS.c.partition_id == PARTITIONS.c.partition_id)
        .join(WATERMARKS, WATERMARKS.c.partition_id == PARTITIONS.c.partition_id)
        .where(any_of(PARTITIONS.c.topic_id, by_id))
        .order_by(PARTITIONS.c.topic_id, PARTITIONS.c.partition)
    )
    rows = (await connection.execute(query)).all()
    return _PartitionRows(by_id, rows, await _extent_rows(connection, [row.partition_id for row in rows]))


async def _extent_rows(connection: AsyncConnection, partition_ids: Sequence[int]) -> Sequence[Any]:
    """The columns of `LeveledExtent`."""
    return await (await driver_of(connection)).fetch(_OF_PARTITIONS, partition_ids)


def _partition_views(rows: _PartitionRows) -> list[c.PartitionView]:
    extents: dict[int, list[c.LeveledExtent]] = {row.partition_id: [] for row in rows.partitions}
    for extent in map(c.LeveledExtent._make, rows.extents):
        extents[extent.partition_id].append(extent)
    return [_partition_view(row, rows.topics[row.topic_id], extents[row.partition_id]) for row in rows.partitions]


def _partition_view(row: Any, topic: Any, extents: Sequence[c.LeveledExtent]) -> c.PartitionView:
    high = row.next_offset
    return c.PartitionView(
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
    )


def _file_view(row: Any) -> c.FileView:
    return c.FileView(
        file_id=row.file_id,
        level=row.level,
        file_class=None if row[2] is None else c.FileClass(row[2]),
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
    )


async def _stretches(connection: AsyncConnection, starts: Mapping[int, int]) -> dict[int, list[tuple[int, int]]]:
    """(base offset, largest timestamp) of what lives of these partitions, on any level."""
    found: dict[int, list[tuple[int, int]]] = {partition_id: [] for partition_id in starts}
    for extent in map(c.LeveledExtent._make, await _extent_rows(connection, list(starts))):
        found[extent.partition_id].append((extent.base_offset, extent.max_timestamp_ms))
    l0 = sa.select(FILES.c.index).where(FILES.c.level == 0, FILES.c.state == "live")
    for index in (await connection.execute(l0)).scalars():
        for row in iter_index(index):
            if row.last_offset >= starts.get(row.partition_id, row.last_offset + 1):
                found[row.partition_id].append((row.base_offset, row.max_timestamp_ms))
    return found
