"""The memory for the keys of all dedupes in a process: one block, lent in stretches.

A dedupe asks for as many keys as its partition has records, up to the whole block. It never sees more keys than that,
so a stretch gives the same result as the block, and small partitions share the block. Stretches are lent in the order
in which they were asked for: a dedupe that needs the whole block waits for all that came before it, and no later one
overtakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.dedupe_buffer import DedupeBuffer, bytes_of_keys

_ALIGNED_BYTES = 64
"""A line of the processor's cache: two threads never write to the same one."""

Stretch = tuple[int, int]
"""(first byte, end)."""


class KeyMemory:
    def __init__(self, keys_max: int) -> None:
        """`keys_max`: the keys of the largest buffer."""
        self.keys_max = keys_max
        self._bytes = bytes_of_keys(keys_max)
        self._block: NDArray[np.uint8] | None = None
        """Allocated by the first dedupe."""
        self._lent: list[Stretch] = []
        """In order of their places."""
        self._waiting: deque[tuple[int, asyncio.Future[Stretch]]] = deque()

    @asynccontextmanager
    async def buffer(self, records: int) -> AsyncGenerator[DedupeBuffer]:
        """A buffer for a partition of so many records, while the block runs."""
        keys = min(max(records, 1), self.keys_max)
        stretch = await self._borrowed(bytes_of_keys(keys))
        try:
            if self._block is None:
                self._block = np.empty(self._bytes, dtype=np.uint8)
            yield DedupeBuffer(keys, memory=self._block[slice(*stretch)])
        finally:
            self._give_back(stretch)

    async def _borrowed(self, size_bytes: int) -> Stretch:
        if not self._waiting:
            stretch = first_fit(self._lent, size_bytes, self._bytes)
            if stretch is not None:
                self._lend(stretch)
                return stretch
        turn: asyncio.Future[Stretch] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())  # lent at the moment of cancellation
            else:
                self._waiting.remove(entry)
                self._lend_next()
            raise

    def _lend(self, stretch: Stretch) -> None:
        self._lent.append(stretch)
        self._lent.sort()

    def _give_back(self, stretch: Stretch) -> None:
        self._lent.remove(stretch)
        self._lend_next()

    def _lend_next(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            stretch = first_fit(self._lent, size_bytes, self._bytes)
            if stretch is None:
                return
            self._waiting.popleft()
            self._lend(stretch)
            turn.set_result(stretch)


def first_fit(lent: list[Stretch], size_bytes: int, block_bytes: int) -> Stretch | None:
    """The first free stretch of this size beside those that are lent (in order); None when there is none."""
    start = 0
    for lent_start, lent_end in lent:
        if start + size_bytes <= lent_start:
            break
        start = -(-lent_end // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return (start, start + size_bytes) if start + size_bytes <= block_bytes else None
