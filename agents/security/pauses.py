"""Notices that this process did not run for a while: it was stopped, or its machine was.

Others may have taken it for dead meanwhile, and changes of users and ACLs do not wait for the dead. Timers and sockets
wake up in any order, so the first request after a pause could be judged by what was known before it. Therefore no
request begins until the store was asked again. If it does not answer, what is known stands, as at any other time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from metadata.contract.leases import BEAT_MS, LEASE_MS
from runtime.logging import get_logger

_log = get_logger(__name__)

PAUSE_MS = (LEASE_MS - BEAT_MS) / 2
"""Shorter than what is left of a lease in the middle of two beats, longer than the loop is ever busy."""


class Pauses:
    def __init__(self, catch_up: Callable[[], Awaitable[None]], on_over: Callable[[], None], now_ms: float) -> None:
        """`catch_up` returns, or raises, when the store was asked again. `on_over`: requests may begin."""
        self._catch_up = catch_up
        self._on_over = on_over
        self._ran_ms = now_ms
        self._asking: asyncio.Task[None] | None = None
        self.is_behind = False
        """No request may begin."""

    def runs(self, now_ms: float) -> None:
        """The process runs now. Call it before anything else is done with what a client sent, and more often than
        every PAUSE_MS."""
        paused_ms, self._ran_ms = now_ms - self._ran_ms, now_ms
        if paused_ms < PAUSE_MS:
            return
        if self._asking is not None:
            # It was asked before this pause.
            self._asking.cancel()
        self.is_behind = True
        self._asking = asyncio.create_task(self._ask(), name="after a pause")

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        try:
            await self._catch_up()
        except Exception as error:
            _log.warning("the process was paused, and the store is away: requests go on", error=str(error))
        self.is_behind = False
        self._on_over()
