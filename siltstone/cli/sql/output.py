"""The rows of an answer as a table, as JSON lines, as CSV."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from typing import Any, cast

from runtime.text import plural
from siltstone.kafka.record_format import NULL, safe_text
from siltstone.terminal.output import GAP, console, print_bytes, print_table
from siltstone.terminal.plain import say

TABLE_ROWS_MAX = 1_000
"""A table is made when all its rows are there."""
CELL_CHARS = 40
"""The least room for a value in a table."""
WRITE_BYTES = 1 << 16
"""Lines are written together up to about this size."""
_JSON = json.JSONEncoder(ensure_ascii=False)  # one for all rows: making one takes as long as a row
_QUOTED = re.compile(r'[",\r\n]')


def print_rows_as_table(names: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """Long values are cut, and rows beyond TABLE_ROWS_MAX are left out; a line says so."""
    room = max(CELL_CHARS, console().width // len(names) - GAP)
    shown: list[list[str]] = []
    numbers = set(range(len(names)))
    for row in islice(rows, TABLE_ROWS_MAX):  # cut at once: a thousand long values together are too many bytes
        shown.append([_cut(cell_text(value), room) for value in row])
        numbers -= {at for at, value in enumerate(row) if not isinstance(value, int | float | Decimal | None)}
    print_table(list(names), shown, right=[names[at] for at in sorted(numbers)])
    if next(rows, None) is not None:
        say(f"these are the first {plural(TABLE_ROWS_MAX, 'row')}; --json and --csv print all", err=True)


def print_rows_as_json(names: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """One object on a line for each row."""
    _print_lines(rows, lambda row: _json_text(dict(zip(names, map(json_value, row), strict=True))) + "\n")


def print_rows_as_csv(names: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """A line of names, then the rows. Null is written as nothing, and an empty text as ""."""
    print_bytes(_csv_line(names).encode())
    _print_lines(rows, _csv_line)


def print_plan(rows: Iterator[tuple[Any, ...]]) -> None:
    """The plans of EXPLAIN, which DuckDB draws."""
    for row in rows:
        say(str(row[-1]).rstrip("\n"))


def cell_text(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return safe_text(value)
    if isinstance(value, datetime):
        return _time_text(value, " ")
    if isinstance(value, list | dict):
        return _json_text(json_value(value))
    return str(value)


def json_value(value: Any) -> Any:
    """A value of DuckDB as one of JSON: bytes in base64, times as ISO 8601, and numbers that JSON lacks as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return _time_text(value, "T")
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return [json_value(each) for each in cast("Sequence[Any]", value)]
        case dict():
            return {str(name): json_value(each) for name, each in cast("Mapping[Any, Any]", value).items()}
        case _:
            return str(value)


def _time_text(value: datetime, between: str) -> str:
    """Zoned times are in UTC, as the engine gives them. Records have milliseconds."""
    finest = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(between, finest) + ("Z" if value.tzinfo else "")


def csv_text(value: Any) -> str:
    found = json_value(value)
    if found is None:
        return ""
    text = found if isinstance(found, str) else _json_text(found)
    # Quotes tell an empty text from a null.
    return text if text and not _QUOTED.search(text) else '"' + text.replace('"', '""') + '"'


def _csv_line(values: Sequence[Any]) -> str:
    return ",".join(map(csv_text, values)) + "\n"


def _json_text(value: Any) -> str:
    text = _JSON.encode(value)
    # JSON leaves some control characters as they are, and terminals obey them.
    return text if text.isprintable() else json.dumps(value)


def _print_lines(rows: Iterator[tuple[Any, ...]], line: Callable[[tuple[Any, ...]], str]) -> None:
    lines = bytearray()
    for row in rows:
        lines += line(row).encode()
        if len(lines) >= WRITE_BYTES:
            print_bytes(bytes(lines))
            lines.clear()
    print_bytes(bytes(lines))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
