"""Forgetting rows that are no longer needed, in Postgres: many short transactions, however long the backlog is.

What is forgotten leaves marks: a cursor, a key or a writer that is older than a mark is refused or starts cold. One
statement deletes a batch and raises the marks, so both become visible together. The marks are the greatest values of
what went. So they are true after each batch, whatever rows it takes and whatever it leaves:

- all that is gone lies at or below the marks, so nobody misses it unawares;
- a row that stays at or below a mark is read by nobody who starts above it. Its key is answered by the row;
- a key without a row, in an hour of which only some rows are gone, is refused as it would be after the last batch: the
  hour is over for every writer whose clock is right (`metadata/rules/object_keys.py`).

A batch that fails changes nothing, and the next sweep begins with it. Commits wait for rows of `writers` alone, which a
batch locks when all else is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.erasures.stages import KEPT_MS
from metadata.postgres.connection import Database
from metadata.postgres.rows import statement
from metadata.rules.jobs import UNREADABLE
from metadata.rules.object_keys import hour_at

FORGOTTEN_MAX = 5_000
"""Rows of one table that one transaction forgets."""

RAISE_MARKS = """per_writer AS (
        SELECT DISTINCT ON (writer_id) writer_id, epoch, seq FROM written
        ORDER BY writer_id, epoch DESC, seq DESC
    ), locked AS (
        SELECT w.writer_id FROM writers w WHERE w.writer_id IN (SELECT writer_id FROM per_writer)
        ORDER BY w.writer_id FOR NO KEY UPDATE
    ), writers_moved AS (
        UPDATE writers w SET forgotten_epoch = p.epoch, forgotten_seq = p.seq
        FROM per_writer p JOIN locked l ON l.writer_id = p.writer_id
        WHERE w.writer_id = p.writer_id AND (w.forgotten_epoch, w.forgotten_seq) < (p.epoch, p.seq)
    )"""
"""Raises the mark of each writer to its newest file of `written`. The writers' rows are locked last, because commits
wait for them. A commit of one of these very files that is repeated at this moment may end in a deadlock; both sides
then try again."""

# The rows of one state beyond a place in the order of `files_not_live`, and of these the ones that may go. The state
# stands in the text: only then does the partial index serve every plan.
_FORGET_FILES = {
    state: statement(
        f"""WITH looked AS MATERIALIZED (
            SELECT file_id, created_ms FROM files
            WHERE state = '{state}' AND created_ms < :before_ms
                AND created_ms >= :after_ms AND (created_ms, file_id) > (:after_ms, :after_file_id)
            ORDER BY created_ms, file_id LIMIT :limit
        ), gone AS (
            DELETE FROM files f USING looked l
            WHERE f.file_id = l.file_id
                AND coalesce((regexp_match(f.key, '/([0-9]{{10}})/'))[1]::bigint, 0) <= :key_hour
            RETURNING f.file_id, f.key, f.writer_id, f.epoch, f.seq
        ), written AS (
            SELECT writer_id, epoch, seq FROM gone WHERE writer_id IS NOT NULL
        ), {RAISE_MARKS}, cluster_moved AS (
            UPDATE cluster SET
                forgotten_key_hour = greatest(forgotten_key_hour,
                    (SELECT max((regexp_match(key, '/([0-9]{{10}})/'))[1]::bigint) FROM gone)),
                forgotten_file_id = greatest(forgotten_file_id, (SELECT max(file_id) FROM gone))
            WHERE EXISTS (SELECT FROM gone)
        )
        SELECT (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM gone) AS gone, l.created_ms, l.file_id
        FROM looked l ORDER BY l.created_ms DESC, l.file_id DESC LIMIT 1""",  # noqa: S608 - our own text
        before_ms=sa.BigInteger,
        key_hour=sa.BigInteger,
        after_ms=sa.BigInteger,
        after_file_id=sa.BigInteger,
        limit=sa.BigInteger,
    )
    for state in ("deleted", "aborted")
}

# The oldest first, by their ids: these are in commit order, so their times ascend as long as the clock does.
_FORGET_CHANGES = statement(
    """WITH oldest AS MATERIALIZED (
        SELECT change_id, created_ms FROM changes WHERE change_id > :after_change_id ORDER BY change_id LIMIT :limit
    ), gone AS (
        DELETE FROM changes c USING oldest o
        WHERE c.change_id = o.change_id AND o.created_ms < :before_ms RETURNING c.change_id
    ), cluster_moved AS (
        UPDATE cluster SET forgotten_change_id = greatest(forgotten_change_id, (SELECT max(change_id) FROM gone))
        WHERE EXISTS (SELECT FROM gone)
    )
    SELECT count(*) AS gone, coalesce(max(change_id), 0) AS change_id FROM gone""",
    before_ms=sa.BigInteger,
    after_change_id=sa.BigInteger,
    limit=sa.BigInteger,
)

ERASURES_MAX = 100
"""Erasures that one transaction forgets: each has a row of hashes for every partition."""

_FORGET_OTHERS = statement(
    f"""WITH old_names AS (
        DELETE FROM deleted_topics WHERE name IN (
            SELECT name FROM deleted_topics
            WHERE deleted_ms < least(:before_ms, clock_ms() - :expiration_ms) LIMIT :limit
        ) RETURNING name
    ), old_jobs AS (
        DELETE FROM merge_jobs WHERE job_id IN (
            SELECT j.job_id FROM merge_jobs j
            WHERE j.state IN ('done', 'failed') AND j.finished_ms < :before_ms AND NOT (
                jsonb_exists(j.result, :unreadable)
                AND EXISTS (SELECT FROM files f WHERE f.job_id = j.job_id AND f.state = 'live' AND f.level > 0)
            ) ORDER BY j.finished_ms LIMIT :limit
        ) RETURNING job_id
    ), old_compactors AS (
        DELETE FROM compactors WHERE node_id IN (
            SELECT node_id FROM compactors WHERE lease_until_ms < least(:before_ms, clock_ms()) LIMIT :limit
        ) RETURNING node_id
    ), old_duties AS (
        DELETE FROM duties WHERE until_ms < least(:before_ms, clock_ms()) RETURNING name
    ), old_pins AS (
        DELETE FROM pins WHERE pin_id IN (
            SELECT pin_id FROM pins WHERE expires_ms < least(:before_ms, clock_ms()) LIMIT :limit
        ) RETURNING pin_id
    ), old_erasures AS (
        DELETE FROM erasures WHERE erasure_id IN (
            SELECT erasure_id FROM erasures
            WHERE done_ms < least(:before_ms, clock_ms() - :kept_ms) LIMIT {ERASURES_MAX}
        ) RETURNING erasure_id
    ), counted AS (
        SELECT (SELECT count(*) FROM old_names) AS names, (SELECT count(*) FROM old_jobs) AS jobs,
            (SELECT count(*) FROM old_compactors) AS compactors, (SELECT count(*) FROM old_duties) AS duties,
            (SELECT count(*) FROM old_pins) AS pins, (SELECT count(*) FROM old_erasures) AS erasures
    )
    SELECT names + jobs + compactors + duties + pins + erasures AS gone,
        greatest(names, jobs, compactors, pins) = :limit OR erasures = {ERASURES_MAX} AS is_full
    FROM counted""",  # noqa: S608 - our own text
    before_ms=sa.BigInteger,
    expiration_ms=sa.BigInteger,
    kept_ms=sa.BigInteger,
    unreadable=sa.Text,
    limit=sa.BigInteger,
)


class Forgetting:
    """Part of `PostgresDeletion`."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms

    async def forget_rows(self, *, before_ms: int) -> int:
        """See `DeletionMetadata.forget_rows`."""
        forgotten = 0
        for query in _FORGET_FILES.values():
            forgotten += await self._forget_files(query, before_ms)
        return forgotten + await self._forget_changes(before_ms) + await self._forget_others(before_ms)

    async def _forget_files(self, query: sa.TextClause, before_ms: int) -> int:
        forgotten, after = 0, (-1, -1)
        while True:
            bounds = {
                "before_ms": before_ms,
                "key_hour": hour_at(before_ms),
                "after_ms": after[0],
                "after_file_id": after[1],
                "limit": FORGOTTEN_MAX,
            }
            row = await self._one(query, bounds)
            forgotten += 0 if row is None else row.gone
            if row is None or row.looked < FORGOTTEN_MAX:
                return forgotten
            # Rows that stay, because the clock by which their keys were made was ahead, are passed over once.
            after = (row.created_ms, row.file_id)

    async def _forget_changes(self, before_ms: int) -> int:
        forgotten = after_change_id = 0
        while True:
            # Beyond what is gone: its entries stay in the index until vacuum, and every batch would read them again.
            bounds = {"before_ms": before_ms, "after_change_id": after_change_id, "limit": FORGOTTEN_MAX}
            row = await self._one(_FORGET_CHANGES, bounds)
            forgotten += row.gone
            if row.gone < FORGOTTEN_MAX:
                return forgotten
            after_change_id = row.change_id

    async def _forget_others(self, before_ms: int) -> int:
        """Topics' deletions, jobs, compactors, duties, pins, erasures."""
        bounds = {
            "before_ms": before_ms,
            "expiration_ms": self._expiration_ms,
            "unreadable": UNREADABLE,
            "kept_ms": KEPT_MS,
            "limit": FORGOTTEN_MAX,
        }
        forgotten = 0
        while True:
            row = await self._one(_FORGET_OTHERS, bounds)
            forgotten += row.gone
            if not row.is_full:
                return forgotten

    async def _one(self, query: sa.TextClause, values: Mapping[str, Any]) -> Any:
        """The only row of a statement that changes something, or None; in a transaction of its own."""

        async def work(connection: AsyncConnection) -> Any:
            return (await connection.execute(query, dict(values))).one_or_none()

        return await self._database.write(work)
