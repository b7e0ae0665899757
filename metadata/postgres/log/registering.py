"""Orders the registration of a program and a migration, so that the later one sees the earlier one.

The schema check on a new connection is not enough, because a migration that excludes the program may run between the
check and the registration. So the transaction that registers checks again, and holds the migration's lock in shared
mode. A migration holds that lock to its end. Either the migration comes later, sees the new lease and refuses
(`metadata/migrations/migrate.py`), or the program comes later and sees the new schema. Both take this lock first, so
neither waits for it with another lock in hand.

A lapsed lease does not stop a migration. The migration takes it away from a program that is too old (`end_too_old`); a
program that was only asleep has to register again.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataUnavailableError
from metadata.migrations.schema_versions import check_takes, read_state
from metadata.postgres.connection import sqlstate_of
from metadata.postgres.driver import Connection, driver_of
from metadata.postgres.tables import SCHEMA_REVISION

MIGRATION_LOCK = 7_310_575_218
"""An arbitrary number. Advisory locks of a database share one space: the lock of `changes` has the number before this
one, KILLERS_LOCK and OFFSETS_LOCK have the two after it."""
_QUERY_CANCELED = "57014"

_LOCK_TOO_OLD = (
    "SELECT FROM agents WHERE coalesce(program_schema, 1) < {oldest} FOR UPDATE",
    "SELECT FROM compactors WHERE coalesce(program_schema, 1) < {oldest} FOR UPDATE",
)
_END_TOO_OLD = (
    # A new epoch for each group, as `take_group` draws one: the former owner can no longer write to the group.
    """UPDATE groups SET epoch = nextval('group_epochs') WHERE owner_id IN (
        SELECT writer_id FROM agents WHERE coalesce(program_schema, 1) < {oldest})""",
    # The next epoch for the writer, as registering gives: commits that it still has in flight are refused.
    """WITH gone AS (DELETE FROM agents WHERE coalesce(program_schema, 1) < {oldest} RETURNING writer_id)
    UPDATE writers SET epoch = epoch + 1, last_seq = -1 WHERE writer_id IN (SELECT writer_id FROM gone)""",
    """WITH gone AS (DELETE FROM compactors WHERE coalesce(program_schema, 1) < {oldest} RETURNING node_id)
    UPDATE merge_jobs SET state = 'ready', attempts = greatest(attempts - 1, 0), deadline_ms = NULL,
        lease_until_ms = NULL
    WHERE state = 'running' AND holder IN (SELECT node_id FROM gone)""",
)


async def begin_registering(connection: AsyncConnection) -> None:
    """Call this first in every transaction that registers a program.

    Raises SchemaMismatchError, and MetadataUnavailableError if a migration takes longer than the statement timeout.
    """
    await _lock(connection, "pg_advisory_xact_lock_shared")
    # Under the lock, which a migration holds alone: what is read here stays true until we commit.
    check_takes(await read_state(await driver_of(connection)), SCHEMA_REVISION)


async def lock_registering(connection: AsyncConnection) -> None:
    """Until the end of the transaction no program registers, and none migrates. Raises MetadataUnavailableError."""
    await _lock(connection, "pg_advisory_xact_lock")


async def _lock(connection: AsyncConnection, function: str) -> None:
    try:
        await connection.execute(sa.text(f"SELECT {function}({MIGRATION_LOCK})"))
    except DBAPIError as error:
        if sqlstate_of(error) != _QUERY_CANCELED:
            raise
        raise MetadataUnavailableError(
            "a schema migration is running, and no program can register until it has ended",
            remedy="try again when it has ended",
        ) from error


async def lock_too_old(connection: Connection, oldest_program: int) -> None:
    """In a migration, or under `lock_registering`: lock the leases of programs older than `oldest_program`, so that no
    lapsed one is renewed."""
    await _run(connection, _LOCK_TOO_OLD, oldest_program)


async def end_too_old(connection: Connection, oldest_program: int) -> None:
    """Likewise: take the leases and the groups of these programs away.

    Call it after `lock_too_old`, and after a check that found none of them at work.
    """
    await _run(connection, _END_TOO_OLD, oldest_program)


async def _run(connection: Connection, statements: Sequence[str], oldest_program: int) -> None:
    for each in statements:
        await connection.execute(each.format(oldest=int(oldest_program)))
