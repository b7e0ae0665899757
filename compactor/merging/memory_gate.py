"""A bound on the memory of the merges that run at once in one process.

A merge waits here before it reads anything. Merges enter in the order in which they came, so small ones cannot overtake
a large one for ever. A merge that needs more than the whole bound runs alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from runtime.errors import SiltstoneError

WAITS_FOR_MEMORY = "waiting for memory"
"""The step that a merge reports until its turn comes."""


class TurnGivenUpError(SiltstoneError):
    """The merge was halted while it waited for memory. It holds no memory."""


class MemoryGate:
    def __init__(self, bytes_max: int, *, on_change: Callable[[float], None] = lambda _: None) -> None:
        self._bytes_max = bytes_max
        self._on_change = on_change
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held_bytes = 0

    @asynccontextmanager
    async def held(self, size_bytes: int, *, halted: asyncio.Event | None = None) -> AsyncGenerator[None]:
        """Waits until `size_bytes` are free, and holds them while the block runs.

        Raises TurnGivenUpError when `halted` is set during the wait.
        """
        # A merge larger than the bound counts as the whole bound, or it would wait for ever.
        size_bytes = min(size_bytes, self._bytes_max)
        # Behind others that wait even if it would fit: nobody overtakes.
        if self._waiting or self.held_bytes + size_bytes > self._bytes_max:
            await self._wait(size_bytes, halted or asyncio.Event())
        else:
            self._hold(size_bytes)
        try:
            yield
        finally:
            self._hold(-size_bytes)
            self._admit()

    async def _wait(self, size_bytes: int, halted: asyncio.Event) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
        halting = asyncio.ensure_future(halted.wait())
        try:
            # `wait` does not cancel these futures when this task is cancelled: only `_admit` may end the turn.
            await asyncio.wait({turn, halting}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise TurnGivenUpError("the merge was halted while it waited for memory")
        except BaseException:
            if turn.done():
                self._hold(-size_bytes)  # the turn came at the moment of cancellation
            else:
                self._waiting.remove(entry)
            self._admit()
            raise
        finally:
            halting.cancel()

    def _admit(self) -> None:
        while self._waiting and self.held_bytes + self._waiting[0][0] <= self._bytes_max:
            size_bytes, turn = self._waiting.popleft()
            self._hold(size_bytes)
            turn.set_result(None)

    def _hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._on_change(self.held_bytes)
