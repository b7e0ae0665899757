"""The rules of cleaning that speak of whole batches and of ranges, shared by the oracle and by the compiled cleaner.

Source: Kafka's `Cleaner` and `CleanedTransactionMetadata`; where a merge differs, because it sees some files and not
the whole log, docs/decisions/0011-cleaning-rules.md says why.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from compactor.cleaning.cleaning import CleanBounds

MARKER_TYPES = (0, 1)
"""Keys of control records that end a transaction: ABORT, COMMIT. Others are not ours to judge."""
MARKER_KEY_BYTES_MIN = 4
"""Version i16, type i16."""


def horizons_end_offset(bounds: CleanBounds, first_clear_offset: int | None) -> int:
    """Below this offset a pass knows all that a tombstone or marker hides, so it may stamp a horizon or act on one.

    Exclusive. Above the first uncleanable offset nothing is touched; above `whole_through_offset` an extent that is not
    among the inputs may hold an old value; from the first clear of the buffer on, the pass itself may have kept one.
    """
    end = min(bounds.first_uncleanable_offset, bounds.whole_through_offset)
    return end if first_clear_offset is None else min(end, first_clear_offset)


def stays_when_emptied(last_offset: int, bounds: CleanBounds) -> bool:
    """Whether a batch that lost all its records stays as an empty one, so that readers get past its offsets.

    The last of the partition, and the one below each bound that a reader may wait at. One that reaches over the first
    uncleanable offset is not ours to remove either.
    """
    next_offset = last_offset + 1
    return next_offset >= bounds.first_uncleanable_offset or next_offset in (
        bounds.high_watermark,
        bounds.last_stable_offset,
    )


class AbortedBatches:
    """Which transactional data batches belong to aborted transactions."""

    def __init__(self, aborted: Sequence[tuple[int, int, int]]) -> None:
        """`aborted`: (producer id, first offset, offset of the marker) of each."""
        self._transactions: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, marker_offset in sorted(aborted, key=lambda one: one[1]):
            firsts, markers = self._transactions.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            markers.append(marker_offset)

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def holds(self, producer_id: int, base_offset: int) -> bool:
        transactions = self._transactions.get(producer_id)
        if transactions is None:
            return False
        firsts, markers = transactions
        index = bisect_right(firsts, base_offset) - 1
        return index >= 0 and base_offset < markers[index]


class OpenTransactions:
    """Which markers have outlived the data of their transaction. Fed with every transactional batch in offset order.

    Batches count as they are read, before cleaning: a marker whose data goes in this pass is judged by the next. An
    empty batch is data too: it holds its producer's place. Only what lies in the inputs is known, so the answer holds
    for markers below `whole_through_offset` alone.
    """

    def __init__(self) -> None:
        self._producer_ids: set[int] = set()

    def data(self, producer_id: int) -> None:
        self._producer_ids.add(producer_id)

    def marker(self, producer_id: int) -> bool:
        """True when no data batch of the transaction that this marker ends was seen."""
        if producer_id in self._producer_ids:
            self._producer_ids.remove(producer_id)
            return False
        return True
