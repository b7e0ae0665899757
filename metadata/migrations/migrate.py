"""Brings a database to the schema of this release. Only `siltstone migrate` does this, never an agent.

One transaction does everything, in this order:

1. take an advisory lock, so that no second migration runs and no program registers meanwhile
   (metadata/postgres/log/registering.py);
2. refuse if a program is at work that the new schema does not support;
3. run the missing revisions;
4. record which programs the schema supports (metadata/migrations/schema_versions.py);
5. take the lapsed leases away from all other programs;
6. write the cluster row.

A crash leaves the database as it was. The migration waits at most 5 s for each lock, because the agents' commits queue
behind it while it waits. A migration that loses a deadlock to those commits starts again.

Every revision except the first states `oldest_program`: the schema of the oldest programs that may go on after it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from metadata.contract.errors import MetadataUnavailableError
from metadata.migrations.schema_versions import (
    Running,
    SchemaState,
    check_takes,
    listed,
    read_running,
    read_state,
    revision_of,
    too_old,
    version_of,
)
from metadata.postgres.connection import CONNECTION_ERRORS, connect, sqlstate_of, unavailable
from metadata.postgres.driver import Connection
from metadata.postgres.history import PRESENT, adopted_columns, server_history
from metadata.postgres.log.registering import MIGRATION_LOCK, end_too_old, lock_too_old
from metadata.postgres.tables import CLUSTER, METADATA, SCHEMA_VERSIONS
from runtime.clock import SystemClock
from runtime.errors import BadInputError, BugError
from runtime.ids import IdSource, SystemIds

LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 3_600_000
LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"
ATTEMPTS = 6
"""Attempts at a migration that loses deadlocks to concurrent commits."""
PAUSE_MS = 100


class OldProgramsAtWorkError(BadInputError):
    """The new schema does not support some programs that are at work. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One revision that a database lacks."""

    revision: str
    oldest_program: int
    about: str


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The steps that `migrate` would run on a database, and the programs that they affect."""

    present: SchemaState
    target: str
    steps: Sequence[Step]
    """In the order in which they run."""
    running: Sequence[Running]
    """Programs at work. Programs without a lease (the command line, Spark) are not listed."""
    missing_rights: Sequence[str] = ()
    """Rights that the steps need and the role lacks, such as "CREATE in the schema public". Empty without steps."""

    @property
    def oldest_program(self) -> int:
        """The oldest program that may work afterwards."""
        present = self.present.oldest_program or version_of(self.present.revision or "") or 1
        return max([present, *(step.oldest_program for step in self.steps)])

    @property
    def must_stop(self) -> Sequence[Running]:
        """Programs at work that may not go on."""
        return too_old(self.running, self.oldest_program) if self.steps else []


def migrate(url: str, *, ids: IdSource | None = None) -> str:
    """Bring the database at `url` (`postgresql://...`) to this release's schema. Returns its revision afterwards.

    Creates the cluster row if it is missing, with a fresh cluster id and with this server's history as the adopted one.
    A second call changes nothing. Nor does a call on the schema of a newer release that supports this one's programs.
    Must not be called while an event loop runs: see `migrate_async`. Raises MetadataUnavailableError,
    SchemaMismatchError, OldProgramsAtWorkError.
    """
    return asyncio.run(migrate_async(url, ids=ids))


async def migrate_async(url: str, *, ids: IdSource | None = None, versions: Path | None = None) -> str:
    """Like `migrate`, in a running event loop. `versions` is a folder of revisions that this release lacks."""
    cluster_id = new_cluster_id(ids or SystemIds())
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(url, application="siltstone-migrate", statement_timeout_ms=STATEMENT_TIMEOUT_MS),
        poolclass=NullPool,
        hide_parameters=True,
    )
    try:
        for attempt in range(ATTEMPTS):
            try:
                async with engine.begin() as connection:
                    return await connection.run_sync(_migrate, cluster_id, versions)
            except CONNECTION_ERRORS as error:
                # A migration locks its tables in another order than commits do. The attempt was rolled back.
                if sqlstate_of(error) != DEADLOCK_DETECTED or attempt + 1 == ATTEMPTS:
                    raise
                await SystemClock().sleep_ms(PAUSE_MS * 2**attempt)
        raise BugError("the last attempt neither ended nor failed")
    except CONNECTION_ERRORS as error:  # scripts and our own queries run on the driver, so its errors come unwrapped
        if sqlstate_of(error) in (LOCK_NOT_AVAILABLE, DEADLOCK_DETECTED):
            raise MetadataUnavailableError(
                f"a lock was not free within {LOCK_TIMEOUT_MS} ms, so the migration changed nothing: {error}",
                remedy="another migration runs, or a long transaction holds a table; try again when it has ended"
                + await _long_transactions(url),
            ) from error
        raise unavailable(error) from error
    finally:
        await engine.dispose()


async def _long_transactions(url: str) -> str:
    """Sessions that may hold the lock, as the end of a sentence; "" if there are none, or the role may not see them."""
    try:
        connection = await connect(url, application="siltstone-migrate")
        try:
            rows = await connection.fetch(_LONG, LOCK_TIMEOUT_MS)
        finally:
            await connection.close()
    except (*CONNECTION_ERRORS, MetadataUnavailableError):
        return ""
    named = ", ".join(f"{row['application_name'] or 'unnamed'} (pid {row['pid']}, {row['state']})" for row in rows)
    return f"; transactions that have been open longer than that: {named}" if named else ""


_LONG = """SELECT pid, application_name, state FROM pg_stat_activity
WHERE datname = current_database() AND xact_start < clock_timestamp() - $1 * interval '1 ms'
    AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 5"""


async def plan_migration(url: str, *, versions: Path | None = None) -> MigrationPlan:
    """Plan the work of `migrate_async` without changing anything. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-migrate")
    try:
        return await _plan(connection, ScriptDirectory.from_config(alembic_config(versions)))
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


async def schema_state(url: str) -> SchemaState:
    """The schema of the database at `url`. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-migrate")
    try:
        return await read_state(connection)
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


async def schema_revision(url: str) -> str | None:
    """The revision the database has; None when it has no schema. Raises MetadataUnavailableError."""
    return (await schema_state(url)).revision


def new_cluster_id(ids: IdSource) -> str:
    """A cluster id of 22 base64 characters, like Kafka's (Uuid.randomUuid)."""
    return base64.urlsafe_b64encode(ids.uuid4().bytes).decode().rstrip("=")


def alembic_config(versions: Path | None = None) -> Config:
    """Alembic's config for the packaged revisions and those in `versions`; needs no file in the working directory."""
    config = Config()
    folder = Path(__file__).parent
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    if versions is not None:
        config.set_main_option("version_locations", os.pathsep.join([str(folder / "versions"), str(versions)]))
    return config


def _migrate(connection: sa.Connection, cluster_id: str, versions: Path | None) -> str:
    # First: even the advisory lock must not be waited for without a bound.
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    config = alembic_config(versions)
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    dbapi: Any = connection.connection.dbapi_connection

    async def planned(driver: Connection) -> MigrationPlan:
        return await _plan(driver, scripts)

    plan: MigrationPlan = dbapi.run_async(planned)
    # Not a step back: this release may still work with it, and then there is nothing to do.
    if plan.present.is_newer_than(plan.target):
        check_takes(plan.present, plan.target)
        return plan.present.revision or plan.target
    _check_nobody_must_stop(plan)
    command.upgrade(config, plan.target)
    for step in plan.steps:
        row = {"version": version_of(step.revision), "oldest_program": step.oldest_program}
        connection.execute(insert(SCHEMA_VERSIONS).values(row).on_conflict_do_nothing())
    # After the revisions: the column that says what schema a program was made for may be new.
    dbapi.run_async(partial(_end_leases, plan=plan))
    # Only once: a second id, or a history adopted again, would hide that this is another database than before.
    if connection.execute(sa.select(CLUSTER.c.cluster_id)).first() is None:
        row = connection.execute(PRESENT).one()
        present = server_history(row.system_identifier, row.timeline, row.database_oid)
        connection.execute(sa.insert(CLUSTER).values(cluster_id=cluster_id, **adopted_columns(present)))
    return plan.target


async def _end_leases(driver: Connection, plan: MigrationPlan) -> None:
    """End the lapsed leases of too old programs, in case one is asleep and wakes up. Raises OldProgramsAtWorkError."""
    if plan.steps:
        await lock_too_old(driver, plan.oldest_program)
        # A program may have woken up since the plan was made. None can from here on, because its row is locked.
        _check_nobody_must_stop(replace(plan, running=await read_running(driver)))
        await end_too_old(driver, plan.oldest_program)


async def _plan(connection: Connection, scripts: ScriptDirectory) -> MigrationPlan:
    state = await read_state(connection)
    target = scripts.get_current_head()
    if target is None:
        raise BugError("this release has no migrations")
    if state.is_newer_than(target):
        return MigrationPlan(state, target, [], await read_running(connection))
    # Alembic goes from the newest down; they run from the oldest up.
    missing = reversed(list(scripts.iterate_revisions(target, state.revision or "base")))
    steps = [_step(script) for script in missing]
    running: Sequence[Running] = [] if state.revision is None else await read_running(connection)
    return MigrationPlan(state, target, steps, running, await _missing_rights(connection) if steps else [])


async def _missing_rights(connection: Connection) -> Sequence[str]:
    """The steps create tables and functions, and alter tables, which only their owners may do."""
    row = await connection.fetchrow(_SCHEMA_RIGHTS)
    if row is None or row["name"] is None:
        return ["a schema: no schema of its search_path exists"]
    missing = [] if row["may_create"] else [f"CREATE in the schema {row['name']}"]
    names = [*METADATA.tables, "alembic_version"]
    return [*missing, *(f"ownership of the table {each['relname']}" for each in await connection.fetch(_OTHERS, names))]


_SCHEMA_RIGHTS = """SELECT current_schema() AS name, has_schema_privilege(current_schema(), 'CREATE') AS may_create"""
_OTHERS = """SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1) AND relkind IN ('r', 'p')
    AND NOT pg_has_role(relowner, 'USAGE')
ORDER BY relname"""


def _step(script: Script) -> Step:
    """Raises BugError if the revision does not state which programs may go on after it."""
    version = version_of(script.revision)
    stated: Any = getattr(script.module, "oldest_program", "0001" if version == 1 else "")
    oldest = version_of(str(stated))
    if version is None or oldest is None or not 1 <= oldest <= version:
        raise BugError(f"revision {script.revision} does not state its oldest_program: {stated!r}")
    return Step(script.revision, oldest, (script.doc or "").partition(".")[0])


def _check_nobody_must_stop(plan: MigrationPlan) -> None:
    """Raises OldProgramsAtWorkError."""
    if not plan.must_stop:
        return
    raise OldProgramsAtWorkError(
        f"schema {plan.target} takes programs of schema {revision_of(plan.oldest_program)} and newer, but older ones"
        f" are at work: {listed(plan.must_stop)}; nothing was changed",
        remedy="upgrade them to a release in between first, or stop them; a killed one still counts for 10 s",
    )
