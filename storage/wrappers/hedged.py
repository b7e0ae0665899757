"""A second request for a ranged GET that is late. In the stack: right below `Retrying`, above everything that counts or
traces single requests (see `storage/wrappers/wrapper.py`).

S3 answers some requests many times later than most, and another request for the same bytes is usually fast. Objects
never change, so both answers are the same. `storage/wrappers/hedge_rule.py` says when a GET is late, and keeps second
requests to a twentieth of all. The first good answer wins; an error counts only after both requests have failed. The
loser is cancelled, and the call returns after it has ended, so that nothing of it stays behind.

`get` is not hedged: it names no size, and agents read records by ranges.
"""

from __future__ import annotations

import asyncio

from runtime.clock import Clock
from runtime.metrics import Metrics
from storage.objects import ObjectStore, check_range
from storage.wrappers.hedge_rule import HedgeRule, LatencyEstimate
from storage.wrappers.wrapper import WrappedStore


class Hedged(WrappedStore):
    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = clock
        self._rule = HedgeRule()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        estimate = self._rule.begin(length)
        began_ms = self._clock.monotonic_ms()
        if estimate.late_ms is None:
            body = await self._inner.get_range(key, start, length)
            estimate.add(self._clock.monotonic_ms() - began_ms)
            return body
        first = asyncio.create_task(self._inner.get_range(key, start, length))
        try:
            await asyncio.wait((first,), timeout=estimate.late_ms / 1000)
            if not first.done():
                if self._rule.take(length):
                    return await self._race(first, key, start, length, estimate, began_ms)
                self._count("refused")
            body = await first
            estimate.add(self._clock.monotonic_ms() - began_ms)
            return body
        finally:
            await _end(first)

    async def _race(
        self, first: asyncio.Task[bytes], key: str, start: int, length: int, estimate: LatencyEstimate, began_ms: float
    ) -> bytes:
        second = asyncio.create_task(self._inner.get_range(key, start, length))
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
            return await first
        finally:
            self._count(outcome)
            self._rule.give_back(length)
            await _end(second)

    def _count(self, outcome: str) -> None:
        self._metrics.object_hedges_total.labels(outcome=outcome).inc()


def _is_good(task: asyncio.Task[bytes]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _end(task: asyncio.Task[bytes]) -> None:
    """Cancel a request that still runs, and wait for its end. Its error, if any, is of no interest any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
