"""What the clients of a run have in common, and the choices that each makes by chance."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.integration.faults.transactions.history import History, Place, Position, Transaction, name_of

LEFT, RIGHT = "left", "right"
PARTITIONS = 3
HOPS_MAX = 2
ABORTED_SHARE, ABANDONED_SHARE = 0.2, 0.03


class Ending(Enum):
    COMMIT = auto()
    ABORT = auto()
    ABANDON = auto()
    """Its client goes away and leaves it open."""


@dataclass(slots=True)
class Plan:
    addresses: Sequence[str]
    timeout_ms: int
    """Of transactions."""
    history: History = field(default_factory=History)
    sources_end: threading.Event = field(default_factory=threading.Event)
    movers_end: threading.Event = field(default_factory=threading.Event)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def places(self) -> list[Place]:
        return [*places_of(LEFT), *places_of(RIGHT)]

    def ending_of(self, chance: random.Random) -> Ending:
        draw = chance.random()
        if draw < ABANDONED_SHARE:
            return Ending.ABANDON
        return Ending.ABORT if draw < ABANDONED_SHARE + ABORTED_SHARE else Ending.COMMIT

    def pause_s(self, chance: random.Random) -> float:
        return chance.random() * 0.3

    def new_records(self, chance: random.Random, transaction: Transaction) -> Mapping[Place, Sequence[bytes]]:
        """For some partitions, one to three each. Some will be moved on, and some of those moved back."""
        return {
            place: [transaction.new_value(place, chance.randint(0, HOPS_MAX)) for _ in range(chance.randint(1, 3))]
            for place in chance.sample(self.places, chance.randint(2, 4))
        }

    def moved_on(
        self, chance: random.Random, transaction: Transaction, taken: Mapping[Position, bytes], topic: str
    ) -> Mapping[Place, Sequence[bytes]]:
        """One record for each that may be moved, in a partition of chance."""
        found: dict[Place, list[bytes]] = {}
        for position, value in taken.items():
            if hops := name_of(value).hops:
                place = (topic, chance.randrange(PARTITIONS))
                found.setdefault(place, []).append(transaction.new_value(place, hops - 1, position))
        return found


def places_of(topic: str) -> list[Place]:
    return [(topic, number) for number in range(PARTITIONS)]
