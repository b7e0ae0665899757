"""The unreadable batches of one partition: header and CRC-32C are right, but the records cannot be read.

A client can send such a batch to a plain topic, where no agent looks at its records, and the topic may become a
compacted one later. The cleaner leaves the batch where and as it is, so consumers get the bytes that Kafka would give
them. Records before and after it are cleaned as if the batch were not there, with one exception: the batch may hold an
old value of any key, so tombstones above it stay.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from runtime.errors import BugError

STRETCHES_END = 2**62
"""Above every batch number."""
FAILED_READS_MAX = 100
"""Failed reads of one window, each of which makes the cleaner read a part of the window again. After the last one, the
rest of the window counts as unreadable."""
RECORDS_MAX = 1 << 20
"""Records of one batch. A batch with more counts as unreadable, because its columns take 41 bytes a record, however
small the batch is in the file. Agents refuse such batches on compacted topics."""
PARTITIONS_TOLD_MAX, REASON_CHARS_MAX = 100, 200
"""The most partitions, and characters of each reason, that the stored result of a merge lists. The result stays as long
as the files that the merge wrote."""


class UnreadableBatches:
    """Unreadable batches by their number in the partition, added in any order.

    The order varies because a read of a window fails first at batches that cannot be decompressed, then at records that
    cannot be walked, then at offsets that do not rise.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first_offset: int | None = None
        self.first_reason = ""
        self._firsts: list[int] = []
        self._stops: list[int] = []
        """`_firsts` and `_stops` are stretches that neither overlap nor touch, in rising order."""

    def add(self, first: int, stop: int, base_offset: int, reason: str) -> None:
        """Adds batches `first` to `stop` (exclusive); some may be known. Base offset and reason are the first's."""
        if stop <= first:
            raise BugError(f"an empty stretch of unreadable batches, {first} to {stop}")
        if self.first_offset is None or base_offset < self.first_offset:
            self.first_offset, self.first_reason = base_offset, reason
        # The stretches that overlap or touch the new one: they become one with it.
        low, high = bisect_left(self._stops, first), bisect_right(self._firsts, stop)
        joined = range(low, high)
        self.count -= sum(self._stops[at] - self._firsts[at] for at in joined)
        if joined:
            first, stop = min(first, self._firsts[low]), max(stop, self._stops[high - 1])
        self._firsts[low:high], self._stops[low:high] = [first], [stop]
        self.count += stop - first

    def stretches(self) -> list[tuple[int, int]]:
        """First and stop (exclusive) of each stretch, in order."""
        return list(zip(self._firsts, self._stops, strict=True))

    def stretch(self, number: int) -> tuple[bool, int]:
        """Whether the batch of this number is unreadable, and the next number for which the answer changes."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number < self._stops[at]:
            return True, self._stops[at]
        return False, self._firsts[at + 1] if at + 1 < len(self._firsts) else STRETCHES_END
