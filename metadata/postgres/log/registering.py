"""Registering a program, and a migration: whichever comes first is seen by the other.

A program is let in when its connection is opened, and by then a migration that does not take it may be on its way. So
who registers asks again, in the transaction that registers, under the shared form of the lock that a migration holds
to its end: either the migration comes later and sees the newcomer's lease (`metadata/migrations/migrate.py` refuses
then), or the newcomer comes later and sees the new schema. The lock is the first that either takes, so neither waits
for the other with something in its hands. A lease that has lapsed does not hold up a migration: it is taken away from
a program that is too old (`end_too_old`), and whoever was only asleep has to register anew.
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
_QUERY_CANCELED = "57014"

_LOCK_TOO_OLD = (
    "SELECT FROM agents WHERE coalesce(program_schema, 1) < {oldest} FOR UPDATE",
    "SELECT FROM compactors WHERE coalesce(program_schema, 1) < {oldest} FOR UPDATE",
)
_END_TOO_OLD = (
    # an epoch more for each group, as taking it gives: its owner of before writes nothing to it any more
    """UPDATE groups SET epoch = nextval('group_epochs') WHERE owner_id IN (
        SELECT writer_id FROM agents WHERE coalesce(program_schema, 1) < {oldest})""",
    # an epoch more, as registering does: what its holder still has on the way is refused
    """WITH gone AS (DELETE FROM agents WHERE coalesce(program_schema, 1) < {oldest} RETURNING writer_id)
    UPDATE writers SET epoch = epoch + 1, last_seq = -1 WHERE writer_id IN (SELECT writer_id FROM gone)""",
    """WITH gone AS (DELETE FROM compactors WHERE coalesce(program_schema, 1) < {oldest} RETURNING node_id)
    UPDATE merge_jobs SET state = 'ready', attempts = greatest(attempts - 1, 0), deadline_ms = NULL,
        lease_until_ms = NULL
    WHERE state = 'running' AND holder IN (SELECT node_id FROM gone)""",
)


async def begin_registering(connection: AsyncConnection) -> None:
    """First in every transaction that registers a program. Raises SchemaMismatchError, and MetadataUnavailableError
    when a migration takes longer than a statement may."""
    try:
        await connection.execute(sa.text(f"SELECT pg_advisory_xact_lock_shared({MIGRATION_LOCK})"))
    except DBAPIError as error:
        if sqlstate_of(error) != _QUERY_CANCELED:
            raise
        raise MetadataUnavailableError(
            "a migration is under way, and nothing can register meanwhile", remedy="try again when it has ended"
        ) from error
    check_takes(await read_state(await driver_of(connection)), SCHEMA_REVISION)


async def lock_too_old(connection: Connection, oldest_program: int) -> None:
    """In a migration: leases of programs older than `oldest_program` stay as they are, lapsed or not."""
    await _run(connection, _LOCK_TOO_OLD, oldest_program)


async def end_too_old(connection: Connection, oldest_program: int) -> None:
    """In a migration, after `lock_too_old` and a look that found none of them at work: take their leases away, and
    their groups."""
    await _run(connection, _END_TOO_OLD, oldest_program)


async def _run(connection: Connection, statements: Sequence[str], oldest_program: int) -> None:
    for each in statements:
        await connection.execute(each.format(oldest=int(oldest_program)))
