"""Wrong usage of a command that it can itself say a remedy for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click

from runtime.errors import BadInputError


class WrongUsageError(click.UsageError):
    """Shown as click shows wrong usage, and then the remedy; exit code 2."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def usage_remedy(error: click.UsageError) -> str:
    """Empty where nothing can be told beyond what click says."""
    if isinstance(error, WrongUsageError):
        return error.remedy
    if not isinstance(error, click.BadParameter) or error.param is None:
        return ""
    kind = error.param.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        whole = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        if kind.min is None:
            return f"give {whole}"
        return f"give {whole} from {kind.min:g}" + (" on" if kind.max is None else f" to {kind.max:g}")
    if isinstance(kind, click.Path) and error.param.name == "data":
        return "name the directory that `siltstone dev` was started with (./siltstone-data where --data was not given)"
    return ""


@contextmanager
def as_usage() -> Generator[None]:
    """Around the reading of what an option says: text that cannot be read is wrong usage, with its remedy."""
    try:
        yield
    except BadInputError as error:
        raise WrongUsageError(error.message, remedy=error.remedy) from error
