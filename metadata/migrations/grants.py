"""The rights of Postgres roles, which `siltstone migrate --agent|--compactor|--reader ROLE` gives: for each kind of
process what its statements need, and no more. None owns anything, so none can change the schema.

People's commands that repair or ask (`migrate`, `fsck --adopt`, `rebuild`, `erase`, `compact`) run as the schema's
owner. Functions run with the rights of their caller, triggers too, unless they say SECURITY DEFINER.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from metadata.postgres.connection import CONNECTION_ERRORS, INSUFFICIENT_PRIVILEGE, connect, sqlstate_of, unavailable
from metadata.postgres.driver import Connection
from runtime.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Rights:
    """All that a kind of process may do in the schema."""

    purpose: str
    tables: Mapping[str, str]
    """By table or view, as GRANT writes it: "SELECT, UPDATE (state)"."""
    sequences: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    functions: Sequence[str] = ()
    """Those that not everybody may call."""
    memberships: Sequence[str] = ()
    """Postgres's own roles whose rights it needs too."""
    limits_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Time-outs of the role's sessions. A process sets its own; a person's queries do not."""
    variable: str = ""
    """The variable of the environment by whose password `siltstone migrate` makes the role; "" for people's roles."""

    def each(self) -> Iterator[tuple[str, str, str]]:
        """Table, privilege, and column; the column is "" if the privilege is on the whole table."""
        for table, privileges in self.tables.items():
            for privilege, columns in _PRIVILEGE.findall(privileges):
                for column in columns.split(", "):
                    yield table, privilege, column


_PRIVILEGE: Final = re.compile(r"([A-Z]+)(?: \(([a-z_, ]+)\))?")

READER_COLUMNS: Final = {
    "alembic_version": "version_num",
    "schema_versions": "version, oldest_program",
    "cluster": "cluster_id, store_bound, forgotten_file_id",
    "topics": "topic_id, name, configs, config_version, created_ms",
    "partitions": "partition_id, topic_id, partition",
    "watermarks": "partition_id, next_offset",
    "log_starts": "partition_id, log_start_offset, last_stable_offset",
    "files": "file_id, key, level, state, size_bytes, created_ms, index, inline",
    "extents": "extent_id, partition_id, base_offset, last_offset, file_id, position, length, block_index_position, "
    "block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, has_tombstones, flagged_reason, state",
    "transaction_partitions": "partition_id, producer_id, first_offset",
    "aborted_transactions": "partition_id, last_offset, producer_id, first_offset, stable_offset",
    "erasures": "erasure_id, topic_id, stage, erases_tombstones, created_ms",
    "erasure_keys": "erasure_id, partition, marks",
}
"""Columns that a reader may see: those that `topic_snapshot`, `topic_erasures`, `erasure_marks` and the opening of a
connection read."""

READER: Final = Rights(
    "readers",
    {table: f"SELECT ({columns})" for table, columns in READER_COLUMNS.items()},
    functions=("pin_files_v1(text, bigint)", "beat_pin_v1(bigint, bigint)", "unpin_v1(bigint)"),
    limits_ms={"lock_timeout": 5_000, "statement_timeout": 60_000, "idle_in_transaction_session_timeout": 10_000},
)

_ALL: Final = "SELECT, INSERT, UPDATE, DELETE"
_SUMS: Final = {"file_sums": _ALL, "file_topic_sums": _ALL, "partition_sums": _ALL}
"""The trigger on extents keeps them, with the rights of whoever changes an extent."""
_OPENING: Final = {"alembic_version": "SELECT", "schema_versions": "SELECT"}

AGENT: Final = Rights(
    "agents",
    {
        **_OPENING,
        **_SUMS,
        "cluster": "SELECT, UPDATE (next_producer_id, broker_configs, topic_defaults, store_bound)",
        "writers": "SELECT, INSERT, UPDATE (epoch, last_seq)",
        "agents": _ALL,
        "compactors": "SELECT",
        "topics": _ALL,
        "deleted_topics": "SELECT, INSERT, UPDATE",
        "partitions": _ALL,
        "watermarks": _ALL,
        "log_starts": "SELECT, INSERT, UPDATE (log_start_offset, requested_through_offset), DELETE",
        "files": "SELECT, INSERT, UPDATE (state, dead_ms, live_extents, results, index, max_ts_ms, txn)",
        "extents": "SELECT, UPDATE (state, dead_ms)",
        "commit_gate": "UPDATE",
        "producers": "SELECT",
        "producer_states": _ALL,
        "producer_id_blocks": "SELECT, INSERT",
        "groups": _ALL,
        "group_offsets": _ALL,
        "changes": "SELECT, INSERT",
        "scram_users": _ALL,
        "acls": _ALL,
        "client_quotas": _ALL,
        "secrets": "SELECT",
        "quota_demands": _ALL,
        "transactions": _ALL,
        "transaction_partitions": _ALL,
        "aborted_transactions": "SELECT, INSERT, DELETE",
        "transaction_offsets": _ALL,
    },
    sequences={
        "node_ids": "USAGE",
        "partition_ids": "USAGE",
        "file_ids": "USAGE",
        "group_epochs": "USAGE",
        "change_ids": "USAGE",
        "transaction_epochs": "USAGE",
    },
    functions=(
        "lock_older_programs_v1()",
        "end_older_programs_v1()",
        "lock_programs_below_v1(integer)",
        "end_programs_below_v1(integer)",
    ),
    variable="AGENT_PGPASSWORD",
)

COMPACTOR: Final = Rights(
    "compactors",
    {
        **_OPENING,
        **_SUMS,
        "cluster": "SELECT, UPDATE (store_bound, forgotten_key_hour, forgotten_change_id, forgotten_file_id)",
        "writers": "SELECT, UPDATE (forgotten_epoch, forgotten_seq)",
        "agents": "SELECT",
        "topics": "SELECT",
        "deleted_topics": "SELECT, DELETE",
        "partitions": "SELECT",
        "watermarks": "SELECT",
        "log_starts": "SELECT, UPDATE",
        "files": "SELECT, INSERT, DELETE, "
        "UPDATE (state, dead_ms, live_extents, index, results, trouble, trouble_until_ms, inline, txn)",
        "extents": "SELECT, INSERT, UPDATE (state, dead_ms), DELETE",
        "compactors": _ALL,
        "duties": _ALL,
        "merge_jobs": _ALL,
        "merge_inputs": "SELECT, INSERT, DELETE",
        "erasures": "SELECT, UPDATE, DELETE",
        "erasure_keys": "SELECT",
        "pins": "SELECT, DELETE",
        "producers": "SELECT",
        "producer_states": "SELECT, UPDATE, DELETE",
        "producer_id_blocks": "SELECT",
        "groups": "SELECT",
        "group_offsets": "SELECT",
        "changes": "SELECT, INSERT, DELETE",
        "acls": "SELECT",
        "client_quotas": "SELECT",
        "transactions": "SELECT, DELETE",
        "transaction_partitions": "SELECT",
        "aborted_transactions": "SELECT, DELETE",
        "transaction_offsets": "SELECT",
    },
    sequences={
        "node_ids": "USAGE, SELECT",
        "file_ids": "USAGE, SELECT",
        "change_ids": "USAGE, SELECT",
        # For the metadata backup, which copies their last numbers.
        "partition_ids": "SELECT",
        "group_epochs": "SELECT",
        "transaction_epochs": "SELECT",
        "merge_jobs_job_id_seq": "SELECT",
    },
    # The age of transactions of all sessions is among its metrics. It then sees texts of others' statements, in which
    # values of ours never stand: they are parameters.
    memberships=("pg_read_all_stats",),
    variable="COMPACTOR_PGPASSWORD",
)

RIGHTS: Final[Mapping[str, Rights]] = MappingProxyType({"agent": AGENT, "compactor": COMPACTOR, "reader": READER})
"""By kind of program, as the options of `siltstone migrate` are called."""


async def grant(url: str, role: str, rights: Rights) -> Sequence[str]:
    """Let `role` do what `rights` says with the tables of this schema, and nothing else with them.

    Also sets the time-outs of `rights` for the role's sessions in this database, so that none of them holds a lock or a
    snapshot for long by mistake, and makes it a member of Postgres's own roles. The owner of the schema may lack the
    right to do that. The function then returns the statements that another role has to run.

    A second call changes nothing. Raises BadInputError if the role does not exist or may do more already, and
    MetadataUnavailableError.
    """
    connection = await connect(url, application="siltstone-migrate")
    try:
        found = await check_role(connection, role, rights)
        # Postgres runs several statements of one call as one transaction: no process is without its rights meanwhile.
        await connection.execute("; ".join(grants(rights, found["quoted"], found["schema"])))
        return await _done_or_left(connection, list(_beside(rights, found["quoted"], found["database"])))
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


async def check_role(connection: Connection, role: str, rights: Rights) -> Mapping[str, Any]:
    """The quoted names of the role, the schema and the database. Raises BadInputError if the role does not exist or may
    do more already."""
    found = await connection.fetchrow(_ROLE, role)
    if found is None:
        quoted = await connection.fetchval("SELECT quote_ident($1::text)", role)
        remedy = f"create it first: CREATE ROLE {quoted} LOGIN PASSWORD '...'"
        if name := rights.variable:
            remedy += f"; or put a password into {name}, or the ARN of a secret into {name}_SECRET, and it is made"
        raise BadInputError(f"Postgres has no role {role!r}", remedy=remedy)
    if found["is_super"] or found["owns"]:
        remedy = f"name a role that is only for {rights.purpose}"
        raise BadInputError(f"role {role!r} may do everything here already", remedy=remedy)
    return found


_ROLE = """SELECT r.rolsuper AS is_super, pg_has_role(r.oid, c.relowner, 'MEMBER') AS owns,
    quote_ident(r.rolname) AS quoted, quote_ident(n.nspname) AS schema,
    quote_ident(current_database()) AS database
FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.rolname = $1 AND c.oid = 'pins'::regclass"""


def grants(rights: Rights, role: str, schema: str) -> Iterator[str]:
    """Statements that give a role these rights, and take all others in the schema. Both names are quoted already."""
    for what in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        yield f"REVOKE ALL ON ALL {what} IN SCHEMA {schema} FROM {role}"
    yield f"REVOKE ALL ON SCHEMA {schema} FROM {role}"
    yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
    for table, privileges in rights.tables.items():
        yield f"GRANT {privileges} ON {schema}.{table} TO {role}"
    for sequence, privileges in rights.sequences.items():
        yield f"GRANT {privileges} ON SEQUENCE {schema}.{sequence} TO {role}"
    for function in rights.functions:
        yield f"GRANT EXECUTE ON FUNCTION {schema}.{function} TO {role}"


async def lacks(url: str, rights: Rights) -> Sequence[str]:
    """Like `lacking`, for the role in `url`. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-open")
    try:
        return await lacking(connection, rights)
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


async def lacking(connection: Connection, rights: Rights, role: str | None = None) -> Sequence[str]:
    """Tables, sequences and functions on which the role lacks some of the rights; None: the role of the connection.
    Those that an older schema does not have yet are not missed. Raises what the driver raises."""
    sequences = [
        (name, each) for name, privileges in rights.sequences.items() for each in _PRIVILEGE.findall(privileges)
    ]
    found: Sequence[str] = await connection.fetchval(
        _LACKING,
        role,
        *_columns(list(rights.each()), 3),
        *_columns([(name, privilege) for name, (privilege, _) in sequences], 2),
        list(rights.functions),
    )
    return found


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Sequence[str]]:
    return ([row[number] for row in rows] for number in range(width))


# The condition is null for what is not there.
_LACKING = """WITH asked AS (SELECT coalesce($1, current_user::text)::name AS role)
SELECT coalesce(array_agg(DISTINCT name ORDER BY name), '{}') FROM (
    SELECT name FROM asked, unnest($2::text[], $3::text[], $4::text[]) AS needed (name, privilege, part)
    WHERE NOT CASE
        WHEN part = '' THEN has_table_privilege(role, to_regclass(name), privilege)
        ELSE has_column_privilege(role, to_regclass(name), (
            SELECT attnum FROM pg_attribute WHERE attrelid = to_regclass(name) AND attname = part), privilege)
    END
    UNION ALL SELECT name FROM asked, unnest($5::text[], $6::text[]) AS needed (name, privilege)
    WHERE NOT has_sequence_privilege(role, to_regclass(name), privilege)
    UNION ALL SELECT name FROM asked, unnest($7::text[]) AS needed (name)
    WHERE NOT has_function_privilege(role, to_regprocedure(name), 'EXECUTE')) AS missing"""


async def granted_roles(connection: Connection) -> Sequence[tuple[str, str]]:
    """(kind, role) of those that `grant` has given rights to, told by one right that no other kind has. Raises what the
    driver raises."""
    return [(row["kind"], row["role"]) for row in await connection.fetch(_GRANTED)]


_GRANTED = """SELECT DISTINCT kind, rolname::text AS role FROM (
    SELECT 'agent' AS kind, relowner AS owner, relacl AS acl FROM pg_class WHERE oid = to_regclass('agents')
    UNION ALL SELECT 'compactor', relowner, relacl FROM pg_class WHERE oid = to_regclass('compactors')
    UNION ALL SELECT 'reader', proowner, proacl FROM pg_proc WHERE oid = to_regprocedure('pin_files_v1(text, bigint)')
) AS told, aclexplode(acl) AS a JOIN pg_roles r ON r.oid = a.grantee
WHERE privilege_type IN ('INSERT', 'EXECUTE') AND r.oid <> owner
ORDER BY kind, role"""


async def _done_or_left(connection: Connection, statements: Sequence[str]) -> Sequence[str]:
    """Run the statements. Returns those that our role may not run: the grants stand already, without these a metric or
    a safeguard is missing, and another role can add it."""
    left: list[str] = []
    for each in statements:
        try:
            await connection.execute(each)
        except CONNECTION_ERRORS as error:
            if sqlstate_of(error) != INSUFFICIENT_PRIVILEGE:
                raise
            left.append(each)
    return left


def _beside(rights: Rights, role: str, database: str) -> Iterator[str]:
    """Statements about the role itself. Both names are quoted already."""
    for membership in rights.memberships:
        yield f"GRANT {membership} TO {role}"
    for name, limit_ms in rights.limits_ms.items():
        yield f"ALTER ROLE {role} IN DATABASE {database} SET {name} = {limit_ms}"
