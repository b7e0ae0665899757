"""The transactions of one partition, as far as the known end of its log. Pure.

The rows of a file (`metadata/transactions/rows.py`) become true when the end passes their offsets, so rows of an extent
that waits for an earlier commit wait with it. Until a transaction has ended, readers of committed records see nothing
at or above its first offset. If it was aborted, they are told where it began, and leave out its records until they come
to its marker.

Memory knows every aborted transaction whose marker lies in or above the lowest extent of L0 that the index holds.
Whoever reads merged extents asks the store, for the extents and for the aborted transactions at the same instant: a
later merge may remove the records, then the entry, and at last the marker. Together with younger extents, an old entry
would name a transaction without a marker, and clients would leave out good records of the same producer.

These extents may be believed for a while, and meanwhile open transactions with records in them may be aborted. Such an
entry comes from memory. When memory forgets one, what was looked up before it ended is no longer enough
(`PartitionLog.aborted_known_from`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from metadata.transactions.contract import AbortedTransaction, OpenTransaction
from metadata.transactions.rows import TxnRow, TxnRowKind, decode_txn_rows

ENTRY_BYTES: Final = 220
"""An open or aborted transaction: a tuple of four numbers."""
NO_END: Final = 1 << 63


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    none_before: int
    """No transaction with a higher marker began below this offset."""


def by_marker(found: Sequence[AbortedTransaction], *, none_before: int = NO_END) -> list[Aborted]:
    """The entries of one partition, which are in the order of their markers. `none_before`: no transaction that is not
    among them began below it."""
    entries: list[Aborted] = []
    for each in reversed(found):
        entries.append(Aborted(each.producer_id, each.first_offset, each.last_offset, none_before))
        none_before = min(none_before, each.first_offset)
    entries.reverse()
    return entries


def aborted_in(entries: Sequence[Aborted], offset: int, end: int) -> Iterator[Aborted]:
    """Those with a marker at or above `offset` that began below `end`. Costs as much as there are (Kafka's
    `TransactionIndex.collectAbortedTxns`)."""
    for place in range(bisect_left(entries, offset, key=_last_offset), len(entries)):
        entry = entries[place]
        if entry.first_offset < end:
            yield entry
        if entry.none_before >= end:
            return


def rows_by_partition(packed: bytes) -> dict[int, list[TxnRow]]:
    """The rows of a file, of each partition by offset. Raises TxnRowsError."""
    rows: dict[int, list[TxnRow]] = {}
    for row in decode_txn_rows(packed):
        rows.setdefault(row.partition_id, []).append(row)
    for of_partition in rows.values():
        of_partition.sort(key=_at_offset)
    return rows


class PartitionTransactions:
    """Made for the first transaction of a partition, and gone with its last one: most partitions never have any."""

    __slots__ = ("_open", "aborted", "first_open", "waiting")

    def __init__(self, open_now: Iterable[OpenTransaction] = ()) -> None:
        in_order = sorted((each.first_offset, each.producer_id) for each in open_now)
        self._open = {producer_id: first_offset for first_offset, producer_id in in_order}
        """Producer id -> first offset, ascending: a transaction begins above all that began before."""
        self.first_open = next(iter(self._open.values()), None)
        """The first offset of the oldest open transaction."""
        self.aborted: list[Aborted] = []
        """By marker."""
        self.waiting: dict[int, list[TxnRow]] = {}
        """Rows of extents that wait, by the extent's base offset."""

    @property
    def count(self) -> int:
        """Transactions that it knows."""
        return len(self._open) + len(self.aborted)

    @property
    def is_over(self) -> bool:
        """It knows nothing, and waits for nothing."""
        return not (self._open or self.aborted or self.waiting)

    def apply(self, rows: Iterable[TxnRow]) -> None:
        """The end has passed these rows. They are in the order of their offsets."""
        for row in rows:
            if row.kind is TxnRowKind.BEGIN:
                self._open[row.producer_id] = row.first_offset
                if self.first_open is None:
                    self.first_open = row.first_offset
                continue
            if self._open.pop(row.producer_id, None) == self.first_open:
                self.first_open = next(iter(self._open.values()), None)
            if row.kind is TxnRowKind.ABORT:
                none_before = row.last_offset + 1 if self.first_open is None else self.first_open
                self.aborted.append(Aborted(row.producer_id, row.first_offset, row.last_offset, none_before))

    def load_aborted(self, found: Sequence[AbortedTransaction], end: int) -> None:
        """Those of the store, by marker. What ended at or above `end`, the end of the snapshot, comes with its file."""
        none_before = end if self.first_open is None else self.first_open
        self.aborted = by_marker([each for each in found if each.last_offset < end], none_before=none_before)

    def forget_below(self, offset: int) -> Aborted | None:
        """Forget aborted transactions whose markers lie below `offset`. Returns the last of them."""
        count = bisect_left(self.aborted, offset, key=_last_offset)
        last = self.aborted[count - 1] if count else None
        del self.aborted[:count]
        return last


def _last_offset(entry: Aborted) -> int:
    return entry.last_offset


def _at_offset(row: TxnRow) -> int:
    return row.at_offset
