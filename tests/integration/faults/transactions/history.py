"""What transactional clients did and were told, what readers saw, and what lies in the log at the end.

Every record has a value that names it: its transaction, its number there, how often it may still be moved on, and the
record that it was made of.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

Place = tuple[str, int]
"""(topic, partition)"""


class Position(NamedTuple):
    place: Place
    offset: int


class Name(NamedTuple):
    """The value of a record, taken apart."""

    transaction: str
    number: int
    hops: int
    """It is moved on to the other topic while this is above 0."""
    source: Position | None = None
    """The record of which it was made."""

    @property
    def value(self) -> bytes:
        made_of = "" if self.source is None else f"{self.source.place[0]},{self.source.place[1]},{self.source.offset}"
        return f"{self.transaction}|{self.number}|{self.hops}|{made_of}".encode()


def name_of(value: bytes) -> Name:
    transaction, number, hops, made_of = value.decode().split("|")
    source = None
    if made_of:
        topic, partition, offset = made_of.split(",")
        source = Position((topic, int(partition)), int(offset))
    return Name(transaction, int(number), int(hops), source)


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one client, as the client knows it."""

    name: str
    asked_s: float = inf
    """When its client first asked to commit it, on the clock of this process."""
    is_committed: bool = False
    """Its client was told so. If it asked and was not told, the outcome is in doubt."""
    sent: dict[bytes, Place] = field(default_factory=dict[bytes, Place])
    offsets: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Where each record was acknowledged to lie."""
    read: list[Position] = field(default_factory=list[Position])
    """The committed records that it was made of."""

    def new_value(self, place: Place, hops: int, source: Position | None = None) -> bytes:
        value = Name(self.name, len(self.sent), hops, source).value
        self.sent[value] = place
        return value


class Seen(NamedTuple):
    """A record as a reader was shown it."""

    offset: int
    value: bytes
    at_s: float


@dataclass(slots=True, eq=False)
class View:
    """All that one reader was shown of one partition, from `start` to `end`, in its order."""

    reader: str
    place: Place
    committed: bool = True
    """It asked for committed records alone."""
    start: int = 0
    end: int = 0
    seen: list[Seen] = field(default_factory=list[Seen])


class Kept(NamedTuple):
    """A record in the log."""

    value: bytes
    is_committed: bool | None
    """By the marker behind it; None: there is none."""


class Bounds(NamedTuple):
    """What an agent says of a partition when everything is over."""

    stable: int
    end: int


@dataclass(slots=True)
class Log:
    """The end of a run."""

    kept: Mapping[Place, Mapping[int, Kept]]
    """By offset."""
    bounds: Mapping[tuple[str, Place], Bounds] = field(default_factory=dict[tuple[str, Place], Bounds])
    """By agent and place."""
    moved: Mapping[Place, int] = field(default_factory=dict[Place, int])
    """The committed offset of the group that moves the records of this place on."""

    def committed(self, place: Place) -> dict[int, bytes]:
        return {offset: each.value for offset, each in self.kept.get(place, {}).items() if each.is_committed}

    def everything(self, place: Place) -> dict[int, bytes]:
        return {offset: each.value for offset, each in self.kept.get(place, {}).items()}


class History:
    """Filled by clients and readers, each in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transactions: dict[str, Transaction] = {}
        self._views: list[View] = []
        self._counts: Counter[str] = Counter()
        self.failed: list[str] = []
        """What no client should meet."""

    def begin(self, name: str) -> Transaction:
        with self._lock:
            assert name not in self._transactions, name
            return self._transactions.setdefault(name, Transaction(name))

    def watch(self, reader: str, places: Iterable[Place], *, committed: bool = True) -> Mapping[Place, View]:
        found = {place: View(reader, place, committed) for place in places}
        with self._lock:
            self._views += found.values()
        return found

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    @property
    def counts(self) -> Mapping[str, int]:
        with self._lock:
            return Counter(self._counts)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        with self._lock:
            return dict(self._transactions)

    @property
    def views(self) -> Sequence[View]:
        with self._lock:
            return list(self._views)
