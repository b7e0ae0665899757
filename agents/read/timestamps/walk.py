"""The offsets and timestamps of the records in a range's bytes, batch by batch, in turns of the event loop.

A sound batch may still have records that cannot be read (a client can send one to a topic that is not compacted), and
those of any batch are not read once the request's budget is spent. Then only the header can be believed: it counts as a
record of the largest timestamp at the batch's base offset, so that a consumer that reads on from the answer misses no
record that qualifies. A batch that dedupe has emptied counts as nothing, although its header has a timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from agents.read.pieces import Pieces
from agents.read.plan import CutBatch, FoundBatch, ReadRange, batches_of
from agents.read.timestamps.budget import LookUpBudget, LookUpShares
from agents.read.timestamps.unfolding import unfolded
from wire.batch import BatchHeader, CorruptBatchError, crc_matches, read_header
from wire.codecs import CodecError
from wire.crc import Body
from wire.records import CorruptRecordError, iter_times

RECORDS_OF_A_BATCH_MAX = 1 << 20
"""A batch that claims more is not walked, as the compactor does not read it either."""


@dataclass(frozen=True, slots=True)
class TimestampedOffset:
    offset: int
    timestamp_ms: int

    @property
    def rank(self) -> tuple[int, int]:
        """The larger timestamp first, then the lower offset."""
        return -self.timestamp_ms, self.offset


class Looking(Protocol):
    """Picks the record that a look-up wants, from records shown in offset order."""

    @property
    def least_ms(self) -> int:
        """Batches whose largest timestamp is below it need not be shown."""
        ...

    def sees(self, offset: int, timestamp_ms: int) -> bool:
        """True: it needs no more."""
        ...


class FirstAt:
    """The first record at or above a timestamp."""

    def __init__(self, timestamp_ms: int) -> None:
        self.least_ms = timestamp_ms
        self.found: TimestampedOffset | None = None

    def sees(self, offset: int, timestamp_ms: int) -> bool:
        if timestamp_ms < self.least_ms:
            return False
        self.found = TimestampedOffset(offset, timestamp_ms)
        return True


class Largest:
    """The first record that has the largest timestamp."""

    def __init__(self, least_ms: int) -> None:
        self.least_ms = least_ms
        self.found: TimestampedOffset | None = None

    def sees(self, offset: int, timestamp_ms: int) -> bool:
        if timestamp_ms >= self.least_ms:
            seen = TimestampedOffset(offset, timestamp_ms)
            if self.found is None or seen.rank < self.found.rank:
                self.found = seen
                self.least_ms = timestamp_ms
        return False


async def look_through(
    data: memoryview,
    where: ReadRange,
    looking: Looking,
    *,
    log_start_offset: int,
    budget: LookUpBudget,
    shares: LookUpShares,
) -> bool:
    """Show the records at or above the log start. Returns whether the look-up needs no more."""
    for found in batches_of(Pieces([data]), where):
        if isinstance(found, CutBatch):
            raise CorruptBatchError(f"an extent or block of {where.key} ends inside a batch")
        budget.took_header()
        await _pause(budget, shares)
        batch = data[found.start : found.start + found.size_bytes]
        header = read_header(batch)
        if header.max_timestamp_ms < looking.least_ms or found.next_offset <= log_start_offset:
            continue
        if not header.records_count:
            continue
        if await _look_into(_Batch(batch, header, found, log_start_offset), looking, budget, shares):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Batch:
    bytes: memoryview
    header: BatchHeader
    found: FoundBatch
    log_start_offset: int


async def _look_into(batch: _Batch, looking: Looking, budget: LookUpBudget, shares: LookUpShares) -> bool:
    header = batch.header
    if not budget.is_spent:
        try:
            if header.records_count > RECORDS_OF_A_BATCH_MAX:
                raise CorruptRecordError(
                    0,
                    f"the batch claims {header.records_count} records; at most {RECORDS_OF_A_BATCH_MAX} are read",
                )
            async with unfolded(batch.bytes, header, budget=budget, shares=shares) as payload:
                done = await _walk(payload, batch, looking, budget, shares)
            if done is not None:
                return done
        except (CorruptRecordError, CodecError):
            if not crc_matches(batch.bytes, 0, header):
                raise
    return looking.sees(max(batch.found.base_offset, batch.log_start_offset), header.max_timestamp_ms)


async def _walk(
    payload: Body, batch: _Batch, looking: Looking, budget: LookUpBudget, shares: LookUpShares
) -> bool | None:
    """Whether the look-up needs no more; None: the budget was spent before the last record."""
    times = _times(payload, batch.header)
    base_offset, log_start_offset = batch.found.base_offset, batch.log_start_offset
    left = batch.header.records_count
    while left > 0:
        await _pause(budget, shares)
        size = min(left, budget.records_of_a_slice)
        if not size:
            return None
        walked = 0
        try:
            for offset_delta, timestamp_ms in islice(times, size):
                walked += 1
                offset = base_offset + offset_delta
                if offset >= log_start_offset and looking.sees(offset, timestamp_ms):
                    return True
        # Also of a batch whose next record cannot be read: a sender could make each of them cost a slice.
        finally:
            budget.took_records(walked)
        left -= size
    # The walk notices bytes behind the last record only when it is asked for one more.
    next(times, None)
    return False


async def _pause(budget: LookUpBudget, shares: LookUpShares) -> None:
    if budget.turn_is_over:
        await shares.next_turn()
        budget.begin_turn()


def _times(payload: Body, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp) of each record. Raises CorruptRecordError, maybe after some records."""
    last = -1
    for number, (offset_delta, delta_ms) in enumerate(iter_times(payload, header.records_count)):
        if not last < offset_delta <= header.last_offset_delta:
            raise CorruptRecordError(number, f"offset delta {offset_delta} after {last}")
        last = offset_delta
        yield last, header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + delta_ms
