"""Batches that are sound by header and CRC-32C and whose records cannot be read: which they are, in one partition.

A client can send such a batch to a plain topic, where nobody looks at its records, and the topic may be made a
compacted one later. The cleaner leaves it where and as it is: consumers get what Kafka would give them, and what
others wrote before and after is cleaned as if it were not there, save that it may hide an old value of any key, so
tombstones from it on wait.
"""

from __future__ import annotations

from bisect import bisect_right

from siltstone.errors import BugError

STRETCHES_END = 2**62
"""Behind every batch number."""
FAILED_READS_MAX = 100
"""Of one window: each costs a second look at a part of it. After these the rest of the window counts as unreadable."""
RECORDS_MAX = 1 << 20
"""Of one batch: its columns take 41 bytes a record, however small it is in the file. More count as unreadable;
compacted topics take no such batch."""


class UnreadableBatches:
    """By number in the partition. Found in rising order, by one pass or by several."""

    def __init__(self) -> None:
        self.count = 0
        self.first_offset: int | None = None
        self.first_reason = ""
        self._firsts: list[int] = []
        self._stops: list[int] = []

    def add(self, first: int, stop: int, base_offset: int, reason: str) -> None:
        """Batches `first` to `stop` (exclusive); base offset and reason of the first."""
        if stop <= first or (self._stops and first < self._stops[-1]):
            raise BugError(f"unreadable batches {first} to {stop} after {self._stops[-1:]}")
        if self.first_offset is None:
            self.first_offset, self.first_reason = base_offset, reason
        self.count += stop - first
        if self._stops and self._stops[-1] == first:
            self._stops[-1] = stop
        else:
            self._firsts.append(first)
            self._stops.append(stop)

    def stretch(self, number: int) -> tuple[bool, int]:
        """Whether the batch of this number is unreadable, and the next number for which the answer is another."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number < self._stops[at]:
            return True, self._stops[at]
        return False, self._firsts[at + 1] if at + 1 < len(self._firsts) else STRETCHES_END
