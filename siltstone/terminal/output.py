"""The output of commands: tables for people, JSON for programs (`--json`)."""

from __future__ import annotations

import asyncio
import json
import os
import select
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar, cast

import click
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table

from runtime.text import printable
from siltstone.terminal.plain import say

Command = TypeVar("Command", bound=Callable[..., Any])

PIPED_WIDTH = 200
"""Columns when the output is not a terminal: enough for an object key without a line break."""
GAP = 2
"""Spaces between two columns."""
WORD_CELLS = 16
"""A longer word of a cell may be torn apart: names, keys, ids."""
CUT_CELLS_MIN = 8
"""The least width of the column that `print_table` cuts."""


def json_option(command: Command) -> Command:
    """The `--json` option, under the parameter name `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    made = Console(stderr=stderr, highlight=False, soft_wrap=False, width=None if stream.isatty() else PIPED_WIDTH)
    made.push_render_hook(_Escaping())
    return made


class _Escaping(RenderHook):
    """Escapes the text of everything that is printed; rich's own codes, for colors and the cursor, are no text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Escaped(each) for each in renderables]


class Escaped:
    """A renderable without characters that would steer the terminal."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.isprintable():
        # JSON leaves DEL and the control characters from U+0080 on as they are, and terminals obey some of them.
        text = "".join(
            each
            if each == "\n" or each.isprintable()
            else f"\\u{ord(each):04x}"
            if each < "\U00010000"
            else json.dumps(each)[1:-1]
            for each in text
        )
    click.echo(text)


def print_bytes(data: bytes) -> None:
    """Write all of `data`, raw, to stdout. Raises BrokenPipeError when the reader has gone.

    A write to a pipe may take only a part without an error: when the reader leaves in the middle, when a signal
    arrives, or when another process made the pipe non-blocking. Python's buffer would write the rest, but with
    PYTHONUNBUFFERED, which many container images set, there is no buffer.
    """
    sys.stdout.flush()
    buffer = cast(BinaryIO, sys.stdout.buffer)
    write = cast("Callable[[memoryview], int | None]", getattr(buffer, "raw", buffer).write)
    left = memoryview(data)
    while left:
        written = write(left)
        if written is None:  # a non-blocking pipe that is full
            select.select([], [buffer], [])
        else:
            left = left[written:]


async def print_when_taken(data: bytes) -> None:
    """Write as `print_bytes` does, but wait for a slow reader without blocking the event loop."""
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout has no file descriptor, for example in a test
        print_bytes(data)
        return
    # A regular file never blocks, and the event loop cannot watch one.
    if stat.S_ISREG(os.fstat(number).st_mode):
        print_bytes(data)
        return
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    left = memoryview(data)
    while left:
        if not poll.poll(0):
            await _writable(number)
        with suppress(BlockingIOError):
            # a pipe that is ready for writing takes PIPE_BUF bytes without blocking
            left = left[os.write(number, left[: select.PIPE_BUF]) :]


async def _writable(number: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(number, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(number)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
    cut: str = "",
    below: Sequence[str] = (),
) -> None:
    """Print a table with plain text cells. `right` names the right-aligned columns; `below` has one line for each row.

    A table that is wider than the terminal first breaks headings between words. Then the column `cut`, if one is named,
    is shortened and ends in "…"; otherwise cells are folded. If words would be torn apart even so, each row becomes
    lines of its own, a column on a line.
    """
    target = console()
    # Line breaks too: a name with one would make a row of its own.
    rows = [[printable(cell, keep="") for cell in row] for row in rows]
    if _least_width(columns, rows, cut) > target.width:
        _print_rows_as_lines(columns, rows, title=title, below=below)
        return
    widths = [max(map(cell_len, each)) for each in zip(columns, *rows, strict=True)]
    headings = list(columns)
    if _table_width(widths) > target.width:
        headings = [heading.replace(" ", "\n") for heading in columns]
        words = (max(map(cell_len, heading.split("\n"))) for heading in headings)
        widths = [max(each) for each in zip(words, *([*map(cell_len, row)] for row in rows), strict=True)]
    if cut:
        at = columns.index(cut)
        widths[at] = min(
            widths[at], max(CUT_CELLS_MIN, target.width - _table_width([*widths[:at], *widths[at + 1 :]]) - GAP)
        )
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, heading, width in zip(columns, headings, widths, strict=True):
        table.add_column(
            heading,
            justify="right" if column in right else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=bool(cut),
            width=width if cut else None,
        )
    for row in rows:
        table.add_row(*row)
    print_title(title)
    if not below:
        target.print(table, markup=False)
        return
    with target.capture() as drawn:
        target.print(table, markup=False, soft_wrap=True)
    lines = drawn.get().splitlines()
    heads = len(lines) - len(rows)
    for number, line in enumerate(lines):
        click.echo(line.rstrip())
        if number >= heads:
            click.echo(f"{'':{GAP}}{printable(below[number - heads], keep='')}")


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: str) -> int:
    """The width in which a table can be read: no word up to WORD_CELLS is torn apart."""
    cells = zip(columns, *rows, strict=True)
    longest = ((max(map(cell_len, " ".join(each).split()), default=0), each[0]) for each in cells)
    return _table_width([min(CUT_CELLS_MIN if name == cut else WORD_CELLS, word) for word, name in longest])


def _print_rows_as_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None, below: Sequence[str]
) -> None:
    print_title(title)
    for number, row in enumerate(rows):
        if number:
            click.echo()
        print_pairs(dict(zip(columns, row, strict=True)))
        if below and below[number]:
            click.echo(f"{'':{GAP}}{printable(below[number], keep='')}")


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def print_pairs(pairs: Mapping[str, str | Sequence[str]], *, title: str | None = None, stderr: bool = False) -> None:
    """Print names and values, one pair on a line; each text of a value that has several has a line of its own. Into a
    pipe, lines have no blanks at the end and are not folded."""
    target = console(stderr=stderr)
    print_title(title, stderr=stderr)
    # A line break within a text would make a line that looks like another pair.
    texts = {name: [value] if isinstance(value, str) else value for name, value in pairs.items()}
    shown = {name: "\n".join(printable(text, keep="") for text in value) for name, value in texts.items()}
    if not target.is_terminal:
        width = max(map(cell_len, pairs), default=0)
        for name, value in shown.items():
            say(f"{set_cell_size(name, width)}  {value}", err=stderr)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in shown.items():
        table.add_row(printable(name), value)
    target.print(table, markup=False)


def print_title(title: str | None, *, stderr: bool = False) -> None:
    """Print a title above a table. The title may be as wide as the terminal, not only as wide as the table."""
    if title:
        console(stderr=stderr).print(printable(title), style="italic", markup=False)
