"""The options `--config FILE` and `--set NAME=VALUE`, by which commands take settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from runtime.errors import BadInputError
from runtime.logging import configure
from runtime.passwords import holds_password
from runtime.settings.loading import environment_name, load_settings
from runtime.settings.table import Settings
from siltstone.terminal.plain import say

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_options(command: Command) -> Command:
    """Add the options, under the parameter names `config` and `assignments`."""
    config = click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A TOML file with settings (docs/settings.md).",
    )
    assignments = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="One setting, for example produce.linger.ms=100. Repeatable. Wins over the environment and the file.",
    )
    return config(assignments(command))


def read_settings(
    config: Path | None,
    assignments: Sequence[str],
    options: Mapping[str, str | None] | None = None,
    *,
    fixed: Mapping[str, str] = MappingProxyType({}),
    fixed_by: str = "",
) -> Settings:
    """Settings from the file, the environment, `--set` and `options`; the later source wins. Also sets up logging.

    `fixed` are those that the option `fixed_by` sets, and nothing else may set otherwise.

    Raises SettingsError, BadInputError.
    """
    overrides: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise BadInputError(
                f"--set {assignment!r} has no '='; nothing was done",
                remedy="write --set NAME=VALUE; docs/settings.md lists the names",
            )
        overrides[name.strip()] = value.strip()
    overrides |= {name: value for name, value in (options or {}).items() if value is not None}
    _warn_of_passwords(overrides)
    settings = load_settings(config, os.environ, overrides, fixed=fixed, fixed_by=fixed_by)
    configure(settings.log_level, settings.log_format, burst_lines=settings.log_burst_lines)
    return settings


def _warn_of_passwords(overrides: Mapping[str, str]) -> None:
    names = [name for name, value in overrides.items() if is_shown_password(value)]
    if names:
        variables = " and ".join(map(environment_name, names))
        warn_of_password(
            ", ".join(names),
            f"put it into {variables}, into the file of --config, or into a file that PGPASSFILE names",
        )


def is_shown_password(url: str) -> bool:
    """Whether the command line has a password in this URL. The environment gives options too, and nobody else can read
    that."""
    return holds_password(url) and url in "\0".join(sys.orig_argv)


def warn_of_password(where: str, remedy: str) -> None:
    """Every user of the machine can read the command line while the command runs."""
    say(
        f"warning: the command line holds a password ({where}), and every user of this machine can read it; {remedy}",
        err=True,
    )
