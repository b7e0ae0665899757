"""Batches that are sound by header and CRC-32C and whose records cannot be read: which they are, in one partition.

A client can send such a batch to a plain topic, where nobody looks at its records, and the topic may be made a
compacted one later. The cleaner leaves it where and as it is: consumers get what Kafka would give them, and what
others wrote before and after is cleaned as if it were not there, save that it may hide an old value of any key, so
tombstones from it on wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from runtime.errors import BugError

STRETCHES_END = 2**62
"""Behind every batch number."""
FAILED_READS_MAX = 100
"""Of one window: each costs a second look at a part of it. After these the rest of the window counts as unreadable."""
RECORDS_MAX = 1 << 20
"""Of one batch: its columns take 41 bytes a record, however small it is in the file. More count as unreadable;
compacted topics take no such batch."""
PARTITIONS_TOLD_MAX, REASON_CHARS_MAX = 100, 200
"""How much the result of one merge tells of them, which lasts as long as what it wrote."""


class UnreadableBatches:
    """By number in the partition. Found in any order: a look at a window meets codecs that do not unfold before records
    that cannot be walked, and these before offsets that do not rise."""

    def __init__(self) -> None:
        self.count = 0
        self.first_offset: int | None = None
        self.first_reason = ""
        self._firsts: list[int] = []
        self._stops: list[int] = []
        """Of stretches that neither overlap nor touch, in rising order."""

    def add(self, first: int, stop: int, base_offset: int, reason: str) -> None:
        """Batches `first` to `stop` (exclusive), of which some may be known; base offset and reason of the first."""
        if stop <= first:
            raise BugError(f"unreadable batches {first} to {stop}")
        if self.first_offset is None or base_offset < self.first_offset:
            self.first_offset, self.first_reason = base_offset, reason
        low, high = bisect_left(self._stops, first), bisect_right(self._firsts, stop)
        joined = range(low, high)
        self.count -= sum(self._stops[at] - self._firsts[at] for at in joined)
        if joined:
            first, stop = min(first, self._firsts[low]), max(stop, self._stops[high - 1])
        self._firsts[low:high], self._stops[low:high] = [first], [stop]
        self.count += stop - first

    def stretches(self) -> list[tuple[int, int]]:
        """First and stop (exclusive) of each, in order."""
        return list(zip(self._firsts, self._stops, strict=True))

    def stretch(self, number: int) -> tuple[bool, int]:
        """Whether the batch of this number is unreadable, and the next number for which the answer is another."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number < self._stops[at]:
            return True, self._stops[at]
        return False, self._firsts[at + 1] if at + 1 < len(self._firsts) else STRETCHES_END
