"""The calls of readers, over Postgres: extents of L1 and above, one topic at one instant, pins.

All statements of a topic's snapshot run in one read-only transaction at REPEATABLE READ, so they see one snapshot of
the database: a merge that commits meanwhile is in all of them or in none. The transaction only reads the rows. A thread
makes the objects afterwards, because an open transaction slows the commits of L0 files. L0 files are read in chunks of
FILES_AT_A_TIME, and index entries of other topics are dropped at once, because there may be a GiB of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import L0FileRow, LeveledWindow, TopicSnapshot, partition_snapshots, unknown_topic
from metadata.contract.topics import (
    Topic,
    Watermarks,
)
from metadata.postgres.connection import Database
from metadata.postgres.log.snapshot import WATERMARKS_QUERY, watermarks_of
from metadata.postgres.log.topics import TOPICS_BEFORE_REPLICAS, read_topics
from metadata.postgres.rows import (
    INTS,
    LEVELED,
    leveled,
    leveled_extent,
    now_ms,
    statement,
)
from metadata.postgres.tables import (
    FILES,
    PARTITIONS,
    TOPICS,
)
from metadata.rules.packed_index import rows_of
from metadata.transactions.contract import AbortedTransaction

FILES_AT_A_TIME = 100

_WATERMARKS = statement(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY (:partition_ids)", partition_ids=INTS)

_EXTENTS = statement(
    f"{LEVELED} WHERE e.partition_id = ANY (:partition_ids) AND e.state = 'live' ORDER BY e.extent_id",
    partition_ids=INTS,
)

_L0_FILES = (
    sa.select(FILES.c.file_id, FILES.c.key, FILES.c.size_bytes, FILES.c.created_ms, FILES.c.index, FILES.c.inline)
    .where(FILES.c.level == 0, FILES.c.state == "live")
    .order_by(FILES.c.file_id)
)

# By last offset, as the index `extents_live` is: the first row is the extent that holds the offset, or the next one.
_FROM_OFFSET = statement(
    f"""{LEVELED} WHERE e.partition_id = :partition_id AND e.state = 'live' AND e.last_offset >= :from_offset
    ORDER BY e.last_offset LIMIT :limit""",
    partition_id=sa.Integer,
    from_offset=sa.BigInteger,
    limit=sa.BigInteger,
)

# At one instant: the extents, and the aborted transactions that may have records in them. The list ends with the first
# one of which all that ended later began behind the extents (Kafka's TransactionIndex.collectAbortedTxns).
_WINDOW = statement(
    f"""WITH found AS MATERIALIZED (
        {LEVELED} WHERE e.partition_id = :partition_id AND e.state = 'live' AND e.last_offset >= :from_offset
        ORDER BY e.last_offset LIMIT :limit
    ), ends AS (
        SELECT max(last_offset) + 1 AS end_offset FROM found
    )
    SELECT true AS is_extent, found.*, NULL::bigint AS producer_id FROM found
    UNION ALL
    SELECT false, NULL, a.partition_id, a.first_offset, a.last_offset, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, a.producer_id
    FROM ends CROSS JOIN LATERAL (
        SELECT * FROM aborted_transactions a
        WHERE a.partition_id = :partition_id AND a.last_offset >= :from_offset
            AND a.last_offset <= coalesce((
                SELECT s.last_offset FROM aborted_transactions s
                WHERE s.partition_id = :partition_id AND s.stable_offset >= ends.end_offset
                    AND s.last_offset >= :from_offset
                ORDER BY s.stable_offset, s.last_offset LIMIT 1
            ), 9223372036854775807)
    ) AS a WHERE a.first_offset < ends.end_offset
    ORDER BY is_extent DESC, last_offset""",  # noqa: S608 - our own text
    partition_id=sa.Integer,
    from_offset=sa.BigInteger,
    limit=sa.BigInteger,
)

_ABORTED = statement(
    """SELECT partition_id, producer_id, first_offset, last_offset FROM aborted_transactions
    WHERE partition_id = ANY (:partition_ids)""",
    partition_ids=INTS,
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


class PostgresReaders:
    """Implements `ReaderMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        return await self._leveled(_FROM_OFFSET, partition_id=partition_id, from_offset=offset, limit=limit)

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        async def work(connection: AsyncConnection) -> LeveledWindow:
            values = {"partition_id": partition_id, "from_offset": offset, "limit": limit}
            rows = (await connection.execute(_WINDOW, values)).all()
            return LeveledWindow(
                extents=[leveled_extent(row[1:-1]) for row in rows if row.is_extent],
                aborted=[
                    AbortedTransaction(partition_id, row.producer_id, row.base_offset, row.last_offset)
                    for row in rows
                    if not row.is_extent
                ],
            )

        return await self._database.read(work)

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        return await self._leveled(
            _FROM_TIMESTAMP,
            partition_id=partition_id,
            from_offset=from_offset,
            timestamp_ms=timestamp_ms,
            limit=limit,
        )

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        return next(iter(await self._leveled(_LARGEST_TIMESTAMP, partition_id=partition_id)), None)

    async def topics(self) -> Sequence[Topic]:
        async def work(connection: AsyncConnection) -> Sequence[Topic]:
            return await read_topics(connection, TOPICS_BEFORE_REPLICAS)

        return await self._database.read(work)

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        async def work(connection: AsyncConnection) -> _Rows:
            return await _rows(connection, name)

        rows = await self._database.read(work, repeatable=True)
        return await asyncio.to_thread(_snapshot, rows)

    # -- pins. Unlike a lease, a pin may end arbitrarily late: a pin that is cut short costs a reader its files.

    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        return await self._pins("SELECT pin_files_v1(:holder, :ttl_ms)", holder=holder, ttl_ms=ttl_ms)

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        return await self._pins("SELECT beat_pin_v1(:pin_id, :ttl_ms)", pin_id=pin_id, ttl_ms=ttl_ms)

    async def unpin(self, pin_id: int) -> None:
        await self._pins("SELECT unpin_v1(:pin_id)", pin_id=pin_id)

    # -- inside

    async def _leveled(self, query: sa.TextClause, **values: int) -> Sequence[LeveledExtent]:
        async def work(connection: AsyncConnection) -> Sequence[LeveledExtent]:
            return await leveled(connection, query, values)

        return await self._database.read(work)

    async def _pins(self, call: str, **values: int | str) -> Any:
        async def work(connection: AsyncConnection) -> Any:
            types = {name: sa.Text if isinstance(value, str) else sa.BigInteger for name, value in values.items()}
            return (await connection.execute(statement(call, **types), values)).scalar_one()

        return await self._database.write(work)


class _Rows(NamedTuple):
    topic: Topic
    taken_ms: int
    watermarks: Sequence[Watermarks]
    files: Sequence[L0FileRow]
    extents: Sequence[LeveledExtent]
    aborted: Sequence[AbortedTransaction]


async def _rows(connection: AsyncConnection, name: str) -> _Rows:
    """The rows of one topic's snapshot. Raises UnknownTopicError."""
    columns = (TOPICS.c.topic_id, TOPICS.c.configs, TOPICS.c.created_ms)
    topic = (await connection.execute(sa.select(*columns).where(TOPICS.c.name == name))).one_or_none()
    if topic is None:
        names = await connection.execute(sa.select(TOPICS.c.name).order_by(TOPICS.c.name))
        raise unknown_topic(name, names.scalars())
    of_topic = sa.select(PARTITIONS.c.partition_id).where(PARTITIONS.c.topic_id == topic.topic_id)
    partition_ids = list((await connection.execute(of_topic.order_by(PARTITIONS.c.partition))).scalars())
    bounds = {"partition_ids": partition_ids}
    marks = {
        row["partition_id"]: watermarks_of(row) for row in (await connection.execute(_WATERMARKS, bounds)).mappings()
    }
    return _Rows(
        topic=Topic(
            topic_id=topic.topic_id,
            name=name,
            partition_ids=tuple(partition_ids),
            configs=topic.configs,
            created_ms=topic.created_ms,
        ),
        taken_ms=await now_ms(connection),
        watermarks=[marks[partition_id] for partition_id in partition_ids],
        files=await _files(connection, frozenset(partition_ids)),
        extents=await leveled(connection, _EXTENTS, bounds),
        aborted=[AbortedTransaction(*row) for row in await connection.execute(_ABORTED, bounds)],
    )


async def _files(connection: AsyncConnection, partition_ids: frozenset[int]) -> list[L0FileRow]:
    """The live L0 files that hold batches of these partitions, each with its index entries for them."""
    files: list[L0FileRow] = []
    found = await connection.stream(_L0_FILES, execution_options={"yield_per": FILES_AT_A_TIME})
    async for some in found.partitions():
        for file_id, key, size_bytes, created_ms, index, inline in some:
            # At once: kept whole, the indexes of all live L0 files may take a GiB.
            rows = rows_of(index, partition_ids)
            if rows:
                files.append(L0FileRow(file_id, key, size_bytes, created_ms, rows, inline or b""))
    return files


def _snapshot(rows: _Rows) -> TopicSnapshot:
    return TopicSnapshot(
        topic=rows.topic,
        taken_ms=rows.taken_ms,
        partitions=partition_snapshots(rows.watermarks, rows.files, rows.extents, rows.aborted),
    )
