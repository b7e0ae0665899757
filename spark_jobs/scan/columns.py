"""From records in an arena to columns: the places of values and headers, and their bytes side by side, as Arrow wants.

Records have passed `scan_records`, which checked every bound; these kernels walk the same bytes once more and copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.kernels.compiled import address_of, compiled, contiguous, inlined, register_warm
from wire.kernels.memory import copy_bytes, load_u8, to_int
from wire.kernels.scan import KeyColumns

Rows = NDArray[np.int64]


class Values(NamedTuple):
    """One row per record; positions are in the arena."""

    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """-1 for a null value."""
    headers_at: NDArray[np.int64]
    """The position of the first header."""
    header_counts: NDArray[np.int64]


class HeaderFields(NamedTuple):
    """One row per header, of all records."""

    key_positions: NDArray[np.int64]
    key_lengths: NDArray[np.int64]
    value_positions: NDArray[np.int64]
    value_lengths: NDArray[np.int64]


class Bytes(NamedTuple):
    """A column of byte strings in the layout of Arrow's `binary`."""

    offsets: NDArray[np.int32]
    """One more than there are rows."""
    data: NDArray[np.uint8]
    is_valid: NDArray[np.bool_] | None
    """None if no row is null."""


def values_of(arena: NDArray[np.uint8], columns: KeyColumns, rows: Rows) -> Values:
    """The values of these rows of `columns`; both belong to this arena."""
    count = len(rows)
    found = Values(*(np.empty(count, dtype=np.int64) for _ in range(4)))
    # A null key has length -1 and takes no bytes.
    after_keys = columns.key_positions[rows] + np.maximum(columns.key_lengths[rows], 0)
    _values(address_of(arena), contiguous(after_keys, np.int64), *found)
    return found


def headers_of(arena: NDArray[np.uint8], values: Values) -> HeaderFields:
    count = int(values.header_counts.sum())
    found = HeaderFields(*(np.empty(count, dtype=np.int64) for _ in range(4)))
    if count:
        _headers(address_of(arena), values.headers_at, values.header_counts, *found)
    return found


def gathered(
    arena: NDArray[np.uint8], positions: NDArray[np.int64], lengths: NDArray[np.int64] | NDArray[np.int32]
) -> Bytes:
    """The byte strings at these places, copied; a negative length is a null. Together they must be below 2 GiB."""
    positions, lengths = contiguous(positions, np.int64), contiguous(lengths, np.int64)
    is_valid = lengths >= 0
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    _gather(address_of(arena), positions, lengths, address_of(data))
    return Bytes(offsets.astype(np.int32), data, None if is_valid.all() else is_valid)


@inlined
def _varint(position: int) -> tuple[int, int]:
    """(value of a zigzag varint of at most 32 bits, position after)."""
    first = load_u8(position)
    if first < 0x80:
        return first >> 1 ^ -(first & 1), position + 1
    raw, shift = first & 0x7F, 7
    while True:
        position += 1
        byte = load_u8(position)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), position + 1
        shift += 7


@compiled
def _values(
    arena: int,
    after_keys: NDArray[np.int64],
    positions: NDArray[np.int64],
    lengths: NDArray[np.int64],
    headers_at: NDArray[np.int64],
    header_counts: NDArray[np.int64],
) -> None:
    for row in range(len(after_keys)):
        length, at = _varint(arena + after_keys[row])
        count, first = _varint(at + max(length, 0))
        positions[row] = at - arena
        lengths[row] = length
        headers_at[row] = first - arena
        header_counts[row] = count


@compiled
def _headers(
    arena: int,
    headers_at: NDArray[np.int64],
    header_counts: NDArray[np.int64],
    key_positions: NDArray[np.int64],
    key_lengths: NDArray[np.int64],
    value_positions: NDArray[np.int64],
    value_lengths: NDArray[np.int64],
) -> None:
    header = 0
    for row in range(len(headers_at)):
        position = arena + headers_at[row]
        for _ in range(header_counts[row]):
            length, position = _varint(position)
            key_positions[header] = position - arena
            key_lengths[header] = length
            length, position = _varint(position + length)
            value_positions[header] = position - arena
            value_lengths[header] = length
            position += max(length, 0)
            header += 1


@compiled
def _gather(arena: int, positions: NDArray[np.int64], lengths: NDArray[np.int64], target: int) -> None:
    for row in range(len(positions)):
        length = to_int(lengths[row])
        if length > 0:
            copy_bytes(target, arena + positions[row], length)
            target += length


@register_warm
def _warm() -> None:
    none = np.empty(0, dtype=np.int64)
    arena = np.empty(0, dtype=np.uint8)
    _values(address_of(arena), none, none, none, none, none)
    _headers(address_of(arena), none, none, none, none, none, none)
    _gather(address_of(arena), none, none, address_of(arena))
