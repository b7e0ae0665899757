"""Retention, and the decision which objects may be deleted, in Postgres. `metadata/postgres/rows.py` gives the order of
locks.

Retention finds its partitions without a lock, then locks them and decides again by their present rows (the rules are in
`metadata/rules/retention.py`). It never touches L0 rows: the log start decides which of their records live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.broker import retention_check_ms
from metadata.contract.deletion import DEAD_COUNTED_MAX, DeadFile, DeadWaiting, Expired, ExpiredProducers
from metadata.contract.tail import ChangeKind
from metadata.postgres import history as postgres_history
from metadata.postgres.connection import Database
from metadata.postgres.forgetting import RAISE_MARKS, Forgetting
from metadata.postgres.log.broker_configs import BROKER_CONFIGS_SET, CONFIGS_IN_FORCE
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
from metadata.postgres.tables import (
    FILES,
    MERGE_JOBS,
    TOPICS,
)
from metadata.rules.history import History
from metadata.rules.object_keys import key_level
from metadata.rules.packed_index import ROW_BYTES
from metadata.rules.retention import (
    AgedExtent,
    RetentionPolicy,
    expired_extents,
    retention_policy,
)

NOW_MS = sa.text("clock_ms()")

PARTITIONS_MAX = 1_000
"""Partitions that one round of retention takes on."""

MARKED_MAX = 100
"""Files that one transaction marks as deleted: a merged file may have many extents."""

EXTENTS_LOOKED_AT = 100_000
"""Extents that one round of retention reads, of all its partitions together."""

# Judged by the first extent alone: retention takes a prefix, so a partition whose first extent stays loses nothing.
_EXPIRING = statement(
    """SELECT p.partition_id, p.topic_id FROM (
        SELECT s.partition_id, s.first_base_offset, s.live_bytes - s.first_bytes AS others_bytes,
            CASE WHEN s.first_ts_ms >= 0 THEN s.first_ts_ms ELSE f.created_ms END AS first_ms
        FROM partition_sums s LEFT JOIN files f ON s.first_ts_ms < 0 AND f.file_id = s.first_file_id
    ) AS x JOIN partitions p ON p.partition_id = x.partition_id
    JOIN log_starts l ON l.partition_id = x.partition_id
    JOIN unnest(:topic_ids, :retention_ms, :retention_bytes) AS r (topic_id, ms, bytes) ON r.topic_id = p.topic_id
    WHERE x.first_base_offset <= l.log_start_offset AND (
        (r.ms >= 0 AND x.first_ms < :now_ms - r.ms) OR (r.bytes >= 0 AND x.others_bytes >= r.bytes)
    )
    ORDER BY x.first_ms, p.partition_id LIMIT :limit""",
    topic_ids=UUIDS,
    retention_ms=LONGS,
    retention_bytes=LONGS,
    now_ms=sa.BigInteger,
    limit=sa.BigInteger,
).columns(topic_id=sa.Uuid)

# The first extents of each partition. Live extents are disjoint, so the order of their ends is that of their bases.
_AGED = statement(
    """SELECT s.partition_id, s.live_bytes, e.extent_id, e.base_offset, e.last_offset, e.length,
        CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE f.created_ms END AS max_ts_ms
    FROM partition_sums s CROSS JOIN LATERAL (
        SELECT * FROM extents e WHERE e.partition_id = s.partition_id AND e.state = 'live'
        ORDER BY e.last_offset LIMIT :each
    ) AS e JOIN files f ON f.file_id = e.file_id
    WHERE s.partition_id = ANY (:partition_ids) ORDER BY s.partition_id, e.base_offset""",
    partition_ids=INTS,
    each=sa.BigInteger,
)

# A slice of the table by its key: an index over `last_seen_ms` would make every commit write it.
# SKIP LOCKED: a row that a commit holds was used a moment ago, and the commit must not wait for us.
_EXPIRE_PRODUCERS = statement(
    """WITH looked AS MATERIALIZED (
        SELECT partition_id, producer_id, last_seen_ms FROM producer_states
        WHERE (partition_id, producer_id) > (:partition_id, :producer_id)
        ORDER BY partition_id, producer_id LIMIT :limit
    ), silent AS (
        SELECT p.partition_id, p.producer_id
        FROM looked l JOIN producer_states p ON p.partition_id = l.partition_id AND p.producer_id = l.producer_id
        WHERE l.last_seen_ms < :silent_since_ms AND p.last_seen_ms < :silent_since_ms
            AND NOT EXISTS (SELECT FROM transaction_partitions t
                WHERE t.producer_id = p.producer_id AND t.partition_id = p.partition_id)
        ORDER BY p.partition_id, p.producer_id FOR UPDATE OF p SKIP LOCKED
    ), dropped AS (
        DELETE FROM producer_states p USING silent s
        WHERE p.partition_id = s.partition_id AND p.producer_id = s.producer_id RETURNING p.producer_id
    )
    SELECT (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM dropped) AS dropped,
        l.partition_id, l.producer_id
    FROM looked l ORDER BY l.partition_id DESC, l.producer_id DESC LIMIT 1""",
    partition_id=sa.Integer,
    producer_id=sa.BigInteger,
    silent_since_ms=sa.BigInteger,
    limit=sa.BigInteger,
)

# A file that died at or after the creation of a running pin may be in that reader's snapshot. The inputs of a live job
# stay too: its compactor may be reading them. Their files are looked up once, extent by extent (OFFSET), because the
# inputs of live jobs are few and the extents of a thousand dead files may be a million.
_DEAD_FILES = statement(
    """SELECT f.file_id, f.key, f.size_bytes, f.dead_ms, f.inline IS NOT NULL AS is_inline FROM files f
    WHERE f.state = 'dead' AND f.dead_ms <= clock_ms() - :grace_ms
        AND f.dead_ms < coalesce(
            (SELECT min(p.created_ms) FROM pins p WHERE p.expires_ms > clock_ms()), 9223372036854775807
        )
        AND NOT EXISTS (SELECT FROM merge_inputs i WHERE i.file_id = f.file_id)
        AND f.file_id NOT IN (
            SELECT DISTINCT x.file_id FROM merge_inputs i CROSS JOIN LATERAL (
                SELECT e.file_id FROM extents e WHERE e.extent_id = i.extent_id OFFSET 0
            ) AS x WHERE i.extent_id IS NOT NULL
        )
    ORDER BY f.dead_ms, f.file_id LIMIT :limit""",
    grace_ms=sa.BigInteger,
    limit=sa.BigInteger,
)

# The row of a deleted file stays until it is forgotten: it refuses its key, and answers a repeat of its commit. Its
# index would be most of the row, and only followers read it; those that have not come so far start cold.
# The newest file of an epoch keeps its index: its commit may be in doubt. Its writer commits nothing newer before it
# has the answer, and an answer without the index would let it pass over offsets that its own follower never saw.
# Answers that lie in the index alone (empty results) are kept as format 3: the base offset of each row. There, the
# inner OFFSET unpacks a stored index once and not for each row; the outer one keeps it out of the sort.
_FILES_DELETED = statement(
    rf"""WITH gone AS MATERIALIZED (
        SELECT f.file_id, f.writer_id, f.epoch, f.seq, length(f.index) > 1 AND EXISTS (
            SELECT FROM files n
            WHERE n.level = 0 AND n.writer_id = f.writer_id AND n.epoch = f.epoch AND n.seq > f.seq
        ) AS gives_index
        FROM files f WHERE f.file_id = ANY (:file_ids) AND f.state = 'dead' ORDER BY f.file_id FOR UPDATE OF f
    ), marked AS (
        UPDATE files f SET state = 'deleted', index = CASE WHEN g.gives_index THEN '\x01' ELSE f.index END,
            txn = CASE WHEN g.gives_index THEN NULL ELSE f.txn END, inline = NULL,
            results = CASE WHEN g.gives_index AND f.results = '' THEN '\x03' || (
                SELECT string_agg(row.base, ''::bytea ORDER BY row.at) FROM (
                    SELECT at, substring(plain.index FROM {1 + 1 + 4} + at * {ROW_BYTES} FOR 8) AS base
                    FROM (SELECT f.index || ''::bytea AS index OFFSET 0) AS plain,
                        generate_series(0, length(f.index) / {ROW_BYTES} - 1) AS at OFFSET 0
                ) AS row
            ) ELSE f.results END
        FROM gone g WHERE f.file_id = g.file_id
    ), written AS (
        SELECT writer_id, epoch, seq FROM gone WHERE gives_index
    ), {RAISE_MARKS}
    DELETE FROM extents e USING gone g WHERE e.file_id = g.file_id""",  # noqa: S608 - our own text
    file_ids=LONGS,
)

_DEAD_WAITING = statement(
    """SELECT count(*) AS files, coalesce(sum(size_bytes), 0)::bigint AS bytes FROM (
        SELECT size_bytes FROM files WHERE state = 'dead' ORDER BY dead_ms, file_id LIMIT :limit
    ) AS oldest""",
    limit=sa.BigInteger,
)


class PostgresDeletion:
    """Implements `DeletionMetadata`."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms
        self._forgetting = Forgetting(database, producer_id_expiration_ms=producer_id_expiration_ms)

    # -- retention

    async def retention_check_ms(self) -> int | None:
        async def work(connection: AsyncConnection) -> int | None:
            return retention_check_ms((await connection.execute(BROKER_CONFIGS_SET)).scalar_one())

        return await self._database.read(work)

    async def expire(self, *, limit: int = 10_000) -> Expired:
        async def work(connection: AsyncConnection) -> Expired:
            await begin_killing(connection)
            at_ms = await now_ms(connection)
            # Without a lock: most partitions have nothing to lose, and need not be held up for the question.
            policies = await _expiring(connection, at_ms)
            # Everything is decided again under the locks, because a merge or DeleteRecords may have come first.
            starts = await lock_partitions(connection, policies)
            killed, moved = await _expired(connection, policies, starts, at_ms=at_ms, limit=limit)
            killed_bytes = await kill_extents(connection, killed, at_ms=at_ms)
            if moved:
                await move_log_starts(connection, moved)
                detail = {"offsets": {str(partition_id): offset for partition_id, offset in moved.items()}}
                await append_change(connection, ChangeKind.LOG_START_MOVED, None, detail)
            return Expired(extents=len(killed), bytes=killed_bytes, partitions=len(moved))

        return await self._database.write(work)

    async def expire_producers(self, *, after: tuple[int, int] | None = None, limit: int = 10_000) -> ExpiredProducers:
        place = (-1, -1) if after is None else after

        async def work(connection: AsyncConnection) -> ExpiredProducers:
            # The time as a value: a row is then judged alike at its look and under its lock.
            bounds = {
                "partition_id": place[0],
                "producer_id": place[1],
                "silent_since_ms": await now_ms(connection) - self._expiration_ms,
                "limit": limit,
            }
            row = (await connection.execute(_EXPIRE_PRODUCERS, bounds)).one_or_none()
            if row is None:
                return ExpiredProducers(producers=0, after=None)
            is_last = row.looked < limit
            return ExpiredProducers(
                producers=row.dropped, after=None if is_last else (row.partition_id, row.producer_id)
            )

        return await self._database.write(work)

    async def forget_rows(self, *, before_ms: int) -> int:
        return await self._forgetting.forget_rows(before_ms=before_ms)

    # -- deletion

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        async def work(connection: AsyncConnection) -> Sequence[DeadFile]:
            rows = await connection.execute(_DEAD_FILES, {"grace_ms": grace_ms, "limit": limit})
            return [DeadFile(**row) for row in rows.mappings()]

        return await self._database.read(work)

    async def dead_waiting(self) -> DeadWaiting:
        async def work(connection: AsyncConnection) -> DeadWaiting:
            row = (await connection.execute(_DEAD_WAITING, {"limit": DEAD_COUNTED_MAX})).one()
            return DeadWaiting(files=row.files, bytes=row.bytes)

        return await self._database.read(work)

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        for start in range(0, len(file_ids), MARKED_MAX):
            values = {"file_ids": list(file_ids[start : start + MARKED_MAX])}

            async def work(connection: AsyncConnection, values: Mapping[str, Any] = values) -> None:
                await connection.execute(_FILES_DELETED, dict(values))

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

    async def abort_file(self, key: str) -> bool:
        async def work(connection: AsyncConnection) -> bool:
            row = {"key": key, "level": key_level(key), "state": "aborted", "size_bytes": 0, "crc32c": 0}
            made = insert(FILES).values(**row, created_ms=sa.text("clock_ms()"))
            await connection.execute(made.on_conflict_do_nothing(constraint="files_key"))
            # The insert may have waited for a commit of this key. Only a later statement sees that commit.
            state = await connection.execute(sa.select(FILES.c.state).where(FILES.c.key == key))
            return state.scalar_one() == "aborted"

        return await self._database.write(work)

    async def history(self) -> History:
        return await self._database.read(postgres_history.read_history)


async def _expiring(connection: AsyncConnection, at_ms: int) -> dict[int, RetentionPolicy]:
    """Partitions that lose at least their first extent, with their topic's policy. The oldest extent comes first."""
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
    """(extents to kill, new log start by partition id). The caller has locked the partitions."""
    extents: dict[int, list[AgedExtent]] = defaultdict(list)
    held: dict[int, int] = {}
    each = max(1, min(limit, EXTENTS_LOOKED_AT // max(1, len(starts))))
    for row in await connection.execute(_AGED, {"partition_ids": list(starts), "each": each}):
        extents[row.partition_id].append(AgedExtent._make(row[2:]))
        held[row.partition_id] = row.live_bytes
    killed: list[int] = []
    moved: dict[int, int] = {}
    for partition_id, policy in policies.items():
        if partition_id not in extents:  # its topic was deleted before we got the lock
            continue
        taken = expired_extents(
            extents[partition_id],
            policy,
            held_bytes=held[partition_id],
            log_start_offset=starts[partition_id],
            now_ms=at_ms,
        )[: limit - len(killed)]
        if taken:
            killed += [extent.extent_id for extent in taken]
            moved[partition_id] = taken[-1].last_offset + 1
    return sorted(killed), moved
