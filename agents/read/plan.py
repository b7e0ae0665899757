"""Which bytes answer a Fetch. Pure: extents and limits in, byte ranges out; then bytes in, whole batches out.

A plan is an upper bound: an extent's batches cannot be told apart before they are read, so ranges are planned from
sizes alone and `take_batches` then applies Kafka's rule exactly: whole batches only, within the partition's and the
request's limit, save that the first batch of the first partition with data is returned however large it is (KIP-74).

Offsets of L0 batches are not in the file. They follow from the extent's base offset and the batches before, so a read
starts at the head of an extent, or at a `Resume` point: the place where the last answer for that offset ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from agents.log_index import Extent, LogIndex
from wire.batch import BATCH_HEADER_BYTES, MAGIC_V2, CorruptBatchError, read_header, stamp_offset

RESUME_POINTS_MAX = 10_000
READ_BYTES_MIN = 64 << 10
"""Least range worth asking for when a limit is smaller: one batch, as a rule."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Inside `file_id`, the batch whose first offset is `offset` begins at `position`."""

    file_id: int
    offset: int
    position: int


class ResumePoints:
    """Where the last answers ended, per (partition, next offset), the most recent RESUME_POINTS_MAX."""

    def __init__(self) -> None:
        self._points: OrderedDict[tuple[int, int], Resume] = OrderedDict()

    def get(self, partition_id: int, offset: int) -> Resume | None:
        return self._points.get((partition_id, offset))

    def put(self, partition_id: int, point: Resume) -> None:
        self._points[partition_id, point.offset] = point
        self._points.move_to_end((partition_id, point.offset))
        if len(self._points) > RESUME_POINTS_MAX:
            self._points.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ReadRange:
    """`length` bytes from `position` of a file; the batch there has `base_offset` as its first offset."""

    file_id: int
    position: int
    length: int
    base_offset: int
    extent_end: int
    """Position at which the extent ends: a batch may go on behind the range up to here."""


def plan_partition(
    index: LogIndex, partition_id: int, offset: int, bytes_max: int, resume: Resume | None
) -> list[ReadRange]:
    """Ranges that hold the batches from `offset` on, about `bytes_max` of them and at least one batch's beginning."""
    ranges: list[ReadRange] = []
    left = max(bytes_max, READ_BYTES_MIN)
    for extent in index.extents_from(partition_id, offset):
        planned = _range_of(extent, offset, left, resume)
        ranges.append(planned)
        left -= planned.length
        if left <= 0:
            break
    return ranges


def _range_of(extent: Extent, offset: int, left: int, resume: Resume | None) -> ReadRange:
    end = extent.position + extent.length
    if offset > extent.base_offset:
        if resume is not None and resume.file_id == extent.file_id and extent.position <= resume.position < end:
            return ReadRange(extent.file_id, resume.position, min(left, end - resume.position), resume.offset, end)
        # Somewhere inside, and only the batches before can tell where: the whole extent.
        return ReadRange(extent.file_id, extent.position, extent.length, extent.base_offset, end)
    return ReadRange(extent.file_id, extent.position, min(left, extent.length), extent.base_offset, end)


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A whole batch inside the bytes of a range."""

    base_offset: int
    next_offset: int
    start: int
    """From the beginning of the range's bytes."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CutBatch:
    """The range ends inside this batch: read it on its own to have it."""

    base_offset: int
    start: int
    size_bytes: int
    """BATCH_HEADER_BYTES when not even the header is there."""


def batches_of(data: memoryview, base_offset: int) -> Iterator[FoundBatch | CutBatch]:
    """Batches of an L0 range in order; a CutBatch comes last. Raises CorruptBatchError."""
    start = 0
    while start < len(data):
        if len(data) - start < BATCH_HEADER_BYTES:
            yield CutBatch(base_offset, start, BATCH_HEADER_BYTES)
            return
        header = read_header(data, start)
        size = header.size_bytes
        if header.magic != MAGIC_V2 or size < BATCH_HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptBatchError(f"no record batch at byte {start} of the range for offset {base_offset}")
        if start + size > len(data):
            yield CutBatch(base_offset, start, size)
            return
        next_offset = base_offset + header.last_offset_delta + 1
        yield FoundBatch(base_offset, next_offset, start, size)
        start += size
        base_offset = next_offset


def stamped(data: memoryview, batch: FoundBatch) -> tuple[bytes, memoryview]:
    """The batch with its offset: 16 new bytes and the rest as stored."""
    whole = data[batch.start : batch.start + batch.size_bytes]
    head = stamp_offset(whole, batch.base_offset)
    return head, whole[len(head) :]
