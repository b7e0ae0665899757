"""The history of a Postgres server, read and adopted: SQL for `metadata/history.py`."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.history import History, HistoryMovedError, ServerHistory
from metadata.service import MetadataUnavailableError
from metadata.tables import CLUSTER

SYSTEM_IDENTIFIER = "(SELECT system_identifier FROM pg_control_system())"
TIMELINE = """CASE WHEN pg_is_in_recovery() THEN '00000000'
    ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"""
"""In hexadecimal; zeros on a standby, which cannot tell."""

PRESENT = sa.text(f"SELECT {SYSTEM_IDENTIFIER} AS system_identifier, {TIMELINE} AS timeline")
_BOTH = sa.text(
    f"""SELECT adopted_system_identifier, adopted_timeline, {SYSTEM_IDENTIFIER} AS system_identifier,
    {TIMELINE} AS timeline FROM cluster"""  # noqa: S608
)


def server_history(system_identifier: int, timeline: str) -> ServerHistory:
    """Raises MetadataUnavailableError on a standby."""
    if not int(timeline, 16):
        raise MetadataUnavailableError("this Postgres is a standby and takes no writes")
    return ServerHistory(system_identifier=system_identifier, timeline=int(timeline, 16))


async def read_history(connection: AsyncConnection) -> History:
    """In one statement, so of one server. Raises MetadataUnavailableError on a standby."""
    row = (await connection.execute(_BOTH)).one()
    return History(
        adopted=ServerHistory(system_identifier=row.adopted_system_identifier, timeline=row.adopted_timeline),
        present=server_history(row.system_identifier, row.timeline),
    )


async def adopt_history(connection: AsyncConnection, present: ServerHistory) -> None:
    """In the caller's transaction, which lives on one server. Raises HistoryMovedError, MetadataUnavailableError."""
    found = (await read_history(connection)).present
    if found != present:
        raise HistoryMovedError(
            f"the metadata Postgres was {present} when it was checked and is {found} now",
            remedy="run `siltstone fsck --adopt` again",
        )
    adopted = {"adopted_system_identifier": present.system_identifier, "adopted_timeline": present.timeline}
    await connection.execute(sa.update(CLUSTER).values(adopted))
