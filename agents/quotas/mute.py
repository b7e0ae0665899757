"""The time that a connection is not read, because its client is over a quota (KIP-219)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context

from runtime.clock import Clock


class Mute:
    """The wait of one connection. No request begins while it is `on`; answers leave all the same."""

    __slots__ = ("__weakref__", "_clock", "_is_over", "_timer", "_until_ms", "on", "on_end")

    def __init__(self) -> None:
        self.on = False
        self.on_end: Callable[[], None] = _nobody
        self._until_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._clock: Clock | None = None
        self._is_over = False

    def hold(self, wait_ms: float, clock: Clock) -> None:
        """From now on, for that long at least."""
        if self._is_over:
            return
        self._clock = clock
        self._until_ms = max(self._until_ms, clock.monotonic_ms() + wait_ms)
        self.on = True
        if self._timer is None:
            self._wait(wait_ms)

    def shorten(self, wait_ms: float) -> None:
        """From now on, for that long at the most."""
        if wait_ms <= 0:
            self.end()
        elif self._clock is not None and wait_ms < self.left_ms():
            self._drop_timer()
            self._until_ms = self._clock.monotonic_ms() + wait_ms
            self._wait(wait_ms)

    def left_ms(self) -> int:
        """The time that clients are told as `throttle_time_ms`."""
        if self._clock is None or not self.on:
            return 0
        return max(0, math.ceil(self._until_ms - self._clock.monotonic_ms()))

    def end(self) -> None:
        """The client may go on."""
        self._drop_timer()
        self._until_ms = 0.0
        if self.on:
            self.on = False
            self.on_end()

    def close(self) -> None:
        """Its connection is gone."""
        self._is_over, self.on = True, False
        self._drop_timer()

    def _wait(self, wait_ms: float) -> None:
        # In a context of its own: a timer keeps its context, and with it the request.
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring, context=Context())

    def _ring(self) -> None:
        self._timer = None
        # It may have been made longer meanwhile.
        left_ms = self.left_ms()
        if left_ms > 0:
            self._wait(left_ms)
        else:
            self.end()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nobody() -> None:
    """Nobody waits for the end."""
