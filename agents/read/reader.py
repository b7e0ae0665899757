"""The read path's shell: plan -> bytes from memory or the store -> whole batches with their offsets.

All ranges of a request that are not in memory are fetched at the same time, then taken in the request's order. A
partition whose bytes cannot be had answers with an error of its own; the others go on. What is at hand does not wait
long for what must come from the store: a partition that is not there in time gets no records in this answer, its read
goes on, and the next fetch finds it. Files committed in the last HOT_MS before the newest one are the hot tail; older
ones have a cache, GET slots and a share of the budget of their own, so that a replay of old data, or a store that is
down, neither evicts the tail nor takes its connections nor holds it up.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agents.log_index import Extent, FileRef, LogIndex
from agents.read.blocks import BlockReader
from agents.read.budget import ByteBudget, Release, Source
from agents.read.plan import (
    READ_BYTES_MIN,
    CutBatch,
    FoundBatch,
    ReadRange,
    Resume,
    ResumePoints,
    batches_of,
    plan_partition,
    stamped,
)
from siltstone.errors import SiltstoneError
from siltstone.logging import get_logger
from siltstone.metrics import Metrics
from storage.objects import ObjectStoreError
from wire.batch import CorruptBatchError, read_header
from wire.codecs import CodecError
from wire.error_codes import ErrorCode
from wire.records import CorruptRecordError, walk

_log = get_logger(__name__)

HOT_MS = 60_000
PATIENCE_MS = 250.0
"""How long records at hand wait for others that must come from the store."""
STORE_WAIT_MS_MAX = 15_000.0
"""How long anybody waits for the store: below clients' `request.timeout.ms`, or they would take us for dead."""

News: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns True when records have come that the answer cannot hold any more, so that it should leave soon."""


@dataclass(frozen=True, slots=True)
class Want:
    partition_id: int
    offset: int
    bytes_max: int


@dataclass(slots=True)
class Taken:
    """One partition's share of the answer."""

    buffers: list[bytes | memoryview] = field(default_factory=list[bytes | memoryview])
    size_bytes: int = 0
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TimestampedOffset:
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Planned:
    range: ReadRange
    ref: FileRef


_Bytes: TypeAlias = memoryview | SiltstoneError | None


@dataclass(frozen=True, slots=True)
class Reading:
    taken: list[Taken]
    """One per want, in order."""
    release: Release
    """Frees the bytes in the budget; to be called when the answer has left."""


class Reader:
    def __init__(
        self, *, index: LogIndex, hot: BlockReader, cold: BlockReader, budget: ByteBudget, metrics: Metrics
    ) -> None:
        self._index = index
        self._hot = hot
        self._cold = cold
        self._budget = budget
        self._metrics = metrics
        self._resume = ResumePoints()

    @property
    def is_waited_for(self) -> bool:
        """Whether a fetch waits because the answers of others hold all bytes that there are for it."""
        return self._budget.is_waited_for

    async def read(self, wants: Sequence[Want], *, bytes_max: int, news: News | None = None) -> Reading:
        """Whole batches for each want, in order, `bytes_max` in all; at least one batch if there is any (KIP-74).

        Waits until the bytes planned fit the budget of all answers.
        """
        plans = self._plan(wants, bytes_max)
        planned = [each for plan in plans for each in plan]
        release = await self._budget.take(sum(each.range.length for each in planned), self._source(planned))
        try:
            data = await self._fetch(plans, news)
            answers: list[Taken] = []
            total = place = 0
            for want, plan in zip(wants, plans, strict=True):
                taken = await self._take(want, plan, data[place : place + len(plan)], bytes_max, total)
                answers.append(taken)
                place += len(plan)
                total += taken.size_bytes
        except BaseException:
            release()
            raise
        return Reading(answers, release)

    async def offset_of_timestamp(self, partition_id: int, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record in offset order whose timestamp is at or above `timestamp_ms` (Kafka's rule: by record).

        Raises ObjectStoreError, CorruptBatchError, CorruptRecordError, CodecError.
        """
        offset = 0
        while (log := self._index.partition(partition_id)) is not None:
            # By offset, not by row: rows move up when the log start does, which it may while we read.
            row = log.first_row_with_timestamp(timestamp_ms, log.row_of(offset))
            if row >= len(log):
                return None
            extent = log.at(row)
            found = await self._first_record(extent, timestamp_ms, log.start)
            if found is not None:
                return found
            offset = extent.last_offset + 1
        return None

    async def largest_timestamp(self, partition_id: int) -> TimestampedOffset | None:
        """The first record that carries the partition's largest timestamp; None when empty. Raises as above."""
        log = self._index.partition(partition_id)
        row = log.row_of_largest_timestamp() if log is not None else -1
        if log is None or row < 0:
            return None
        extent = log.at(row)
        return await self._first_record(extent, extent.max_timestamp_ms, log.start)

    # ---- bytes

    def _plan(self, wants: Sequence[Want], bytes_max: int) -> list[list[_Planned]]:
        plans: list[list[_Planned]] = []
        left = bytes_max
        for want in wants:
            ranges: list[ReadRange] = []
            # After the limit only an empty answer is left, unless nothing has been found yet at all.
            if left > 0 or not any(plans):
                resume = self._resume.get(want.partition_id, want.offset)
                limit = max(0, min(want.bytes_max, left))
                ranges = plan_partition(self._index, want.partition_id, want.offset, limit, resume)
            plans.append([_Planned(each, self._index.file(each.file_id)) for each in ranges])
            # All that is planned counts, though less may be taken: it is what the request makes us hold.
            left -= sum(each.length for each in ranges)
        return plans

    def _source(self, planned: Sequence[_Planned]) -> Source:
        farthest = Source.MEMORY
        for each in planned:
            where = (each.ref.key, each.range.position, each.range.length)
            if not self._hot.holds(*where):
                if self._is_hot(each.ref):
                    farthest = max(farthest, Source.TAIL)
                elif not self._cold.holds(*where):
                    return Source.HISTORY
        return farthest

    async def _fetch(self, plans: Sequence[Sequence[_Planned]], news: News | None) -> list[_Bytes]:
        """Bytes, error, or None for what did not come in time, in the order of the plans."""
        planned = [each for plan in plans for each in plan]
        data: list[_Bytes] = [self._cached(each) for each in planned]
        if all(view is not None for view in data):
            return data
        reads = {
            place: asyncio.create_task(self._stored(planned[place]), name=f"read {planned[place].ref.key}")
            for place, view in enumerate(data)
            if view is None
        }
        heard = asyncio.ensure_future(news()) if news is not None else None
        # Records of a partition are at hand when its first range is.
        heads = list(itertools.accumulate((len(plan) for plan in plans[:-1]), initial=0))
        heads = [place for place, plan in zip(heads, plans, strict=True) if plan]
        try:
            at_hand = any(data[place] is not None for place in heads)
            await _wait_for_store({*reads.values()}, {reads[at] for at in heads if at in reads}, heard, at_hand)
            for place, read in reads.items():
                data[place] = read.result() if read.done() else None
        finally:
            # Nobody waits any more; the GETs themselves go on and fill the cache.
            for task in (*reads.values(), *([heard] if heard is not None else [])):
                task.cancel()
        return data

    def _cached(self, planned: _Planned) -> memoryview | None:
        view = self._hot.cached(planned.ref.key, planned.range.position, planned.range.length)
        if view is None and not self._is_hot(planned.ref):
            view = self._cold.cached(planned.ref.key, planned.range.position, planned.range.length)
        if view is not None:
            self._metrics.fetch_bytes_total.labels(source="memory").inc(planned.range.length)
        return view

    async def _stored(self, planned: _Planned) -> memoryview | SiltstoneError:
        reader = self._hot if self._is_hot(planned.ref) else self._cold
        where = planned.range
        try:
            async with asyncio.timeout(STORE_WAIT_MS_MAX / 1000):
                view = await reader.read(planned.ref.key, planned.ref.size_bytes, where.position, where.length)
        except ObjectStoreError as error:
            _log.error("object not readable", key=planned.ref.key, error=str(error))
            return error
        except TimeoutError:
            _log.error("object not read in time", key=planned.ref.key, waited_ms=STORE_WAIT_MS_MAX)
            return ObjectStoreError(f"{planned.ref.key!r} was not read in {STORE_WAIT_MS_MAX:.0f} ms")
        self._metrics.fetch_bytes_total.labels(source="store").inc(where.length)
        return view

    def _is_hot(self, ref: FileRef) -> bool:
        return ref.created_ms >= self._index.newest_file_ms - HOT_MS

    # ---- batches

    async def _take(
        self,
        want: Want,
        plan: Sequence[_Planned],
        data: Sequence[_Bytes],
        bytes_max: int,
        total: int,
    ) -> Taken:
        taken = Taken()
        left = min(want.bytes_max, bytes_max - total)
        for planned, view in zip(plan, data, strict=True):
            if view is None:
                break
            try:
                if isinstance(view, SiltstoneError):
                    raise view
                if not await self._take_range(want, planned, view, taken, left, first=total == 0):
                    break
            except (ObjectStoreError, CorruptBatchError) as error:
                # What was taken before stands: the next fetch begins at the trouble and reports it.
                if not taken.buffers:
                    corrupt = isinstance(error, CorruptBatchError)
                    taken.error = ErrorCode.CORRUPT_MESSAGE if corrupt else ErrorCode.KAFKA_STORAGE_ERROR
                    _log.error("partition not readable", partition_id=want.partition_id, error=str(error))
                break
        return taken

    async def _take_range(
        self, want: Want, planned: _Planned, data: memoryview, taken: Taken, left: int, *, first: bool
    ) -> bool:
        """Take what fits from one range. True = all of it was taken, go on with the next."""
        where = planned.range
        base_offset, position = where.base_offset, where.position
        while True:
            cut: CutBatch | None = None
            for batch in batches_of(data, base_offset):
                if isinstance(batch, CutBatch):
                    cut = batch
                    break
                if batch.next_offset <= want.offset:
                    continue
                if taken.size_bytes + batch.size_bytes > left and not (first and not taken.buffers):
                    return False
                taken.buffers += stamped(data, batch)
                taken.size_bytes += batch.size_bytes
                self._remember(want.partition_id, where, batch, position)
            if cut is None:
                return position + len(data) >= where.extent_end
            if taken.buffers or not first:
                return False
            # The very first batch is larger than the range: read it whole, for it must be returned (KIP-74).
            position, base_offset = position + cut.start, cut.base_offset
            length = min(where.extent_end - position, max(cut.size_bytes, READ_BYTES_MIN))
            if length < cut.size_bytes:
                raise CorruptBatchError(f"a batch in {planned.ref.key} runs past its extent")
            again = await self._stored(
                _Planned(ReadRange(where.file_id, position, length, base_offset, where.extent_end), planned.ref)
            )
            if isinstance(again, SiltstoneError):
                raise again
            data = again

    def _remember(self, partition_id: int, where: ReadRange, batch: FoundBatch, position: int) -> None:
        end = position + batch.start + batch.size_bytes
        if end < where.extent_end:
            self._resume.put(partition_id, Resume(where.file_id, batch.next_offset, end))

    async def _first_record(self, extent: Extent, timestamp_ms: int, log_start_offset: int) -> TimestampedOffset | None:
        whole = ReadRange(
            extent.file_id, extent.position, extent.length, extent.base_offset, extent.position + extent.length
        )
        planned = _Planned(whole, self._index.file(extent.file_id))
        data = self._cached(planned)
        if data is None:
            stored = await self._stored(planned)
            if isinstance(stored, SiltstoneError):
                raise stored
            data = stored
        for batch in batches_of(data, extent.base_offset):
            if isinstance(batch, CutBatch):
                raise CorruptBatchError(f"an extent of {planned.ref.key} ends inside a batch")
            found = _record_at(
                data[batch.start : batch.start + batch.size_bytes], batch, timestamp_ms, log_start_offset
            )
            if found is not None:
                return found
        return None


async def _wait_for_store(
    reads: set[asyncio.Task[memoryview | SiltstoneError]],
    heads: set[asyncio.Task[memoryview | SiltstoneError]],
    heard: asyncio.Future[bool] | None,
    at_hand: bool,
) -> None:
    """Until all have come, or something was at hand for PATIENCE_MS: bytes of one of `heads`, or news."""
    while reads and not at_hand:
        waiting = {*reads, *([heard] if heard is not None else [])}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if heard in done:
            at_hand, heard = heard.result(), None
        at_hand = at_hand or any(isinstance(read.result(), memoryview) for read in heads if read.done())
        reads = {read for read in reads if not read.done()}
    if reads:
        await asyncio.wait(reads, timeout=PATIENCE_MS / 1000)


TIMESTAMP_ERRORS = (ObjectStoreError, CorruptBatchError, CorruptRecordError, CodecError)
"""What a look-up by timestamp may raise."""


def _record_at(
    data: memoryview, batch: FoundBatch, timestamp_ms: int, log_start_offset: int
) -> TimestampedOffset | None:
    """The first record of one batch at or above the timestamp and the log start."""
    header = read_header(data)
    if header.max_timestamp_ms < timestamp_ms or batch.next_offset <= log_start_offset:
        return None
    for record in walk(data):
        stamp = (
            header.max_timestamp_ms
            if header.is_log_append_time
            else header.base_timestamp_ms + record.timestamp_delta_ms
        )
        offset = batch.base_offset + record.offset_delta
        if stamp >= timestamp_ms and offset >= log_start_offset:
            return TimestampedOffset(offset, stamp)
    return None
