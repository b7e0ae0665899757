"""Decides which programs may work with which schema, for `_check_schema` and `siltstone migrate`.

A program is made for one schema version, N. A database has a version, M. Every applied migration also left a row with
the oldest program that may work with its result. So

- M = N: they fit.
- M < N: the migration comes first. No program works with a schema older than its own.
- M > N: the program may work if the database's rows allow programs from N on. Migrations only ever add, so most allow
  it. This makes a rolling upgrade possible: migrate, then replace the programs one by one.

Versions are Alembic revisions of four digits. A database without these rows has version 1, and the programs of version
1 work with no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metadata.contract.errors import SchemaBehindError, SchemaMismatchError
from metadata.postgres.driver import Connection

_REVISION = re.compile(r"[0-9]{4}")
_FIRST = 1


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a database, and the programs that it supports."""

    revision: str | None
    """As Alembic names it; None when there is no schema."""
    oldest_program: int | None
    """The oldest program that may work with it. None if the database has no such row: only programs made for exactly
    this revision may then."""

    def takes(self, program: str) -> bool:
        """Whether a program made for the revision `program` may work with it."""
        if self.revision is None or self.revision == program:
            return self.revision == program
        present, wanted = version_of(self.revision), version_of(program)
        # If one of them is unknown the answer is no: a program that should not write must not start.
        if present is None or wanted is None or self.oldest_program is None:
            return False
        return self.oldest_program <= wanted < present

    def is_newer_than(self, program: str) -> bool:
        """Whether a later release than `program` migrated it. A revision that is not ours counts as later."""
        if self.revision is None:
            return False
        present, wanted = version_of(self.revision), version_of(program)
        return present is None or wanted is None or present > wanted


@dataclass(frozen=True, slots=True, order=True)
class Running:
    """A live program: its kind, its place, and the schema that it was made for."""

    kind: str
    place: str
    program: int


def version_of(revision: str) -> int | None:
    """ "0012" -> 12; None if the text is no version of ours."""
    return int(revision) if _REVISION.fullmatch(revision) else None


def revision_of(version: int) -> str:
    return f"{version:04d}"


def check_takes(state: SchemaState, program: str) -> None:
    """Raises SchemaBehindError if the database is behind, and SchemaMismatchError if the program is."""
    if state.takes(program):
        return
    if not state.is_newer_than(program):
        raise SchemaBehindError(
            f"the database has schema revision {state.revision or 'none'}, this release needs {program}",
            remedy="run `siltstone migrate` of this release first",
        )
    oldest = state.oldest_program
    from_on = "" if oldest is None else f", which takes programs of schema {revision_of(oldest)} and newer"
    raise SchemaMismatchError(
        f"this program is too old: the database has schema revision {state.revision}{from_on}, but this release was"
        f" made for {program}",
        remedy="start the release that migrated the database, or a newer one",
    )


def too_old(running: Iterable[Running], oldest_program: int) -> Sequence[Running]:
    """The programs that may not go on with a schema that takes programs from `oldest_program` on."""
    return sorted(each for each in running if each.program < oldest_program)


def listed(programs: Sequence[Running]) -> str:
    """The programs, for a sentence that names them."""
    named = ", ".join(f"{each.kind} {each.place} (schema {revision_of(each.program)})" for each in programs[:5])
    return named + (f" and {len(programs) - 5} more" if len(programs) > 5 else "")


async def read_state(connection: Connection) -> SchemaState:
    """Read the schema's state. Every role of ours may read it. Raises what the driver raises."""
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return SchemaState(None, None)
    revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    if revision is None:
        return SchemaState(None, None)
    if await connection.fetchval("SELECT to_regclass('schema_versions')") is None:
        return SchemaState(revision, None)
    oldest: int | None = await connection.fetchval(
        # The maximum, because a later migration cannot support a program that an earlier one excluded.
        """SELECT max(oldest_program) FROM schema_versions
        WHERE EXISTS (SELECT FROM schema_versions WHERE version = $1)""",
        version_of(revision) or 0,
    )
    return SchemaState(revision, oldest)


async def read_running(connection: Connection) -> Sequence[Running]:
    """Agents and compactors that hold a lease. Raises what the driver raises."""
    has_versions = await connection.fetchval("SELECT to_regclass('schema_versions')") is not None
    program = f"coalesce(program_schema, {_FIRST})" if has_versions else str(_FIRST)
    rows = await connection.fetch(
        f"""SELECT 'agent' AS kind, host || ':' || port AS place, {program} AS program
            FROM agents JOIN writers USING (writer_id) WHERE lease_until_ms >= clock_ms()
        UNION ALL SELECT 'compactor', 'node ' || node_id || ' on ' || host, {program}
            FROM compactors WHERE lease_until_ms >= clock_ms()"""  # noqa: S608 - our own names and numbers
    )
    return sorted(Running(row["kind"], row["place"], row["program"]) for row in rows)
