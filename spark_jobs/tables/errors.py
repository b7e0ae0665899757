"""How an export fails. Every error but `StaleWriterError` means: nothing was committed."""

from __future__ import annotations

from runtime.errors import BadInputError, FencedError, SiltstoneError, UnavailableError


class TableError(SiltstoneError):
    """Root of the errors of this package that are not the user's input."""


class BadTableError(BadInputError):
    """An option, a place or a schema that cannot be."""


class PlaceUnavailableError(UnavailableError):
    """Where the table's files lie does not answer, is full or refuses us."""


class WrongTableError(BadInputError):
    """The table holds something else than what this export would add to."""


class RecreatedTopicError(WrongTableError):
    """The table was filled from a topic of this name that was deleted since."""


class BadValueError(SiltstoneError):
    """A value that does not fit, where the user asked for a failure."""


class StaleWriterError(FencedError):
    """Somebody committed to the table since we read its offsets. Our commit certainly did not happen."""
