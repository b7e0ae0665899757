"""One bound over the bytes of all Fetch answers: those being read and those that clients have not taken yet.

Without it, a few thousand small requests, or a few clients that ask for much and never read, would hold more memory
than there is. Whoever asks waits in line, first come, first served; a request larger than the whole budget gets all
of it, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Release: TypeAlias = Callable[[], None]


class ByteBudget:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.taken = 0

    async def take(self, wanted: int) -> Release:
        """Wait for `wanted` bytes. Call the result once they are free again; calling it twice frees them once."""
        wanted = min(wanted, self._bytes_max)
        if self._waiting or self.taken + wanted > self._bytes_max:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free(wanted)  # our turn came in the moment we were told to go
                raise
        else:
            self.taken += wanted
        return self._releaser(wanted)

    def _releaser(self, wanted: int) -> Release:
        held = [wanted]

        def release() -> None:
            if held:
                self._free(held.pop())

        return release

    def _free(self, count: int) -> None:
        self.taken -= count
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
                continue
            if self.taken + wanted > self._bytes_max:
                return
            self._waiting.popleft()
            self.taken += wanted
            turn.set_result(None)
