"""Errors of wrong usage that carry a remedy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click

from runtime.errors import BadInputError


class WrongUsageError(click.UsageError):
    """Wrong usage of a command. The CLI prints click's usage message and then the remedy; exit code 2."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def in_plain_words(error: click.UsageError) -> None:
    """Click says "not a valid integer range" of a word that is no number."""
    for theirs, ours in (("integer range", "whole number"), ("float range", "number")):
        # click declares the message as final; it is the text that click prints
        vars(error)["message"] = error.message.replace(f"is not a valid {theirs}.", f"is not a {ours}.")


def usage_remedy(error: click.UsageError) -> str:
    """The remedy for a usage error; empty when click's own message is enough."""
    if isinstance(error, WrongUsageError):
        return error.remedy
    if not isinstance(error, click.BadParameter) or error.param is None:
        return ""
    kind = error.param.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        whole = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        if kind.min is None:
            return f"give {whole}"
        return (
            f"give {whole}, {kind.min:g} or more"
            if kind.max is None
            else f"give {whole} from {kind.min:g} to {kind.max:g}"
        )
    if isinstance(kind, click.Path) and error.param.name == "data":
        return "name the directory that `siltstone dev` was started with (its default is ./siltstone-data)"
    return ""


@contextmanager
def as_usage() -> Generator[None]:
    """Turn a BadInputError of the block into wrong usage. For code that parses the text of an option."""
    try:
        yield
    except BadInputError as error:
        raise WrongUsageError(error.message, remedy=error.remedy) from error
