"""A reader of committed records gathers a topic while it grows; meanwhile processes are killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from tests.conformance.cluster import Cluster

Kill: TypeAlias = Callable[[], None]
WAIT_S = 240
"""For a process to get over a kill: a lease of ten seconds, sessions, a JVM's start, on a busy machine."""


class Seen(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None


class Watched(Protocol):
    """A program that writes."""

    def tended(self) -> str:
        """Start it again if it has ended and should not. Returns what it told."""
        ...


class Committed:
    """Reads all partitions from their start on. librdkafka waits for no process of ours: it asks any agent."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self.seen: list[Seen] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def read(self, seconds: float = 0.2) -> None:
        for message in self._consumer.consume(1_000, seconds):
            assert message.error() is None, message.error()
            partition = message.partition()
            assert partition is not None
            self.seen.append(Seen(partition, message.key(), message.value()))

    def await_records(self, count: int, programs: Sequence[Watched]) -> Sequence[Seen]:
        """Read until there are so many."""
        deadline = time.monotonic() + WAIT_S
        while len(self.seen) < count:
            told = "\n".join(each.tended() for each in programs)
            assert time.monotonic() < deadline, f"{len(self.seen)} of {count} records within {WAIT_S} s: {told}"
            self.read()
        return self.seen

    def await_no_more(self) -> Sequence[Seen]:
        """Read on for a moment: what was written twice comes now."""
        count = -1
        while count != len(self.seen):
            count = len(self.seen)
            self.read(2.0)
        return self.seen


def agent_kills(cluster: Cluster) -> Sequence[Kill]:
    """Each kills one agent, or both, and starts it again."""

    def kill(*places: int) -> None:
        for place in places:
            cluster.processes.agents[place].kill()
        for place in places:
            cluster.processes.agents[place].begin_start()
        for place in places:
            cluster.processes.agents[place].await_ready()

    return [lambda: kill(0), lambda: kill(1), lambda: kill(0, 1)]


def amid(
    kills: Sequence[Kill], chance: random.Random, output: Committed, total: int, programs: Sequence[Watched]
) -> None:
    """Kill in an order of chance, one kill each time that another part of the `total` records has come out."""
    order = list(kills)
    chance.shuffle(order)
    part = total // (len(order) + 1)
    for number, kill in enumerate(order):
        # less than the part: some kills come while the one before is still being got over
        output.await_records(int(part * (number + chance.random())), programs)
        kill()
    output.await_records(total, programs)
