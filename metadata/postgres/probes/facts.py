"""Facts about a Postgres, for `siltstone doctor`, which judges them.

The probe reads on a connection of its own and changes nothing. It works on a database without our schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metadata.migrations.grants import AGENT, COMPACTOR, lacking
from metadata.migrations.migrate import schema_state
from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable
from metadata.postgres.driver import Connection
from metadata.postgres.probes.pooler import Pooler, find_pooler
from metadata.postgres.tables import SCHEMA_REVISION

STATEMENT_TIMEOUT_MS = 5_000

_SERVER = """
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standbys,
       current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' AS crash_safe,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS connections_max,
       current_setting('autovacuum_freeze_max_age')::int AS freeze_max_age,
       pg_size_bytes(current_setting('max_wal_size')) AS wal_bytes_max,
       extract(epoch FROM current_setting('checkpoint_timeout')::interval)::int AS checkpoint_s,
       current_setting('wal_compression') <> 'off' AS compresses_wal,
       (SELECT max(age(datfrozenxid)) FROM pg_database) AS transactions_unfrozen,
       pg_is_in_recovery() AS is_standby,
       has_schema_privilege(current_schema(), 'CREATE') AS may_create,
       coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('files')), false)
           AS owns_schema,
       current_user::text AS role
"""
# A session that wrote and idles has no snapshot, but its transaction id holds vacuum back all the same. Vacuum itself,
# and the sessions of other databases, hold nothing back here.
_OLDEST_SNAPSHOT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - since) * 1000)::bigint, 0)
FROM (SELECT xact_start AS since FROM pg_stat_activity
      WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL AND pid <> pg_backend_pid()
        AND (datname = current_database() OR datname IS NULL)
        AND coalesce(leader_pid, pid) NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
      UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) AS holders
"""
# Postgres shows of other roles' sessions neither since when they run nor what, unless ours has pg_read_all_stats.
_HIDDEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query = '<insufficient privilege>'
"""
# Names of other roles' sessions are hidden, and count as those of strangers.
_STRANGERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname IS NOT NULL AND coalesce(backend_type, '') NOT IN ('autovacuum worker', 'parallel worker')
  AND NOT (datname = current_database() AND coalesce(application_name, '') LIKE 'siltstone%')
"""
# Whoever may see where records lie and may change nothing. A role that agents and compactors use changes rows.
_PAST_ACLS = """
SELECT coalesce(array_agg(rolname::text ORDER BY rolname), '{}') FROM pg_roles
WHERE rolcanlogin AND NOT rolsuper AND EXISTS (SELECT 1 FROM acls)
  AND has_any_column_privilege(oid, 'extents'::regclass, 'SELECT')
  AND NOT has_table_privilege(oid, 'extents'::regclass, 'INSERT')
  AND NOT has_table_privilege(oid, 'scram_users'::regclass, 'SELECT')
"""
"""Compactors write extents, and agents alone read the users: neither is a reader."""
_ACLS_SINCE = "0007"
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
    """`max_connections` without those that are reserved for superusers."""
    connections_of_others: int
    """Sessions that are not Siltstone's, now."""
    freeze_max_age: int
    """`autovacuum_freeze_max_age`: transactions after which a table is frozen whatever it costs."""
    transactions_unfrozen: int
    """Age of the oldest transaction id that is not frozen. Postgres stops at about 2.1 billion."""
    wal_bytes_max: int
    """`max_wal_size`: a checkpoint begins early when so much was written since the last one."""
    checkpoint_s: int
    """`checkpoint_timeout`."""
    compresses_wal: bool
    is_standby: bool
    pooler: Pooler
    """Which pooler stands between; one that shares backends is an error."""
    role: str
    """The role that the probe logged in as."""
    may_create: bool
    """The role may create tables in its schema, which `siltstone migrate` needs."""
    owns_schema: bool
    """The role may alter the tables of Siltstone. False where there are none."""
    lacking_rights_on: tuple[str, ...]
    """Where the role lacks rights that agents need, unless it has all those of compactors."""
    oldest_snapshot_ms: int
    """Age of the oldest transaction, prepared ones too, that keeps vacuum from removing dead rows."""
    sessions_hidden: int
    """Sessions of other roles in this database whose age our role may not see."""
    schema: SchemaState
    revision_needed: str
    """The revision that this program was made for."""
    readers_past_acls: tuple[str, ...] = ()
    """If there are ACLs: roles that read topics without agents, whom no ACL reaches."""
    clock_ms: int
    """The server's clock when it was read, ms since the epoch."""


async def probe_postgres(url: str) -> PostgresFacts:
    """Probe the Postgres at `url`. The clock is read last, so that its time is fresh.

    Raises MetadataUnavailableError, SharedBackendsError.
    """
    connection: Any = await _connect(url)
    try:
        pooler = await find_pooler(connection, lambda: _connect(url))
        schema = await schema_state(url)
        server: Any = await connection.fetchrow(_SERVER)
        missing: Sequence[str] = ()
        for rights in (COMPACTOR, AGENT):  # of agents last: theirs are told
            missing = await lacking(connection, rights)
            if not missing:
                break
        connections_of_others: int = await connection.fetchval(_STRANGERS)
        oldest_snapshot_ms: int = await connection.fetchval(_OLDEST_SNAPSHOT)
        sessions_hidden: int = await connection.fetchval(_HIDDEN)
        past_acls: list[str] = []
        if not missing and (schema.revision or "") >= _ACLS_SINCE:
            past_acls = await connection.fetchval(_PAST_ACLS)
        clock_ms: int = await connection.fetchval(_CLOCK)
        return PostgresFacts(
            version_number=server["version_number"],
            version=server["version"],
            synchronous_commit=server["synchronous_commit"],
            synchronous_standbys=server["synchronous_standbys"],
            crash_safe=server["crash_safe"],
            connections_max=server["connections_max"],
            connections_of_others=connections_of_others,
            freeze_max_age=server["freeze_max_age"],
            transactions_unfrozen=server["transactions_unfrozen"],
            wal_bytes_max=server["wal_bytes_max"],
            checkpoint_s=server["checkpoint_s"],
            compresses_wal=server["compresses_wal"],
            is_standby=server["is_standby"],
            pooler=pooler,
            role=str(server["role"]),
            may_create=bool(server["may_create"]),
            owns_schema=bool(server["owns_schema"]),
            lacking_rights_on=tuple(missing),
            oldest_snapshot_ms=oldest_snapshot_ms,
            sessions_hidden=sessions_hidden,
            schema=schema,
            revision_needed=SCHEMA_REVISION,
            readers_past_acls=tuple(past_acls),
            clock_ms=clock_ms,
        )
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


async def _connect(url: str) -> Connection:
    return await connect(url, application="siltstone-doctor", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
