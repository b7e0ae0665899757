"""Errors that any call to the metadata store may raise."""

from __future__ import annotations

from typing import ClassVar

from runtime.errors import BadInputError, BugError, Outcome, SiltstoneError, UnavailableError


class MetadataUnavailableError(UnavailableError):
    """Postgres cannot be reached or refuses connections. Reads may be repeated."""


class MetadataInDoubtError(MetadataUnavailableError):
    """The connection was lost while a change other than `commit_l0` was committing: it may have happened."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN


class RightsMissingError(SiltstoneError):
    """The role may not do what was asked; nothing was changed. Asked again, it is refused again until it may."""


class SchemaMismatchError(BadInputError):
    """The database has no schema, or another version of it. Run `siltstone migrate`."""


class WentBackError(BugError):
    """The database is older than what we have seen (failover or restore without RPO 0). Halt; do not write."""
