"""Where the records of every partition lie, as far as this agent has seen. Pure and in memory, in packed arrays.

Each partition is a row of extents in offset order plus its *end*, the next offset to be served. An extent is taken in
only if it begins at the end. A gap means that a commit of another writer has not been seen yet, so everything beyond
waits in `_waiting` and is never served early: a reader would step over acknowledged records. An extent that begins
below the end is known already, because own commits and the tail bring the same file twice.

Only live L0 files are held. Files that a merge replaced leave *holes*: offsets below the end without a row here lie in
merged files, which are looked up when they are read (`read/leveled.py`). A file that was merged before this agent saw
it only moves the end. A file that is merged while it waits for an earlier commit keeps its place in the line, or the
end would never pass it.

Transactions begin and end as the end passes their offsets (`transactions.py`). Files of markers have no object: their
bytes are here.

Cost: EXTENT_BYTES per extent, INLINE_FILE_BYTES per file of markers and ENTRY_BYTES per transaction, reported by
`bytes_used`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from typing import Final, NamedTuple

from agents.tail.transactions import ENTRY_BYTES, PartitionTransactions, rows_by_partition
from metadata.rules.packed_index import IndexRow
from metadata.transactions.contract import AbortedTransaction, OpenTransaction
from metadata.transactions.rows import TxnRow

EXTENT_BYTES = 6 * 8 + 4
"""base, last, file id, position, length, max timestamp; the partition in the file's list."""
INLINE_FILE_BYTES = 540
"""The reference, the key and the bytes of a file of one marker, measured. No stall bounds the number of these files."""
GONE = -1
"""Replaces the file id of a waiting extent if its file was merged meanwhile."""
DROP_SLICE = 30_000
"""Extents looked at before `drop_files` pauses: some 3 ms."""


_NOTHING = array("q")
"""The columns of all partitions without extents; nobody appends to it."""
_NO_ROWS: Final[Mapping[int, list[TxnRow]]] = {}


def _no_partitions() -> array[int]:
    return array("i")


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
    """Number of extents here that point at the file; at zero the reference goes."""
    partitions: array[int] = field(default_factory=_no_partitions)
    """The partitions of those extents, now or earlier; one may be named twice."""
    inline: bytes = b""
    """The bytes of the file, if no object holds them. Extents of several partitions point at the same bytes."""


class PartitionLog:
    """One partition: columns of equal length, ascending by offset."""

    __slots__ = (
        "_bases",
        "_files",
        "_lasts",
        "_lengths",
        "_max_timestamps",
        "_positions",
        "aborted_known_from",
        "end",
        "start",
        "transactions",
        "waiting",
    )

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.waiting: dict[int, Extent] = {}
        self.transactions: PartitionTransactions | None = None
        self.aborted_known_from = end
        """Aborted transactions with markers at or above it are all in `transactions`."""
        # Most partitions of a large cluster have no extent here, so arrays of their own would cost most of the memory.
        self._bases = self._lasts = self._files = self._positions = self._lengths = self._max_timestamps = _NOTHING

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records see nothing at or above it."""
        if self.transactions is None or self.transactions.first_open is None:
            return self.end
        # The log start may be above the end, if its move was seen first.
        return min(self.end, max(self.start, self.transactions.first_open))

    @property
    def lowest_base(self) -> int:
        """The first offset that lies in L0, as far as this index knows; the end if none does."""
        return self._bases[0] if self._bases else self.end

    def append(self, extent: Extent) -> None:
        if self._bases is _NOTHING:
            self._bases, self._lasts, self._files = array("q"), array("q"), array("q")
            self._positions, self._lengths, self._max_timestamps = array("q"), array("q"), array("q")
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
        """Row of the first extent whose last offset is at or above `offset`; len(self) if there is none."""
        return bisect_left(self._lasts, offset)

    def extent_at(self, offset: int) -> Extent | None:
        """The extent that holds `offset`; None if it lies in a merged file."""
        row = self.row_of(offset)
        return self.at(row) if row < len(self) and self._bases[row] <= offset else None

    def bytes_from(self, offset: int, bytes_max: int, end: int) -> int:
        """Stored bytes of the extents from the one that holds `offset` to the one that holds `end` - 1, counted up to
        `bytes_max`; merged files hold enough."""
        total, row = 0, self.row_of(offset)
        while total < bytes_max and offset < end:
            if row == len(self) or self._bases[row] > offset:
                return bytes_max
            total += self._lengths[row]
            offset = self._lasts[row] + 1
            row += 1
        return min(total, bytes_max)

    @property
    def bytes(self) -> int:
        """Stored bytes of the extents here; merged files are not counted."""
        return sum(self._lengths)

    def first_row_with_timestamp(self, timestamp_ms: int, from_row: int = 0) -> int:
        """First row at or after `from_row` whose largest timestamp is at or above `timestamp_ms`; len(self) if none."""
        stamps = self._max_timestamps
        return next((row for row in range(from_row, len(stamps)) if stamps[row] >= timestamp_ms), len(stamps))

    def row_of_largest_timestamp(self) -> int:
        """The first row with the partition's largest timestamp; -1 if empty."""
        return max(range(len(self._max_timestamps)), key=self._max_timestamps.__getitem__, default=-1)

    def drop_below(self, offset: int) -> list[int]:
        """Forget extents that lie wholly below `offset`. Returns the file ids they pointed at."""
        count = self.row_of(offset)
        dropped = list(self._files[:count])
        for column in self._columns():
            del column[:count]
        return dropped

    def drop_files(self, file_ids: Container[int]) -> int:
        """Forget the extents of these files. Returns how many there were; waiting ones keep their place."""
        for base_offset, extent in self.waiting.items():
            if extent.file_id in file_ids:
                self.waiting[base_offset] = extent._replace(file_id=GONE)
        goes = list(map(file_ids.__contains__, self._files))
        count = sum(goes)
        if not count:
            return 0
        first = goes.index(True)
        if all(goes[first : first + count]):  # as a rule: merges take the oldest files
            for column in self._columns():
                del column[first : first + count]
            return count
        stays = [not each for each in goes]
        for column in self._columns():
            column[:] = array("q", compress(column, stays))
        return count

    def _columns(self) -> tuple[array[int], ...]:
        return (self._bases, self._lasts, self._files, self._positions, self._lengths, self._max_timestamps)

    def file_ids(self) -> Sequence[int]:
        return self._files


class LogIndex:
    def __init__(self) -> None:
        self._partitions: dict[int, PartitionLog] = {}
        self._files: dict[int, FileRef] = {}
        self._extents = self._inline_files = self._transactions = 0
        self._gaps: set[int] = set()
        self.newest_file_ms = 0
        """When the newest file seen was committed. "Hot" is measured against it, not against a clock."""

    # ---- reading

    def partition(self, partition_id: int) -> PartitionLog | None:
        return self._partitions.get(partition_id)

    def file(self, file_id: int) -> FileRef:
        return self._files[file_id]

    def keys(self, file_ids: Iterable[int]) -> Iterator[str]:
        """The keys of those of these files that are known here."""
        return (self._files[file_id].key for file_id in file_ids if file_id in self._files)

    def extents_from(self, partition_id: int, offset: int) -> Iterator[Extent]:
        """In offset order; extents in merged files are not among them."""
        log = self._partitions.get(partition_id)
        if log is not None:
            for row in range(log.row_of(offset), len(log)):
                yield log.at(row)

    @property
    def extents(self) -> int:
        return self._extents

    @property
    def bytes_used(self) -> int:
        return self._extents * EXTENT_BYTES + self._inline_files * INLINE_FILE_BYTES + self._transactions * ENTRY_BYTES

    @property
    def files(self) -> int:
        """Live L0 files: the write stall depends on it. Files of markers do not count, because no merge has to GET
        them."""
        return len(self._files) - self._inline_files

    @property
    def inline_files(self) -> int:
        return self._inline_files

    @property
    def gaps(self) -> int:
        """Partitions in which something waits for an earlier commit to be seen."""
        return len(self._gaps)

    # ---- writing

    def become(self, other: LogIndex) -> None:
        """Hold what `other` holds, from one moment to the next. `other` must not be used any more."""
        self._partitions, self._files, self._gaps = other._partitions, other._files, other._gaps
        self._extents, self._inline_files = other._extents, other._inline_files
        self._transactions = other._transactions
        self.newest_file_ms = max(self.newest_file_ms, other.newest_file_ms)

    def open_partition(
        self, partition_id: int, *, start: int, end: int, open_transactions: Collection[OpenTransaction] = ()
    ) -> None:
        """Begin a partition at a known state: new (0, 0), or from a snapshot. A known partition stays as it is."""
        if partition_id not in self._partitions:
            log = self._partitions[partition_id] = PartitionLog(start, end)
            if open_transactions:
                log.transactions = PartitionTransactions(open_transactions)
                self._transactions += len(open_transactions)

    def load_file(self, file_id: int, ref: FileRef, rows: Iterable[IndexRow]) -> None:
        """Take in a file of the snapshot that `open_partition` was called with: below the end, in file id order."""
        self.newest_file_ms = max(self.newest_file_ms, ref.created_ms)
        for row in rows:
            log = self._partitions.get(row.partition_id)
            if log is not None and log.start <= row.last_offset < log.end:
                self._append(log, file_id, ref, row.partition_id, _extent(file_id, row))

    def lowest_bases(self) -> Iterator[tuple[int, int]]:
        """Partition and lowest base offset, of all partitions with extents. No partition may come or go meanwhile."""
        return ((partition_id, log.lowest_base) for partition_id, log in self._partitions.items() if len(log))

    def load_aborted(self, found: Iterable[AbortedTransaction]) -> None:
        """Take in what the store says to `lowest_bases`: by partition and marker. Before any file is added."""
        for partition_id, of_partition in groupby(found, key=_partition_id):
            log = self._partitions.get(partition_id)
            if log is None:
                continue
            transactions = _transactions_of(log)
            before = transactions.count
            transactions.load_aborted(list(of_partition), log.end)
            self._transactions += transactions.count - before

    def add_file(
        self, file_id: int, ref: FileRef, rows: Iterable[IndexRow], *, txn_rows: bytes = b"", live: bool = True
    ) -> list[int]:
        """Take in a committed file, and the transactions that it begins and ends. Returns the partitions whose end
        moved.

        If the file is no longer live (a merge was faster), only the new end of the log and the transactions are kept.
        """
        moved: list[int] = []
        transactions = rows_by_partition(txn_rows) if txn_rows else _NO_ROWS
        self.newest_file_ms = max(self.newest_file_ms, ref.created_ms)
        for row in rows:
            log = self._partitions.get(row.partition_id)
            if log is None or row.base_offset < log.end:
                continue
            extent = _extent(file_id if live else GONE, row)
            if row.base_offset > log.end:
                # The reference must outlive the wait, so take it now.
                if row.base_offset not in log.waiting:
                    log.waiting[row.base_offset] = extent
                    self._gaps.add(row.partition_id)
                    if live:
                        self._hold(file_id, ref, row.partition_id)
                    if row.partition_id in transactions:
                        _transactions_of(log).waiting[row.base_offset] = transactions[row.partition_id]
                continue
            # Extents below the log start are over already: its move was seen before the file.
            if live and extent.last_offset >= log.start:
                self._append(log, file_id, ref, row.partition_id, extent)
            log.end = extent.last_offset + 1
            if row.partition_id in transactions:
                self._apply(log, extent, transactions[row.partition_id])
            self._take_waiting(row.partition_id, log)
            moved.append(row.partition_id)
        return moved

    def drop_files(self, file_ids: Collection[int]) -> Iterator[None]:
        """Forget files that a merge replaced; unknown ones are passed over. The ends stay.

        Yields now and then so that others can run: forgotten offsets are read from merged files, the rest from L0
        files, which outlive their merge by the grace. No file of the list may be added meanwhile.
        """
        files = {file_id: ref for file_id in file_ids if (ref := self._files.get(file_id)) is not None}
        partition_ids: set[int] = set()
        looked_at = 0
        for ref in files.values():
            partition_ids.update(ref.partitions)
            # A file of many partitions is as long a piece of work as many extents.
            looked_at += len(ref.partitions)
            if looked_at >= DROP_SLICE:
                looked_at = 0
                yield
        for partition_id in partition_ids:
            if looked_at >= DROP_SLICE:
                looked_at = 0
                yield
            log = self._partitions.get(partition_id)
            if log is not None:
                looked_at += len(log)
                self._extents -= log.drop_files(files)
                self._forget_aborted(log)
        # At the very end: until now readers and `_release` still looked these files up.
        for file_id in files:
            self._remove(file_id)

    def move_log_start(self, partition_id: int, offset: int) -> None:
        log = self._partitions.get(partition_id)
        if log is None or offset <= log.start:
            return
        log.start = offset
        dropped = log.drop_below(offset)
        self._extents -= len(dropped)
        self._release(dropped)
        self._forget_aborted(log)

    def drop_partition(self, partition_id: int) -> None:
        log = self._partitions.pop(partition_id, None)
        if log is not None:
            self._extents -= len(log)
            self._release(log.file_ids())
            self._release([extent.file_id for extent in log.waiting.values()])
            self._gaps.discard(partition_id)
            self._transactions -= log.transactions.count if log.transactions is not None else 0

    def _take_waiting(self, partition_id: int, log: PartitionLog) -> None:
        if not log.waiting:
            return
        while (extent := log.waiting.pop(log.end, None)) is not None:
            if extent.file_id != GONE and extent.last_offset >= log.start:
                log.append(extent)
                self._extents += 1
            else:
                self._release([extent.file_id])
            log.end = extent.last_offset + 1
            if log.transactions is not None and extent.base_offset in log.transactions.waiting:
                self._apply(log, extent, log.transactions.waiting.pop(extent.base_offset))
        # The same extent may wait and come a second time in order, as own commits do: its waiting copy goes.
        for base_offset in [base for base in log.waiting if base < log.end]:
            self._release([log.waiting.pop(base_offset).file_id])
            if log.transactions is not None and log.transactions.waiting.pop(base_offset, None) is not None:
                self._forget_aborted(log)
        if not log.waiting:
            self._gaps.discard(partition_id)

    def _apply(self, log: PartitionLog, extent: Extent, rows: Iterable[TxnRow]) -> None:
        """The end has passed the extent. `rows`: those of its file and partition, by offset."""
        transactions = _transactions_of(log)
        before = transactions.count
        transactions.apply(row for row in rows if extent.base_offset <= row.at_offset <= extent.last_offset)
        self._transactions += transactions.count - before
        self._forget_aborted(log)

    def _forget_aborted(self, log: PartitionLog) -> None:
        """Aborted transactions below all that lies in L0 come from the store, with the merged extents."""
        transactions = log.transactions
        if transactions is None:
            return
        before = transactions.count
        last = transactions.forget_below(max(log.lowest_base, log.start))
        if last is not None:
            log.aborted_known_from = max(log.aborted_known_from, last.last_offset + 1)
        self._transactions += transactions.count - before
        if transactions.is_over:
            log.transactions = None

    def _append(self, log: PartitionLog, file_id: int, ref: FileRef, partition_id: int, extent: Extent) -> None:
        log.append(extent)
        self._extents += 1
        self._hold(file_id, ref, partition_id)

    def _hold(self, file_id: int, ref: FileRef, partition_id: int) -> None:
        held = self._files.setdefault(file_id, ref)
        if held.inline and not held.extents:
            self._inline_files += 1
        held.extents += 1
        held.partitions.append(partition_id)

    def _release(self, file_ids: Iterable[int]) -> None:
        for file_id in file_ids:
            if file_id == GONE:
                continue
            ref = self._files[file_id]
            ref.extents -= 1
            if ref.extents == 0:
                self._remove(file_id)

    def _remove(self, file_id: int) -> None:
        ref = self._files.pop(file_id, None)
        if ref is not None and ref.inline:
            self._inline_files -= 1


def _transactions_of(log: PartitionLog) -> PartitionTransactions:
    if log.transactions is None:
        log.transactions = PartitionTransactions()
    return log.transactions


def _partition_id(entry: AbortedTransaction) -> int:
    return entry.partition_id


def _extent(file_id: int, row: IndexRow) -> Extent:
    return Extent(row.base_offset, row.last_offset, file_id, row.position, row.length, row.max_timestamp_ms)
