"""asyncpg, as far as we use it, with types; the library carries none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it has none
from sqlalchemy.ext.asyncio import AsyncConnection

DRIVER_ERRORS: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""What a call may raise: the server's errors (they carry `sqlstate`), the driver's own, the network's.

InternalClientError is what a call meets on a connection that the server ended while it was idle, when the server's last
words have been read and the end of the stream has not.
"""


class Connection(Protocol):
    """One connection; one call at a time."""

    async def fetch(self, query: str, *arguments: Any) -> Sequence[Mapping[str, Any]]: ...

    async def fetchrow(self, query: str, *arguments: Any) -> Mapping[str, Any] | None: ...

    async def fetchval(self, query: str, *arguments: Any) -> Any: ...

    async def execute(self, query: str, *arguments: Any) -> str: ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...

    def is_in_transaction(self) -> bool: ...

    def is_closed(self) -> bool: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...


async def driver_of(connection: AsyncConnection) -> Connection:
    """The driver's connection under SQLAlchemy's, in its transaction: for so many rows that SQLAlchemy's take long."""
    return cast("Connection", (await connection.get_raw_connection()).driver_connection)


async def open_connection(
    url: str, *, connect_timeout_s: float, command_timeout_s: float, settings: Mapping[str, str]
) -> Connection:
    """Raises DRIVER_ERRORS, and ValueError for a URL that makes no sense."""
    connect = cast("Any", asyncpg).connect
    return await connect(
        url, timeout=connect_timeout_s, command_timeout=command_timeout_s, server_settings=dict(settings)
    )


_NOT_SENT = ("query arguments cannot exceed", "the server expects")
"""How the driver refuses the number of a statement's arguments. Its InterfaceError means a lost connection, too."""


def is_encoding_error(error: BaseException) -> bool:
    """Whether the driver could not encode a value (too large for its type): nothing was sent to the server."""
    return isinstance(error, asyncpg.DataError) and "invalid input for query argument" in str(error)


def is_refused_by_driver(error: BaseException) -> bool:
    """Whether the driver itself refused the statement, for a value or the number of them: nothing was sent. `error` may
    be what SQLAlchemy made of it."""
    cause: BaseException | None = error
    while cause is not None:
        is_count = isinstance(cause, asyncpg.InterfaceError) and any(text in str(cause) for text in _NOT_SENT)
        if is_count or is_encoding_error(cause):
            return True
        cause = getattr(cause, "orig", None) or cause.__cause__
    return False
