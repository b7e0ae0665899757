"""Retention, deletion and pins in Postgres. Locks as `metadata/postgres/rows.py` says.

Retention finds its partitions without a lock, then locks them and decides again by what is there (the rules are in
`metadata/rules/retention.py`). L0 rows are touched by none of this: they live by the log start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract import compaction as c
from metadata.contract.service import ChangeKind, UnknownTopicError
from metadata.postgres import history as postgres_history
from metadata.postgres.admin import CONFIGS_IN_FORCE
from metadata.postgres.connection import Database
from metadata.postgres.rows import (
    INTS,
    LONGS,
    UUIDS,
    append_change,
    begin_killing,
    kill_extents,
    lock_partitions,
    move_log_starts,
    now_ms,
    statement,
)
from metadata.postgres.tables import EXTENTS, FILES, MERGE_JOBS, PARTITIONS, PINS, TOPICS, WATERMARKS
from metadata.rules.history import History, ServerHistory
from metadata.rules.retention import AgedExtent, RetentionPolicy, expired_extents, retention_policy

NOW_MS = sa.text("clock_ms()")
PARTITIONS_MAX = 1_000
"""Of one round of retention."""
PRODUCERS_MAX = 10_000
"""Dropped in one transaction."""

_EXPIRING = statement(
    """SELECT p.partition_id, p.topic_id FROM (
        SELECT e.partition_id, min(e.base_offset) AS base_offset, sum(e.length) AS bytes,
            (array_agg(e.length ORDER BY e.base_offset))[1] AS first_bytes,
            (array_agg(CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE f.created_ms END ORDER BY e.base_offset))[1]
                AS first_ms
        FROM extents e JOIN files f ON f.file_id = e.file_id WHERE e.state = 'live' GROUP BY e.partition_id
    ) AS x JOIN partitions p ON p.partition_id = x.partition_id
    JOIN log_starts l ON l.partition_id = x.partition_id
    JOIN unnest(:topic_ids, :retention_ms, :retention_bytes) AS r (topic_id, ms, bytes) ON r.topic_id = p.topic_id
    WHERE x.base_offset <= l.log_start_offset AND (
        (r.ms >= 0 AND x.first_ms < :now_ms - r.ms) OR (r.bytes >= 0 AND x.bytes - x.first_bytes >= r.bytes)
    )
    ORDER BY x.first_ms, p.partition_id LIMIT :limit""",
    topic_ids=UUIDS,
    retention_ms=LONGS,
    retention_bytes=LONGS,
    now_ms=sa.BigInteger,
    limit=sa.BigInteger,
).columns(topic_id=sa.Uuid)
_AGED = statement(
    """SELECT e.partition_id, e.extent_id, e.base_offset, e.last_offset, e.length,
        CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE f.created_ms END AS max_ts_ms
    FROM extents e JOIN files f ON f.file_id = e.file_id
    WHERE e.state = 'live' AND e.partition_id = ANY (:partition_ids) ORDER BY e.partition_id, e.base_offset""",
    partition_ids=INTS,
)
_EXPIRE_PRODUCERS = statement(
    """WITH silent AS (
        SELECT partition_id, producer_id FROM producers WHERE last_seen_ms < clock_ms() - :expiration_ms
        ORDER BY partition_id, producer_id LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM producers p USING silent s
    WHERE p.partition_id = s.partition_id AND p.producer_id = s.producer_id""",
    expiration_ms=sa.BigInteger,
    limit=sa.BigInteger,
)
_DEAD_FILES = statement(
    """SELECT f.file_id, f.key, f.size_bytes, f.dead_ms FROM files f
    WHERE f.state = 'dead' AND f.dead_ms <= clock_ms() - :grace_ms
        AND f.dead_ms < coalesce(
            (SELECT min(p.created_ms) FROM pins p WHERE p.expires_ms > clock_ms()), 9223372036854775807
        )
        AND NOT EXISTS (SELECT FROM merge_inputs i WHERE i.file_id = f.file_id)
        AND NOT EXISTS (
            SELECT FROM merge_inputs i JOIN extents e ON e.extent_id = i.extent_id WHERE e.file_id = f.file_id
        )
    ORDER BY f.dead_ms, f.file_id LIMIT :limit""",
    grace_ms=sa.BigInteger,
    limit=sa.BigInteger,
)
_FILES_DELETED = statement(
    """WITH gone AS (
        SELECT file_id FROM files WHERE file_id = ANY (:file_ids) AND state = 'dead' ORDER BY file_id FOR UPDATE
    ), marked AS (
        UPDATE files f SET state = 'deleted' FROM gone g WHERE f.file_id = g.file_id
    )
    DELETE FROM extents e USING gone g WHERE e.file_id = g.file_id""",
    file_ids=LONGS,
)


class PostgresRetention:
    """Part of `PostgresMetadata`."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms

    async def now_ms(self) -> int:
        return await self._database.read(now_ms)

    async def delete_records(self, partition_id: int, offset: int) -> int:
        async def work(connection: AsyncConnection) -> int:
            await begin_killing(connection)
            starts = await lock_partitions(connection, [partition_id])
            query = sa.select(WATERMARKS.c.next_offset, PARTITIONS.c.topic_id).join(
                PARTITIONS, PARTITIONS.c.partition_id == WATERMARKS.c.partition_id
            )
            row = (await connection.execute(query.where(WATERMARKS.c.partition_id == partition_id))).one_or_none()
            if row is None or partition_id not in starts:
                raise UnknownTopicError(f"there is no partition {partition_id}")
            if offset < -1 or offset > row.next_offset:
                raise c.InvalidOffsetError(f"offset {offset} lies outside [0, {row.next_offset}]")
            wanted: int = row.next_offset if offset == -1 else offset
            if wanted <= starts[partition_id]:
                return starts[partition_id]
            below = sa.select(EXTENTS.c.extent_id).where(
                EXTENTS.c.partition_id == partition_id, EXTENTS.c.state == "live", EXTENTS.c.last_offset < wanted
            )
            dying = sorted((await connection.execute(below)).scalars())
            await kill_extents(connection, dying, at_ms=await now_ms(connection))
            await move_log_starts(connection, {partition_id: wanted})
            detail = {"offsets": {str(partition_id): wanted}}
            await append_change(connection, ChangeKind.LOG_START_MOVED, row.topic_id, detail)
            return wanted

        return await self._database.write(work)

    async def expire(self, *, limit: int = 10_000) -> c.Expired:
        async def work(connection: AsyncConnection) -> c.Expired:
            await begin_killing(connection)
            at_ms = await now_ms(connection)
            policies = await _expiring(connection, at_ms)
            starts = await lock_partitions(connection, policies)
            killed, moved = await _expired(connection, policies, starts, at_ms=at_ms, limit=limit)
            killed_bytes = await kill_extents(connection, killed, at_ms=at_ms)
            if moved:
                await move_log_starts(connection, moved)
                detail = {"offsets": {str(partition_id): offset for partition_id, offset in moved.items()}}
                await append_change(connection, ChangeKind.LOG_START_MOVED, None, detail)
            return c.Expired(extents=len(killed), bytes=killed_bytes, partitions=len(moved))

        return await self._database.write(work)

    async def expire_producers(self) -> int:
        async def work(connection: AsyncConnection) -> int:
            bounds = {"expiration_ms": self._expiration_ms, "limit": PRODUCERS_MAX}
            return (await connection.execute(_EXPIRE_PRODUCERS, bounds)).rowcount

        dropped = 0
        while done := await self._database.write(work):
            dropped += done
        return dropped

    # -- what may be deleted

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[c.DeadFile]:
        async def work(connection: AsyncConnection) -> Sequence[c.DeadFile]:
            rows = await connection.execute(_DEAD_FILES, {"grace_ms": grace_ms, "limit": limit})
            return [c.DeadFile(**row) for row in rows.mappings()]

        return await self._database.read(work)

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(_FILES_DELETED, {"file_ids": list(file_ids)})

        await self._database.write(work)

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        async def work(connection: AsyncConnection) -> frozenset[str]:
            wanted = sa.bindparam("keys", list(keys), sa.ARRAY(sa.Text))
            query = sa.select(FILES.c.key).where(FILES.c.key == sa.func.any(wanted))
            rows = await connection.execute(query.where(FILES.c.state.in_(["live", "dead"])))
            return frozenset(rows.scalars())

        return await self._database.read(work)

    async def writers_at_work(self) -> Mapping[int, int]:
        async def work(connection: AsyncConnection) -> Mapping[int, int]:
            holding = sa.select(MERGE_JOBS.c.holder, sa.func.min(MERGE_JOBS.c.started_ms), NOW_MS)
            holding = holding.where(MERGE_JOBS.c.state == "running").group_by(MERGE_JOBS.c.holder)
            return {holder: at_ms - since_ms for holder, since_ms, at_ms in await connection.execute(holding)}

        return await self._database.read(work)

    async def history(self) -> History:
        return await self._database.read(postgres_history.read_history)

    async def adopt_history(self, present: ServerHistory) -> None:
        async def work(connection: AsyncConnection) -> None:
            await postgres_history.adopt_history(connection, present)

        await self._database.write(work)

    # -- pins. Unlike a lease, a pin that seems to end too late is believed: a pin cut short costs a reader its files.

    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        return await self._pins("SELECT pin_files_v1(:holder, :ttl_ms)", holder=holder, ttl_ms=ttl_ms)

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        return await self._pins("SELECT beat_pin_v1(:pin_id, :ttl_ms)", pin_id=pin_id, ttl_ms=ttl_ms)

    async def unpin(self, pin_id: int) -> None:
        await self._pins("SELECT unpin_v1(:pin_id)", pin_id=pin_id)

    async def _pins(self, call: str, **values: int | str) -> Any:
        async def work(connection: AsyncConnection) -> Any:
            types = {name: sa.Text if isinstance(value, str) else sa.BigInteger for name, value in values.items()}
            return (await connection.execute(statement(call, **types), values)).scalar_one()

        return await self._database.write(work)

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        async def work(connection: AsyncConnection) -> Sequence[tuple[int, str, int, int]]:
            rows = await connection.execute(sa.select(PINS).where(PINS.c.expires_ms > NOW_MS).order_by(PINS.c.pin_id))
            return [(row.pin_id, row.holder, row.created_ms, row.expires_ms) for row in rows]

        return await self._database.read(work)


async def _expiring(connection: AsyncConnection, at_ms: int) -> dict[int, RetentionPolicy]:
    """Partitions of which at least the first extent goes, the oldest first, with their topic's policy."""
    topics = await connection.execute(sa.select(TOPICS.c.topic_id, CONFIGS_IN_FORCE))
    limited = {topic.topic_id: retention_policy(topic.configs) for topic in topics}
    limited = {topic_id: policy for topic_id, policy in limited.items() if policy.is_limited}
    bounds = {
        "topic_ids": list(limited),
        "retention_ms": [policy.retention_ms for policy in limited.values()],
        "retention_bytes": [policy.retention_bytes for policy in limited.values()],
        "now_ms": at_ms,
        "limit": PARTITIONS_MAX,
    }
    return {row.partition_id: limited[row.topic_id] for row in await connection.execute(_EXPIRING, bounds)}


async def _expired(
    connection: AsyncConnection,
    policies: Mapping[int, RetentionPolicy],
    starts: Mapping[int, int],
    *,
    at_ms: int,
    limit: int,
) -> tuple[list[int], dict[int, int]]:
    """(extents to kill, log start by partition id) of these partitions, which are locked."""
    extents: dict[int, list[AgedExtent]] = defaultdict(list)
    for row in await connection.execute(_AGED, {"partition_ids": list(starts)}):
        extents[row.partition_id].append(AgedExtent._make(row[1:]))
    killed: list[int] = []
    moved: dict[int, int] = {}
    for partition_id, policy in policies.items():
        if partition_id not in starts:  # its topic was deleted meanwhile
            continue
        taken = expired_extents(extents[partition_id], policy, log_start_offset=starts[partition_id], now_ms=at_ms)[
            : limit - len(killed)
        ]
        if taken:
            killed += [extent.extent_id for extent in taken]
            moved[partition_id] = taken[-1].last_offset + 1
    return sorted(killed), moved
