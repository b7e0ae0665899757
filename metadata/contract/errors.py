"""Errors that any call to the metadata store may raise."""

from __future__ import annotations

from typing import ClassVar

from runtime.errors import BadInputError, BugError, Outcome, SiltstoneError, UnavailableError


class MetadataUnavailableError(UnavailableError):
    """Postgres cannot be reached or refuses connections. Reads may be repeated."""


class MetadataInDoubtError(MetadataUnavailableError):
    """The connection was lost while a change other than `commit_l0` was committing. The change may have happened."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN


class RightsMissingError(SiltstoneError):
    """The database role lacks a right that the call needs. Nothing was changed. A repeat fails too, until the role is
    granted the right."""


class SchemaMismatchError(BadInputError):
    """The database has no schema, or a schema of another version. Run `siltstone migrate`."""


class SchemaBehindError(SchemaMismatchError):
    """The database has no schema, or one that is older than this program's. `siltstone migrate` of this release brings
    it."""


class WentBackError(BugError):
    """The database is older than a state that this process has seen (a failover or restore that lost commits). Halt; do
    not write."""
