"""Which life of which Postgres server the metadata live, and whether the janitor may delete by it. Pure.

A server has a system identifier, made by `initdb`, and a timeline, which every promotion and every recovery to a point
in time counts up. Each of its databases has an oid, which a copy of the server keeps and a dump that is read into
another database of the same server does not get. The cluster's row remembers the three that a person vouched for (or
`siltstone migrate`, when it made the row): the *adopted* history. With others present the database may have gone back
to an earlier state, in which files that were committed since are named by no row and look like orphans. So nothing may
be deleted until a person has looked and adopts those present (`siltstone fsck --adopt`).

What they do not show: a copy of the server's volume put back (a snapshot of the disk, a copied data directory) has
those it was taken under, and all that Postgres could remember went back with it. Nor is a dump seen that was read into
the database it came from. There the janitor's limit on orphans stands alone (`compactor/deletion/orphans.py`), unless
the operator tells it: see docs/operations/backup.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from runtime.errors import SiltstoneError

ADOPT_REMEDY = (
    "find out what was restored or failed over, and whether it holds all that was committed;"
    " then run `siltstone fsck --adopt`"
)


class HistoryMovedError(SiltstoneError):
    """The server failed over or was restored once more between the check and the adoption. Nothing was adopted."""


class ServerHistory(NamedTuple):
    """As `pg_control_system()`, the name of the current WAL file and `pg_database` say."""

    system_identifier: int
    timeline: int
    database_oid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Read at one instant."""

    adopted: ServerHistory
    present: ServerHistory

    @property
    def halts(self) -> str:
        """Why the janitor must delete nothing; "" = it may."""
        old, new = self.adopted, self.present
        if old.system_identifier != new.system_identifier:
            return (
                "the metadata lie in another Postgres than they did: system identifier"
                f" {old.system_identifier} became {new.system_identifier}"
            )
        if old.timeline != new.timeline:
            return f"the metadata Postgres failed over or was restored: timeline {old.timeline} became {new.timeline}"
        if old.database_oid != new.database_oid:
            return (
                "the metadata lie in another database of their Postgres than they did: oid"
                f" {old.database_oid} became {new.database_oid}"
            )
        return ""
