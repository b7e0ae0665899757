"""Writes batches again with fewer records: headers patched, runs of survivors copied, the CRC summed; see `rewrite`.

Other code decides what stays; here that is a flag per record and an action per batch. Batches that keep all records are
copied as they are, neighbours in one go. A batch that loses records keeps its base offset and base timestamp, and so
the bytes of every record that stays. Only a batch whose base timestamp moves (a delete horizon is stamped into it) has
its records encoded again, with other timestamp deltas and nothing else changed.

Everything that the kernels read was walked before (`wire.kernels.scan`), and every place they write to was computed
from the same columns, so they check no bounds themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.batch import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    CRC_COVERS_FROM,
    CRC_POSITION,
)
from wire.codecs import Codec, compress
from wire.kernels.batches import BatchTable
from wire.kernels.checksum import crc32c_at
from wire.kernels.compiled import address_of, compiled, inlined, register_warm
from wire.kernels.memory import copy_bytes, load_u8, prefetch_read, store_i16, store_i32, store_i64, store_u8
from wire.kernels.scan import KeyColumns

REMOVED = 0
VERBATIM = 1
EMPTIED = 2
"""Write only the header; the caller has set the header's columns."""
REBUILT = 3
"""Copy the survivors."""
REBASED = 4
"""Encode the survivors again, from the old base timestamp to the new."""

_CODECS = tuple(Codec)
_ATTRIBUTES_POSITION = 21
_BASE_TIMESTAMP_POSITION = 27
_MAX_TIMESTAMP_POSITION = 35
_RECORDS_COUNT_POSITION = 57
_ROWS_AHEAD, _BYTES_AHEAD = 64, 1024
_BATCH_LENGTH_POSITION = 8


class Rewrites(NamedTuple):
    """The action for each batch, and the header fields that may change: one row per batch."""

    actions: NDArray[np.uint8]
    attributes: NDArray[np.int64]
    base_timestamps_ms: NDArray[np.int64]
    max_timestamps_ms: NDArray[np.int64]
    record_counts: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]
    """The bytes of the survivors before compression, for rebuilt and rebased batches."""


def new_rewrites(count: int) -> Rewrites:
    """Rows for the caller to fill in."""
    return Rewrites(
        np.empty(count, dtype=np.uint8),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )


def rewrite(
    window: NDArray[np.uint8],
    table: BatchTable,
    arena: NDArray[np.uint8],
    columns: KeyColumns,
    first_rows: NDArray[np.int64],
    keep: NDArray[np.uint8],
    rewrites: Rewrites,
) -> tuple[NDArray[np.uint8], BatchTable]:
    """The batches of `table` (which lie in `window`) as `rewrites` says, one after the other, and their table.

    `columns` are the records of all batches, and their bytes lie in `arena`; rows `first_rows[i]` to `first_rows[i +
    1]` belong to batch i. `keep` is 1 for a record that stays. Compressed batches are compressed again with the same
    codec at its default level. Neighbours in the table are neighbours in the window. Raises nothing: all of it was read
    before.
    """
    actions = rewrites.actions
    rebuilt = actions >= REBUILT
    compressed = rebuilt & ((table.attributes & CODEC_MASK) != 0)
    payloads = _compressed_payloads(table, arena, columns, first_rows, keep, rewrites, compressed)

    sizes = np.where(rebuilt, rewrites.payload_bytes + BATCH_HEADER_BYTES, 0)
    for index, payload in payloads:
        sizes[index] = BATCH_HEADER_BYTES + len(payload)
    sizes[actions == VERBATIM] = table.sizes[actions == VERBATIM]
    sizes[actions == EMPTIED] = BATCH_HEADER_BYTES
    ends = np.cumsum(sizes)
    # Removed batches have size 0, so they take no place in between.
    positions = ends - sizes
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)

    for index, payload in payloads:
        start = int(positions[index]) + BATCH_HEADER_BYTES
        out[start : start + len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    out_at = address_of(out)
    in_place = rebuilt & ~compressed
    if in_place.any():
        _write_survivors(
            address_of(arena),
            columns,
            table.base_timestamps_ms,
            first_rows,
            keep,
            rewrites,
            in_place,
            positions + BATCH_HEADER_BYTES,
            out_at,
        )
    _write_batches(address_of(window), table, rewrites, positions, sizes, out_at)
    return out, _table_of_output(table, rewrites, positions, sizes)


def _compressed_payloads(
    table: BatchTable,
    arena: NDArray[np.uint8],
    columns: KeyColumns,
    first_rows: NDArray[np.int64],
    keep: NDArray[np.uint8],
    rewrites: Rewrites,
    compressed: NDArray[np.bool_],
) -> list[tuple[int, bytes]]:
    """(row of the batch, its new payload) of every compressed batch that is built again."""
    if not compressed.any():
        return []
    plain_bytes = np.where(compressed, rewrites.payload_bytes, 0)
    ends = np.cumsum(plain_bytes)
    positions = ends - plain_bytes
    plain = np.empty(int(ends[-1]), dtype=np.uint8)
    _write_survivors(
        address_of(arena),
        columns,
        table.base_timestamps_ms,
        first_rows,
        keep,
        rewrites,
        compressed,
        positions,
        address_of(plain),
    )
    view = plain.data
    payloads: list[tuple[int, bytes]] = []
    for index in compressed.nonzero()[0].tolist():
        codec = _CODECS[int(table.attributes[index]) & CODEC_MASK]
        payloads.append((index, compress(codec, view[int(positions[index]) : int(ends[index])])))
    return payloads


def _table_of_output(
    table: BatchTable, rewrites: Rewrites, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> BatchTable:
    there = rewrites.actions != REMOVED
    columns = BatchTable(
        positions,
        sizes,
        table.base_offsets,
        table.last_offsets,
        rewrites.record_counts,
        rewrites.attributes,
        rewrites.base_timestamps_ms,
        rewrites.max_timestamps_ms,
        table.producer_ids,
        _uncompressed_sizes(table, rewrites),
    )
    return BatchTable._make(column[there] for column in columns)


def _uncompressed_sizes(table: BatchTable, rewrites: Rewrites) -> NDArray[np.int64]:
    sizes = table.uncompressed_sizes.copy()
    sizes[rewrites.actions == EMPTIED] = BATCH_HEADER_BYTES
    rebuilt = rewrites.actions >= REBUILT
    sizes[rebuilt] = rewrites.payload_bytes[rebuilt] + BATCH_HEADER_BYTES
    return sizes


@compiled
def _write_survivors(
    arena_at: int,
    columns: KeyColumns,
    base_timestamps_ms: NDArray[np.int64],
    first_rows: NDArray[np.int64],
    keep: NDArray[np.uint8],
    rewrites: Rewrites,
    selected: NDArray[np.bool_],
    positions: NDArray[np.int64],
    out_at: int,
) -> None:
    """Write the surviving records of the selected batches, those of batch i from `out_at + positions[i]` on."""
    for index in range(len(selected)):
        if not selected[index]:
            continue
        target = out_at + int(positions[index])
        row, end = int(first_rows[index]), int(first_rows[index + 1])
        # Record by record: each has another delta. All others are copied in runs.
        if rewrites.actions[index] == REBASED:
            shift = base_timestamps_ms[index] - rewrites.base_timestamps_ms[index]
            while row < end:
                if keep[row]:
                    target = write_rebased(
                        target,
                        arena_at + columns.record_positions[row],
                        arena_at + columns.record_ends[row],
                        columns.timestamp_deltas[row] + shift,
                    )
                row += 1
            continue
        while row < end:
            if not keep[row]:
                row += 1
                continue
            first = row
            while row < end and keep[row]:
                row += 1
            _ask_for_next(arena_at, columns, keep, row)
            start = int(columns.record_positions[first])
            run_bytes = int(columns.record_ends[row - 1]) - start
            copy_bytes(target, arena_at + start, run_bytes)
            target += run_bytes


@inlined
def _ask_for_next(arena_at: int, columns: KeyColumns, keep: NDArray[np.uint8], row: int) -> None:
    """Prefetch the next record to be copied while a run is copied: when few of many survive, the processor does not
    foresee where they lie.
    """
    end = min(row + _ROWS_AHEAD, len(keep))
    while row < end and not keep[row]:
        row += 1
    if row < end:
        start = arena_at + columns.record_positions[row]
        for line in range(start, min(start + _BYTES_AHEAD, arena_at + columns.record_ends[row]), 64):
            prefetch_read(line)


@compiled
def _write_batches(
    window_at: int,
    table: BatchTable,
    rewrites: Rewrites,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out_at: int,
) -> None:
    """Write untouched batches, and the headers of all others, whose payloads are already in place."""
    count = len(positions)
    index = 0
    while index < count:
        action = rewrites.actions[index]
        source, target = window_at + table.positions[index], out_at + positions[index]
        if action == VERBATIM:
            end = table.positions[index] + table.sizes[index]
            index += 1
            while index < count and rewrites.actions[index] == VERBATIM:
                # Neighbours in the window, so a run of untouched batches is one copy.
                end += table.sizes[index]
                index += 1
            copy_bytes(target, source, window_at + end - source)
            continue
        if action != REMOVED:
            size = sizes[index]
            # The old header first: leader epoch, deltas and the producer's fields stay as they are.
            copy_bytes(target, source, BATCH_HEADER_BYTES)
            store_i32(target + _BATCH_LENGTH_POSITION, size - BATCH_OVERHEAD_BYTES)
            store_i16(target + _ATTRIBUTES_POSITION, rewrites.attributes[index])
            store_i64(target + _BASE_TIMESTAMP_POSITION, rewrites.base_timestamps_ms[index])
            store_i64(target + _MAX_TIMESTAMP_POSITION, rewrites.max_timestamps_ms[index])
            store_i32(target + _RECORDS_COUNT_POSITION, rewrites.record_counts[index])
            # Last, over the new header and the payload that is in place already.
            store_i32(target + CRC_POSITION, crc32c_at(target + CRC_COVERS_FROM, size - CRC_COVERS_FROM, 0))
        index += 1


# One record with another timestamp delta


@compiled
def rebased_bytes(record_at: int, end_at: int, timestamp_delta: int) -> int:
    """The number of bytes that `write_rebased` will write; for kernels."""
    attributes_at = _after_varint(record_at)
    after_delta = _after_varint(attributes_at + 1)
    body = 1 + varint_bytes(timestamp_delta) + (end_at - after_delta)
    return varint_bytes(body) + body


@compiled
def write_rebased(target: int, record_at: int, end_at: int, timestamp_delta: int) -> int:
    """Write the record at addresses `record_at` to `end_at` to `target` with this timestamp delta; returns the address
    after it.

    For kernels. All bytes but the length and the delta stay the same.
    """
    attributes_at = _after_varint(record_at)
    after_delta = _after_varint(attributes_at + 1)
    rest = end_at - after_delta
    target = _write_varint(target, 1 + varint_bytes(timestamp_delta) + rest)
    store_u8(target, load_u8(attributes_at))
    target = _write_varint(target + 1, timestamp_delta)
    copy_bytes(target, after_delta, rest)
    return target + rest


@compiled
def _after_varint(address: int) -> int:
    """The address behind a varint that was read before, so its last byte is known to be there."""
    while load_u8(address) >= 0x80:
        address += 1
    return address + 1


@compiled
def varint_bytes(value: int) -> int:
    """The size of a zigzag varint in bytes."""
    count = 1
    if value < 0:
        value = ~value
    # The first byte has seven bits, one of them the sign.
    value >>= 6
    while value:
        value >>= 7
        count += 1
    return count


@compiled
def _write_varint(target: int, value: int) -> int:
    sign = value >> 63
    left = value ^ sign  # its zigzag is left << 1 with the sign's bit below: 64 bits, written without overflow
    byte = (left & 0x3F) << 1 | sign & 1
    left >>= 6
    while left:
        store_u8(target, byte | 0x80)
        target += 1
        byte = left & 0x7F
        left >>= 7
    store_u8(target, byte)
    return target + 1


@register_warm
def _warm() -> None:
    numbers, flags = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    table = BatchTable._make(np.zeros((len(BatchTable._fields), 0), dtype=np.int64))
    columns = KeyColumns(numbers, np.zeros(0, dtype=np.int32), flags, np.zeros(0, dtype=np.int32), *[numbers] * 3)
    rewrites, out_at = new_rewrites(0), address_of(flags)
    _write_survivors(out_at, columns, numbers, numbers, flags, rewrites, np.zeros(0, dtype=np.bool_), numbers, out_at)
    _write_batches(out_at, table, rewrites, numbers, numbers, out_at)
