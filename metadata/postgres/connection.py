"""Connections to Postgres: their setup, the checks on each, and the meaning of their errors.

`connect` makes every connection, pooled or dedicated. The service uses `Database.connect`, which also checks that the
server has not gone back in time. Another system identifier, an older timeline or a missing newest file mean a restore,
or a failover to a standby that lacked commits that we acknowledged. Nothing may be written then. Nor may anything be
written after a migration that does not support this program.

Timeouts: the server gives up a statement (10 s) before the client does (15 s), so lost answers are rare, and the doubt
about them is short.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry as PoolEntry
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError, RightsMissingError, WentBackError
from metadata.migrations.schema_versions import check_takes, read_state
from metadata.postgres.driver import (
    DRIVER_ERRORS,
    Connection,
    is_lost_connection,
    is_refused_by_driver,
    open_connection,
)
from metadata.postgres.history import SYSTEM_IDENTIFIER, TIMELINE
from metadata.postgres.passwords import changed_ms, log_in
from metadata.postgres.probes.pooler import find_pooler
from metadata.postgres.tables import SCHEMA_REVISION
from runtime.errors import BadInputError, BugError
from runtime.passwords import HOW_TO_WRITE, UNREADABLE, place_in, scheme_in
from runtime.runtime import Runtime

CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_MS = 10_000
CLIENT_PATIENCE = 1.5
"""The client waits this many times the server's statement timeout."""
POOL_TIMEOUT_S = 15.0
IDLE_IN_TRANSACTION_TIMEOUT_MS = 10_000
"""Postgres ends the session of a process that stands still inside a transaction: its locks would stop others."""
POOL_CONNECTIONS = 4
CHECK_IDLE_MS = 10_000.0
"""A pooled connection that lay idle for this long is asked for an answer before it is used."""
POSTGRES_VERSION_MIN = 150_000
ATTEMPTS = 10
"""Attempts at a transaction that loses deadlocks or serialisation conflicts."""
RETRY_BASE_MS = 5.0
DEFINITE_CLASSES = frozenset({"22", "23", "42"})
"""SQLSTATE classes of bad data, violated constraints and bad statements. Postgres refuses a repeat as well."""
RETRIABLE_SQLSTATES = frozenset({"40001", "40P01"})
INSUFFICIENT_PRIVILEGE = "42501"
PASSING_CLASSES = frozenset({"08", "40", "55", "57", "58", "XX"})
"""SQLSTATE classes of lost connections, conflicts, locks, time-outs, shutdowns and internal failures. Postgres
answered, but did not refuse: the same statement may succeed later."""

CONNECTION_ERRORS: tuple[type[Exception], ...] = (DBAPIError, PoolTimeoutError, *DRIVER_ERRORS)
"""Every error that the drivers raise when a statement or a connection fails."""

_USED_MS = "used_ms"
_PING = sa.text("SELECT 1")
_ENDED = frozenset({"57P01", "57P02", "25P03"})
"""SQLSTATEs of a session that was ended: by an administrator, by a crash, or because it stood still."""

T = TypeVar("T")


class UnsafeDatabaseError(BadInputError):
    """The server is too old, or would acknowledge commits that it may lose."""


async def connect(
    url: str, *, application: str = "siltstone", statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> Connection:
    """Open a raw asyncpg connection with our session settings.

    Raises MetadataUnavailableError; its message names host and database, never the password.
    """
    settings = {
        "statement_timeout": str(statement_timeout_ms),
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
        # The commit function depends on it, whatever the server's or the role's default is.
        "default_transaction_isolation": "read committed",
        # Our functions and `commit_calls.py` write bytes as '\x...', which means something else if it is off.
        "standard_conforming_strings": "on",
        "jit": "off",
        "timezone": "UTC",
    }

    def open_with(address: str, password: str | None) -> Awaitable[Connection]:
        return open_connection(
            address,
            password=password,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            command_timeout_s=statement_timeout_ms / 1000 * CLIENT_PATIENCE,
            application=application,
            settings=settings,
        )

    try:
        return await log_in(driver_url(url), open_with)
    except ssl.SSLCertVerificationError as error:  # which is a ValueError too
        place = place_in(url, port=5432)
        # OpenSSL's message names the host, which may be a part of the password if the URL cannot be read.
        why = "" if place == UNREADABLE else f": {error.verify_message}"
        raise MetadataUnavailableError(
            f"cannot connect to Postgres at {place}: its certificate is not trusted{why}",
            remedy="sslrootcert must name the CA file of the server's certificate, which must name the URL's host",
        ) from None
    except ValueError:  # neither quoted nor chained: its message may contain a part of the password
        raise MetadataUnavailableError(
            f"cannot connect to Postgres at {place_in(url, port=5432)}: its URL cannot be read", remedy=HOW_TO_WRITE
        ) from None
    except CONNECTION_ERRORS as error:
        place = place_in(url, port=5432)
        # A host that is a part of the password is in the driver's message too.
        why = type(error).__name__ if place == UNREADABLE else _reason(error)
        raise MetadataUnavailableError(
            f"cannot connect to Postgres at {place}: {why}",
            remedy=HOW_TO_WRITE if place == UNREADABLE else _tls_remedy(error),
        ) from (None if place == UNREADABLE else error)


def _tls_remedy(error: Exception) -> str:
    if "no encryption" in str(error):
        return "write ?sslmode=verify-full&sslrootcert=FILE at the end of metadata.url"
    return ""


def driver_url(url: str) -> str:
    """`url` in the form that asyncpg takes: without SQLAlchemy's driver suffix."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in {"postgresql", "postgres"}:
        known = scheme_in(url)
        begins = f"it begins with {known!r}" if known else "it holds no ://"
        raise MetadataUnavailableError(
            f"the Postgres URL cannot be used: {begins}", remedy="write postgresql://user@host:port/db"
        )
    return f"postgresql://{rest}"


def sqlstate_of(error: BaseException) -> str:
    """The SQLSTATE of a driver's error; "" if it has none (connection lost, time-out)."""
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state if isinstance(state, str) else ""


def unavailable(error: BaseException) -> MetadataUnavailableError:
    """The error to raise when nothing happened. Its message tells a missing answer from a refusal."""
    return MetadataUnavailableError(_answer(error))


def _answer(error: BaseException) -> str:
    state = sqlstate_of(error)
    if not state:
        return f"Postgres did not answer: {_reason(error)}"
    said = str(getattr(error, "orig", error)).strip().partition("\n")[0]
    return f"Postgres {'gave up' if state[:2] in PASSING_CLASSES else 'refused'}: {said}"


class DedicatedConnection:
    """One connection, used by one call at a time. The next `get` after a drop makes a new one."""

    def __init__(self, database: Database, application: str, *, generic_plans: bool = False) -> None:
        """`generic_plans`: plan a statement once for the connection, and not for the arguments of each call."""
        self.lock = asyncio.Lock()
        self._database = database
        self._application = application
        self._generic_plans = generic_plans
        self._connection: Connection | None = None

    async def get(self) -> Connection:
        """The connection; call with `lock` held. Raises what `Database.connect` does."""
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            connection = await self._database.connect(self._application)
            if self._generic_plans:
                await _set(connection, "plan_cache_mode = force_generic_plan")
            self._connection = connection
        return self._connection

    def drop(self) -> None:
        """Forget the connection. Its statement in flight may or may not take effect."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        async with self.lock:
            connection, self._connection = self._connection, None
            if connection is not None and not connection.is_closed():
                await _close(connection)


@dataclass(slots=True)
class Seen:
    """The newest state of the database that this process knows."""

    system_identifier: int = 0
    timeline: int = 0
    cluster_id: str = ""
    file_id: int = 0
    """The highest id of a committed file that this process was told of."""


class Database:
    """The pool for cold queries, and the rules for every connection."""

    def __init__(self, url: str, *, runtime: Runtime) -> None:
        self.clock = runtime.clock
        self.ids = runtime.ids
        self.seen = Seen()
        self._url = url
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: self.connect("siltstone-pool"),
            pool_size=POOL_CONNECTIONS,
            max_overflow=POOL_CONNECTIONS,
            pool_timeout=POOL_TIMEOUT_S,
            # The connection used last goes first, so the calls of an idle process share one that needs no check.
            pool_use_lifo=True,
            # An error of SQLAlchemy's shows the arguments of its statement, keys of users among them; logs show errors.
            hide_parameters=True,
        )
        event.listen(self._engine.sync_engine, "checkout", self._check_idle)
        event.listen(self._engine.sync_engine, "checkin", self._used)
        self._metrics = runtime.metrics
        runtime.metrics.security.postgres_password_age_seconds.set_function(self._password_age_s)
        pool = self._engine.pool
        if isinstance(pool, QueuePool):
            runtime.metrics.postgres_pool_connections.labels(state="in_use").set_function(pool.checkedout)
            runtime.metrics.postgres_pool_connections.labels(state="idle").set_function(pool.checkedin)

    def _password_age_s(self) -> float:
        changed = changed_ms(self._url)
        return 0.0 if changed is None else max(0.0, (self.clock.wall_ms() - changed) / 1000)

    async def open(self) -> None:
        """Raises SchemaMismatchError, UnsafeDatabaseError, SharedBackendsError, MetadataUnavailableError, and
        RightsMissingError if the role may not read the version of the schema."""
        connection = await self._connect_to_open()
        try:
            await find_pooler(connection, self._connect_to_open)
            await _check_schema(connection)
        except CONNECTION_ERRORS as error:
            if sqlstate_of(error) == INSUFFICIENT_PRIVILEGE:
                raise error_of(error) from error
            raise unavailable(error) from error
        finally:
            await _close(connection)

    async def _connect_to_open(self) -> Connection:
        return await connect(self._url, application="siltstone-open")

    async def close(self) -> None:
        await self._engine.dispose()

    async def connect(self, application: str) -> Connection:
        """A checked raw connection. Raises MetadataUnavailableError, WentBackError, SchemaMismatchError."""
        connection = await connect(self._url, application=application)
        try:
            # On each new connection: after a failover it may lead to another server, or to another schema.
            await _make_durable(connection)
            await self._check_not_back(connection)
            check_takes(await read_state(connection), SCHEMA_REVISION)  # a migration may have run since the last check
        except CONNECTION_ERRORS as error:
            connection.terminate()
            raise unavailable(error) from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    def saw_file(self, file_id: int) -> None:
        self.seen.file_id = max(self.seen.file_id, file_id)

    async def read(self, work: Callable[[AsyncConnection], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Run queries. With `repeatable` they all see one instant, read-only. Raises MetadataUnavailableError,
        RightsMissingError."""
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
        if repeatable:
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        for attempt in range(ATTEMPTS):
            is_working = False
            try:
                async with self._pooled() as connection:
                    await connection.execution_options(**options)
                    if repeatable:
                        await connection.scalar(_PING)
                        is_working = True  # it may have given rows away
                    return await work(connection)
            except CONNECTION_ERRORS as error:
                if is_working or not _is_lost(error) or attempt + 1 == ATTEMPTS:
                    raise error_of(error) from error
        raise BugError("unreachable: the last attempt returns or raises")

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run one transaction, and run it again when it loses a deadlock, or its connection before the COMMIT.

        Raises MetadataUnavailableError and RightsMissingError (nothing happened), MetadataInDoubtError (the connection
        was lost during COMMIT), and our own errors that `work` raises (rolled back).
        """
        for attempt in range(ATTEMPTS):
            committing = False
            try:
                async with self._pooled() as connection:
                    await connection.begin()
                    result = await work(connection)
                    committing = True
                    await connection.commit()
                    return result
            except CONNECTION_ERRORS as error:
                if sqlstate_of(error) in RETRIABLE_SQLSTATES and attempt + 1 < ATTEMPTS:
                    await self.back_off(attempt)
                    continue
                if not committing and _is_lost(error) and attempt + 1 < ATTEMPTS:
                    continue
                # Only during COMMIT can an error leave doubt. Before it, Postgres rolls the transaction back.
                if committing and not _is_definite(error):
                    raise MetadataInDoubtError(
                        f"the answer to a COMMIT was lost, so it may have happened: {_reason(error)}"
                    ) from error
                raise error_of(error) from error
        raise MetadataUnavailableError(f"a transaction lost {ATTEMPTS} deadlocks or connections in a row")

    async def write_one(self, statement: sa.Executable) -> sa.Row[Any] | None:
        """Run one statement that returns at most one row, as a transaction of its own: one round trip, not three.

        Raises MetadataUnavailableError and RightsMissingError (nothing happened), MetadataInDoubtError.
        """
        sent = False
        try:
            async with self._pooled() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                sent = True
                return (await connection.execute(statement)).one_or_none()
        except CONNECTION_ERRORS as error:
            if sent and not _is_definite(error):
                raise MetadataInDoubtError(
                    f"the answer to a statement was lost, so it may have happened: {_reason(error)}"
                ) from error
            raise error_of(error) from error

    @asynccontextmanager
    async def _pooled(self) -> AsyncGenerator[AsyncConnection]:
        """A connection of the pool. Measures the wait for it, even if the wait ends with an error."""
        began_ms = self.clock.monotonic_ms()
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._engine.connect())
            finally:
                self._metrics.postgres_pool_wait_seconds.observe((self.clock.monotonic_ms() - began_ms) / 1000)
            yield connection

    def _used(self, _connection: object, record: PoolEntry) -> None:
        record.info[_USED_MS] = self.clock.monotonic_ms()

    def _check_idle(self, connection: DBAPIConnection, record: PoolEntry, _: PoolProxiedConnection) -> None:
        """Make the pool replace a connection that was lost while nobody used it. A question to the server costs as much
        as the call itself, so it is only for connections that lay idle for CHECK_IDLE_MS."""
        driver: Any = record.driver_connection
        if driver.is_closed():
            raise DisconnectionError("lost while idle")
        # A new connection was used by nobody.
        if self.clock.monotonic_ms() - record.info.get(_USED_MS, float("inf")) > CHECK_IDLE_MS:
            dialect = self._engine.dialect
            try:
                dialect.do_ping(connection)
            except (dialect.loaded_dbapi.Error, *CONNECTION_ERRORS) as error:
                raise DisconnectionError("lost while idle") from error

    async def back_off(self, attempt: int) -> None:
        await self.clock.sleep_ms(RETRY_BASE_MS * 2**attempt * (0.5 + self.ids.jitter()))

    async def _check_not_back(self, connection: Connection) -> None:
        """Raises WentBackError, MetadataUnavailableError for a standby."""
        # Read this before the query, because the query's answer may lack a file that commits meanwhile.
        seen_file_id = self.seen.file_id
        row = await connection.fetchrow(
            f"""SELECT {SYSTEM_IDENTIFIER} AS system_identifier, {TIMELINE} AS timeline,
                pg_is_in_recovery() AS standby, (SELECT cluster_id FROM cluster) AS cluster_id,
                greatest((SELECT max(file_id) FROM files), (SELECT forgotten_file_id FROM cluster)) AS file_id"""  # noqa: S608
        )
        if row is None:
            raise BugError("a SELECT without FROM returned no row")
        # A DNS name may still lead there during a failover: unavailable, but no sign of lost commits.
        if row["standby"]:
            raise MetadataUnavailableError("this Postgres is a standby and takes no writes")
        now = Seen(
            system_identifier=row["system_identifier"],
            timeline=int(row["timeline"], 16),
            cluster_id=row["cluster_id"] or "",
            file_id=row["file_id"] or 0,
        )
        back = went_back(self.seen, now, seen_file_id)
        if back:
            raise WentBackError(
                f"the metadata database went back in time: {back}",
                remedy="stop all agents, find out what was restored or failed over, then run `siltstone fsck --adopt`",
            )
        # `seen` may have grown during the query; it must not go back by an older answer.
        now.file_id = max(now.file_id, self.seen.file_id)
        self.seen = now


def error_of(error: Exception) -> Exception:
    """The error of ours for a driver's error. A missing right, or a statement that Postgres never takes, is no
    outage."""
    if sqlstate_of(error) == INSUFFICIENT_PRIVILEGE:
        return RightsMissingError(_answer(error))
    if _is_definite(error):
        return BugError(f"Postgres refused a statement that it should take: {_reason(error)}")
    return unavailable(error)


def _is_definite(error: Exception) -> bool:
    return sqlstate_of(error)[:2] in DEFINITE_CLASSES or is_refused_by_driver(error)


def _is_lost(error: Exception) -> bool:
    """Whether the server ended the connection, perhaps long ago: another one may do. A time-out is no such error."""
    state = sqlstate_of(error)
    cause = getattr(error, "orig", error)
    return state[:2] == "08" or state in _ENDED or (not state and is_lost_connection(cause))


def went_back(before: Seen, now: Seen, seen_file_id: int) -> str:
    """The reason why `now` cannot be a later state of the database seen `before`; "" if it can be. Pure."""
    if not before.system_identifier:
        return ""
    if before.cluster_id != now.cluster_id:
        return f"cluster id {before.cluster_id!r} became {now.cluster_id!r}"
    if before.system_identifier != now.system_identifier:
        return f"system identifier {before.system_identifier} became {now.system_identifier}"
    if now.timeline < before.timeline:
        return f"timeline {before.timeline} became {now.timeline}"
    if now.file_id < seen_file_id:
        return f"file {seen_file_id} was committed, but the newest is {now.file_id}"
    return ""


async def _make_durable(connection: Connection) -> None:
    """Require that Postgres flushes a commit, also on a synchronous standby if it has one, before it acknowledges it.

    Raises UnsafeDatabaseError.
    """
    level = await connection.fetchval(
        """SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply')
            THEN current_setting('synchronous_commit') ELSE set_config('synchronous_commit', 'on', false) END"""
    )
    if level not in {"on", "remote_apply"}:
        raise UnsafeDatabaseError(f"synchronous_commit is {level!r}, and this role cannot turn it on")


async def _set(connection: Connection, parameter: str) -> None:
    """Change a parameter of the session. Not at its start: poolers refuse parameters there that they do not know."""
    try:
        await connection.execute(f"SET {parameter}")
    except CONNECTION_ERRORS as error:
        connection.terminate()
        raise unavailable(error) from error
    except BaseException:
        connection.terminate()
        raise


async def _check_schema(connection: Connection) -> None:
    version = int(await connection.fetchval("SELECT current_setting('server_version_num')"))
    if version < POSTGRES_VERSION_MIN:
        raise UnsafeDatabaseError(f"Postgres {version // 10_000} is too old", remedy="use Postgres 15 or newer")
    check_takes(await read_state(connection), SCHEMA_REVISION)


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=CONNECT_TIMEOUT_S)
    except CONNECTION_ERRORS:
        connection.terminate()


def _reason(error: BaseException) -> str:
    # A time-out has no words of its own.
    return f"{type(error).__name__}: {str(error) or 'no answer in time'}".strip().splitlines()[0]
