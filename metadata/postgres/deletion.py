"""Retention, and the decision which objects may be deleted, in Postgres. `metadata/postgres/rows.py` gives the order of
locks.

Retention finds its partitions without a lock, then locks them and decides again by their present rows (the rules are in
`metadata/rules/retention.py`). It never touches L0 rows: the log start decides which of their records live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.broker import retention_check_ms
from metadata.contract.deletion import DeadFile, Expired
from metadata.contract.tail import ChangeKind
from metadata.erasures.stages import KEPT_MS
from metadata.postgres import history as postgres_history
from metadata.postgres.connection import Database
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
from metadata.rules.jobs import UNREADABLE
from metadata.rules.object_keys import hour_at, key_level
from metadata.rules.retention import (
    AgedExtent,
    RetentionPolicy,
    expired_extents,
    retention_policy,
)

NOW_MS = sa.text("clock_ms()")

PARTITIONS_MAX = 1_000
"""Partitions that one round of retention takes on."""

PRODUCERS_MAX = 10_000
"""Producer states that one transaction drops."""

# Judged by the first extent alone: retention takes a prefix, so a partition whose first extent stays loses nothing.
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

# SKIP LOCKED: a row that a commit holds was used a moment ago, and the commit must not wait for us.
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

# One statement, so that the marks of what was forgotten become visible together with its absence: a cursor, a key
# or a writer that is older than a mark is refused or starts cold.
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
), old_erasures AS (
    DELETE FROM erasures WHERE done_ms < least(:before_ms, clock_ms() - :kept_ms) RETURNING erasure_id
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
    + (SELECT count(*) FROM old_pins) + (SELECT count(*) FROM old_erasures)
"""

# A file that died at or after the creation of a running pin may be in that reader's snapshot. The inputs of a live job
# stay too: its compactor may be reading them.
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

# The row of a deleted file stays until it is forgotten: it refuses its key, and answers a repeat of its commit.
_FILES_DELETED = statement(
    """WITH gone AS (
        SELECT file_id FROM files WHERE file_id = ANY (:file_ids) AND state = 'dead' ORDER BY file_id FOR UPDATE
    ), marked AS (
        UPDATE files f SET state = 'deleted' FROM gone g WHERE f.file_id = g.file_id
    )
    DELETE FROM extents e USING gone g WHERE e.file_id = g.file_id""",
    file_ids=LONGS,
)


class PostgresDeletion:
    """Implements `DeletionMetadata`."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms

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

    async def expire_producers(self) -> int:
        async def work(connection: AsyncConnection) -> int:
            bounds = {"expiration_ms": self._expiration_ms, "limit": PRODUCERS_MAX}
            return (await connection.execute(_EXPIRE_PRODUCERS, bounds)).rowcount

        dropped = 0
        # Many short transactions: commits wait for the rows that one of them holds.
        while done := await self._database.write(work):
            dropped += done
        return dropped

    async def forget_rows(self, *, before_ms: int) -> int:
        async def work(connection: AsyncConnection) -> int:
            bounds = {
                "before_ms": before_ms,
                "key_hour": hour_at(before_ms),
                "expiration_ms": self._expiration_ms,
                "unreadable": UNREADABLE,
                "kept_ms": KEPT_MS,
            }
            done = await connection.execute(sa.text(_FORGET), bounds)
            return done.scalar_one()

        return await self._database.write(work)

    # -- deletion

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        async def work(connection: AsyncConnection) -> Sequence[DeadFile]:
            rows = await connection.execute(_DEAD_FILES, {"grace_ms": grace_ms, "limit": limit})
            return [DeadFile(**row) for row in rows.mappings()]

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
    for row in await connection.execute(_AGED, {"partition_ids": list(starts)}):
        extents[row.partition_id].append(AgedExtent._make(row[1:]))
    killed: list[int] = []
    moved: dict[int, int] = {}
    for partition_id, policy in policies.items():
        if partition_id not in starts:  # its topic was deleted before we got the lock
            continue
        taken = expired_extents(extents[partition_id], policy, log_start_offset=starts[partition_id], now_ms=at_ms)[
            : limit - len(killed)
        ]
        if taken:
            killed += [extent.extent_id for extent in taken]
            moved[partition_id] = taken[-1].last_offset + 1
    return sorted(killed), moved
