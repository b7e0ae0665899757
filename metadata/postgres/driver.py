"""Types for the part of asyncpg that we use; the library has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
"""Every error that a call may raise: the server's (they carry `sqlstate`), the driver's own, the network's.

A call raises InternalClientError on an idle connection that the server ended, if the driver has read the server's last
message but not yet the end of the stream.
"""


class Connection(Protocol):
    """One connection; one call at a time."""

    async def fetch(self, query: str, *arguments: Any) -> Sequence[Mapping[str, Any]]: ...

    async def fetchrow(self, query: str, *arguments: Any) -> Mapping[str, Any] | None: ...

    async def fetchval(self, query: str, *arguments: Any) -> Any: ...

    async def execute(self, query: str, *arguments: Any) -> str: ...

    async def copy_from_query(
        self, query: str, *, output: Callable[[bytes], Awaitable[None]], format: str, timeout: float
    ) -> str:
        """Gives the result of COPY to `output` in pieces, each after the last was taken. `timeout` is in seconds."""
        ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...

    def is_in_transaction(self) -> bool: ...

    def is_closed(self) -> bool: ...

    def get_server_pid(self) -> int: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...


async def driver_of(connection: AsyncConnection) -> Connection:
    """The driver's connection under SQLAlchemy's, in the same transaction. For large results: SQLAlchemy's rows are
    slow to make."""
    return cast("Connection", (await connection.get_raw_connection()).driver_connection)


async def open_connection(
    url: str,
    *,
    connect_timeout_s: float,
    command_timeout_s: float,
    application: str = "siltstone",
    settings: Mapping[str, str],
    password: str | None = None,
) -> Connection:
    """`password`: in place of that of the URL or the environment. Raises DRIVER_ERRORS, and ValueError for a malformed
    URL."""
    connect = cast("Any", asyncpg).connect
    connection: Connection = await connect(
        url,
        password=password,
        timeout=connect_timeout_s,
        command_timeout=command_timeout_s,
        server_settings={"application_name": application},
    )
    # After connecting: a pooler refuses settings that it does not know in the startup message, or drops them. In one
    # round trip, and so in one transaction: SET LOCAL would end with it, SET stays.
    if settings:
        try:
            await connection.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        except BaseException:
            connection.terminate()
            raise
    return connection


def is_lost_connection(error: BaseException) -> bool:
    """Whether the driver found the connection ended. `error` may be SQLAlchemy's copy of the driver's error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (asyncpg.InternalClientError, ConnectionError)):
            return True
        if isinstance(cause, asyncpg.InterfaceError) and "connection is closed" in str(cause):
            return True
        cause = cause.__cause__
    return False


_NOT_SENT = ("query arguments cannot exceed", "the server expects")
"""Texts by which the driver refuses the number of a statement's arguments. The texts are needed because its
InterfaceError may also mean a lost connection."""


def is_encoding_error(error: BaseException) -> bool:
    """Whether the driver could not encode a value (too large for its type). Nothing was sent to the server then."""
    return isinstance(error, asyncpg.DataError) and "invalid input for query argument" in str(error)


def is_refused_by_driver(error: BaseException) -> bool:
    """Whether the driver itself refused the statement, because of a value or the number of values. Nothing was sent
    then. `error` may be SQLAlchemy's wrapper of the driver's error."""
    cause: BaseException | None = error
    while cause is not None:
        is_count = isinstance(cause, asyncpg.InterfaceError) and any(text in str(cause) for text in _NOT_SENT)
        if is_count or is_encoding_error(cause):
            return True
        cause = getattr(cause, "orig", None) or cause.__cause__
    return False
