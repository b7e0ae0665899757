"""The errors of an export. The commit at hand did not happen; after `CommitUnknownError` that is not known. Earlier
commits of the run stay."""

from __future__ import annotations

from typing import ClassVar

from runtime.errors import BadInputError, FencedError, Outcome, SiltstoneError, UnavailableError


class TableError(SiltstoneError):
    """The root of this package's errors that are not the user's input."""


class BadTableError(BadInputError):
    """An impossible option, place or schema."""


class PlaceUnavailableError(UnavailableError):
    """The place of the table's files does not answer, is full or refuses us."""


class WrongTableError(BadInputError):
    """The table holds something else than this export would add."""


class RecreatedTopicError(WrongTableError):
    """The table was filled from an earlier topic of this name, which was deleted since."""


class BadValueError(SiltstoneError):
    """A value does not fit, and the user asked for a failure in that case."""


class StaleWriterError(FencedError):
    """Another writer committed to the table since we read its offsets. Our commit certainly did not happen."""


class CommitRefusedError(UnavailableError):
    """The catalog refused the commit, which certainly did not happen: we lack a right, or it has too much to do."""


class CommitUnknownError(TableError):
    """It is unknown whether the commit happened. The next run reads that from the table and goes on from there."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    retriable: ClassVar[bool] = True
