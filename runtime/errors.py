"""The one root of our errors.

An error answers two questions: *did it happen?* (`outcome`) and *what now?* (`remedy`).
Rooms subclass `SiltstoneError` beside the code that raises; this file knows none of them.
Kafka error codes are not here: they are attached in one table, `wire/error_codes.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Outcome(StrEnum):
    """Whether the requested action happened."""

    NOT_DONE = "not done"
    """It certainly did not happen; asking again is safe."""
    UNKNOWN = "unknown"
    """It may have happened. Only the same idempotent call may be repeated; never guess."""


class SiltstoneError(Exception):
    """Root of every error we raise on purpose.

    Args:
        message: what went wrong, naming the thing (key, topic, setting, address).
        remedy: what the reader can do about it; shown after the message by the CLI.
    """

    outcome: ClassVar[Outcome] = Outcome.NOT_DONE
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class BadInputError(SiltstoneError):
    """The operator or client asked for something impossible; nothing was changed."""


class UnavailableError(SiltstoneError):
    """A service that we depend on does not answer; nothing was changed; try again later."""

    retriable = True


class FencedError(SiltstoneError):
    """Another process with a newer epoch has taken our place; stop acting under the old epoch."""


class BugError(SiltstoneError):
    """A state that our own rules exclude: a bug. Please report it with the message."""
