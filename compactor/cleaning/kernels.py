"""The rules of `compactor/cleaning/oracle.py`, compiled: the rows that enter the table, and the fate of every record.

Read the oracle to learn the rules. This file must give the same result, row by row, over the columns of
`wire.kernels.scan`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.rules import MARKER_KEY_BYTES_MIN
from wire.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP_MS,
)
from wire.kernels.batches import BatchTable
from wire.kernels.compiled import address_of, compiled, register_warm
from wire.kernels.memory import load_i16
from wire.kernels.rewrite import EMPTIED, REBASED, REBUILT, REMOVED, VERBATIM, Rewrites, new_rewrites, rebased_bytes
from wire.kernels.scan import KeyColumns

DATA = 0
ABORTED = 1
"""A data batch of an aborted transaction."""
OUTLIVED = 2
"""A control batch of a transaction with no data left in the inputs, which is not listed as aborted."""
KEPT = 3
"""Wholly at or above the first uncleanable offset, or another control batch."""

_CLEARED_WHEN_EMPTIED = CODEC_MASK | DELETE_HORIZON_BIT
_TIMESTAMP_LEAST = -(2**63)


class Limits(NamedTuple):
    """The bounds by which rows are judged."""

    first_uncleanable_offset: int
    horizons_end_offset: int
    now_ms: int
    delete_horizon_ms: int
    high_watermark: int
    last_stable_offset: int
    payload_bytes_max: int


class EnteredRows(NamedTuple):
    """The counts of one chunk in the scan."""

    records: int
    """Records of data batches below the first uncleanable offset."""
    dead_at_once: int
    """Those of `records` that have no key or belong to aborted transactions."""
    broken_row: int
    """The first row whose offset delta is not above the one before, or lies outside its batch; -1 when all are right.
    """


def pick_rows(
    table: BatchTable,
    modes: NDArray[np.uint8],
    first_rows: NDArray[np.int64],
    columns: KeyColumns,
    first_uncleanable_offset: int,
) -> EnteredRows:
    """Sets the key length of every row that must not enter the table to -1, as if it had no key."""
    return EnteredRows(
        *_pick_rows(
            table.base_offsets,
            table.last_offsets,
            modes,
            first_rows,
            columns.offset_deltas,
            columns.key_lengths,
            first_uncleanable_offset,
        )
    )


class Verdicts(NamedTuple):
    """The fate of the batches and records of a chunk."""

    keep: NDArray[np.uint8]
    """Per record: 1 = stays."""
    rewrites: Rewrites
    tombstones: int
    """Tombstones that stay."""
    tombstones_dropped: int
    keyless_dropped: int


def judge(
    arena: NDArray[np.uint8],
    columns: KeyColumns,
    table: BatchTable,
    modes: NDArray[np.uint8],
    first_rows: NDArray[np.int64],
    dead: NDArray[np.uint8],
    first_ordinal: int,
    limits: Limits,
) -> Verdicts:
    """`dead` has a bit for each record of the partition; bit `first_ordinal` belongs to row 0 of the chunk."""
    keep = np.empty(len(columns.key_lengths), dtype=np.uint8)
    rewrites = new_rewrites(len(modes))
    counted = _judge(address_of(arena), columns, table, modes, first_rows, dead, first_ordinal, limits, keep, rewrites)
    return Verdicts(keep, rewrites, *counted)


@compiled
def _pick_rows(
    base_offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    modes: NDArray[np.uint8],
    first_rows: NDArray[np.int64],
    offset_deltas: NDArray[np.int32],
    key_lengths: NDArray[np.int32],
    first_uncleanable_offset: int,
) -> tuple[int, int, int]:
    records = dead_at_once = 0
    for index in range(len(modes)):
        mode = modes[index]
        delta_before = -1
        last_delta = last_offsets[index] - base_offsets[index]
        cleanable_delta = first_uncleanable_offset - base_offsets[index]
        for row in range(first_rows[index], first_rows[index + 1]):
            delta = int(offset_deltas[row])
            if delta <= delta_before or delta > last_delta:
                return records, dead_at_once, row
            delta_before = delta
            if mode >= OUTLIVED or delta >= cleanable_delta:
                key_lengths[row] = -1
                continue
            records += 1
            if mode == ABORTED:
                key_lengths[row] = -1
            dead_at_once += key_lengths[row] < 0
    return records, dead_at_once, -1


@compiled
def _judge(
    arena_at: int,
    columns: KeyColumns,
    table: BatchTable,
    modes: NDArray[np.uint8],
    first_rows: NDArray[np.int64],
    dead: NDArray[np.uint8],
    first_ordinal: int,
    limits: Limits,
    keep: NDArray[np.uint8],
    rewrites: Rewrites,
) -> tuple[int, int, int]:
    tombstones = tombstones_dropped = keyless_dropped = 0
    for index in range(len(modes)):
        mode = modes[index]
        is_control = table.attributes[index] & CONTROL_BIT != 0
        has_horizon = table.attributes[index] & DELETE_HORIZON_BIT != 0
        # A stamped batch keeps its horizon in the place of the base timestamp.
        horizon_passed = has_horizon and table.base_timestamps_ms[index] <= limits.now_ms
        kept = kept_bytes = waiting = 0
        all_may_wait = True
        max_timestamp_ms = _TIMESTAMP_LEAST
        for row in range(first_rows[index], first_rows[index + 1]):
            offset = table.base_offsets[index] + columns.offset_deltas[row]
            knows = offset < limits.horizons_end_offset
            key_length = columns.key_lengths[row]
            is_tombstone = not is_control and key_length >= 0 and columns.value_is_null[row] != 0
            is_spent = (
                mode == OUTLIVED
                and table.record_counts[index] == 1
                and key_length >= MARKER_KEY_BYTES_MIN
                and 0 <= load_i16(arena_at + columns.key_positions[row] + 2) <= 1
            )
            stays = True
            if mode != KEPT and offset < limits.first_uncleanable_offset:
                if mode == OUTLIVED:
                    stays = not (is_spent and horizon_passed and knows)
                elif mode == ABORTED:
                    stays = False
                elif key_length < 0:
                    stays = False
                    keyless_dropped += 1
                elif dead[(first_ordinal + row) >> 3] >> ((first_ordinal + row) & 7) & 1:
                    stays = False
                elif is_tombstone and horizon_passed and knows:
                    stays = False
                    tombstones_dropped += 1
            keep[row] = stays
            if stays:
                kept += 1
                kept_bytes += columns.record_ends[row] - columns.record_positions[row]
                max_timestamp_ms = max(
                    max_timestamp_ms, table.base_timestamps_ms[index] + columns.timestamp_deltas[row]
                )
                tombstones += is_tombstone
                if is_tombstone or is_spent:
                    waiting += 1
                    # One horizon serves the whole batch, so one tombstone that must stay unstamped keeps all others
                    # unstamped.
                    all_may_wait = all_may_wait and knows
        stamped_bytes = -1
        if waiting > 0 and all_may_wait and not has_horizon:
            stamped_bytes = _stamped_bytes(arena_at, columns, table, index, first_rows, limits, keep)
        _settle(index, table, mode, limits, kept, kept_bytes, stamped_bytes, max_timestamp_ms, rewrites)
    return tombstones, tombstones_dropped, keyless_dropped


@compiled
def _stamped_bytes(
    arena_at: int,
    columns: KeyColumns,
    table: BatchTable,
    index: int,
    first_rows: NDArray[np.int64],
    limits: Limits,
    keep: NDArray[np.uint8],
) -> int:
    """The payload size once timestamps count from the horizon; -1 when readers would refuse a payload of that size."""
    total = 0
    shift = table.base_timestamps_ms[index] - limits.delete_horizon_ms
    for row in range(first_rows[index], first_rows[index + 1]):
        if keep[row]:
            total += rebased_bytes(
                arena_at + columns.record_positions[row],
                arena_at + columns.record_ends[row],
                columns.timestamp_deltas[row] + shift,
            )
    return total if total <= limits.payload_bytes_max else -1


@compiled
def _settle(
    index: int,
    table: BatchTable,
    mode: int,
    limits: Limits,
    kept: int,
    kept_bytes: int,
    stamped_bytes: int,
    max_timestamp_ms: int,
    rewrites: Rewrites,
) -> None:
    """Sets the action on one batch, and its new header."""
    count = table.record_counts[index]
    attributes, base_timestamp_ms = table.attributes[index], table.base_timestamps_ms[index]
    next_offset = table.last_offsets[index] + 1
    stays_when_emptied = (
        next_offset >= limits.first_uncleanable_offset
        or next_offset == limits.high_watermark
        or next_offset == limits.last_stable_offset
    )
    # Before "verbatim": a batch that keeps every record is still rewritten to take its horizon.
    if stamped_bytes >= 0:
        action = REBASED
        attributes |= DELETE_HORIZON_BIT
        base_timestamp_ms = limits.delete_horizon_ms
        kept_bytes = stamped_bytes
    elif count > 0 and kept == count:
        action = VERBATIM
    elif kept > 0:
        action = REBUILT
    elif not stays_when_emptied:
        action = REMOVED
    elif count > 0:
        action = EMPTIED
        attributes &= ~_CLEARED_WHEN_EMPTIED
        base_timestamp_ms = NO_TIMESTAMP_MS
    else:
        action = VERBATIM
    # With LogAppendTime the maximum is the time of the append, whichever records are left.
    if action < REBUILT or attributes & LOG_APPEND_TIME_BIT:
        max_timestamp_ms = table.max_timestamps_ms[index]
    rewrites.actions[index] = action
    rewrites.attributes[index] = attributes
    rewrites.base_timestamps_ms[index] = base_timestamp_ms
    rewrites.max_timestamps_ms[index] = max_timestamp_ms
    rewrites.record_counts[index] = kept
    rewrites.payload_bytes[index] = kept_bytes


@register_warm
def _warm() -> None:
    numbers, flags = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    table = BatchTable._make(np.zeros((len(BatchTable._fields), 0), dtype=np.int64))
    columns = KeyColumns(numbers, np.zeros(0, dtype=np.int32), flags, np.zeros(0, dtype=np.int32), *[numbers] * 3)
    first_rows = np.zeros(1, dtype=np.int64)
    pick_rows(table, flags, first_rows, columns, 0)
    judge(flags, columns, table, flags, first_rows, flags, 0, Limits(0, 0, 0, 0, 0, 0, 0))
