"""Detection of a Postgres that may have lost commits, after which the janitor may delete nothing. Pure.

A server has a system identifier, which `initdb` makes, and a timeline, which grows with every promotion and every
recovery to a point in time. Each database has an oid. A copy of the server keeps the oid; a dump that is loaded into
another database of the same server gets that database's oid. The cluster's row stores the three values that an operator
vouched for (at first `siltstone migrate`, when it makes the row): the *adopted* history. If the present values differ,
the database may have gone back to an earlier state. In that state no row names the files that were committed since, so
they look like orphans. So nothing may be deleted until an operator has checked the database and adopts the present
values (`siltstone fsck --adopt`).

Two cases go undetected. A restored copy of the server's volume (a disk snapshot, a copied data directory) has the
values of the time of the copy, and everything that Postgres could remember went back with it. A dump that is loaded
into the database it came from keeps all three values too. In these cases only the janitor's limit on orphans protects
the files (`compactor/deletion/orphans.py`), unless the operator halts the janitor: see docs/operations/backup.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from runtime.errors import SiltstoneError

ADOPT_REMEDY = (
    "find out what was restored or failed over, and whether it holds all committed data;"
    " then run `siltstone fsck --adopt`"
)


class HistoryMovedError(SiltstoneError):
    """The server failed over or was restored again between the check and the adoption. Nothing was adopted."""


class ServerHistory(NamedTuple):
    """The identity of a server's state, from `pg_control_system()`, the name of the current WAL file and
    `pg_database`."""

    system_identifier: int
    timeline: int
    database_oid: int


def history_moved(checked: ServerHistory, found: ServerHistory) -> HistoryMovedError:
    return HistoryMovedError(
        f"the metadata Postgres was {checked} when it was checked and is {found} now; nothing was adopted",
        remedy="run `siltstone fsck --adopt` again",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The adopted and the present history, read at one instant."""

    adopted: ServerHistory
    present: ServerHistory

    @property
    def halts(self) -> str:
        """Why the janitor must delete nothing; "" = it may."""
        old, new = self.adopted, self.present
        if old.system_identifier != new.system_identifier:
            return (
                "the metadata are in a different Postgres server than before: system identifier"
                f" {old.system_identifier} became {new.system_identifier}"
            )
        if old.timeline != new.timeline:
            return f"the metadata Postgres failed over or was restored: timeline {old.timeline} became {new.timeline}"
        if old.database_oid != new.database_oid:
            return (
                "the metadata are in a different database of the same Postgres server than before: oid"
                f" {old.database_oid} became {new.database_oid}"
            )
        return ""
