"""Keeps programs that know nothing of users, ACLs and quotas away from a database that has them.

Such a program stops following the tail at the first change of a kind that it does not know, and it serves whoever asks.
The migration that made the tables cannot exclude it, because a rolling upgrade runs both releases side by side. So the
first use of the tables does: it is refused while one of them is at work, and says in `schema_versions` that the schema
takes no such program any more. That is what a migration does that excludes programs, with the same locks: a program
that registers at this moment either is seen, or sees it (`metadata/postgres/log/registering.py`).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.migrations.schema_versions import listed, read_running, revision_of, too_old
from metadata.postgres.driver import driver_of
from metadata.postgres.log.registering import lock_registering
from metadata.postgres.tables import SCHEMA_VERSIONS
from metadata.security.contract import OlderProgramsAtWorkError
from runtime.errors import BugError

OLDEST_PROGRAM = 7
"""The schema of the first programs that know users, ACLs and quotas."""

_LOCK_OLDER = sa.text("SELECT lock_older_programs_v1()")
_END_OLDER = sa.text("SELECT end_older_programs_v1()")
"""They run with the rights of the schema's owner (`excluding_v1.sql`): an agent's role has not those."""
_OLDEST = sa.select(sa.func.max(SCHEMA_VERSIONS.c.oldest_program))
_EXCLUDE = (
    sa.update(SCHEMA_VERSIONS)
    .where(SCHEMA_VERSIONS.c.version == OLDEST_PROGRAM)
    .values(oldest_program=OLDEST_PROGRAM)
    .returning(SCHEMA_VERSIONS.c.version)
)


async def exclude_older(connection: AsyncConnection) -> None:
    """Call this first in every transaction that changes users, ACLs or quotas. It costs a read of a few rows, but for
    the first time. Raises OlderProgramsAtWorkError."""
    if (await connection.scalar(_OLDEST) or 0) >= OLDEST_PROGRAM:
        return
    await lock_registering(connection)
    await connection.execute(_LOCK_OLDER)
    at_work = too_old(await read_running(await driver_of(connection)), OLDEST_PROGRAM)
    if at_work:
        raise OlderProgramsAtWorkError(
            f"users, ACLs and quotas need programs of schema {revision_of(OLDEST_PROGRAM)} and newer alone, but older"
            f" ones are at work: {listed(at_work)}; nothing was changed",
            remedy="upgrade them or stop them first; a killed one still counts for 10 s",
        )
    # A lapsed lease may belong to a program that only sleeps: it has to register again, and is refused then.
    _check_noted(await connection.scalar(_END_OLDER))


async def note_excluded(connection: AsyncConnection) -> None:
    """Say that the schema takes no older program. The caller knows that none is at work."""
    _check_noted(await connection.scalar(_EXCLUDE))


def _check_noted(noted: object) -> None:
    if not noted:
        raise BugError(f"schema_versions has no row of schema {revision_of(OLDEST_PROGRAM)}")
