"""The log's metadata in Postgres: watermarks, the tail, snapshots and sizes.

The tail never waits for a missing seq. A writer commits under its row lock, with ascending seq; so if a seq is visible,
every lower one is visible too, or never will be. The lock of `changes` makes their ids ascend in commit order.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.files import L0File
from metadata.contract.tail import TAIL_FILES_MAX, Change, ChangeKind, Cursor, Snapshot, Tail
from metadata.contract.topics import (
    Watermarks,
)
from metadata.postgres.connection import CONNECTION_ERRORS, Database, DedicatedConnection, unavailable
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

# Dead files too: a follower that never saw one alive must still move the end of its partitions. Only writers that are
# ahead of the cursor are looked at, so a caught-up follower reads no row of `files`.
_TAIL = f"""
WITH seen AS (SELECT * FROM unnest($1::integer[], $2::integer[], $3::bigint[]) AS s (writer_id, epoch, seq)),
behind AS (
    SELECT w.writer_id, coalesce(s.epoch, -1) AS epoch, coalesce(s.seq, -1) AS seq,
        (w.forgotten_epoch, w.forgotten_seq) > (coalesce(s.epoch, -1), coalesce(s.seq, -1)) AS cold
    FROM writers w LEFT JOIN seen s ON s.writer_id = w.writer_id
    WHERE (w.epoch, w.last_seq) > (coalesce(s.epoch, -1), coalesce(s.seq, -1))
)
SELECT 'cold' AS part, NULL::bigint AS id, NULL::text AS name, NULL::integer AS writer_id, NULL::integer AS epoch,
    NULL::bigint AS seq, NULL::bigint AS size_bytes, NULL::bigint AS created_ms, NULL::bytea AS index,
    NULL::boolean AS live, NULL::uuid AS topic_id, NULL::jsonb AS detail
WHERE $4 < (SELECT forgotten_change_id FROM cluster) OR EXISTS (SELECT FROM behind WHERE cold)
UNION ALL
SELECT 'file', f.file_id, f.key, f.writer_id, f.epoch, f.seq, f.size_bytes, f.created_ms, f.index, f.state = 'live',
    NULL, NULL
FROM behind b CROSS JOIN LATERAL (
    SELECT * FROM files f
    WHERE f.level = 0 AND f.writer_id = b.writer_id AND (f.epoch, f.seq) > (b.epoch, b.seq)
    ORDER BY f.epoch, f.seq LIMIT {TAIL_FILES_MAX}
) AS f
UNION ALL
SELECT 'change', c.change_id, c.kind, NULL, NULL, NULL, NULL, NULL, NULL, NULL, c.topic_id, c.detail
FROM changes c WHERE c.change_id > $4
ORDER BY 1, 2
"""  # noqa: S608 - the one thing put in is our own number

WATERMARKS_QUERY = """
SELECT w.partition_id, w.next_offset, l.log_start_offset, l.last_stable_offset
FROM watermarks w JOIN log_starts l ON l.partition_id = w.partition_id
"""

_LEVELED_BYTES = statement(
    """SELECT partition_id, sum(length)::bigint AS bytes FROM extents
    WHERE partition_id = ANY (:partition_ids) AND state = 'live' GROUP BY partition_id""",
    partition_ids=INTS,
)


class Log:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = DedicatedConnection(database, "siltstone-tail")

    async def close(self) -> None:
        await self._reader.close()

    async def tail(self, cursor: Cursor) -> Tail:
        rows = await self._fetch(
            _TAIL,
            list(cursor.writers),
            [epoch for epoch, _ in cursor.writers.values()],
            [seq for _, seq in cursor.writers.values()],
            cursor.change_id,
        )
        files = [l0_file_of(row, row["id"], row["name"], live=row["live"]) for row in rows if row["part"] == "file"]
        changes = [_change(row) for row in rows if row["part"] == "change"]
        if any(row["part"] == "cold" for row in rows):
            return Tail(files=(), changes=(), cursor=cursor, cold=True)
        seen = dict(cursor.writers)
        for file in files:
            # From now on a server that lacks this file has gone back in time.
            self._database.saw_file(file.file_id)
            seen[file.writer_id] = max(seen.get(file.writer_id, (-1, -1)), (file.epoch, file.seq))
        change_id = changes[-1].change_id if changes else cursor.change_id
        return Tail(files=files, changes=changes, cursor=Cursor(writers=seen, change_id=change_id))

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


def l0_file_of(row: Mapping[Any, Any], file_id: int, key: str, *, live: bool = True) -> L0File:
    return L0File(
        file_id=file_id,
        key=key,
        writer_id=row["writer_id"],
        epoch=row["epoch"],
        seq=row["seq"],
        size_bytes=row["size_bytes"],
        created_ms=row["created_ms"],
        index=row["index"],
        live=live,
    )


def _change(row: Mapping[Any, Any]) -> Change:
    topic_id = row["topic_id"]
    return Change(
        change_id=row["id"],
        kind=ChangeKind(row["name"]),
        topic_id=None if topic_id is None else uuid.UUID(int=topic_id.int),
        detail=json.loads(row["detail"]),
    )
