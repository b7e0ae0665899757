"""A hint without content. Several hints count as one, and a hint may be lost."""

from __future__ import annotations

import asyncio

from runtime.clock import Clock


class Hint:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given = asyncio.Event()

    def give(self) -> None:
        self._given.set()

    async def wait(self, timeout_ms: float) -> bool:
        """Wait at most `timeout_ms` for the hint. True when it was given since the last wait."""
        given = asyncio.ensure_future(self._given.wait())
        timer = asyncio.ensure_future(self._clock.sleep_ms(timeout_ms))
        try:
            await asyncio.wait((given, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            given.cancel()
            timer.cancel()
        # Asked of the flag, not of the tasks: both may have ended in the same turn.
        was_given = self._given.is_set()
        self._given.clear()
        return was_given
