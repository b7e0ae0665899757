"""The packed index of an L0 file: the accepted batches, and the only source of truth about the contents of the file.

Byte 0x01 (format), then one 44-byte big-endian row per unbroken stretch of *accepted* batches of one partition:
partition id i32, base offset i64, last offset i64, position i32, length i32, least and greatest timestamp i64.
A refused or duplicate batch is a hole in the file. Its bytes belong to no row, so it splits a stretch in two.
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
    """The bytes are no packed index that this version can read, or a value does not fit one."""


class IndexRow(NamedTuple):
    """One stretch: batches of one partition that follow each other in the object and in the log without a gap."""

    partition_id: int
    base_offset: int
    last_offset: int
    """Inclusive."""
    position: int
    """Byte position in the object."""
    length: int
    """Length in bytes."""
    min_timestamp_ms: int
    max_timestamp_ms: int


def encode_index(rows: Iterable[IndexRow]) -> bytes:
    """Pack the rows in the given order. Raises PackedIndexError for a value outside its field."""
    try:
        return _HEAD + b"".join(_ROW.pack(*row) for row in rows)
    except struct.error as error:
        raise PackedIndexError(f"a value does not fit the packed index: {error}") from error


def iter_index(index: bytes) -> Iterator[IndexRow]:
    """The rows in file order. Raises PackedIndexError for unknown formats and cut-off bytes, before the first row."""
    _check(index)
    return map(IndexRow._make, _ROW.iter_unpack(memoryview(index)[1:]))


def rows_of(index: bytes, partition_ids: frozenset[int]) -> bytes:
    """A packed index with only the rows of these partitions; b"" when there are none. It is fast when a caller wants
    little out of many large indexes: it copies the ids by strides and decodes no row. Raises PackedIndexError."""
    _check(index)
    packed_ids = bytearray(len(index) // ROW_BYTES * _ID_BYTES)
    # Byte `at` of every id in one slice: four slices gather all ids.
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
        raise PackedIndexError(
            f"{len(index)} bytes that start with {bytes(index[:1]).hex()!r} are no packed index of format {FORMAT}"
        )
