"""The latest record of each key of a slice, in offset order, in bounded memory. The changes view keeps tombstones.

Records are numbered as they are read. A first pass hashes their keys into the compactor's table (`dedupe_buffer.py`),
which sets a bit for each record that a later one with the same key supersedes. If the table cannot take all keys, it is
cleared and the hashes are taken range by range, one pass over the slice each. The last pass reads the slice once more
and yields the records without a bit that have a key and a value. So memory is the table (at most 128 MiB), one bit per
record, and that of a plain read.

Every pass must count the same records. A record that only some passes can read ends the scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.cleaning.dedupe_buffer import HASH_MAX, DedupeBuffer
from runtime.logging import get_logger
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.blocks import blocks_of
from spark_jobs.scan.contract import LATEST_VIEW, ScanOptions, Slice
from spark_jobs.scan.decode import Block
from spark_jobs.scan.losses import Losses
from wire.kernels.hashing import hash_keys

_log = get_logger(__name__)

SPLIT_MAX = 64
"""The most ranges into which one that was too large is divided."""


def latest_blocks(
    store: BlockingStore, part: Slice, options: ScanOptions, *, keys_max: int = DEDUPE_KEYS_MAX
) -> Iterator[Block]:
    """The blocks of the latest records. Raises as `read_slice`."""
    first = Losses(options.topic, part.partition, fails=options.fail_on_data_loss)
    # A batch of a stream is small, and has at most as many keys as offsets.
    keys_max = min(keys_max, max(part.end - part.start, 1))
    dead, keyless = _superseded(store, part, options, first, keys_max)
    if keyless:
        _log.warning("records without a key are left out", topic=options.topic, partition=part.partition, count=keyless)
    number = 0
    for block in blocks_of(store, part, options, known=first.ranges):
        numbers = np.arange(number, number + len(block.rows))
        number += len(block.rows)
        is_dead = dead[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
        columns = block.columns
        wanted = (is_dead == 0) & (columns.key_lengths[block.rows] >= 0)
        if options.view == LATEST_VIEW:
            wanted &= columns.value_is_null[block.rows] == 0
        if wanted.any():
            yield block.keep(wanted)


def _superseded(
    store: BlockingStore, part: Slice, options: ScanOptions, first: Losses, keys_max: int
) -> tuple[NDArray[np.uint8], int]:
    """A bit for each record that a later one with the same key supersedes, and the number of records without a key."""
    buffer = DedupeBuffer(keys_max)
    dead = np.zeros(1 << 13, dtype=np.uint8)
    ranges, keyless, is_first = [(0, HASH_MAX)], 0, True
    while ranges:
        low, high = ranges.pop()
        buffer.clear()
        number, full_at = 0, -1
        blocks = (
            blocks_of(store, part, options, losses=first)
            if is_first
            else blocks_of(store, part, options, known=first.ranges)
        )
        for block in blocks:
            count = len(block.rows)
            if (number + count + 7) // 8 > len(dead):
                # Doubles, so that a long partition does not copy its bits for every block.
                dead = np.concatenate((dead, np.zeros(max(len(dead), count), dtype=np.uint8)))
            lengths = block.columns.key_lengths[block.rows]
            keyless += int((lengths < 0).sum()) if is_first else 0
            if full_at < 0:
                hashes = hash_keys(block.arena, block.columns.key_positions[block.rows], lengths)
                done = buffer.enter(hashes, lengths, number, dead, range_lo=low, range_hi=high)
                full_at = number + done if done < count else -1
            number += count
            if full_at >= 0 and not is_first:
                break  # the first pass goes on, to count the records and the losses
        if full_at >= 0:
            # Later passes end early, so their own count is too low to tell how many ranges are needed.
            records = max(number, part.end - part.start) if not is_first else number
            ranges += _divided(low, high, min(max(-(-records // max(full_at, 1)), 2), SPLIT_MAX))
        is_first = False
    return dead, keyless


def _divided(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Divide an inclusive range into equal parts."""
    size = high - low + 1
    edges = [low + size * part // parts for part in range(parts + 1)]
    return [(at, after - 1) for at, after in pairwise(edges) if at < after]
