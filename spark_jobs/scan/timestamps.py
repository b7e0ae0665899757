"""Turns times into offsets, with Kafka's meaning: the first offset whose record has that timestamp or a later one.

First means in offset order, not in order of time. Candidates are known without reading: extents tell their largest
timestamp, and the block index of a large extent tells that of each block. Each candidate is read in offset order. An
extent may promise more than it holds, because dedupe keeps the timestamps of emptied batches. Unreadable batches are
skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from metadata.contract.readers import PartitionSnapshot, TopicSnapshot
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.blocks import blocks_of
from spark_jobs.scan.contract import READ_UNCOMMITTED, AtTimestamp, Edge, Piece, ScanOptions, Slice
from spark_jobs.scan.plan import end_offset, slice_of
from spark_jobs.scan.windows import block_stretches


def look_up(store: BlockingStore, snapshot: TopicSnapshot, options: ScanOptions) -> ScanOptions:
    """The options with offsets in place of times. A partition without such a record begins, or ends, at its end.

    Reads some MiB for each partition that is asked for. Raises the store's errors when it does not answer.
    """
    chosen = [
        part for part in snapshot.partitions if options.partitions is None or part.partition in options.partitions
    ]
    changed: dict[str, Mapping[int, int | Edge]] = {}
    for name, spec in (("starting", options.starting), ("ending", options.ending)):
        if isinstance(spec, AtTimestamp):
            changed[name] = {part.partition: _offset_at(store, part, options, spec.timestamp_ms) for part in chosen}
    return replace(options, **changed) if changed else options  # pyright: ignore[reportArgumentType] -- by name


def since(store: BlockingStore, slices: Iterable[Slice], timestamp_ms: int) -> Iterator[Slice]:
    """The slices without what lies before the first block of each partition that may hold records from a time on.

    Reads the block index of an extent or two per partition. Raises the store's errors when it does not answer.
    """
    begun = -1
    for each in slices:
        start = each.start if each.partition == begun else _first_since(store, each, timestamp_ms)
        if start is not None:
            begun = each.partition
            yield each.of(start, each.end)


def _first_since(store: BlockingStore, part: Slice, timestamp_ms: int) -> int | None:
    for piece in part.pieces:
        if piece.flagged_reason is not None:
            return max(piece.base_offset, part.start)
        if piece.length and piece.max_timestamp_ms >= timestamp_ms:
            for start, end in _stretches(store, piece, timestamp_ms):
                if max(start, part.start) < min(end, part.end):
                    return max(start, part.start)
    return None


def _offset_at(store: BlockingStore, part: PartitionSnapshot, options: ScanOptions, timestamp_ms: int) -> int:
    end = end_offset(part, options.isolation)
    # Records of aborted transactions count too, as in Kafka's ListOffsets.
    whole = slice_of(part, part.log_start_offset, max(end, part.log_start_offset), isolation=READ_UNCOMMITTED)
    for piece in whole.pieces:
        if piece.length and piece.max_timestamp_ms >= timestamp_ms:
            found = _offset_in(store, whole, piece, options, timestamp_ms)
            if found is not None:
                return found
    return end


def _offset_in(store: BlockingStore, whole: Slice, piece: Piece, options: ScanOptions, timestamp_ms: int) -> int | None:
    passing_over = replace(options, fail_on_data_loss=False)
    for start, end in _stretches(store, piece, timestamp_ms):
        part = whole.of(max(start, whole.start), min(end, whole.end))
        if part.start >= part.end:
            continue
        for block in blocks_of(store, part, passing_over):
            late = np.flatnonzero(block.timestamps_ms >= timestamp_ms)
            if len(late):
                return int(block.offsets[late[0]])
    return None


def _stretches(store: BlockingStore, piece: Piece, timestamp_ms: int) -> Sequence[tuple[int, int]]:
    """(first offset, end) of each stretch that may hold such a record."""
    return [(start, end) for start, end, latest_ms in block_stretches(store, piece) if latest_ms >= timestamp_ms]
