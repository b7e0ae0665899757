"""One bound over the bytes of all Fetch answers: those being read and those that clients have not taken yet.

Without it, a few thousand small requests, or a few clients that ask for much and never read, would hold more memory
than there is. Requests wait in line, first come, first served. A request larger than its share gets all of the share,
alone.

Answers that need the store may take no more than a share, because otherwise reads that wait for a slow or dead store
would keep the budget from reads that do not need it. Old records may take half of all bytes, the tail together with old
records three quarters, and bytes in memory everything. A request that waits for such a share holds up only others of
its kind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import TypeAlias

Release: TypeAlias = Callable[[], None]


class Source(IntEnum):
    """Where the bytes of an answer are; the farthest place counts."""

    MEMORY = 0
    TAIL = 1
    HISTORY = 2


_QUARTERS = (4, 3, 2)
"""The bytes that a source and all farther ones may take together."""


@dataclass(slots=True)
class _Turn:
    number: int
    source: Source
    wanted: int
    given: asyncio.Future[None]


class ByteBudget:
    def __init__(self, bytes_max: int) -> None:
        self._limits = [bytes_max * quarters // 4 for quarters in _QUARTERS]
        self._taken = [0] * len(Source)
        self._waiting: list[deque[_Turn]] = [deque() for _ in Source]
        self._numbers = count()

    @property
    def taken(self) -> int:
        return sum(self._taken)

    @property
    def is_waited_for(self) -> bool:
        """A request waits for bytes that others hold."""
        return any(not turn.given.done() for line in self._waiting for turn in line)

    async def take(self, wanted: int, source: Source = Source.MEMORY) -> Release:
        """Wait for `wanted` bytes. Call the result once they are free again; a second call does nothing."""
        wanted = min(wanted, self._limits[source])
        # If anybody waits, the line decides, so that a small request does not overtake for ever.
        if not any(self._waiting) and self._full_share(source, wanted) is None:
            self._taken[source] += wanted
            return self._releaser(source, wanted)
        turn = _Turn(next(self._numbers), source, wanted, asyncio.get_running_loop().create_future())
        self._waiting[source].append(turn)
        self._give_turns()
        try:
            await turn.given
        except asyncio.CancelledError:
            if turn.given.done() and not turn.given.cancelled():
                self._free(source, wanted)  # our turn came at the moment of the cancellation
            else:
                self._give_turns()  # requests behind us need not wait for our bytes
            raise
        return self._releaser(source, wanted)

    def _full_share(self, source: Source, wanted: int) -> Source | None:
        """The farthest share that `wanted` more bytes would overrun."""
        # The farthest first: a request that waits for a narrow share must not hold up those that do not need it.
        for share in range(source, -1, -1):
            if sum(self._taken[share:]) + wanted > self._limits[share]:
                return Source(share)
        return None

    def _releaser(self, source: Source, wanted: int) -> Release:
        held = [wanted]

        def release() -> None:
            # Both the connection and its end may call this.
            if held:
                self._free(source, held.pop())

        return release

    def _free(self, source: Source, count: int) -> None:
        self._taken[source] -= count
        self._give_turns()

    def _give_turns(self) -> None:
        while (turn := self._next_turn()) is not None:
            self._waiting[turn.source].popleft()
            self._taken[turn.source] += turn.wanted
            turn.given.set_result(None)

    def _next_turn(self) -> _Turn | None:
        """The first in line whose bytes are free. Only requests that wait for a full share are passed over."""
        for line in self._waiting:
            while line and line[0].given.cancelled():
                line.popleft()
        for turn in sorted((line[0] for line in self._waiting if line), key=lambda turn: turn.number):
            full = self._full_share(turn.source, turn.wanted)
            if full is None:
                return turn
            if full is Source.MEMORY:
                return None  # the whole budget is taken: those behind would overtake
        return None
