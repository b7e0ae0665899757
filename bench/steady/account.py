"""The lines of a steady client so far, and their meaning. Pure; times are the caller's, on one clock.

The lines are those of `bench/steady/programs/protocol.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Place = tuple[int, int]
"""(partition, offset)."""


class NotALineError(ValueError):
    """A program printed something that is no line of the protocol."""


@dataclass(slots=True)
class Account:
    """Everything that one client said."""

    acknowledged: dict[Place, str] = field(default_factory=dict[Place, str])
    acknowledgements: list[tuple[float, Place]] = field(default_factory=list[tuple[float, Place]])
    """When each of them came."""
    found: dict[Place, str] = field(default_factory=dict[Place, str])
    finds: list[tuple[float, Place]] = field(default_factory=list[tuple[float, Place]])
    """When each record came; a place that came twice stands here twice."""
    rebalances: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """When a member was assigned partitions, and how many it had then."""
    errors: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    ready: bool = False

    def take(self, line: str, at_s: float) -> None:
        """Raises NotALineError."""
        kind, _, rest = line.partition(" ")
        try:
            if kind in ("w", "r"):
                partition, offset, value = rest.split(" ", 2)
                self._record(kind, (int(partition), int(offset)), value, at_s)
            elif kind == "b":
                self.rebalances.append((at_s, int(rest)))
            elif kind == "e":
                self.errors.append((at_s, rest))
            elif line == "ready":
                self.ready = True
            else:
                raise ValueError
        except ValueError:
            raise NotALineError(f"not a line of the protocol: {line!r}") from None

    def _record(self, kind: str, place: Place, value: str, at_s: float) -> None:
        values, times = (self.acknowledged, self.acknowledgements) if kind == "w" else (self.found, self.finds)
        if values.setdefault(place, value) != value:
            self.errors.append((at_s, f"{place} holds {values[place]}, and then {value}"))
        times.append((at_s, place))

    @property
    def steps(self) -> Sequence[tuple[float, Place]]:
        """The lines that show that the client goes on: a writer's acknowledgements, or the records of any other."""
        return self.acknowledgements or self.finds

    @property
    def found_twice(self) -> int:
        return len(self.finds) - len(self.found)

    def longest_pause_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a step within the span; the span's ends count as steps."""
        inside = [at_s for at_s, _ in list(self.steps) if since_s < at_s < until_s]
        return max(after - before for before, after in pairwise([since_s, *inside, until_s]))

    def first_beyond_s(self, ends: Mapping[int, int], since_s: float) -> float | None:
        """When the first step came, not before `since_s`, that was not in the log when it ended at `ends` (the next
        offset of each partition): what the client had in hand already does not count."""
        times = (
            at_s for at_s, (partition, offset) in list(self.steps) if at_s >= since_s and offset >= ends[partition]
        )
        return next(times, None)


def lost(acknowledged: Mapping[Place, str], log: Mapping[Place, str]) -> list[Place]:
    """The acknowledged records that are not in the log at their place."""
    return sorted(place for place, value in acknowledged.items() if log.get(place) != value)


def passed_over(found: Mapping[Place, str], log: Mapping[Place, str]) -> list[Place]:
    """The records of the log that a reader did not find, or found with another value, before its last one of their
    partition."""
    reached: dict[int, int] = {}
    for partition, offset in found:
        reached[partition] = max(offset, reached.get(partition, -1))
    return sorted(
        place for place, value in log.items() if place[1] <= reached.get(place[0], -1) and found.get(place) != value
    )


def doubled(log: Mapping[Place, str], name: str) -> int:
    """How many records of the writer `name` are in the log again."""
    return sum(count - 1 for count in Counter(_of_writer(log.values(), name)).values())


def _of_writer(values: Iterable[str], name: str) -> Iterable[str]:
    return (value for value in values if value.startswith(f"{name}:"))
