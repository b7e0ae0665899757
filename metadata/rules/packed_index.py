"""The packed index of an L0 file: what the commit accepted, and the only truth about what the file holds.

Byte 0x01 (format), then one 44-byte big-endian row per unbroken stretch of *accepted* batches of one partition:
partition id i32, base offset i64, last offset i64, position i32, length i32, least and greatest timestamp i64.
A refused or duplicate batch is a hole in the file: its bytes belong to no row, so it splits a stretch in two.
The commit function packs the same rows in SQL; `files.index` holds them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from runtime.errors import SiltstoneError

FORMAT = 1
ROW_BYTES = 44
_ID_BYTES = 4
_ROW = struct.Struct(">iqqiiqq")
_HEAD = bytes([FORMAT])


class PackedIndexError(SiltstoneError):
    """The bytes are not a packed index this version can read."""


class IndexRow(NamedTuple):
    """One stretch: batches of one partition that touch in the object and in the log."""

    partition_id: int
    base_offset: int
    last_offset: int
    """Inclusive."""
    position: int
    """Byte position in the object."""
    length: int
    """Bytes."""
    min_timestamp_ms: int
    max_timestamp_ms: int


def encode_index(rows: Iterable[IndexRow]) -> bytes:
    """Pack rows in the order given. Raises PackedIndexError for a value outside its field."""
    try:
        return _HEAD + b"".join(_ROW.pack(*row) for row in rows)
    except struct.error as error:
        raise PackedIndexError(f"a value does not fit the packed index: {error}") from error


def iter_index(index: bytes) -> Iterator[IndexRow]:
    """Rows in file order. Raises PackedIndexError on the first row for unknown formats and cut-off bytes."""
    _check(index)
    return map(IndexRow._make, _ROW.iter_unpack(memoryview(index)[1:]))


def rows_of(index: bytes, partition_ids: frozenset[int]) -> bytes:
    """A packed index of the rows of these partitions alone; b"" when it has none. For many large indexes of which
    little is wanted: the ids are taken out by strides, and no row is decoded. Raises PackedIndexError."""
    _check(index)
    packed_ids = bytearray(len(index) // ROW_BYTES * _ID_BYTES)
    for at in range(_ID_BYTES):
        packed_ids[at::_ID_BYTES] = index[1 + at :: ROW_BYTES]
    ids = struct.unpack(f">{len(index) // ROW_BYTES}i", packed_ids)
    if partition_ids.isdisjoint(ids):
        return b""
    starts = (1 + ROW_BYTES * row for row, id_ in enumerate(ids) if id_ in partition_ids)
    return _HEAD + b"".join([index[start : start + ROW_BYTES] for start in starts])


def decode_index(index: bytes) -> list[IndexRow]:
    """All rows in file order. Raises PackedIndexError."""
    return list(iter_index(index))


def _check(index: bytes) -> None:
    if len(index) % ROW_BYTES != 1 or index[0] != FORMAT:
        raise PackedIndexError(f"{len(index)} bytes starting {bytes(index[:1]).hex()!r} are no packed index")
