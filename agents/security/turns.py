"""Work that waits, in turns by who asks for it. Pure.

Whoever asks for a thousand things has one of them done, then all others who wait have one of theirs. So a newcomer
waits for no more than one piece of work of each other one, however much they have asked for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Turns(Generic[Work]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()
        """By who asks, in the order of their turns; nobody without work."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, who: str, work: Work) -> None:
        self._waiting.setdefault(who, deque()).append(work)

    def take(self) -> Work | None:
        """The next piece of work; None if there is none."""
        if not self._waiting:
            return None
        who, line = next(iter(self._waiting.items()))
        work = line.popleft()
        if line:
            self._waiting.move_to_end(who)
        else:
            del self._waiting[who]
        return work

    def drop(self, who: str, work: Work) -> None:
        """The asker does not wait any more."""
        line = self._waiting.get(who)
        if line is not None and work in line:
            line.remove(work)
            if not line:
                del self._waiting[who]
