"""Rows of a table as `COPY ... (FORMAT binary)` gives them. They cost little to send, and can be kept as they are until
the transaction has ended. `rows_of` turns them into values afterwards.

The format: https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format": a head; per row the number of fields
i16 and per field its length i32 (-1 = NULL) and its bytes; at the end -1 in place of the number.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from metadata.postgres.tables import Utf8
from runtime.errors import BugError

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_READ_BYTES = 1 << 20
_COUNT, _LENGTH, _FLOAT = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">d")
_INTEGERS = {2: "h", 4: "i", 8: "q"}
_LAYOUTS_MAX = 100

Decode = Callable[[bytes], Any]


def rows_of(file: BinaryIO, types: Sequence[Any], rows_at_a_time: int) -> Iterator[list[Sequence[Any]]]:
    """The rows that were copied into `file`, from its start, with the values that SQLAlchemy gives for these types.

    Raises BugError for bytes that are cut off or not of this format."""
    file.seek(0)
    if file.read(len(_HEAD)) != _HEAD:
        raise BugError("copied rows do not begin like COPY's binary format")
    rows: list[Sequence[Any]] = []
    for row in _rows(file, types):
        rows.append(row)
        if len(rows) == rows_at_a_time:
            yield rows
            rows = []
    if rows:
        yield rows


@dataclass(frozen=True, slots=True)
class _Layout:
    """Rows whose fields have these lengths. Most rows are laid out like the one before: one call unpacks such a row."""

    lengths: tuple[int, ...]
    row: struct.Struct
    """The number of fields; per field its length and its value."""
    decoders: Sequence[tuple[int, Decode]]
    """The places of the fields that are no numbers, and the functions that make values of their bytes."""


def _rows(file: BinaryIO, types: Sequence[Any]) -> Iterator[Sequence[Any]]:
    data, at = b"", 0
    known: dict[tuple[int, ...], _Layout] = {}
    layout = _layout((-1,) * len(types), types)
    while True:
        found: tuple[Any, ...] = layout.row.unpack_from(data, at) if at + layout.row.size <= len(data) else (0,)
        if found[0] != len(types) or found[1::2] != layout.lengths:
            lengths = _lengths(data, at, len(types))
            if lengths is None:
                if data[at:] == _END:
                    return
                more = file.read(_READ_BYTES)
                if not more:
                    raise BugError("the copied rows are cut off")
                data, at = data[at:] + more, 0
                continue
            if lengths not in known:
                if len(known) == _LAYOUTS_MAX:
                    known.clear()
                known[lengths] = _layout(lengths, types)
            layout = known[lengths]
            found = layout.row.unpack_from(data, at)
        at += layout.row.size
        row = list(found[2::2])
        for place, decode in layout.decoders:
            row[place] = decode(row[place])
        yield row


def _lengths(data: bytes, at: int, count: int) -> tuple[int, ...] | None:
    """The lengths of the fields of the row that begins here; None if its end is not here, or if it is the end."""
    if data[at : at + 2] == _END or at + 2 > len(data):
        return None
    if _COUNT.unpack_from(data, at) != (count,):
        raise BugError(f"a copied row does not have the {count} fields that were asked for")
    at += 2
    lengths: list[int] = []
    for _ in range(count):
        if at + 4 > len(data):
            return None
        lengths += _LENGTH.unpack_from(data, at)
        at += 4 + max(lengths[-1], 0)
    return tuple(lengths) if at <= len(data) else None


def _layout(lengths: tuple[int, ...], types: Sequence[Any]) -> _Layout:
    codes, decoders = [">h"], list[tuple[int, Decode]]()
    for place, (length, type_) in enumerate(zip(lengths, types, strict=True)):
        is_integer = isinstance(type_, sa.Integer) and length in _INTEGERS
        codes.append(f"i{_INTEGERS[length]}" if is_integer else f"i{max(length, 0)}s")
        if not is_integer:
            decoders.append((place, _none if length < 0 else _decoder(type_)))
    return _Layout(lengths, struct.Struct("".join(codes)), decoders)


def _decoder(type_: Any) -> Decode:
    match type_:
        case Utf8():
            return _utf8
        case sa.LargeBinary():
            return bytes
        case sa.Boolean():
            return _is_true
        case sa.Float():
            return _double
        case sa.Text():
            return bytes.decode
        case sa.Uuid():
            return _uuid
        case pg.JSONB():
            return _jsonb
        case pg.ARRAY(item_type=Utf8()):
            return _utf8_array
        case _:
            raise BugError(f"columns of type {type_!r} cannot be copied")


def _none(_: bytes) -> None:
    return None


def _utf8(field: bytes) -> str:
    return field.decode("utf-8", "surrogatepass")


def _utf8_array(field: bytes) -> list[str]:
    """The number of dimensions, a flag for NULLs and the type of the items, i32 each; per dimension its length and its
    first index; then the items as fields are (`array_send` in Postgres)."""
    (dimensions,) = _LENGTH.unpack_from(field, 0)
    if not dimensions:
        return []
    (count,), at = _LENGTH.unpack_from(field, 12), 20
    items: list[str] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(field, at)
        items.append(_utf8(field[at + 4 : at + 4 + length]))
        at += 4 + length
    return items


def _is_true(field: bytes) -> bool:
    return field == b"\1"


def _double(field: bytes) -> float:
    return _FLOAT.unpack(field)[0]


def _uuid(field: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=field)


def _jsonb(field: bytes) -> Any:
    return json.loads(field[1:])  # behind the number of the format
