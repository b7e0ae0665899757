"""The options that name keys: --key and --keys-file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from siltstone.ops.erasure.request import read_keys

Command = TypeVar("Command", bound=Callable[..., object])
STDIN = Path("-")


def key_options(command: Command) -> Command:
    """Add the options, under the parameter names `keys` and `keys_file`."""
    keys = click.option(*("-k", "--key", "keys"), multiple=True, metavar="KEY", help="A key, as UTF-8. Repeatable.")
    keys_file = click.option(
        "--keys-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="A key on each line of this file; - reads stdin.",
    )
    return keys(keys_file(command))


def given_keys(keys: Sequence[str], keys_file: Path | None) -> Sequence[bytes]:
    """The keys, in order, each once. Raises BadInputError, OSError."""
    # A word of the command line is UTF-8, or whatever bytes the shell passed.
    words = [key.encode(errors="surrogateescape") for key in keys]
    if keys_file is None:
        return read_keys(words, (), "")
    if keys_file == STDIN:
        return read_keys(words, sys.stdin.buffer, "stdin")
    with keys_file.open("rb") as lines:
        return read_keys(words, lines, str(keys_file))
