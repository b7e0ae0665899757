"""Measures how long one request keeps the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from runtime.clock import Clock


class Meter:
    """Waits do not count: not for the store, and not for records to come."""

    __slots__ = ("_clock", "spent_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spent_ms = 0.0

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of `work`. If that is a coroutine, each of its steps will count too."""
        began_ms = self._clock.monotonic_ms()
        try:
            result = work()
        finally:
            self.spent_ms += self._clock.monotonic_ms() - began_ms
        return _Steps(result, self) if asyncio.iscoroutine(result) else result


class _Steps(Awaitable[Any]):
    def __init__(self, work: Coroutine[Any, Any, Any], meter: Meter) -> None:
        self._work, self._meter = work, meter

    def __await__(self) -> Generator[Any, Any, Any]:
        work, meter = self._work, self._meter
        step: Callable[[], Any] = partial(work.send, None)
        try:
            while True:
                try:
                    waits_for = meter.call(step)
                except StopIteration as ended:
                    return ended.value
                try:
                    yield waits_for
                except BaseException as error:
                    step = partial(work.throw, error)
                else:
                    step = partial(work.send, None)
        finally:
            work.close()
