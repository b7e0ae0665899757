"""The read path's shell: plan -> bytes from memory or the store -> whole batches with their offsets.

Unknown places in merged files are looked up first, for all partitions of a request at the same time. Then all ranges
that are not in memory are fetched at the same time, and taken in the request's order. A partition whose look-up or read
fails answers with its own error; the others go on. Records at hand do not wait long for others: a partition that is not
there in time gets no records in this answer. Its look-up or read goes on, and the next fetch finds it.

If a file is gone (404), it was merged after the plan was made and its grace is over. The reader forgets the look-ups
that led to it, looks again and plans again, a few times. Consumers that read on are read ahead for (`ahead.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from agents.read.ahead import AHEAD_BYTES, AHEAD_RANGES_MAX, ReadAhead
from agents.read.budget import ByteBudget, Release, Source
from agents.read.locate import Found, Locator
from agents.read.pieces import Pieces, Pins
from agents.read.plan import (
    READ_BYTES_MIN,
    CutBatch,
    FoundBatch,
    PartitionPlan,
    ReadRange,
    Resume,
    ResumePoints,
    batches_of,
    plan_partition,
)
from agents.read.pools import Pools
from agents.read.wait_bound import News, WaitBound
from agents.tail.transactions import Aborted
from agents.yielding import TurnCounter
from metadata.contract.errors import MetadataUnavailableError
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.tracing import CURRENT_SPAN
from storage.objects import ObjectNotFoundError, ObjectStoreError
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, stamp_offset
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

PLANS_MAX = 3
"""Tries per request: a file may be gone each time."""


@dataclass(frozen=True, slots=True)
class Want:
    partition_id: int
    offset: int
    bytes_max: int
    committed_only: bool = False
    """Nothing at or above the last stable offset; the answer names the aborted transactions in it."""


@dataclass(slots=True)
class Taken:
    """One partition's share of the answer."""

    buffers: list[bytes | memoryview] = field(default_factory=list[bytes | memoryview])
    size_bytes: int = 0
    error: ErrorCode = ErrorCode.NONE
    gone: ReadRange | None = None
    """Its object does not exist, and nothing was taken before it."""
    last: ReadRange | None = None
    """Where the last batch was taken from."""
    next_offset: int = -1
    """The place after the last batch, and where in its object that batch ended."""
    position: int = -1
    aborted: Sequence[Aborted] = ()
    """With `committed_only`: the aborted transactions that may have records in the answer, by first offset."""
    _run: tuple[Pieces, int, int, int] | None = None
    """The place of the last buffers and their number, if the next batch may follow them without a seam."""

    def add(self, where: ReadRange, data: Pieces, batch: FoundBatch) -> None:
        end = batch.start + batch.size_bytes
        self.size_bytes += batch.size_bytes
        self.last, self.next_offset, self.position = where, batch.next_offset, where.position + end
        if not where.carries_offsets:
            header, at = data.contiguous(batch.start, BATCH_HEADER_BYTES)
            stamp = stamp_offset(header[at:], batch.base_offset)
            self.buffers.append(stamp)
            self.buffers += data.cut(batch.start + len(stamp), end)
            return
        start = batch.start
        if self._run is not None and self._run[0] is data and self._run[2] == start:
            start = self._run[1]
            del self.buffers[-self._run[3] :]
        views = data.cut(start, end)
        self.buffers += views
        self._run = (data, start, end, len(views))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the partitions of one answer share while their batches are taken."""

    pins: Pins
    turn: TurnCounter = field(default_factory=TurnCounter)
    """Small batches by the ten thousand must not hold up the event loop."""


@dataclass(frozen=True, slots=True)
class Reading:
    taken: list[Taken]
    """One per want, in order."""
    release: Release
    """Frees the bytes in the budget; call it when the answer has left."""


_Bytes: TypeAlias = Pieces | SiltstoneError | None


class Reader:
    def __init__(self, *, locator: Locator, pools: Pools, ahead: ReadAhead, budget: ByteBudget) -> None:
        self._locator = locator
        self._pools = pools
        self._ahead = ahead
        self._budget = budget
        self._resume = ResumePoints()
        self._looking: set[asyncio.Task[None]] = set()

    @property
    def is_waited_for(self) -> bool:
        """A fetch waits because other answers hold all the bytes of the budget."""
        return self._budget.is_waited_for

    async def read(self, wants: Sequence[Want], *, bytes_max: int, news: News | None = None) -> Reading:
        """Whole batches for each want, in order, `bytes_max` in all; at least one batch if there is any (KIP-74).

        Waits until the planned bytes fit the budget of all answers.
        """
        found = self._locator.begin()
        wait_bound = WaitBound(news)
        try:
            # The last try is not looked at again: its errors are the answer.
            for _ in range(PLANS_MAX - 1):
                reading = await self._read(found, wants, bytes_max, wait_bound)
                try:
                    plan_again = await self._look_again(found, wants, reading, wait_bound)
                except BaseException:
                    reading.release()  # the client went away: nobody else knows these bytes
                    raise
                if not plan_again:
                    return reading
                reading.release()
            return await self._read(found, wants, bytes_max, wait_bound)
        finally:
            wait_bound.close()

    async def close(self) -> None:
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    async def _read(self, found: Found, wants: Sequence[Want], bytes_max: int, wait_bound: WaitBound) -> Reading:
        request = CURRENT_SPAN.get()
        locating = request.child("locate") if request is not None else None
        plans, errors = await self._located(found, wants, bytes_max, wait_bound)
        if locating is not None:
            locating.end()
        for plan in plans:
            if plan.missing is not None:
                plan.ranges.clear()  # its missing facts did not come in time
        ranges = [each for plan in plans for each in plan.ranges]
        source = self._pools.source(ranges)
        free = await self._budget.take(sum(each.length for each in ranges), source)
        answer = _Answer(pins=[])
        release = partial(_release, free, answer.pins)
        try:
            if source is Source.HISTORY:
                self._begin_ahead(found, wants, plans)
            getting = request.child("cache") if request is not None else None
            data = await self._fetch(plans, wait_bound)
            if getting is not None:
                getting.set({"siltstone.ranges": len(ranges), "siltstone.ranges.from": source.name.lower()})
                getting.end()
            answers: list[Taken] = []
            total = place = 0
            for number, (want, plan) in enumerate(zip(wants, plans, strict=True)):
                taken = Taken(error=errors.get(number, ErrorCode.NONE))
                if taken.error is ErrorCode.NONE:
                    views = data[place : place + len(plan.ranges)]
                    # `total`: the first batch of the whole answer may exceed every limit, no other batch may.
                    await self._take(want, plan, views, taken, answer, bytes_max - total, first=total == 0)
                    self._go_on(found, want, plan, taken)
                    if taken.buffers and want.committed_only:
                        taken.aborted = plan.aborted_below(taken.next_offset)
                answers.append(taken)
                place += len(plan.ranges)
                total += taken.size_bytes
        except BaseException:
            release()
            raise
        return Reading(answers, release)

    # ---- where

    async def _located(
        self, found: Found, wants: Sequence[Want], bytes_max: int, wait_bound: WaitBound
    ) -> tuple[list[PartitionPlan], dict[int, ErrorCode]]:
        """Plans, after everything that the first of them need was looked up; and, by number, the errors of wants that
        cannot be read."""
        errors: dict[int, ErrorCode] = {}
        given_up: set[int] = set()
        plans = self._plan(found, wants, bytes_max)
        # A guard against going round for ever: each round finds or gives up what was missing in the one before.
        for _ in range(len(wants) + PLANS_MAX):
            missing = [number for number, plan in enumerate(plans) if plan.missing and number not in given_up]
            if not missing:
                break
            ended = await self._locate(found, wants, plans, missing, wait_bound)
            errors |= ended
            given_up.update(number for number in missing if ended.get(number) is not ErrorCode.NONE)
            plans = self._plan(found, wants, bytes_max, given_up)
            # Enough for an answer: what else is missing is looked up for the next fetch.
            if any(plan.holds_some for plan in plans):
                break
        return plans, errors

    def _plan(
        self, found: Found, wants: Sequence[Want], bytes_max: int, given_up: Container[int] = ()
    ) -> list[PartitionPlan]:
        """`given_up`: wants whose look-up failed or is late; their records do not come in this answer."""
        plans: list[PartitionPlan] = []
        left, holds_some = bytes_max, False
        look_up_left = max(bytes_max, 1)
        for number, want in enumerate(wants):
            plan = PartitionPlan(end=0)
            # Above the limit the rest of the answer is empty, unless nothing was found so far.
            if left > 0 or not holds_some:
                limit = max(0, min(want.bytes_max, left))
                plan = plan_partition(
                    found,
                    want.partition_id,
                    want.offset,
                    limit,
                    self._resume_of(want),
                    committed_only=want.committed_only,
                )
            if plan.missing is None:
                # All planned bytes count, though fewer may be taken: they are what the request makes us hold.
                left -= plan.bytes
                holds_some = holds_some or plan.holds_some
            elif number not in given_up:
                # Look up no more than the answer can hold; wants that are already known come first.
                if look_up_left <= 0:
                    plan = PartitionPlan(end=0)
                look_up_left -= max(want.bytes_max, 1)
            plans.append(plan)
        return plans

    def _resume_of(self, want: Want) -> Resume | None:
        return self._resume.get(want.partition_id, want.offset)

    async def _locate(
        self,
        found: Found,
        wants: Sequence[Want],
        plans: Sequence[PartitionPlan],
        missing: Sequence[int],
        wait_bound: WaitBound,
    ) -> dict[int, ErrorCode]:
        """Find the missing facts for the plans of these wants. Returns the outcome by want; late ones are left out."""
        tasks = {
            number: asyncio.create_task(
                self._locator.locate(
                    found,
                    want.partition_id,
                    want.offset,
                    max(0, want.bytes_max),
                    self._resume_of(want),
                    committed_only=want.committed_only,
                ),
                name=f"locate {want.partition_id}:{want.offset}",
            )
            for number, want in ((number, wants[number]) for number in missing)
        }
        heads = [plan.ranges[0] for plan in plans if plan.missing is None and plan.ranges]
        try:
            await wait_bound.wait(
                tasks.values(),
                at_hand=any(self._pools.holds(head) for head in heads),
                puts_at_hand=lambda task: task.result() is ErrorCode.NONE,
            )
        finally:
            for task in tasks.values():
                task.cancel()  # its look-up goes on, for the next fetch
        return {number: task.result() for number, task in tasks.items() if task.done() and not task.cancelled()}

    async def _look_again(self, found: Found, wants: Sequence[Want], reading: Reading, wait_bound: WaitBound) -> bool:
        """Returns True if objects were gone and the request should be planned again. With records at hand it should
        not."""
        gone = [
            (want.partition_id, taken.gone)
            for want, taken in zip(wants, reading.taken, strict=True)
            if taken.gone is not None
        ]
        if not gone:
            return False
        task = asyncio.create_task(self._forget(found, gone), name="look again")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)
        # Records at hand are not held back for a partition that has to be looked for again.
        if any(taken.buffers for taken in reading.taken):
            for taken in reading.taken:
                if taken.gone is not None:
                    taken.error = ErrorCode.NONE  # the client asks again, and finds it
            return False
        await wait_bound.wait([task], at_hand=False, puts_at_hand=lambda _: True)
        return task.done()

    async def _forget(self, found: Found, gone: Sequence[tuple[int, ReadRange]]) -> None:
        for partition_id, where in gone:
            _log.info("a file is gone, looking again", key=where.key, partition_id=partition_id)
            try:
                await self._locator.look_again(found, partition_id, where)
            except MetadataUnavailableError as error:
                _log.warning("not looked up", partition_id=partition_id, error=str(error))

    # ---- bytes

    async def _fetch(self, plans: Sequence[PartitionPlan], wait_bound: WaitBound) -> list[_Bytes]:
        """Bytes, an error, or None if they did not come in time, in the order of the plans."""
        ranges = [each for plan in plans for each in plan.ranges]
        data: list[_Bytes] = [self._pools.cached(each) for each in ranges]
        self._pools.start([where for where, found in zip(ranges, data, strict=True) if found is None])
        reads = {
            place: asyncio.create_task(self._stored(ranges[place]), name=f"read {ranges[place].key}")
            for place, found in enumerate(data)
            if found is None
        }
        if not reads:
            return data
        # Records of a partition are at hand when its first range is.
        firsts = itertools.accumulate((len(plan.ranges) for plan in plans[:-1]), initial=0)
        heads = [place for place, plan in zip(firsts, plans, strict=True) if plan.ranges]
        head_reads = {reads[place] for place in heads if place in reads}
        try:
            await wait_bound.wait(
                reads.values(),
                at_hand=any(data[place] is not None for place in heads),
                puts_at_hand=lambda read: read in head_reads and isinstance(read.result(), Pieces),
            )
            for place, read in reads.items():
                data[place] = read.result() if read.done() else None
        finally:
            # No request waits any more; the GETs themselves go on and fill the cache.
            for task in reads.values():
                task.cancel()
        return data

    async def _stored(self, where: ReadRange) -> Pieces | SiltstoneError:
        try:
            return await self._pools.stored(where)
        except ObjectStoreError as error:
            return error

    # ---- batches

    async def _take(
        self,
        want: Want,
        plan: PartitionPlan,
        data: Sequence[_Bytes],
        taken: Taken,
        answer: _Answer,
        left: int,
        *,
        first: bool,
    ) -> None:
        left = min(want.bytes_max, left)
        where: ReadRange | None = None
        try:
            for where, found in zip(plan.ranges, data, strict=True):
                if found is None:
                    break
                if isinstance(found, SiltstoneError):
                    raise found
                if not await self._take_range(plan, where, found, taken, answer, left, first=first):
                    break
            else:
                if plan.flagged is not None:
                    raise CorruptBatchError(
                        f"{plan.flagged.key} holds offsets {plan.flagged.base_offset} to {plan.flagged.last_offset} in "
                        f"bytes that are damaged: {plan.flagged.flagged_reason}"
                    )
        except (ObjectStoreError, CorruptBatchError) as error:
            # Batches taken before stay in the answer: the next fetch begins at the trouble and reports it.
            if not taken.buffers:
                corrupt = isinstance(error, CorruptBatchError)
                taken.error = ErrorCode.CORRUPT_MESSAGE if corrupt else ErrorCode.KAFKA_STORAGE_ERROR
                taken.gone = where if isinstance(error, ObjectNotFoundError) else None
                say = _log.info if taken.gone is not None else _log.error  # as a rule the next plan finds it
                say("partition not readable", partition_id=want.partition_id, error=str(error))

    async def _take_range(
        self,
        plan: PartitionPlan,
        where: ReadRange,
        data: Pieces,
        taken: Taken,
        answer: _Answer,
        left: int,
        *,
        first: bool,
    ) -> bool:
        """Take what fits from one range. True = all of it was taken, go on with the next."""
        while True:
            data = data.kept(answer.pins)
            cut: CutBatch | None = None
            for batch in batches_of(data, where):
                if isinstance(batch, CutBatch):
                    cut = batch
                    break
                if answer.turn.is_over():
                    await asyncio.sleep(0)
                if batch.next_offset <= where.from_offset:
                    continue
                fits = taken.size_bytes + batch.size_bytes <= left or (first and not taken.buffers)
                # A merged file may know more of the log than the high watermark of this answer; and the last stable
                # offset may lie inside an extent.
                if not fits or batch.next_offset > plan.end:
                    return False
                taken.add(where, data, batch)
            if cut is None:
                return where.position + len(data) >= where.extent_end
            if taken.buffers or not first:
                return False
            # The very first batch is larger than the range. Read it whole, because it must be returned (KIP-74).
            position = where.position + cut.start
            length = min(where.extent_end - position, max(cut.size_bytes, READ_BYTES_MIN))
            if length < cut.size_bytes:
                raise CorruptBatchError(f"a batch in {where.key} runs past its extent")
            where = replace(where, position=position, length=length, base_offset=cut.base_offset)
            data = await self._pools.stored(where)

    def _begin_ahead(self, found: Found, wants: Sequence[Want], plans: Sequence[PartitionPlan]) -> None:
        """Reads for consumers that read on become the head of a whole GET."""
        for want, plan in zip(wants, plans, strict=True):
            asked = [each for each in plan.ranges if self._pools.is_history(each)]
            before = self._resume_of(want)
            if before is None and not self._locator.is_log_start(want.partition_id, want.offset):
                continue
            if not self._ahead.is_coming(asked):
                self._read_ahead(found, want.partition_id, want.offset, before, asked)

    def _go_on(self, found: Found, want: Want, plan: PartitionPlan, taken: Taken) -> None:
        """Remember where the answer ended, and read ahead for a consumer that continued from the answer before."""
        last = taken.last
        if last is None:
            return
        before = self._resume_of(want)
        point = Resume(last.file_id, taken.next_offset, taken.position, before.reads + 1 if before is not None else 1)
        # Kept under the next offset: whichever connection asks for that offset goes on from here.
        self._resume.put(want.partition_id, point)
        for where in plan.ranges:
            is_last = where.file_id == last.file_id and where.extent_start == last.extent_start
            self._ahead.passed(where, taken.position if is_last else where.extent_end)
            if is_last:
                break
        if point.reads > 1 and not self._pools.is_hot(last):
            self._read_ahead(found, want.partition_id, point.offset, point)

    def _read_ahead(
        self, found: Found, partition_id: int, offset: int, resume: Resume | None, asked: Sequence[ReadRange] = ()
    ) -> None:
        to_come = plan_partition(found, partition_id, offset, AHEAD_BYTES, resume, ranges_max=AHEAD_RANGES_MAX)
        cold = [each for each in to_come.ranges if self._pools.is_history(each)]
        self._ahead.go_on(partition_id, cold, asked=asked)


def _release(free: Release, pins: Pins) -> None:
    """The answer has left: its bytes and the bodies that held them."""
    free()
    while pins:
        cache, body = pins.pop()
        cache.unpin(body)
