"""Bringing a database to the schema of this release. Its own command (`siltstone migrate`), never done by an agent.

Order: take an advisory lock (two cannot run at once), run the missing revisions and write the cluster row, all in one
transaction. A crash leaves the database as it was. Locks are waited for 5 s at most, so that a migration never queues
the agents' commits behind itself for longer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from metadata.postgres_connection import CONNECTION_ERRORS, connect, sqlstate_of, unavailable
from metadata.postgres_history import PRESENT, server_history
from metadata.service import MetadataUnavailableError, SchemaMismatchError
from metadata.tables import CLUSTER, SCHEMA_REVISION
from siltstone.errors import BadInputError
from siltstone.ids import IdSource, SystemIds

MIGRATION_LOCK = 7_310_575_218
LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 3_600_000
LOCK_NOT_AVAILABLE = "55P03"
INSUFFICIENT_PRIVILEGE = "42501"


def migrate(url: str, *, ids: IdSource | None = None) -> str:
    """Bring the database at `url` (`postgresql://...`) to this release's schema; returns the schema revision.

    Creates the cluster row, with a fresh cluster id and this server's history as the adopted one, if there is none.
    Doing it again changes nothing. Must not be called where an event loop runs: see `migrate_async`. Raises
    MetadataUnavailableError, SchemaMismatchError.
    """
    return asyncio.run(migrate_async(url, ids=ids))


async def migrate_async(url: str, *, ids: IdSource | None = None) -> str:
    """As `migrate`, in a running event loop."""
    cluster_id = new_cluster_id(ids or SystemIds())
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(url, application="siltstone-migrate", statement_timeout_ms=STATEMENT_TIMEOUT_MS),
        poolclass=NullPool,
    )
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_migrate, cluster_id)
    except (DBAPIError, OSError, TimeoutError) as error:
        if LOCK_NOT_AVAILABLE in str(getattr(getattr(error, "orig", None), "sqlstate", "")):
            raise MetadataUnavailableError(
                f"a lock was not free within {LOCK_TIMEOUT_MS} ms: {error}",
                remedy="another migration runs, or a long transaction holds a table; try again when it has ended",
            ) from error
        raise unavailable(error) from error
    finally:
        await engine.dispose()
    return SCHEMA_REVISION


async def grant_reader(url: str, role: str) -> Sequence[str]:
    """Let `role`, which must exist, read where records lie, and pin what it reads; nothing else.

    Its sessions here get time-outs, too, so that none holds a lock or a snapshot for long by mistake. An owner of the
    schema may not be allowed to set those: returns the statements that somebody else has to run then.

    Doing it again changes nothing. Raises BadInputError for a role that there is not, or that may do more anyway, and
    MetadataUnavailableError.
    """
    connection = await connect(url, application="siltstone-migrate")
    try:
        found = await connection.fetchrow(_ROLE, role)
        if found is None:
            remedy = f"create it first: CREATE ROLE {role} LOGIN PASSWORD '...'"
            raise BadInputError(f"Postgres has no role {role!r}", remedy=remedy)
        if found["is_super"] or found["owns"]:
            raise BadInputError(f"role {role!r} may do everything here already", remedy="name one for readers alone")
        # several statements at once are one transaction
        await connection.execute("; ".join(reader_grants(found["quoted"], found["schema"])))
        limits = list(reader_limits(found["quoted"], found["database"]))
        try:
            await connection.execute("; ".join(limits))
        except CONNECTION_ERRORS as error:
            if sqlstate_of(error) != INSUFFICIENT_PRIVILEGE:
                raise
            return limits
        return []
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


_ROLE = """SELECT r.rolsuper AS is_super, pg_has_role(r.oid, c.relowner, 'MEMBER') AS owns,
    quote_ident(r.rolname) AS quoted, quote_ident(n.nspname) AS schema,
    quote_ident(current_database()) AS database
FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.rolname = $1 AND c.oid = 'pins'::regclass"""

READER_COLUMNS = {
    "alembic_version": "version_num",
    "cluster": "cluster_id, store_bound, forgotten_file_id",
    "topics": "topic_id, name, configs, config_version, created_ms",
    "partitions": "partition_id, topic_id, partition",
    "watermarks": "partition_id, next_offset",
    "log_starts": "partition_id, log_start_offset, last_stable_offset",
    "files": "file_id, key, level, state, size_bytes, created_ms, index",
    "extents": "extent_id, partition_id, base_offset, last_offset, file_id, position, length, block_index_position, "
    "block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, has_tombstones, flagged_reason, state",
}
"""What a reader may see: what `topic_snapshot` and opening a connection ask for."""


READER_LIMITS_MS = {"lock_timeout": 5_000, "statement_timeout": 60_000, "idle_in_transaction_session_timeout": 10_000}


def reader_grants(role: str, schema: str) -> Iterator[str]:
    """Statements; both names are quoted."""
    yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
    for table, columns in READER_COLUMNS.items():
        yield f"GRANT SELECT ({columns}) ON {schema}.{table} TO {role}"
    for function in ("pin_files_v1(text, bigint)", "beat_pin_v1(bigint, bigint)", "unpin_v1(bigint)"):
        yield f"GRANT EXECUTE ON FUNCTION {schema}.{function} TO {role}"


def reader_limits(role: str, database: str) -> Iterator[str]:
    """Statements; both names are quoted."""
    for name, limit_ms in READER_LIMITS_MS.items():
        yield f"ALTER ROLE {role} IN DATABASE {database} SET {name} = {limit_ms}"


async def schema_revision(url: str) -> str | None:
    """The revision the database has; None when it has no schema. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-migrate")
    try:
        if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
            return None
        return await connection.fetchval("SELECT version_num FROM alembic_version")
    finally:
        await connection.close()


def new_cluster_id(ids: IdSource) -> str:
    """22 characters of base64, as Kafka makes them (Uuid.randomUuid)."""
    return base64.urlsafe_b64encode(ids.uuid4().bytes).decode().rstrip("=")


def alembic_config() -> Config:
    """Alembic pointed at the packaged revisions; needs no file in the working directory."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _migrate(connection: sa.Connection, cluster_id: str) -> None:
    connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    config = alembic_config()
    config.attributes["connection"] = connection
    present = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if present is not None and present not in known:
        raise SchemaMismatchError(
            f"the database has schema revision {present}, which is newer than this release ({SCHEMA_REVISION})",
            remedy="run the migration of the newer release, and upgrade this one",
        )
    command.upgrade(config, SCHEMA_REVISION)
    if connection.execute(sa.select(CLUSTER.c.cluster_id)).first() is None:
        row = connection.execute(PRESENT).one()
        present = server_history(row.system_identifier, row.timeline)
        adopted = {"adopted_system_identifier": present.system_identifier, "adopted_timeline": present.timeline}
        connection.execute(sa.insert(CLUSTER).values(cluster_id=cluster_id, **adopted))
