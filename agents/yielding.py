"""Chunks of a large request, with turns of the event loop between them, so that one client does not block others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

PARTS_PER_TURN = 2_000
"""Takes some milliseconds. Nearly every request has fewer parts and is answered without yielding."""

LOAD_SLICE = 5_000
"""Partitions that a follower takes in between two turns of the event loop: some 10 ms."""

T = TypeVar("T")


async def chunks_with_yields(parts: Sequence[T], parts_per_turn: int = PARTS_PER_TURN) -> AsyncIterator[Sequence[T]]:
    """The parts in order, in chunks; the event loop gets a turn between two chunks."""
    if len(parts) <= parts_per_turn:
        yield parts
        return
    for first in range(0, len(parts), parts_per_turn):
        if first:
            await asyncio.sleep(0)
        yield parts[first : first + parts_per_turn]


class LoopYielder:
    """Yields to the event loop while nested lists of one request are walked; the parts of all lists count together."""

    def __init__(self, parts_per_turn: int = PARTS_PER_TURN) -> None:
        self._parts_per_turn = self._left = parts_per_turn

    async def through(self, parts: Iterable[T]) -> AsyncIterator[T]:
        for part in parts:
            if not self._left:
                self._left = self._parts_per_turn
                await asyncio.sleep(0)
            self._left -= 1
            yield part


class TurnCounter:
    """Counts the parts of one request, for loops that are no sequence, and says when the event loop gets a turn."""

    def __init__(self) -> None:
        self._left = PARTS_PER_TURN

    def is_over(self) -> bool:
        """Call it once for each part; if True, yield."""
        self._left -= 1
        if self._left:
            return False
        self._left = PARTS_PER_TURN
        return True


class Slices:
    """Gives the event loop a turn after every LOAD_SLICE parts of a long piece of work."""

    def __init__(self) -> None:
        self._parts = 0

    async def took(self, parts: int) -> None:
        self._parts += parts
        if self._parts >= LOAD_SLICE:
            self._parts = 0
            await asyncio.sleep(0)
