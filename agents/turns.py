"""Turns of the event loop between the parts of a large request: one client's may not be everybody's wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

PARTS_PER_TURN = 2_000
"""Takes some milliseconds; nearly every request has fewer and is answered without giving way."""

T = TypeVar("T")


async def in_turns(parts: Sequence[T], parts_per_turn: int = PARTS_PER_TURN) -> AsyncIterator[Sequence[T]]:
    """The parts in order, some at a time; others have a turn after each such some but the last."""
    if len(parts) <= parts_per_turn:
        yield parts
        return
    for first in range(0, len(parts), parts_per_turn):
        if first:
            await asyncio.sleep(0)
        yield parts[first : first + parts_per_turn]


async def one_by_one(parts: Sequence[T]) -> AsyncIterator[T]:
    """The parts in order, with turns for others as in `in_turns`. Parts of parts count for themselves: of many small
    ones in few large ones each list has its own turns, and neither can be long without one."""
    async for some in in_turns(parts):
        for part in some:
            yield part
