"""Tables of results, and their forms: aligned text, Markdown, JSON. Pure.

A column knows its unit and how many digits mean something. A cell is a number, a text, or None (shown as "-") if there
was nothing to measure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Cell = float | int | str | None

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    unit: str = ""
    """Shown behind the name; "" for texts and plain counts."""
    digits: int = 0
    """Digits after the point of a number."""
    detail: bool = False
    """Only in JSON, so that the table stays readable."""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def show(self, cell: Cell) -> str:
        if cell is None:
            return NOTHING
        if isinstance(cell, str):
            return cell
        return f"{cell:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    """How to read it, in a sentence or two; may be empty."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells in a table of {len(self.columns)} columns")


def render_text(table: Table) -> str:
    """For a terminal: texts to the left, numbers to the right. Ends with a newline."""
    table = _without_details(table)
    shown = _shown(table)
    titles = [column.title for column in table.columns]
    widths = [max(map(len, cells)) for cells in zip(titles, *shown, strict=True)]
    rights = _are_numbers(table)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, rights, strict=True)
        ]
        return "  ".join(padded).rstrip()

    lines = [table.title, "=" * len(table.title), line(titles), line(["-" * width for width in widths])]
    lines += [line(cells) for cells in shown]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def render_markdown(table: Table) -> str:
    """A heading of level 3, the table, the note. Ends with a newline."""
    table = _without_details(table)

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rules = ["--:" if right else "---" for right in _are_numbers(table)]
    lines = [f"### {table.title}", "", line(column.title for column in table.columns), line(rules)]
    lines += [line(cells) for cells in _shown(table)]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def render_json(tables: Iterable[Table]) -> str:
    """An array of {title, note, columns: [{name, unit}], rows}, cells unrounded. Ends with a newline."""
    values = [
        {
            "title": table.title,
            "note": table.note,
            "columns": [{"name": column.name, "unit": column.unit} for column in table.columns],
            "rows": [list(row) for row in table.rows],
        }
        for table in tables
    ]
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _without_details(table: Table) -> Table:
    kept = [at for at, column in enumerate(table.columns) if not column.detail]
    return replace(
        table, columns=[table.columns[at] for at in kept], rows=[[row[at] for at in kept] for row in table.rows]
    )


def _shown(table: Table) -> list[list[str]]:
    return [[column.show(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]


def _are_numbers(table: Table) -> list[bool]:
    """Per column, whether it is aligned to the right: it holds a number, and no text."""
    return [
        any(isinstance(row[at], int | float) for row in table.rows)
        and not any(isinstance(row[at], str) for row in table.rows)
        for at in range(len(table.columns))
    ]
