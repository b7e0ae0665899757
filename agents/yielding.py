"""Turns of the event loop between the parts of a large request: one client's may not be everybody's wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

PARTS_PER_TURN = 2_000
"""Takes some milliseconds; nearly every request has fewer and is answered without giving way."""

T = TypeVar("T")


async def chunks_with_yields(parts: Sequence[T], parts_per_turn: int = PARTS_PER_TURN) -> AsyncIterator[Sequence[T]]:
    """The parts in order, some at a time; others have a turn after each such some but the last."""
    if len(parts) <= parts_per_turn:
        yield parts
        return
    for first in range(0, len(parts), parts_per_turn):
        if first:
            await asyncio.sleep(0)
        yield parts[first : first + parts_per_turn]


class LoopYielder:
    """One request's parts, one by one, where they are lists within lists: all of them count for the next turn."""

    def __init__(self) -> None:
        self._left = PARTS_PER_TURN

    async def through(self, parts: Sequence[T]) -> AsyncIterator[T]:
        for part in parts:
            if not self._left:
                self._left = PARTS_PER_TURN
                await asyncio.sleep(0)
            self._left -= 1
            yield part
