"""A password for a user: from a file, from stdin, or typed without being shown. Never from the command line, which
every user of the machine can read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from runtime.errors import BadInputError
from security.scram import PASSWORD_BYTES_MAX, check_password
from siltstone.terminal.plain import say

Command = TypeVar("Command", bound=Callable[..., object])


def password_option(command: Command) -> Command:
    """Add `--password-file`, under the parameter name `password_file`."""
    return click.option(
        "--password-file",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        metavar="FILE",
        help="Read the password from this file, or from stdin if it is -. Its last line break does not count. Default:"
        " ask, or read stdin where it is no terminal.",
    )(command)


def read_password(file: Path | None, user: str) -> str:
    """Raises BadInputError, CredentialError, OSError."""
    if file is None and sys.stdin.isatty():
        password = click.prompt(f"password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    elif file is None or str(file) == "-":
        password = _line(sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 3), "stdin")
    else:
        with file.open("rb") as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                say(f"warning: others may read {file}; `chmod 600 {file}` ends that", err=True)
            password = _line(opened.read(PASSWORD_BYTES_MAX + 3), str(file))
    if not password:
        where, ways = (file, "write it there") if file and str(file) != "-" else ("stdin", "pipe it in")
        raise BadInputError(
            f"{where} held no password; nothing was done", remedy=f"give --password-file FILE, or {ways}"
        )
    check_password(password)
    return password


def _line(data: bytes, where: str) -> str:
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if b"\n" in line or b"\r" in line:
        raise BadInputError(f"{where} has more than one line; nothing was done", remedy="give the password alone")
    try:
        return line.decode()
    except UnicodeDecodeError:
        # `from None`: the error holds the bytes.
        raise BadInputError(f"{where} is not UTF-8; nothing was done", remedy="write the password as UTF-8") from None
