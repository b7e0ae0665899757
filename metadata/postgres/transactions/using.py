"""Keeps programs that know nothing of transactions away from a database that has some.

Such an agent would show open and aborted records to everybody, and such a compactor would look for the objects of
markers. The migration that made the tables cannot exclude them, because a rolling upgrade runs both releases side by
side. So transactions may be used once none of them is at work, and from then on the schema takes none any more, as with
users and ACLs (`metadata/postgres/security/older.py`).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.migrations.schema_versions import read_running, revision_of, too_old
from metadata.postgres.driver import driver_of
from metadata.postgres.log.registering import lock_registering
from metadata.postgres.tables import SCHEMA_VERSIONS
from runtime.errors import BugError

OLDEST_PROGRAM = 9
"""The schema of the first programs that know transactions."""

_LOCK_OLDER = sa.text(f"SELECT lock_programs_below_v1({OLDEST_PROGRAM})")
_END_OLDER = sa.text(f"SELECT end_programs_below_v1({OLDEST_PROGRAM})")
_OLDEST = sa.select(sa.func.max(SCHEMA_VERSIONS.c.oldest_program))


async def use_transactions(connection: AsyncConnection) -> bool:
    """Whether they may be used. It costs a read of a few rows, but for the first time."""
    if (await connection.scalar(_OLDEST) or 0) >= OLDEST_PROGRAM:
        return True
    if too_old(await read_running(await driver_of(connection)), OLDEST_PROGRAM):
        return False
    await lock_registering(connection)
    await connection.execute(_LOCK_OLDER)
    # Again, under the locks: a program that registers at this moment either is seen, or sees what we write.
    if too_old(await read_running(await driver_of(connection)), OLDEST_PROGRAM):
        return False
    if not await connection.scalar(_END_OLDER):
        raise BugError(f"schema_versions has no row of schema {revision_of(OLDEST_PROGRAM)}")
    return True
