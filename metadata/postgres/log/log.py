"""Reading the log's metadata from Postgres: watermarks, the tail, snapshots; aborting keys and forgetting old rows.

The tail never waits for a missing seq: commits of a writer happen under its row lock with ascending seq, so when one is
visible, all lower ones are visible or never will be. `changes` are commit-ordered by their lock.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.service import (
    Change,
    ChangeKind,
    Cursor,
    FileInfo,
    FileState,
    L0File,
    ProducerState,
    Snapshot,
    Tail,
    Watermarks,
)
from metadata.postgres.connection import CONNECTION_ERRORS, Database, DedicatedConnection, unavailable
from metadata.postgres.log.topics import read_topics
from metadata.postgres.rows import any_of
from metadata.postgres.tables import CLUSTER, FILES, PRODUCERS, WRITERS
from metadata.rules.jobs import UNREADABLE
from metadata.rules.object_keys import hour_at, key_level

TAIL_FILES_MAX = 1000
"""Per writer and call; a follower that is further behind calls again."""

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


class PostgresLog:
    """Part of `PostgresMetadata`."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._producer_id_expiration_ms = producer_id_expiration_ms
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
            self._database.saw_file(file.file_id)
            seen[file.writer_id] = max(seen.get(file.writer_id, (-1, -1)), (file.epoch, file.seq))
        change_id = changes[-1].change_id if changes else cursor.change_id
        return Tail(files=files, changes=changes, cursor=Cursor(writers=seen, change_id=change_id))

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        rows = await self._fetch(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY ($1::integer[])", list(partition_ids))
        return {row["partition_id"]: watermarks_of(row) for row in rows}

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
            watermarks = (await connection.execute(sa.text(f"{WATERMARKS_QUERY} ORDER BY 1"))).mappings().all()
            return Snapshot(
                topics=await read_topics(connection),
                watermarks=[watermarks_of(row) for row in watermarks],
                files=[l0_file_of(row, row["file_id"], row["key"]) for row in files],
                cursor=Cursor(
                    writers={row.writer_id: (row.epoch, row.last_seq) for row in writers},
                    change_id=max(change_id.scalar_one(), floor),
                ),
                broker_configs=broker_configs,
            )

        snapshot = await self._database.read(work, repeatable=True)
        if snapshot.files:
            self._database.saw_file(snapshot.files[-1].file_id)
        return snapshot

    async def abort_file(self, key: str) -> bool:
        async def work(connection: AsyncConnection) -> bool:
            row = {"key": key, "level": key_level(key), "state": "aborted", "size_bytes": 0, "crc32c": 0}
            made = insert(FILES).values(**row, created_ms=sa.text("clock_ms()"))
            await connection.execute(made.on_conflict_do_nothing(constraint="files_key"))
            # A later statement: it sees the commit that the insert may have waited for.
            state = await connection.execute(sa.select(FILES.c.state).where(FILES.c.key == key))
            return state.scalar_one() == "aborted"

        return await self._database.write(work)

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        async def work(connection: AsyncConnection) -> Sequence[FileInfo]:
            page = sa.select(FILES).where(FILES.c.file_id > after_file_id).order_by(FILES.c.file_id).limit(limit)
            return [_file_info(row) for row in (await connection.execute(page)).mappings()]

        return await self._database.read(work)

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        async def work(connection: AsyncConnection) -> Sequence[ProducerState]:
            query = sa.select(PRODUCERS).order_by(PRODUCERS.c.partition_id, PRODUCERS.c.producer_id)
            if partition_ids is not None:
                query = query.where(any_of(PRODUCERS.c.partition_id, partition_ids))
            return [
                ProducerState(
                    partition_id=row.partition_id,
                    producer_id=row.producer_id,
                    epoch=row.epoch,
                    batches=list(zip(row.first_sequences, row.last_sequences, row.base_offsets, strict=True)),
                    last_seen_ms=row.last_seen_ms,
                )
                for row in await connection.execute(query)
            ]

        return await self._database.read(work)

    async def forget_rows(self, *, before_ms: int) -> int:
        """Drop changes, times of deletions, rows of deleted and aborted files, ended jobs, compactors, duties and pins,
        of before `before_ms`. Returns how many. (Of jobs see `job_rules.UNREADABLE` too.)

        Followers whose cursor is older start cold, and keys as old as a forgotten one are refused from now on
        (`metadata/rules/object_keys.py`). The newest file row always stays: it is how we notice that the database went
        back.

        The time a topic was deleted is kept at least until all producer ids that are older have expired.
        """

        async def work(connection: AsyncConnection) -> int:
            bounds = {
                "before_ms": before_ms,
                "key_hour": hour_at(before_ms),
                "expiration_ms": self._producer_id_expiration_ms,
                "unreadable": UNREADABLE,
            }
            done = await connection.execute(sa.text(_FORGET), bounds)
            return done.scalar_one()

        return await self._database.write(work)


_FORGET = """
WITH old_files AS (
    DELETE FROM files WHERE state IN ('deleted', 'aborted') AND created_ms < :before_ms
        AND coalesce((regexp_match(key, '/([0-9]{10})/'))[1]::bigint, 0) <= :key_hour
    RETURNING file_id, key, writer_id, epoch, seq
), old_changes AS (
    DELETE FROM changes WHERE created_ms < :before_ms RETURNING change_id
), old_names AS (
    DELETE FROM deleted_topics WHERE deleted_ms < least(:before_ms, clock_ms() - :expiration_ms) RETURNING name
), old_jobs AS (
    DELETE FROM merge_jobs j WHERE state IN ('done', 'failed') AND finished_ms < :before_ms AND NOT (
        jsonb_exists(j.result, :unreadable)
        AND EXISTS (SELECT FROM files f WHERE f.job_id = j.job_id AND f.state = 'live')
    ) RETURNING job_id
), old_compactors AS (
    DELETE FROM compactors WHERE lease_until_ms < least(:before_ms, clock_ms()) RETURNING node_id
), old_duties AS (
    DELETE FROM duties WHERE until_ms < least(:before_ms, clock_ms()) RETURNING name
), old_pins AS (
    DELETE FROM pins WHERE expires_ms < least(:before_ms, clock_ms()) RETURNING pin_id
), per_writer AS (
    SELECT DISTINCT ON (writer_id) writer_id, epoch, seq FROM old_files WHERE writer_id IS NOT NULL
    ORDER BY writer_id, epoch DESC, seq DESC
), writers_moved AS (
    UPDATE writers w SET forgotten_epoch = p.epoch, forgotten_seq = p.seq
    FROM per_writer p
    WHERE w.writer_id = p.writer_id AND (w.forgotten_epoch, w.forgotten_seq) < (p.epoch, p.seq)
), cluster_moved AS (
    UPDATE cluster SET
        forgotten_key_hour = greatest(forgotten_key_hour,
            (SELECT max((regexp_match(key, '/([0-9]{10})/'))[1]::bigint) FROM old_files)),
        forgotten_file_id = greatest(forgotten_file_id, (SELECT max(file_id) FROM old_files)),
        forgotten_change_id = greatest(forgotten_change_id, (SELECT max(change_id) FROM old_changes))
)
SELECT (SELECT count(*) FROM old_files) + (SELECT count(*) FROM old_changes) + (SELECT count(*) FROM old_names)
    + (SELECT count(*) FROM old_jobs) + (SELECT count(*) FROM old_compactors) + (SELECT count(*) FROM old_duties)
    + (SELECT count(*) FROM old_pins)
"""


def watermarks_of(row: Mapping[Any, Any]) -> Watermarks:
    high = row["next_offset"]
    stable = row["last_stable_offset"]
    return Watermarks(
        partition_id=row["partition_id"],
        log_start_offset=row["log_start_offset"],
        last_stable_offset=high if stable is None else stable,
        high_watermark=high,
    )


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


def _file_info(row: Mapping[Any, Any]) -> FileInfo:
    names = ("file_id", "key", "level", "writer_id", "epoch", "seq", "size_bytes", "crc32c", "created_ms", "index")
    more = ("dead_ms", "live_extents", "job_id")
    fields = {name: row[name] for name in (*names, *more)}
    return FileInfo(state=FileState(row["state"]), file_class=row["class"], **fields)
