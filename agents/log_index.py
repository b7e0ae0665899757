"""Where the records of every partition lie, as far as this agent has seen. Pure and in memory, in packed arrays.

Each partition is a row of extents in offset order plus its *end*, the next offset to be served. An extent is taken in
only when it begins at the end: a gap means that a commit of another writer has not been seen yet, so what lies beyond
waits in `_waiting` and is never served early (a reader would step over records that were acknowledged).
An extent that begins below the end is known already: own commits and the tail bring the same file twice.

Cost: EXTENT_BYTES per extent, reported by `bytes_used`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.packed_index import IndexRow

EXTENT_BYTES = 6 * 8
"""base, last, file id, position, length, max timestamp."""


class Extent(NamedTuple):
    base_offset: int
    last_offset: int
    file_id: int
    position: int
    length: int
    max_timestamp_ms: int


@dataclass(slots=True)
class FileRef:
    key: str
    size_bytes: int
    created_ms: int
    extents: int = 0
    """Extents here that point at it; at zero the reference goes."""


class PartitionLog:
    """One partition: columns of equal length, ascending by offset."""

    __slots__ = ("_bases", "_files", "_lasts", "_lengths", "_max_timestamps", "_positions", "end", "start", "waiting")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.waiting: dict[int, Extent] = {}
        self._bases = array("q")
        self._lasts = array("q")
        self._files = array("q")
        self._positions = array("q")
        self._lengths = array("q")
        self._max_timestamps = array("q")

    def __len__(self) -> int:
        return len(self._bases)

    def append(self, extent: Extent) -> None:
        self._bases.append(extent.base_offset)
        self._lasts.append(extent.last_offset)
        self._files.append(extent.file_id)
        self._positions.append(extent.position)
        self._lengths.append(extent.length)
        self._max_timestamps.append(extent.max_timestamp_ms)

    def at(self, row: int) -> Extent:
        return Extent(
            self._bases[row],
            self._lasts[row],
            self._files[row],
            self._positions[row],
            self._lengths[row],
            self._max_timestamps[row],
        )

    def row_of(self, offset: int) -> int:
        """Row of the first extent whose last offset is at or above `offset`; len(self) when there is none."""
        return bisect_left(self._lasts, offset)

    def bytes_from(self, offset: int, bytes_max: int) -> int:
        """Stored bytes from the extent that holds `offset` on, counted up to `bytes_max`."""
        total, row = 0, self.row_of(offset)
        while total < bytes_max and row < len(self._lengths):
            total += self._lengths[row]
            row += 1
        return min(total, bytes_max)

    def first_row_with_timestamp(self, timestamp_ms: int, from_row: int = 0) -> int:
        """First row at or after `from_row` whose largest timestamp is at or above `timestamp_ms`; len(self) if none."""
        stamps = self._max_timestamps
        return next((row for row in range(from_row, len(stamps)) if stamps[row] >= timestamp_ms), len(stamps))

    def row_of_largest_timestamp(self) -> int:
        """The first row that holds the partition's largest timestamp; -1 when empty."""
        return max(range(len(self._max_timestamps)), key=self._max_timestamps.__getitem__, default=-1)

    def drop_below(self, offset: int) -> list[int]:
        """Forget extents that lie wholly below `offset`. Returns the file ids they pointed at."""
        count = self.row_of(offset)
        dropped = list(self._files[:count])
        for column in (
            self._bases,
            self._lasts,
            self._files,
            self._positions,
            self._lengths,
            self._max_timestamps,
        ):
            del column[:count]
        return dropped

    def file_ids(self) -> Sequence[int]:
        return self._files


class LogIndex:
    def __init__(self) -> None:
        self._partitions: dict[int, PartitionLog] = {}
        self._files: dict[int, FileRef] = {}
        self._extents = 0
        self.newest_file_ms = 0
        """When the newest file seen was committed: what is hot is measured against it, not against a clock."""

    # ---- reading

    def partition(self, partition_id: int) -> PartitionLog | None:
        return self._partitions.get(partition_id)

    def file(self, file_id: int) -> FileRef:
        return self._files[file_id]

    def extents_from(self, partition_id: int, offset: int) -> Iterator[Extent]:
        log = self._partitions.get(partition_id)
        if log is not None:
            for row in range(log.row_of(offset), len(log)):
                yield log.at(row)

    @property
    def extents(self) -> int:
        return self._extents

    @property
    def bytes_used(self) -> int:
        return self._extents * EXTENT_BYTES

    @property
    def files(self) -> int:
        return len(self._files)

    @property
    def gaps(self) -> int:
        """Partitions in which something waits for an earlier commit to be seen."""
        return sum(1 for log in self._partitions.values() if log.waiting)

    # ---- writing

    def clear(self) -> None:
        self._partitions.clear()
        self._files.clear()
        self._extents = 0

    def open_partition(self, partition_id: int, *, start: int, end: int) -> None:
        """Begin a partition at a known state: new (0, 0), or as a snapshot says. A known one stays as it is."""
        self._partitions.setdefault(partition_id, PartitionLog(start, end))

    def load_file(self, file_id: int, ref: FileRef, rows: Iterable[IndexRow]) -> None:
        """Take in a file of the snapshot that `open_partition` was called with: below the end, in file id order."""
        self.newest_file_ms = max(self.newest_file_ms, ref.created_ms)
        for row in rows:
            log = self._partitions.get(row.partition_id)
            if log is not None and log.start <= row.last_offset < log.end:
                self._append(log, file_id, ref, _extent(file_id, row))

    def add_file(self, file_id: int, ref: FileRef, rows: Iterable[IndexRow]) -> list[int]:
        """Take in a committed file. Returns the partitions whose end moved."""
        moved: list[int] = []
        self.newest_file_ms = max(self.newest_file_ms, ref.created_ms)
        for row in rows:
            log = self._partitions.get(row.partition_id)
            if log is None or row.base_offset < log.end:
                continue
            extent = _extent(file_id, row)
            if row.base_offset > log.end:
                # The reference must outlive the wait, so it is held now.
                if row.base_offset not in log.waiting:
                    log.waiting[row.base_offset] = extent
                    self._hold(file_id, ref)
                continue
            # What lies below the log start is over already: its move was heard of before the file.
            if extent.last_offset >= log.start:
                self._append(log, file_id, ref, extent)
            log.end = extent.last_offset + 1
            self._take_waiting(log)
            moved.append(row.partition_id)
        return moved

    def move_log_start(self, partition_id: int, offset: int) -> None:
        log = self._partitions.get(partition_id)
        if log is None or offset <= log.start:
            return
        log.start = offset
        dropped = log.drop_below(offset)
        self._extents -= len(dropped)
        self._release(dropped)

    def drop_partition(self, partition_id: int) -> None:
        log = self._partitions.pop(partition_id, None)
        if log is not None:
            self._extents -= len(log)
            self._release(log.file_ids())
            self._release([extent.file_id for extent in log.waiting.values()])

    def _take_waiting(self, log: PartitionLog) -> None:
        while (extent := log.waiting.pop(log.end, None)) is not None:
            if extent.last_offset >= log.start:
                log.append(extent)
                self._extents += 1
            else:
                self._release([extent.file_id])
            log.end = extent.last_offset + 1
        for base_offset in [base for base in log.waiting if base < log.end]:
            self._release([log.waiting.pop(base_offset).file_id])

    def _append(self, log: PartitionLog, file_id: int, ref: FileRef, extent: Extent) -> None:
        log.append(extent)
        self._extents += 1
        self._hold(file_id, ref)

    def _hold(self, file_id: int, ref: FileRef) -> None:
        self._files.setdefault(file_id, ref).extents += 1

    def _release(self, file_ids: Iterable[int]) -> None:
        for file_id in file_ids:
            ref = self._files[file_id]
            ref.extents -= 1
            if ref.extents == 0:
                del self._files[file_id]


def _extent(file_id: int, row: IndexRow) -> Extent:
    return Extent(row.base_offset, row.last_offset, file_id, row.position, row.length, row.max_timestamp_ms)
