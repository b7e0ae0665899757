"""One topic at one instant, from Postgres: for `metadata/contract/scan.py`.

All statements run in one read-only transaction at REPEATABLE READ, so they see one snapshot of the database: a merge
that commits meanwhile is in all of them or in none. The rows are read first and made into a snapshot when the
transaction is over, on a thread: a snapshot that is held costs the commits of L0 files dear. L0 files come some at a
time, and what their indexes say of other topics is dropped at once: there may be a GiB of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leveled import LeveledExtent
from metadata.contract.scan import L0FileRow, TopicSnapshot, partition_snapshots, unknown_topic
from metadata.contract.service import Topic, Watermarks
from metadata.postgres.connection import Database
from metadata.postgres.log.log import WATERMARKS_QUERY, watermarks_of
from metadata.postgres.rows import INTS, LEVELED, leveled, now_ms, statement
from metadata.postgres.tables import FILES, PARTITIONS, TOPICS
from metadata.rules.packed_index import rows_of

FILES_AT_A_TIME = 100
_WATERMARKS = statement(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY (:partition_ids)", partition_ids=INTS)
_EXTENTS = statement(
    f"{LEVELED} WHERE e.partition_id = ANY (:partition_ids) AND e.state = 'live' ORDER BY e.extent_id",
    partition_ids=INTS,
)
_L0_FILES = (
    sa.select(FILES.c.file_id, FILES.c.key, FILES.c.size_bytes, FILES.c.created_ms, FILES.c.index)
    .where(FILES.c.level == 0, FILES.c.state == "live")
    .order_by(FILES.c.file_id)
)


class _Rows(NamedTuple):
    topic: Topic
    taken_ms: int
    watermarks: Sequence[Watermarks]
    files: Sequence[L0FileRow]
    extents: Sequence[LeveledExtent]


class PostgresScan:
    """Part of `PostgresMetadata`."""

    _database: Database

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        async def work(connection: AsyncConnection) -> _Rows:
            return await _rows(connection, name)

        rows = await self._database.read(work, repeatable=True)
        return await asyncio.to_thread(_snapshot, rows)


async def _rows(connection: AsyncConnection, name: str) -> _Rows:
    """Raises UnknownTopicError."""
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
    )


async def _files(connection: AsyncConnection, partition_ids: frozenset[int]) -> list[L0FileRow]:
    """Those that hold something of these partitions, with what they say of them."""
    files: list[L0FileRow] = []
    found = await connection.stream(_L0_FILES, execution_options={"yield_per": FILES_AT_A_TIME})
    async for some in found.partitions():
        for file_id, key, size_bytes, created_ms, index in some:
            rows = rows_of(index, partition_ids)
            if rows:
                files.append(L0FileRow(file_id, key, size_bytes, created_ms, rows))
    return files


def _snapshot(rows: _Rows) -> TopicSnapshot:
    return TopicSnapshot(
        topic=rows.topic,
        taken_ms=rows.taken_ms,
        partitions=partition_snapshots(rows.watermarks, rows.files, rows.extents),
    )
