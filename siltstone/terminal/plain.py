"""Lines of plain text on the terminal. Importing this module is cheap."""

from __future__ import annotations

import click

from runtime.text import printable


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with every character escaped that would steer the terminal: names in it are other people's."""
    click.echo(printable(text), err=err, nl=nl)


def escape_error(error: click.ClickException) -> None:
    """Escape the words of the command line that click quotes in its message."""
    # click declares both as final; they are what it prints.
    vars(error)["message"] = printable(error.message)
    if isinstance(error, click.FileError):
        vars(error)["ui_filename"] = printable(error.ui_filename)
