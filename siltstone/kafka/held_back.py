"""Where readers of committed records stand still, because a transaction that is open holds back what lies there.

Such a reader gets no error, and a topic with nothing but an open transaction looks empty: somebody has to say it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.clock import Clock
from runtime.text import plural
from siltstone.kafka.consuming import Reach
from siltstone.kafka.records import TopicPartition

STILL_MS = 5_000
"""A reader that waits for new records and stands still for this long says so."""
SHOWN_MAX = 5
"""Partitions that get a line of their own."""
FIND = "siltstone transactions find-hanging --longer-than 0s"
"""The command that shows the open transactions. It reads the metadata: `HintOptions.places` belongs behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    topic: str
    partition: int
    offset: int
    """Where the reader stands."""
    count: int
    """Offsets from there on that it does not get yet."""

    @property
    def waiting(self) -> str:
        waits = "waits" if self.count == 1 else "wait"
        return f"{plural(self.count, 'offset')} from there on {waits} for the end of an open transaction"


def held_back(reaches: Mapping[TopicPartition, Reach]) -> Sequence[HeldBack]:
    """Those of the partitions that an open transaction holds up."""
    return [
        HeldBack(topic=topic, partition=partition, offset=reach.position, count=reach.held)
        for (topic, partition), reach in sorted(reaches.items(), key=lambda each: each[0])
        if reach.held
    ]


def held_lines(held: Sequence[HeldBack], stands: str) -> Sequence[str]:
    """`stands`: what the reader does there."""
    lines = [
        f"{each.topic} partition {each.partition}: {stands} offset {each.offset}; {each.waiting}"
        for each in held[:SHOWN_MAX]
    ]
    more = len(held) - SHOWN_MAX
    return [*lines, f"and {plural(more, 'more partition')}"] if more > 0 else lines


class StandstillNotes:
    """Tells where reading stands still, in lines to `told`, with the `remedy` below them."""

    def __init__(self, clock: Clock, told: Callable[[str], None], *, remedy: str) -> None:
        self._clock, self._told, self._remedy = clock, told, remedy
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        """Of the partitions that are held back: the last stable offset, and since when it is that one."""
        self._said: dict[TopicPartition, int] = {}
        """The last stable offsets that were told of."""
        self._patience_ms = STILL_MS

    def look(self, reaches: Mapping[TopicPartition, Reach]) -> None:
        """To be called again and again while reading goes on. Tells of a standstill once, when it has lasted.

        The patience doubles with each: where every transaction takes long, a standstill is nothing to report."""
        now_ms = self._clock.monotonic_ms()
        held = {place: reach for place, reach in reaches.items() if reach.held}
        self._since = {place: self._entered(place, reach.stable, now_ms) for place, reach in held.items()}
        new = {place: reach for place, reach in held.items() if self._said.get(place) != reach.stable}
        if any(now_ms - self._since[place][1] >= self._patience_ms for place in new):
            self._patience_ms *= 2
            self._said |= {place: reach.stable for place, reach in new.items()}
            self._tell(held_back(new), "stands still at")

    def end(self, reaches: Mapping[TopicPartition, Reach]) -> bool:
        """To be called when reading has come to its end. Whether there was something to tell."""
        held = held_back(reaches)
        if held:
            self._tell(held, "stopped at")
        return bool(held)

    def _entered(self, place: TopicPartition, stable: int, now_ms: float) -> tuple[int, float]:
        known = self._since.get(place)
        return known if known is not None and known[0] == stable else (stable, now_ms)

    def _tell(self, held: Sequence[HeldBack], stands: str) -> None:
        for line in held_lines(held, stands):
            self._told(line)
        self._told(f"remedy: {self._remedy}")
