"""Facts about a Postgres, for `siltstone doctor`, which judges them.

The probe reads on a connection of its own and changes nothing. It works on a database without our schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metadata.migrations.migrate import schema_state
from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable
from metadata.postgres.tables import SCHEMA_REVISION

STATEMENT_TIMEOUT_MS = 5_000

_SERVER = """
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standbys,
       current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' AS crash_safe,
       current_setting('max_connections')::int AS connections_max,
       current_setting('statement_timeout') AS statement_timeout,
       pg_is_in_recovery() AS is_standby,
       pg_backend_pid() AS backend_pid,
       has_schema_privilege(current_schema(), 'CREATE') AS may_create
"""
_LACKING = """
SELECT coalesce(array_agg(relname::text ORDER BY relname), '{}')
FROM pg_class
WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'p')
  AND relname <> 'schema_versions'  -- everybody may read it, and only a migration writes it
  AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
           AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
"""
_OLDEST_SNAPSHOT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint, 0)
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFacts:
    """The facts that the probe found. Times in ms."""

    version_number: int
    """In Postgres's form: 150004 is 15.4."""
    version: str
    synchronous_commit: str
    synchronous_standbys: str
    """`synchronous_standby_names`. If it is empty, a failover may lose commits."""
    crash_safe: bool
    """fsync and full_page_writes are on."""
    connections_max: int
    is_standby: bool
    direct: bool
    """No pooler stands between: the backend is the one that was announced, and has our session settings."""
    may_create: bool
    """The role may create tables in its schema, which `siltstone migrate` needs."""
    tables_lacking_rights: tuple[str, ...]
    """Tables of the schema that the role may not read and write."""
    oldest_snapshot_ms: int
    """Age of the oldest transaction that holds a snapshot. Vacuum cannot remove the rows that it may still see."""
    schema: SchemaState
    revision_needed: str
    """The revision that this program was made for."""
    clock_ms: int
    """The server's clock when it was read, ms since the epoch."""


async def probe_postgres(url: str) -> PostgresFacts:
    """Probe the Postgres at `url`. The clock is read last, so that its time is fresh.

    Raises MetadataUnavailableError.
    """
    schema = await schema_state(url)
    connection: Any = await connect(url, application="siltstone-doctor", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    try:
        server: Any = await connection.fetchrow(_SERVER)
        lacking: list[str] = await connection.fetchval(_LACKING)
        oldest_snapshot_ms: int = await connection.fetchval(_OLDEST_SNAPSHOT)
        clock_ms: int = await connection.fetchval(_CLOCK)
        # A pooler serves statements by other backends than the one it announced, and drops unknown session settings.
        same_backend = connection.get_server_pid() == server["backend_pid"]
        return PostgresFacts(
            version_number=server["version_number"],
            version=server["version"],
            synchronous_commit=server["synchronous_commit"],
            synchronous_standbys=server["synchronous_standbys"],
            crash_safe=server["crash_safe"],
            connections_max=server["connections_max"],
            is_standby=server["is_standby"],
            direct=same_backend and server["statement_timeout"] == f"{STATEMENT_TIMEOUT_MS // 1000}s",
            may_create=bool(server["may_create"]),
            tables_lacking_rights=tuple(lacking),
            oldest_snapshot_ms=oldest_snapshot_ms,
            schema=schema,
            revision_needed=SCHEMA_REVISION,
            clock_ms=clock_ms,
        )
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()
