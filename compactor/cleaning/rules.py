"""The rules of cleaning for whole batches and ranges, shared by the oracle and the compiled cleaner.

Source: Kafka's `Cleaner` and `CleanedTransactionMetadata`. A merge sees some files and not the whole log, so some rules
differ: see docs/decisions/0011-cleaning-rules.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from compactor.cleaning.bounds import CleanBounds

MARKER_TYPES = (0, 1)
"""The types of control records that end a transaction: ABORT, COMMIT. Cleaning keeps every other type."""
MARKER_KEY_BYTES_MIN = 4
"""Version i16, type i16."""


def horizons_end_offset(bounds: CleanBounds, first_clear_offset: int | None) -> int:
    """The exclusive end of the offsets below which a pass may stamp a delete horizon or act on one.

    Below it the pass knows every record that a tombstone or marker hides. Above the first uncleanable offset nothing is
    touched. Above `whole_through_offset` an extent outside the inputs may hold an old value. From the first clear of
    the buffer on, the pass itself may have kept an old value.
    """
    end = min(bounds.first_uncleanable_offset, bounds.whole_through_offset)
    return end if first_clear_offset is None else min(end, first_clear_offset)


def stays_when_emptied(last_offset: int, bounds: CleanBounds) -> bool:
    """Whether a batch that lost all its records stays as an empty batch, so that readers get past its offsets.

    This holds for the last batch of the partition and for the batch that ends at a bound where a reader may wait. A
    batch that reaches beyond the first uncleanable offset stays too.
    """
    next_offset = last_offset + 1
    return next_offset >= bounds.first_uncleanable_offset or next_offset in (
        bounds.high_watermark,
        bounds.last_stable_offset,
    )


class AbortedBatches:
    """The listed aborted transactions: which data batches belong to one, and which markers end one.

    Every ABORT marker of a client's answer takes one transaction of its producer off the list in that answer. A listed
    transaction without its marker therefore makes clients drop the good records of the producer's next transactions.
    So a marker stays as it is while its transaction is listed. It is not stamped either: its horizon counts from the
    pass that no longer finds it listed, so that readers with an older list have half the grace before it goes.
    """

    def __init__(self, aborted: Sequence[tuple[int, int, int]]) -> None:
        """`aborted`: (producer id, first offset, offset of the marker) of each transaction."""
        self._transactions: dict[int, tuple[list[int], list[int]]] = {}
        self._ends = {(producer_id, marker_offset) for producer_id, _, marker_offset in aborted}
        for producer_id, first_offset, marker_offset in sorted(aborted, key=lambda one: one[1]):
            firsts, markers = self._transactions.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            markers.append(marker_offset)

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def marker_of(self, producer_id: int, base_offset: int) -> int | None:
        """The offset of the marker of the transaction that holds this data batch; None = none that is listed."""
        transactions = self._transactions.get(producer_id)
        if transactions is None:
            return None
        firsts, markers = transactions
        # Transactions of one producer never overlap, so only the last one that began at or before this offset can hold
        # it.
        index = bisect_right(firsts, base_offset) - 1
        return markers[index] if index >= 0 and base_offset < markers[index] else None

    def holds(self, producer_id: int, base_offset: int) -> bool:
        return self.marker_of(producer_id, base_offset) is not None

    def ends_at(self, producer_id: int, marker_offset: int) -> bool:
        """Whether this marker ends a listed transaction. Only ABORT markers do: no list names a COMMIT marker."""
        return (producer_id, marker_offset) in self._ends


class OpenTransactions:
    """Tells which markers have outlived their transaction's data. Takes every transactional batch, in offset order.

    Batches count as they are read, before cleaning: a marker whose data goes in this pass can go in the next. An empty
    batch counts as data, because it keeps its producer's state. Only batches of the inputs are known, so the answer is
    right only for markers below `whole_through_offset`.
    """

    def __init__(self) -> None:
        self._producer_ids: set[int] = set()

    def data(self, producer_id: int) -> None:
        self._producer_ids.add(producer_id)

    def marker(self, producer_id: int) -> bool:
        """Whether the inputs hold no data batch of the transaction that this marker ends. Ask `AbortedBatches.ends_at`
        as well."""
        if producer_id in self._producer_ids:
            self._producer_ids.remove(producer_id)
            return False
        return True
