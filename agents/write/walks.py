"""Walks over the records of produced batches that are too long for a turn of the event loop: on threads, in order.

The libraries that decompress release the interpreter's lock. The walk over records is Python and keeps it, so it pauses
all the time. What all connections together may cause at a time is bounded by the number of threads: each holds one
decompressed batch, and up to twice as much that it is joined from. Requests share the threads a few batches at a time,
in the order in which they ask.

The requests of one connection must not overtake one another: while one is here, its connection begins no other
(`ProduceLine`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from agents.write.validation import Refusal, Unwalked
from agents.write.walking import WalkBudget, judge
from wire.batch import BatchHeader

THREADS = 2
WAITING_BYTES_MAX = 64 << 20
"""Bytes of the requests that are here; one more is refused above it, with an error after which clients try again."""
JOB_UNFOLDED_BYTES = 4 << 20
JOB_FIELDS = 10_000
JOB_BATCHES = 100
"""A thread turns to the next request after about as much work for one, but never within a batch."""
PAUSE_S = 0.002
"""Each thread walks for 1 or 2 ms in between. So the event loop has a good part of the interpreter's time even if all
of them walk."""

Verdict = BatchHeader | Refusal
T = TypeVar("T")


class RecordWalks:
    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="record-walk")
        self._bytes = 0
        self._under_way: set[asyncio.Task[Any]] = set()

    def begin(self, unwalked: Sequence[Unwalked], request_bytes: int) -> asyncio.Task[list[Verdict]] | None:
        """Find the verdicts, in order. None: there is no room for this request now."""
        return self.take(partial(self._verdicts, unwalked), request_bytes)

    def take(self, work: Callable[[], Coroutine[Any, Any, T]], request_bytes: int) -> asyncio.Task[T] | None:
        """Begin work for a request that takes several turns of the loop. None: there is no room for it now."""
        # A first request is always taken, or one above the bound could never be.
        if self._bytes and self._bytes + request_bytes > WAITING_BYTES_MAX:
            return None
        return self._begin(work(), request_bytes)

    def hand_over(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The end of what was begun here. It goes on when its client leaves, and `idle` waits for it too."""
        return self._begin(work, 0)

    async def idle(self) -> None:
        """Wait until every walk that was begun has ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def close(self) -> None:
        """A walk under way goes on to the end of its batch; nobody waits for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, work: Coroutine[Any, Any, T], request_bytes: int) -> asyncio.Task[T]:
        self._bytes += request_bytes
        task = asyncio.create_task(work, name="record walk")
        self._under_way.add(task)
        # Not at the end of the coroutine: one that is cancelled before it began has none.
        task.add_done_callback(partial(self._ended, request_bytes))
        return task

    async def _verdicts(self, unwalked: Sequence[Unwalked]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        budget = WalkBudget.of_request()
        loop = asyncio.get_running_loop()
        while len(verdicts) < len(unwalked):
            rest = unwalked[len(verdicts) : len(verdicts) + JOB_BATCHES]
            verdicts += await loop.run_in_executor(self._pool, judge_some, rest, budget, _pause)
        return verdicts

    def _ended(self, request_bytes: int, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        self._bytes -= request_bytes


def judge_some(unwalked: Sequence[Unwalked], budget: WalkBudget, pause: Callable[[], None]) -> list[Verdict]:
    """The verdicts on the first batches, at least on one."""
    verdicts: list[Verdict] = []
    bytes_stop, fields_stop = budget.unfolding.bytes_left - JOB_UNFOLDED_BYTES, budget.fields_left - JOB_FIELDS
    for each in unwalked:
        verdicts.append(judge(each, budget, pause))
        if budget.unfolding.bytes_left <= bytes_stop or budget.fields_left <= fields_stop:
            break
    return verdicts


def _pause() -> None:
    time.sleep(PAUSE_S)


def _nothing() -> None:
    pass


class ProduceLine:
    """The Produce requests of one connection that wait for a walk, or behind one that does."""

    __slots__ = ("_last", "on_empty")

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None
        self.on_empty: Callable[[], None] = _nothing
        """The connection may begin requests again."""

    @property
    def is_empty(self) -> bool:
        return self._last is None

    def join(self) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
        """(done when the request may go on, its own place for `leave`); None if it is the first."""
        before, self._last = self._last, asyncio.get_running_loop().create_future()
        return before, self._last

    def leave(self, place: asyncio.Future[None]) -> None:
        place.set_result(None)
        if self._last is place:
            self._last = None
            self.on_empty()
