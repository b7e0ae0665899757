"""Writes a catalogue, rolled forward, into an empty Postgres.

One transaction does everything, on an empty database (migrated and never used). A crash leaves the database empty, so
the same rebuild can start again. A second rebuild finds `REBUILT_HOST` among the writers and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from metadata.contract.backup import REBUILT_HOST, Row
from metadata.postgres.backup.producers import restored
from metadata.postgres.backup.tables import PRODUCERS, TABLES
from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable
from metadata.postgres.security.older import note_excluded
from metadata.postgres.tables import ACLS, CLIENT_QUOTAS, CLUSTER, FILES, PRODUCER_STATES, TOPICS, WRITERS
from metadata.postgres.transactions.tables import ABORTED_TRANSACTIONS, TRANSACTIONS
from metadata.postgres.transactions.using import use_transactions
from runtime.errors import BadInputError, BugError

ROWS_AT_A_TIME = 2_000
STATEMENT_TIMEOUT_MS = 3_600_000
_JOB_IDS = "pg_get_serial_sequence('merge_jobs', 'job_id')"


class NotEmptyError(BadInputError):
    """A rebuild needs an empty database, and this one is not empty. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The content of a database before a rebuild."""

    cluster_id: str
    is_rebuilt: bool
    """An earlier run rebuilt it, and no program has used it since."""
    writer_id: int | None = None
    """The writer under which a rebuild appends files of its own; None before a rebuild."""
    last_seq: int = -1


class RebuiltState(StrEnum):
    NEVER = "never"
    UNUSED = "unused"
    """A rebuild may still append to it (`target_state` has `is_rebuilt`)."""
    USED = "used"


async def rebuilt_state(url: str) -> RebuiltState:
    """Whether a database with a schema came from a rebuild, and whether it was used since. Raises
    MetadataUnavailableError."""
    engine = _engine(url)
    try:
        async with engine.connect() as connection:
            ours = sa.exists().where(WRITERS.c.host == REBUILT_HOST)
            if not (await connection.execute(sa.select(ours))).scalar_one():
                return RebuiltState.NEVER
            await _state(connection)
            return RebuiltState.UNUSED
    except NotEmptyError:
        return RebuiltState.USED
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await engine.dispose()


async def target_state(url: str) -> TargetState | None:
    """The state of the target of a rebuild; None if it has no schema at all. Raises NotEmptyError, BadInputError,
    MetadataUnavailableError."""
    engine = _engine(url)
    try:
        async with engine.connect() as connection:
            if not (await connection.execute(sa.text("SELECT to_regclass('cluster') IS NOT NULL"))).scalar_one():
                others = sa.text("SELECT count(*) FROM pg_stat_user_tables WHERE schemaname = current_schema()")
                if (await connection.execute(others)).scalar_one():
                    raise NotEmptyError("the database holds tables that are not Siltstone's", remedy=_EMPTY_REMEDY)
                await _check_may_create(connection)
                return None
            return await _state(connection)
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await engine.dispose()


async def _check_may_create(connection: AsyncConnection) -> None:
    """Check this before the long part of a rebuild, and in a dry run too. Raises BadInputError."""
    asked = "SELECT current_user, current_schema(), has_schema_privilege(current_schema(), 'CREATE')"
    role, schema, may_create = (await connection.execute(sa.text(asked))).one()
    if not may_create:
        raise BadInputError(
            f"the role {role} may not create tables in schema {schema}",
            remedy=f"GRANT CREATE ON SCHEMA {schema} TO {role}, or create the database with {role} as its owner",
        )


_EMPTY_REMEDY = "name an empty database: `createdb` makes one; this one was not changed"


# A rebuild writes no lease and no change, so any of these shows a program at work since.
_USED = sa.text("SELECT EXISTS (SELECT FROM agents) OR EXISTS (SELECT FROM compactors) OR EXISTS (SELECT FROM changes)")


async def _state(connection: AsyncConnection) -> TargetState:
    cluster_id = (await connection.execute(sa.select(CLUSTER.c.cluster_id))).scalar_one_or_none()
    writers = (await connection.execute(sa.select(WRITERS.c.host, WRITERS.c.writer_id, WRITERS.c.last_seq))).all()
    ours = next((row for row in writers if row.host == REBUILT_HOST), None)
    counts = [
        (await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one()
        for table in (TOPICS, FILES)
    ]
    is_used = (await connection.execute(_USED)).scalar_one()
    # In an unused rebuild the restored writers have written nothing, and our writer id was the last number drawn.
    if ours is not None:
        last_node = (await connection.execute(sa.text("SELECT last_value FROM node_ids"))).scalar_one()
        is_used |= last_node != ours.writer_id or any(row.last_seq >= 0 for row in writers if row is not ours)
    if ours is not None and not is_used:
        return TargetState(
            cluster_id=cluster_id or "", is_rebuilt=True, writer_id=ours.writer_id, last_seq=ours.last_seq
        )
    if any(counts) or writers or is_used:
        raise NotEmptyError(
            f"the database is not empty: cluster {cluster_id}, topics {counts[0]}, files {counts[1]}",
            remedy=_EMPTY_REMEDY,
        )
    return TargetState(cluster_id=cluster_id or "", is_rebuilt=False)


async def restore_backup(url: str, tables: Mapping[str, Sequence[Row]], sequences: Mapping[str, int]) -> None:
    """Write all rows and set all sequences, in one transaction. The database must be migrated and empty.

    `tables` may only name tables of `TABLES`. Extents get new ids. Raises NotEmptyError, MetadataUnavailableError, and
    BugError for rows that the schema excludes; nothing was written then.
    """
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            if (await _state(connection)).is_rebuilt:
                raise NotEmptyError("the database already holds a rebuild", remedy=_EMPTY_REMEDY)
            # The row that the migration made: the backup brings its own, with the old cluster id.
            await connection.execute(sa.delete(CLUSTER))
            # Row by row, the sums would take most of the time; and they forget when the first extent of a file died, if
            # its dead extents come first.
            await connection.execute(sa.text("ALTER TABLE extents DISABLE TRIGGER extents_inserted"))
            for name, rows in tables.items():
                table = TABLES[name].table
                if table is PRODUCERS:
                    table, rows = PRODUCER_STATES, list(map(restored, rows))
                for alike in _alike(table, rows):
                    for start in range(0, len(alike), ROWS_AT_A_TIME):
                        await connection.execute(sa.insert(table), alike[start : start + ROWS_AT_A_TIME])
            await connection.execute(sa.text("ALTER TABLE extents ENABLE TRIGGER extents_inserted"))
            await connection.execute(sa.text("SELECT make_sums_v1()"))
            for name, last in sequences.items():
                # `setval` takes no 0; a number that is skipped does no harm.
                place = _JOB_IDS if name == "job_ids" else f"'{name}'"
                await connection.execute(sa.text(f"SELECT setval({place}, :last)"), {"last": max(last, 1)})
            if any(tables.get(name) for name in (ACLS.name, CLIENT_QUOTAS.name)):
                await note_excluded(connection)
            if _has_transactions(tables) and not await use_transactions(connection):
                raise BugError("programs are at work in an empty database")
            # Timeline 0 is never the server's, so the janitor deletes nothing until an operator adopts this server.
            await connection.execute(sa.update(CLUSTER).values(adopted_timeline=0, store_bound=True))
    except (IntegrityError, DataError) as error:
        raise BugError(f"Postgres refused the rows of the catalogue; nothing was written: {error.orig}") from error
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await engine.dispose()


def _has_transactions(tables: Mapping[str, Sequence[Row]]) -> bool:
    return any(tables.get(name) for name in (TRANSACTIONS.name, ABORTED_TRANSACTIONS.name)) or any(
        row.get("inline") or row.get("txn") for row in tables.get(FILES.name, ())
    )


def _alike(table: sa.Table, rows: Sequence[Row]) -> Iterable[list[dict[str, Any]]]:
    """The rows with the columns that this release knows, those with the same columns together: one statement inserts
    the same columns for all its rows. A column that a row lacks, because an older release wrote it, gets its default;
    in other rows it keeps its value."""
    known = sorted({column.name for column in table.columns} - {"extent_id"})
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        columns = tuple(column for column in known if column in row)
        found.setdefault(columns, []).append({column: row[column] for column in columns})
    return found.values()


def _engine(url: str) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(url, application="siltstone-rebuild", statement_timeout_ms=STATEMENT_TIMEOUT_MS),
        poolclass=NullPool,
        hide_parameters=True,
    )
