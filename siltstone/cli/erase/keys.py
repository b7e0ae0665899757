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
    """Add the options, under the parameter names `keys`, `keys_file` and `keys_format`."""
    keys = click.option(*("-k", "--key", "keys"), multiple=True, metavar="KEY", help="A key. Repeatable.")
    keys_file = click.option(
        "--keys-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="A key on each line of this file; - reads stdin.",
    )
    keys_format = click.option(
        "--keys-format",
        type=click.Choice(["text", "hex"]),
        default="text",
        show_default=True,
        help="How --key and --keys-file write keys: hex for those that are no text.",
    )
    return keys(keys_file(keys_format(command)))


def given_keys(keys: Sequence[str], keys_file: Path | None, keys_format: str) -> Sequence[bytes]:
    """The keys, in order, each once. Raises BadInputError, OSError."""
    # A word of the command line is UTF-8, or whatever bytes the shell passed.
    words = [key.encode(errors="surrogateescape") for key in keys]
    as_hex = keys_format == "hex"
    if keys_file is None:
        return read_keys(words, (), "", as_hex=as_hex)
    if keys_file == STDIN:
        return read_keys(words, sys.stdin.buffer, "stdin", as_hex=as_hex)
    with keys_file.open("rb") as lines:
        return read_keys(words, lines, str(keys_file), as_hex=as_hex)
