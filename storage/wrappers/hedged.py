"""A second request for a ranged GET or a PUT that is late. In the stack: right below `Retrying`, above everything that
counts or traces single requests (see `storage/wrappers/wrapper.py`).

S3 answers some requests many times later than most, and the same request sent again is usually answered fast.
`storage/wrappers/hedge_rule.py` says when a request is late, and keeps second requests to a twentieth of all. The first
good answer wins. The loser is cancelled, and the call returns after the loser has ended, so that nothing of it stays
behind.

- **GET**: objects never change, so both answers are the same. An error counts only after both requests have failed.
- **PUT**: both requests create the same object under a key of ours, and the store lets one of them. So after a second
  PUT was sent, "exists" may mean the other one. The call then ends in doubt at once, and `Retrying` settles it by
  HEAD, as it does when an answer is lost. A loser that arrives late is refused like any request for a key that exists.

`get` is not hedged: it names no size, and agents read records by ranges. Nor are the parts of multipart uploads, which
only compactors send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runtime.clock import Clock
from runtime.metrics import Metrics
from storage.objects import Body, ObjectExistsError, ObjectStore, PutInDoubtError, check_range
from storage.wrappers.hedge_rule import HedgeRule, LatencyEstimate
from storage.wrappers.wrapper import WrappedStore

T = TypeVar("T")


class Hedged(WrappedStore):
    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock) -> None:
        super().__init__(inner)
        self._gets = _Requests("get_range", metrics, clock)
        self._puts = _Requests("put", metrics, clock)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return await self._gets.send(lambda: self._inner.get_range(key, start, length), length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._puts.send(lambda: self._inner.put_if_absent(key, body, crc32c=crc32c), len(body))


class _Requests:
    """The requests of one operation."""

    def __init__(self, operation: str, metrics: Metrics, clock: Clock) -> None:
        self._operation = operation
        self._metrics = metrics
        self._clock = clock
        self._rule = HedgeRule()

    async def send(self, request: Callable[[], Awaitable[T]], size_bytes: int) -> T:
        estimate = self._rule.begin(size_bytes)
        began_ms = self._clock.monotonic_ms()
        if estimate.late_ms is None:
            answer = await request()
            estimate.add(self._clock.monotonic_ms() - began_ms)
            return answer
        first = asyncio.ensure_future(request())
        try:
            await asyncio.wait((first,), timeout=estimate.late_ms / 1000)
            if not first.done():
                if self._rule.take(size_bytes):
                    return await self._race(first, request, size_bytes, estimate, began_ms)
                self._count("refused")
            answer = await first
            estimate.add(self._clock.monotonic_ms() - began_ms)
            return answer
        finally:
            await _end(first)

    async def _race(
        self,
        first: asyncio.Future[T],
        request: Callable[[], Awaitable[T]],
        size_bytes: int,
        estimate: LatencyEstimate,
        began_ms: float,
    ) -> T:
        second = asyncio.ensure_future(request())
        outcome = "lost"
        try:
            running = {first, second}
            while running:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if _is_good(first) or _is_good(second):
                    # If `first` is given up here, its latency is unknown, but past the estimate.
                    estimate.add(self._clock.monotonic_ms() - began_ms)
                    outcome = "lost" if _is_good(first) else "won"
                    return await (first if _is_good(first) else second)
                outcome = "failed"
                _raise_doubt(first, second)
            return await first
        finally:
            self._count(outcome)
            self._rule.give_back(size_bytes)
            await _end(second)

    def _count(self, outcome: str) -> None:
        self._metrics.object_hedges_total.labels(op=self._operation, outcome=outcome).inc()


def _raise_doubt(*requests: asyncio.Future[T]) -> None:
    """Raises PutInDoubtError if a PUT was refused because of an object that the other one may have made, or if one of
    two that failed may have made it."""
    errors = [request.exception() for request in requests if request.done() and not request.cancelled()]
    for error in errors:
        if isinstance(error, ObjectExistsError):
            raise PutInDoubtError(f"{error}, and may come from one of two requests of ours") from error
        if isinstance(error, PutInDoubtError) and len(errors) == len(requests):
            raise error


def _is_good(task: asyncio.Future[T]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _end(task: asyncio.Future[T]) -> None:
    """Cancel a request that still runs, and wait for its end. Its error, if any, is of no interest any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
