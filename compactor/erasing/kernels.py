"""The rules of `compactor/erasing/oracle.py`, compiled: the fate of every record and batch.

This file must give the same result, row by row, over the columns of `wire.kernels.scan`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.batch import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, NO_TIMESTAMP_MS
from wire.kernels.batches import BatchTable
from wire.kernels.compiled import compiled, register_warm
from wire.kernels.rewrite import EMPTIED, REBUILT, VERBATIM, Rewrites, new_rewrites
from wire.kernels.scan import KeyColumns

_CLEARED_WHEN_EMPTIED = CODEC_MASK | DELETE_HORIZON_BIT
_TIMESTAMP_LEAST = -(2**63)


class Verdicts(NamedTuple):
    """The fate of the batches and records of a chunk."""

    keep: NDArray[np.uint8]
    """Per record: 1 = stays."""
    rewrites: Rewrites
    erased: int
    """Records that go."""
    broken_row: int
    """The first row whose offset delta is not above the one before, or lies outside its batch; -1 when all are right.
    With such a row, the rest means nothing."""


def judge(columns: KeyColumns, table: BatchTable, first_rows: NDArray[np.int64], ends: NDArray[np.int64]) -> Verdicts:
    """`ends`: per record, the exclusive end of the offsets at which its key is erased; 0 if it is not."""
    keep = np.empty(len(columns.key_lengths), dtype=np.uint8)
    rewrites = new_rewrites(len(table.positions))
    erased, broken_row = _judge(columns, table, first_rows, ends, keep, rewrites)
    return Verdicts(keep, rewrites, erased, broken_row)


@compiled
def _judge(
    columns: KeyColumns,
    table: BatchTable,
    first_rows: NDArray[np.int64],
    ends: NDArray[np.int64],
    keep: NDArray[np.uint8],
    rewrites: Rewrites,
) -> tuple[int, int]:
    erased = 0
    for index in range(len(table.positions)):
        is_control = table.attributes[index] & CONTROL_BIT != 0
        last_delta = table.last_offsets[index] - table.base_offsets[index]
        delta_before = -1
        kept = kept_bytes = 0
        max_timestamp_ms = _TIMESTAMP_LEAST
        for row in range(first_rows[index], first_rows[index + 1]):
            delta = int(columns.offset_deltas[row])
            if delta <= delta_before or delta > last_delta:
                return erased, row
            delta_before = delta
            # Without a mark or a key the end is 0, and no offset is below it.
            stays = is_control or table.base_offsets[index] + delta >= ends[row]
            keep[row] = stays
            if stays:
                kept += 1
                kept_bytes += columns.record_ends[row] - columns.record_positions[row]
                max_timestamp_ms = max(
                    max_timestamp_ms, table.base_timestamps_ms[index] + columns.timestamp_deltas[row]
                )
            else:
                erased += 1
        _settle(index, table, kept, kept_bytes, max_timestamp_ms, rewrites)
    return erased, -1


@compiled
def _settle(
    index: int, table: BatchTable, kept: int, kept_bytes: int, max_timestamp_ms: int, rewrites: Rewrites
) -> None:
    """Sets the action on one batch, and its new header."""
    attributes, base_timestamp_ms = table.attributes[index], table.base_timestamps_ms[index]
    if kept == table.record_counts[index]:
        action = VERBATIM
    elif kept > 0:
        action = REBUILT
    else:
        action = EMPTIED
        attributes &= ~_CLEARED_WHEN_EMPTIED
        base_timestamp_ms = NO_TIMESTAMP_MS
    # With LogAppendTime the maximum is the time of the append, whichever records are left.
    if action != REBUILT or attributes & LOG_APPEND_TIME_BIT:
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
    judge(columns, table, np.zeros(1, dtype=np.int64), numbers)
