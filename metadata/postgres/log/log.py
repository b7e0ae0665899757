"""The log's metadata in Postgres: watermarks, snapshots and sizes. The tail has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.files import L0File
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import (
    Watermarks,
)
from metadata.postgres.connection import CONNECTION_ERRORS, Database, DedicatedConnection, unavailable
from metadata.postgres.log.snapshot import (
    LIVE_FILES_QUERY,
    WATERMARKS_QUERY,
    live_file_of,
    read_snapshot,
    watermarks_of,
)
from metadata.postgres.log.tail import read_tail
from metadata.postgres.rows import (
    INTS,
    statement,
)
from metadata.transactions.contract import AbortedTransaction

_LEVELED_BYTES = statement(
    "SELECT partition_id, live_bytes AS bytes FROM partition_sums WHERE partition_id = ANY (:partition_ids)",
    partition_ids=INTS,
)
_ABORTED = """
SELECT a.partition_id, a.producer_id, a.first_offset, a.last_offset
FROM unnest($1::integer[], $2::bigint[]) AS b (partition_id, base_offset)
JOIN aborted_transactions a ON a.partition_id = b.partition_id AND a.last_offset >= b.base_offset
ORDER BY a.partition_id, a.last_offset
"""


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
        return await read_snapshot(self._database)

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        return list(map(live_file_of, await self._fetch(LIVE_FILES_QUERY, after, snapshot.last_file_id)))

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        rows = await self._fetch(_ABORTED, list(bases), list(bases.values()))
        return [AbortedTransaction(*row) for row in rows]

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
