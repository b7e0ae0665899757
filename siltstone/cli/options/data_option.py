"""The option `--data DIR`: a directory of `siltstone dev`. SILTSTONE_DATA names it once for all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from runtime.settings.loading import DATA_VARIABLE

Command = TypeVar("Command", bound=Callable[..., Any])

DATA_OR_URLS = "--data already names the whole system: give either --data or URLs, not both"
DEFAULT_DATA = Path("./siltstone-data")
"""Where `siltstone dev` keeps everything, unless it is told another place."""


def data_option(help_text: str) -> Callable[[Command], Command]:
    """Add `--data`, under the parameter name `data`: an existing directory, or None."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        envvar=DATA_VARIABLE,
        show_envvar=True,
        metavar="DIR",
        help=help_text,
    )


def unless_typed(data: Path | None, *urls: object, usage: str) -> Path | None:
    """`data`, or None if the command line gives URLs, which count before SILTSTONE_DATA. Raises UsageError with this
    text when it gives both."""
    if data is None or not any(urls):
        return data
    if is_typed("data"):
        raise click.UsageError(usage)
    return None


def is_typed(parameter: str) -> bool:
    """Whether the command line itself gives the parameter, not a variable or a default."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE
