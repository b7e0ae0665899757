"""Cuts a scan into slices. Pure: a snapshot and options in, slices out; it looks at no byte of a record.

1. Each partition's bounds: the request, compared with its log start and its end at the snapshot.
2. Its extents, of whatever level, in offset order, without those outside the bounds.
3. Stretches of them, where older records are not wanted: a run of extents that has only those is left out.
4. Slices of about `slice_bytes`: extents are put together up to that size. A larger extent is cut into equal stretches
   of offsets, and each slice finds its place by the extent's block index. L0 extents are never cut, because their
   offsets are known only from their beginning.

Offsets that no extent covers are not looked for here: a reader meets and reports them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import L0Extent, PartitionSnapshot, TopicSnapshot
from runtime.errors import BugError
from runtime.logging import get_logger
from spark_jobs.scan.contract import (
    EARLIEST,
    LATEST,
    LOG,
    READ_COMMITTED,
    SLICE_BYTES,
    AtTimestamp,
    BadScanError,
    DataLossError,
    Edge,
    OffsetOutOfRangeError,
    OffsetSpec,
    Piece,
    ScanOptions,
    Slice,
    UnknownPartitionError,
)

_log = get_logger(__name__)
GAPS_PER_SLICE = 8
"""A run of unwanted extents between wanted ones is left out from this part of a slice's size on: each such run begins
a slice, and many small ones would make many small tasks."""


def plan_slices(snapshot: TopicSnapshot, options: ScanOptions, *, slice_bytes: int = SLICE_BYTES) -> tuple[Slice, ...]:
    """The slices by partition, then offset; a partition from which nothing is wanted has none.

    Raises UnknownPartitionError, OffsetOutOfRangeError, BadScanError, and DataLossError (an offset below the log start,
    unless that may be skipped).
    """
    slices: list[Slice] = []
    for partition, (start, end) in partition_bounds(snapshot, options).items():
        if options.within is not None:
            start, end = max(start, options.within[0]), min(end, options.within[1])
        if start < end:
            whole = slice_of(snapshot.partitions[partition], start, end, isolation=options.isolation)
            if options.view != LOG:
                slices.append(whole)
                continue
            for stretch in _since(whole, options.since_ms, gap_bytes=slice_bytes // GAPS_PER_SLICE):
                slices += _narrowed(_cut(stretch, max(slice_bytes, 1)))
    return tuple(slices)


def partition_bounds(snapshot: TopicSnapshot, options: ScanOptions) -> Mapping[int, tuple[int, int]]:
    """The first offset and the end (exclusive) of each partition that is read. Raises as `plan_slices`."""
    chosen = _chosen(snapshot, options)
    for spec in (options.starting, options.ending):
        if isinstance(spec, Mapping):
            _check_partitions(snapshot, spec, asked_by="an offset is given for it")
    return {part.partition: _bounds(snapshot.topic.name, part, options) for part in chosen}


def slice_of(part: PartitionSnapshot, start: int, end: int, *, isolation: str) -> Slice:
    """One slice of everything between two offsets of a partition."""
    pieces = [_l0_piece(each) for each in part.l0] + [_merged_piece(each) for each in part.extents]
    aborted = tuple(part.aborted) if isolation == READ_COMMITTED else ()
    return Slice(
        partition=part.partition,
        partition_id=part.partition_id,
        start=start,
        end=end,
        pieces=tuple(sorted(pieces, key=lambda piece: piece.base_offset)),
        aborted=tuple(one for one in aborted if one[1] < end and one[2] > start),
    ).of(start, end)


def end_offset(part: PartitionSnapshot, isolation: str) -> int:
    """The end of the partition for a reader of this isolation."""
    return part.last_stable_offset if isolation == READ_COMMITTED else part.high_watermark


# ---- bounds -------------------------------------------------------------------------------------------------------


def _chosen(snapshot: TopicSnapshot, options: ScanOptions) -> Sequence[PartitionSnapshot]:
    if options.partitions is None:
        return snapshot.partitions
    _check_partitions(snapshot, options.partitions, asked_by="it was asked for")
    return [snapshot.partitions[number] for number in sorted(set(options.partitions))]


def _check_partitions(snapshot: TopicSnapshot, numbers: Sequence[int] | Mapping[int, object], *, asked_by: str) -> None:
    count = len(snapshot.partitions)
    for number in numbers:
        if not 0 <= number < count:
            raise UnknownPartitionError(
                f"topic {snapshot.topic.name!r} has no partition {number}, though {asked_by}",
                remedy=f"its partitions are 0 to {count - 1}",
            )


def _bounds(topic: str, part: PartitionSnapshot, options: ScanOptions) -> tuple[int, int]:
    end = end_offset(part, options.isolation)
    first = _offset(options.starting, part, EARLIEST, end)
    until = _offset(options.ending, part, LATEST, end)
    where = f"partition {part.partition} of topic {topic!r}"
    for asked, name in ((first, "starting"), (until, "ending")):
        if asked < 0:
            raise OffsetOutOfRangeError(f"{name} offset {asked} of {where} is negative")
    if first > part.high_watermark:
        # Not above `end`: a reader of committed records may begin above them, behind an open transaction.
        raise OffsetOutOfRangeError(
            f"starting offset {first} lies above the end of {where}, which is {part.high_watermark}"
        )
    if until > end:
        raise OffsetOutOfRangeError(f"ending offset {until} lies above the end of {where}, which is {end}")
    if until < first and isinstance(options.starting, Mapping) and isinstance(options.ending, Mapping):
        raise BadScanError(f"{where} cannot be read from {first} up to {until}, which is lower")
    low = min(first, until)
    if low < part.log_start_offset:
        if options.fail_on_data_loss:
            raise DataLossError(
                f"offset {low} of {where} is gone: its log starts at {part.log_start_offset}",
                remedy="begin later, or skip records that are gone (fail_on_data_loss=false)",
            )
        _log.warning("offsets below the log start are skipped", topic=topic, partition=part.partition, asked=low)
    return max(first, part.log_start_offset), until


def _offset(spec: OffsetSpec, part: PartitionSnapshot, default: Edge, end: int) -> int:
    asked = spec.get(part.partition, default) if isinstance(spec, Mapping) else spec
    if isinstance(asked, AtTimestamp):
        raise BugError("times must be looked up before slices are planned")
    if asked is EARLIEST:
        return part.log_start_offset
    return end if isinstance(asked, Edge) else asked


# ---- slices -------------------------------------------------------------------------------------------------------


def _since(whole: Slice, since_ms: int | None, *, gap_bytes: int) -> Iterator[Slice]:
    """The stretches of the slice that may hold records from a time on. A flagged extent may: its facts are in doubt.

    An extent's least timestamp tells nothing of earlier records, because a batch's header has that of its first record
    and not of the earliest one.
    """
    if since_ms is None:
        yield whole
        return
    start, end, gap = -1, whole.start, 0
    for piece in whole.pieces:
        if not piece.length and piece.flagged_reason is None:
            continue  # without records: neither wanted nor a gap
        if piece.max_timestamp_ms < since_ms and piece.flagged_reason is None:
            gap += piece.length
            continue
        first = max(piece.base_offset, whole.start)
        if start >= 0 and gap > gap_bytes:
            yield whole.of(start, end)
            start = -1
        start, end, gap = first if start < 0 else start, min(piece.last_offset + 1, whole.end), 0
    if start >= 0:
        yield whole.of(start, end)


def _cut(whole: Slice, slice_bytes: int) -> Iterator[Slice]:
    start, size = whole.start, 0.0
    for piece in whole.pieces:
        first, end = max(piece.base_offset, whole.start), min(piece.last_offset + 1, whole.end)
        # An estimate by the share of offsets; the block index gives the true place when a task reads.
        wanted = piece.length * (end - first) / (piece.last_offset + 1 - piece.base_offset)
        if size and size + wanted > slice_bytes:
            yield whole.of(start, first)
            start, size = first, 0.0
        parts = 1 if piece.level == 0 else min(-int(-wanted // slice_bytes), end - first)
        for number in range(1, parts):
            cut = first + (end - first) * number // parts
            yield whole.of(start, cut)
            start = cut
        size += wanted / max(parts, 1)
    yield whole.of(start, whole.end)


def _narrowed(parts: Iterable[Slice]) -> Iterator[Slice]:
    """The parts of one slice, in order, each with the aborted transactions that reach into it alone: ten thousand parts
    with all of them would be a plan of gigabytes."""
    waiting: deque[tuple[int, int, int]] | None = None
    reaching: list[tuple[int, int, int]] = []
    for part in parts:
        if waiting is None:
            waiting = deque(sorted(part.aborted, key=itemgetter(1)))
        while waiting and waiting[0][1] < part.end:
            reaching.append(waiting.popleft())
        reaching = [each for each in reaching if each[2] > part.start]
        yield replace(part, aborted=tuple(reaching))


def _l0_piece(extent: L0Extent) -> Piece:
    # A file that no object holds has markers alone, and a marker is no record: there is nothing to read.
    length = 0 if extent.inline else extent.length
    return Piece(
        key=extent.key,
        file_size_bytes=extent.file_size_bytes,
        level=0,
        position=extent.position,
        length=length,
        base_offset=extent.base_offset,
        last_offset=extent.last_offset,
        record_count=-1,
        min_timestamp_ms=extent.min_timestamp_ms,
        max_timestamp_ms=extent.max_timestamp_ms,
    )


def _merged_piece(extent: LeveledExtent) -> Piece:
    return Piece(
        key=extent.key,
        file_size_bytes=extent.file_size_bytes,
        level=extent.level,
        position=extent.position,
        length=extent.length,
        base_offset=extent.base_offset,
        last_offset=extent.last_offset,
        record_count=extent.record_count,
        min_timestamp_ms=extent.min_timestamp_ms,
        max_timestamp_ms=extent.max_timestamp_ms,
        block_index_position=extent.block_index_position,
        block_index_length=extent.block_index_length,
        flagged_reason=extent.flagged_reason,
        crc32c=extent.crc32c,
    )
