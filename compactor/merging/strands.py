"""Partitions of one merge side by side, and the order in which they write.

Each strand takes the next partition in merge order, reads and cleans it, and waits for the partition's turn before it
writes. So files, extents and their order are those of one strand. While one partition writes, the others scan: a scan
takes longer than a rewrite, so a strand seldom waits for long.

The first partition in merge order that is not done holds the turn, and never waits for a later one. So whatever the
partitions share (`compactor/merging/room.py`) must be given out in merge order, or they could wait for each other.

The first error ends all strands. `side_by_side` returns when their last kernel call has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

STRANDS_MAX = 4
"""Strands beyond this would take memory that the read-ahead needs."""

T = TypeVar("T")
R = TypeVar("R")


def strands_here() -> int:
    """A strand for each processor core that this process may use, up to STRANDS_MAX."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, STRANDS_MAX)


class Turns:
    """Partitions write one after the other, by their numbers from 0 on."""

    def __init__(self) -> None:
        self._now = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def of(self, number: int) -> Turn:
        return Turn(self, number)

    def has_come(self, number: int) -> bool:
        return number <= self._now

    async def come(self, number: int) -> None:
        if number > self._now:
            turn = self._waiting[number] = asyncio.get_running_loop().create_future()
            await turn

    def over(self) -> None:
        self._now += 1
        turn = self._waiting.pop(self._now, None)
        if turn is not None and not turn.done():
            turn.set_result(None)


class Turn:
    """The turn of one partition."""

    def __init__(self, turns: Turns, number: int) -> None:
        self._turns = turns
        self._number = number

    def has_come(self) -> bool:
        return self._turns.has_come(self._number)

    async def come(self) -> None:
        """Waits until all earlier partitions are over."""
        await self._turns.come(self._number)

    async def over(self) -> None:
        """Waits for the turn and ends it: the next partition may write."""
        await self.come()
        self._turns.over()


async def side_by_side(items: Sequence[T], work: Callable[[T, Turn], Awaitable[R]], *, strands: int) -> list[R]:
    """The results of `work` on all items, in their order; up to `strands` run at once. `work` may wait for its turn.

    Raises the first error; all other strands have ended by then.
    """
    turns, results = Turns(), dict[int, R]()
    numbered = enumerate(items)

    async def strand() -> None:
        # All strands share the iterator, so each partition is begun once, in order.
        for number, item in numbered:
            turn = turns.of(number)
            results[number] = await work(item, turn)
            await turn.over()

    if min(strands, len(items)) < 2:
        await strand()
    else:
        await _all_of([strand() for _ in range(min(strands, len(items)))])
    return [results[number] for number in range(len(items))]


async def _all_of(strands: Sequence[Awaitable[None]]) -> None:
    running = [asyncio.ensure_future(each) for each in strands]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        # Strands are in order, and `done` is a set: two errors at the same moment always give the same one.
        for each in running:
            if each in done:
                each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
