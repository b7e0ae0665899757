"""Reads and adopts the history of a Postgres server: SQL for `metadata/rules/history.py`."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.tables import CLUSTER
from metadata.rules.history import History, ServerHistory, history_moved

SYSTEM_IDENTIFIER = "(SELECT system_identifier FROM pg_control_system())"
TIMELINE = """CASE WHEN pg_is_in_recovery() THEN '00000000'
    ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"""
"""The timeline in hexadecimal; zeros on a standby, which cannot tell."""

DATABASE_OID = "(SELECT oid::bigint FROM pg_database WHERE datname = current_database())"

PRESENT = sa.text(
    f"SELECT {SYSTEM_IDENTIFIER} AS system_identifier, {TIMELINE} AS timeline, {DATABASE_OID} AS database_oid"
)
_BOTH = sa.text(
    # An older release adopted no database oid. The database then counts as the adopted one.
    f"""SELECT adopted_system_identifier, adopted_timeline, {SYSTEM_IDENTIFIER} AS system_identifier,
    {TIMELINE} AS timeline, {DATABASE_OID} AS database_oid,
    coalesce(adopted_database_oid, {DATABASE_OID}) AS adopted_database_oid FROM cluster"""  # noqa: S608
)


def server_history(system_identifier: int, timeline: str, database_oid: int) -> ServerHistory:
    """Raises MetadataUnavailableError on a standby."""
    if not int(timeline, 16):
        raise MetadataUnavailableError("this Postgres is a standby and takes no writes")
    return ServerHistory(system_identifier=system_identifier, timeline=int(timeline, 16), database_oid=database_oid)


async def read_history(connection: AsyncConnection) -> History:
    """Read both histories in one statement, so from one server. Raises MetadataUnavailableError on a standby."""
    row = (await connection.execute(_BOTH)).one()
    return History(
        adopted=ServerHistory(row.adopted_system_identifier, row.adopted_timeline, row.adopted_database_oid),
        present=server_history(row.system_identifier, row.timeline, row.database_oid),
    )


async def adopt_history(connection: AsyncConnection, present: ServerHistory) -> None:
    """Adopt `present` in the caller's transaction, which runs on one server.

    Raises HistoryMovedError if this is not the server that was checked, and MetadataUnavailableError.
    """
    found = (await read_history(connection)).present
    if found != present:
        raise history_moved(present, found)
    await connection.execute(sa.update(CLUSTER).values(adopted_columns(present)))


def adopted_columns(adopted: ServerHistory) -> dict[str, int]:
    """Columns of the cluster's row that hold the adopted history."""
    return {
        "adopted_system_identifier": adopted.system_identifier,
        "adopted_timeline": adopted.timeline,
        "adopted_database_oid": adopted.database_oid,
    }
