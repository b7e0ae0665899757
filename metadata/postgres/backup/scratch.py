"""A database beside the live one, for a restore drill: made, used and dropped.

Whoever makes one holds an advisory lock in the database that it was made from, by a session of its own, for as long as
it is used. A lock that is free therefore shows a database whose maker was killed: the next drill drops it. So a drill
whose session ends is given up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.connection import CONNECTION_ERRORS, INSUFFICIENT_PRIVILEGE, connect, sqlstate_of, unavailable
from metadata.postgres.driver import Connection
from runtime.errors import BadInputError
from runtime.ids import IdSource

PREFIX = "siltstone_drill"
LOCK_CLASS = 0x51D1
"""The first half of the locks' numbers; the second is drawn for each database, and is in its name."""
INT31 = 2**31 - 1
_NAME: Final = re.compile(rf"{PREFIX}_[0-9]+_([0-9]+)")
STATEMENT_TIMEOUT_MS = 600_000
"""CREATE DATABASE waits for a checkpoint on old servers."""


class NoScratchError(BadInputError):
    """The role may not make a database. Nothing was changed."""


class ScratchUnavailableError(MetadataUnavailableError):
    """The Postgres of the scratch database does not answer, or refuses. No database was made."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A new, empty database."""

    name: str
    url: str = field(repr=False)
    lost: asyncio.Event
    """Set when the session that holds the lock ends: from then on the next drill may drop the database."""


@asynccontextmanager
async def scratch_database(url: str, *, ids: IdSource, say: Callable[[str], None]) -> AsyncGenerator[Scratch]:
    """A new database on the server of `url`, dropped at the end of the block, however it ends.

    Drops the databases of killed drills before. Raises NoScratchError, ScratchUnavailableError.
    """
    try:
        connection = await connect(url, application="siltstone-drill", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    except MetadataUnavailableError as error:
        raise ScratchUnavailableError(error.message, remedy=error.remedy) from error.__cause__
    try:
        lost = asyncio.Event()

        def note(_: object) -> None:
            lost.set()

        connection.add_termination_listener(note)
        try:
            # The session only holds a lock for as long as a rebuild takes.
            await connection.execute("SET idle_session_timeout = 0")
            own = int(await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()"))
            await _drop_leftovers(connection, own, say)
        except CONNECTION_ERRORS as error:
            raise ScratchUnavailableError(unavailable(error).message) from error
        number = ids.uuid4().int & INT31
        name = f"{PREFIX}_{own}_{number}"
        try:
            await _create(connection, name, number)
            yield Scratch(name, at_database(url, name), lost)
        finally:
            await _drop_at_last(connection, url, name, say)
    finally:
        connection.terminate()


def at_database(url: str, name: str) -> str:
    """The URL of another database of the same server. Pure."""
    scheme, _, rest = url.partition("://")
    # A user, a password and hosts come first, and none of them has one of these characters unquoted.
    end = min((rest.index(each) for each in "/?#" if each in rest), default=len(rest))
    _, mark, query = rest[end:].partition("?")
    return f"{scheme}://{rest[:end]}/{name}{mark}{query}"


async def _create(connection: Connection, name: str, number: int) -> None:
    try:
        await connection.fetchval("SELECT pg_advisory_lock($1, $2)", LOCK_CLASS, number)
        # By the template that nobody connects to: the other one cannot be copied while somebody does.
        await connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    except CONNECTION_ERRORS as error:
        if sqlstate_of(error) != INSUFFICIENT_PRIVILEGE:
            raise ScratchUnavailableError(unavailable(error).message) from error
        role = await connection.fetchval("SELECT quote_ident(current_user)")
        raise NoScratchError(
            f"the role {role} may not make a scratch database; nothing was changed",
            remedy=f"ALTER ROLE {role} CREATEDB, or name another Postgres by --scratch, whose role may",
        ) from error


async def _drop_leftovers(connection: Connection, own: int, say: Callable[[str], None]) -> None:
    begin = f"{PREFIX}_{own}_"
    for row in await connection.fetch("SELECT datname FROM pg_database WHERE starts_with(datname::text, $1)", begin):
        name = str(row["datname"])
        made = _NAME.fullmatch(name)
        number = int(made[1]) if made is not None else INT31 + 1
        if number > INT31:
            continue  # somebody else's
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCK_CLASS, number):
            continue  # another drill is at work on it
        try:
            await _drop(connection, name)
            say(f"dropped {name}, which a killed drill left")
        except CONNECTION_ERRORS as error:
            if not sqlstate_of(error):
                raise
            say(f"warning: {name}, which a killed drill left, cannot be dropped: {error}")
        finally:
            await connection.fetchval("SELECT pg_advisory_unlock($1, $2)", LOCK_CLASS, number)


async def _drop(connection: Connection, name: str) -> None:
    await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _drop_at_last(connection: Connection, url: str, name: str, say: Callable[[str], None]) -> None:
    """Never raises: the drill's own result or error is the one to show."""
    try:
        await _drop(connection, name)
        return
    except CONNECTION_ERRORS:
        pass  # the session may have been lost meanwhile
    try:
        again = await connect(url, application="siltstone-drill", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
        try:
            await _drop(again, name)
        finally:
            again.terminate()
    except (*CONNECTION_ERRORS, MetadataUnavailableError) as error:
        say(f"warning: the database {name} could not be dropped: {error}; the next drill drops it")
