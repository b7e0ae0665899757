"""A pooler between us and Postgres: whether there is one, and whether a connection keeps a backend process of its own.

In session mode it does, and everything works. In transaction or statement mode the pooler gives each transaction any
backend: what LISTEN, SET and prepared statements left in one of them is gone, or is met by another client. Then a
`synchronous_commit = off`, which our sender of hints sets for itself alone, could reach a session that commits records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

from metadata.postgres.driver import DRIVER_ERRORS, Connection
from runtime.errors import BadInputError

_BACKEND = "SELECT pg_backend_pid()"
_ROUNDS = 3
_OF_OTHERS = frozenset({"26000", "42P05"})
"""SQLSTATEs of a prepared statement that another backend has, and of one that another client made."""
_REFUSED = frozenset({"08003", "08P01"})
"""SQLSTATEs of a BEGIN in statement mode: the pooler refuses it, and ends the connection."""


class Pooler(StrEnum):
    NONE = "none"
    SESSION = "session"


class SharedBackendsError(BadInputError):
    """A pooler gives the transactions of one connection to different backend processes."""


async def find_pooler(first: Connection, connect_another: Callable[[], Awaitable[Connection]]) -> Pooler:
    """Which kind of pooler `first` goes through; `connect_another` makes a second connection of the same kind.

    Raises SharedBackendsError, and what the driver raises.
    """
    try:
        backend: int = await first.fetchval(_BACKEND)
        # A pooler announces a process id of its own making, by which it tells whose query a cancel request means.
        if backend == first.get_server_pid():
            return Pooler.NONE
        other = await connect_another()
        try:
            shared = await _shares(first, other, backend)
        finally:
            other.terminate()
    except DRIVER_ERRORS as error:
        if getattr(error, "sqlstate", None) not in _OF_OTHERS:
            raise
        shared = True
    if shared:
        raise SharedBackendsError(
            "a pooler in transaction or statement mode is between us and Postgres: LISTEN, SET and prepared statements"
            " need one backend process a connection",
            remedy="connect to Postgres itself, or set pool_mode = session for this database",
        )
    return Pooler.SESSION


async def _shares(first: Connection, other: Connection, backend: int) -> bool:
    """Whether `other`, inside a transaction or after it, can have the backend of `first` or lead it to another one."""
    for _ in range(_ROUNDS):  # on a busy pooler a single round may meet the same backends by chance
        try:
            await other.execute("BEGIN")
        except DRIVER_ERRORS as error:
            if getattr(error, "sqlstate", None) in _REFUSED:
                return True
            raise
        # Asked first: with a pool of one backend, `first` would wait for it until the end of this transaction.
        if await other.fetchval(_BACKEND) == backend or await first.fetchval(_BACKEND) != backend:
            return True
        await other.execute("ROLLBACK")
        # The backend that became free last is often the next to be lent.
        if await first.fetchval(_BACKEND) != backend:
            return True
    return False
