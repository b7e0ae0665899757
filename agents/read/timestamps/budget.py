"""The cost that look-ups by timestamp may have in one request, and the memory of all together. Pure but for waiting.

A batch may unfold to a thousand times its size, and its sender chooses the records and the timestamps in its header. So
whoever can write to a topic decides how much a look-up has to read. One request may read READ_BYTES_MAX bytes, unfold
UNFOLDED_BYTES_MAX and walk RECORDS_MAX records; what it passes these bounds by is one batch at most. Past any of them
the rest of the request is answered by the headers of batches.

The bounds are made for a request about 100 partitions that walks a batch in each: 10 MiB read, 6 MiB unfolded (one of
them for a try with too small a bound) and 20,000 records a partition. A batch of the default `max.message.bytes`
usually has less.
"""

from __future__ import annotations

import asyncio
from typing import Final

from agents.read.budget import ByteBudget

MIB: Final = 1 << 20
READ_BYTES_MAX = 1_000 * MIB
UNFOLDED_BYTES_MAX = 600 * MIB
RECORDS_MAX = 2_000_000
RECORDS_PER_TURN = 10_000
"""Takes some milliseconds."""
UNFOLDED_BYTES_PER_RECORD = 100
"""Unfolding this much takes no longer than walking a record."""
READ_BYTES_PER_RECORD = 2_000
"""Joining this many bytes that were read, and taking their CRC, takes no longer either."""
RECORDS_PER_HEADER = 5
"""Reading a batch's header takes as long as walking this many records."""
READ_AT_ONCE_BYTES = 128 * MIB
SMALL_AT_ONCE_BYTES = 32 * MIB
UNFOLDED_AT_ONCE_BYTES = 128 * MIB
"""For all connections; batches that unfold to little have a share of their own, so that they wait for no large ones.
While it unfolds, a codec may hold the bytes twice."""


class LookUpShares:
    """The look-ups of all connections share these: the memory, and the turns of the event loop."""

    def __init__(self) -> None:
        # `read` is taken first, then one of the others, whose holders wait for nothing but their turns.
        self.read = ByteBudget(READ_AT_ONCE_BYTES)
        self.small = ByteBudget(SMALL_AT_ONCE_BYTES)
        self.unfolded = ByteBudget(UNFOLDED_AT_ONCE_BYTES)
        self._line = asyncio.Lock()

    async def next_turn(self) -> None:
        """Give the event loop a turn. However many look-ups wait, one of them goes on in each."""
        async with self._line:
            await asyncio.sleep(0)


class LookUpBudget:
    """The budget of one request."""

    def __init__(
        self,
        *,
        read_bytes: int = READ_BYTES_MAX,
        unfolded_bytes: int = UNFOLDED_BYTES_MAX,
        records: int = RECORDS_MAX,
    ) -> None:
        self._read_bytes = read_bytes
        self._unfolded_bytes = unfolded_bytes
        self._records = records
        self._turn = RECORDS_PER_TURN

    @property
    def is_spent(self) -> bool:
        return self._read_bytes <= 0 or self._unfolded_bytes <= 0 or self._records <= 0

    @property
    def turn_is_over(self) -> bool:
        return self._turn <= 0

    def begin_turn(self) -> None:
        self._turn = RECORDS_PER_TURN

    @property
    def records_of_a_slice(self) -> int:
        """The records that may be walked before somebody looks again."""
        return max(0, min(self._records, self._turn))

    def took_read(self, bytes_count: int) -> None:
        self._read_bytes -= bytes_count
        self._turn -= bytes_count // READ_BYTES_PER_RECORD

    def took_unfolded(self, bytes_count: int, *, on_loop: bool) -> None:
        self._unfolded_bytes -= bytes_count
        if on_loop:
            self._turn -= bytes_count // UNFOLDED_BYTES_PER_RECORD

    def took_records(self, count: int) -> None:
        self._records -= count
        self._turn -= count

    def took_header(self) -> None:
        self._turn -= RECORDS_PER_HEADER
