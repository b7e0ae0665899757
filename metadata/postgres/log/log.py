"""The log's metadata in Postgres: watermarks, snapshots and sizes. The tail has a module of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import (
    Watermarks,
)
from metadata.postgres.connection import CONNECTION_ERRORS, Database, DedicatedConnection, unavailable
from metadata.postgres.log.tail import l0_file_of, read_tail
from metadata.postgres.log.topics import read_topics
from metadata.postgres.rows import (
    INTS,
    statement,
)
from metadata.postgres.tables import (
    CLUSTER,
    FILES,
    WRITERS,
)

WATERMARKS_SLICE = 5_000
"""Rows of a snapshot that are turned into values between two turns of the event loop."""

WATERMARKS_QUERY = """
SELECT w.partition_id, w.next_offset, l.log_start_offset, l.last_stable_offset
FROM watermarks w JOIN log_starts l ON l.partition_id = w.partition_id
"""

_LEVELED_BYTES = statement(
    "SELECT partition_id, live_bytes AS bytes FROM partition_sums WHERE partition_id = ANY (:partition_ids)",
    partition_ids=INTS,
)


class Log:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = DedicatedConnection(database, "siltstone-tail", generic_plans=True)

    async def close(self) -> None:
        await self._reader.close()

    async def tail(self, cursor: Cursor) -> Tail:
        tail = await read_tail(self._fetch, cursor)
        for file in tail.files:
            # From now on a server that lacks this file has gone back in time.
            self._database.saw_file(file.file_id)
        return tail

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        rows = await self._fetch(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY ($1::integer[])", list(partition_ids))
        return {row["partition_id"]: watermarks_of(row) for row in rows}

    async def snapshot(self) -> Snapshot:
        async def work(connection: AsyncConnection) -> Snapshot:
            writers = (
                await connection.execute(sa.select(WRITERS.c.writer_id, WRITERS.c.epoch, WRITERS.c.last_seq))
            ).all()
            change_id = await connection.execute(sa.text("SELECT coalesce(max(change_id), 0) FROM changes"))
            cluster = sa.select(CLUSTER.c.forgotten_change_id, CLUSTER.c.broker_configs)
            floor, broker_configs = (await connection.execute(cluster)).one()
            live = sa.select(FILES).where(FILES.c.level == 0, FILES.c.state == "live").order_by(FILES.c.file_id)
            files = (await connection.execute(live)).mappings().all()
            watermarks = await connection.execute(sa.text(f"{WATERMARKS_QUERY} ORDER BY 1"))
            return Snapshot(
                topics=await read_topics(connection),
                watermarks=await _all_watermarks(watermarks),
                files=[l0_file_of(row, row["file_id"], row["key"]) for row in files],
                cursor=Cursor(
                    writers={row.writer_id: (row.epoch, row.last_seq) for row in writers},
                    # With all changes forgotten the table is empty; a cursor of 0 would count as too old at once.
                    change_id=max(change_id.scalar_one(), floor),
                ),
                broker_configs=broker_configs,
            )

        snapshot = await self._database.read(work, repeatable=True)
        if snapshot.files:
            self._database.saw_file(snapshot.files[-1].file_id)
        return snapshot

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        async def work(connection: AsyncConnection) -> Mapping[int, int]:
            rows = await connection.execute(_LEVELED_BYTES, {"partition_ids": list(partition_ids)})
            return {row.partition_id: row.bytes for row in rows}

        return await self._database.read(work)

    async def _fetch(self, query: str, *arguments: Any) -> Sequence[Any]:
        async with self._reader.lock:
            connection = await self._reader.get()
            try:
                return await connection.fetch(query, *arguments)
            except CONNECTION_ERRORS as error:
                self._reader.drop()
                raise unavailable(error) from error
            except BaseException:
                self._reader.drop()
                raise


def watermarks_of(row: Mapping[Any, Any]) -> Watermarks:
    high = row["next_offset"]
    stable = row["last_stable_offset"]
    return Watermarks(
        partition_id=row["partition_id"],
        log_start_offset=row["log_start_offset"],
        last_stable_offset=high if stable is None else stable,
        high_watermark=high,
    )


async def _all_watermarks(rows: sa.CursorResult[Any]) -> Sequence[Watermarks]:
    """In slices, because a process with 100,000 partitions has clients to answer meanwhile."""
    found: list[Watermarks] = []
    for some in rows.mappings().partitions(WATERMARKS_SLICE):
        found += [watermarks_of(row) for row in some]
        await asyncio.sleep(0)
    return found
