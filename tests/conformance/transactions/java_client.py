"""The Java client's transactions, one call at a time: `programs/Transactions.java` does what is asked here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bench.servers.kafka import Jars
from tests.conformance.programs import FOLDER, Program
from tests.conformance.transactions.running import java

READ_S = 60


class Got(NamedTuple):
    partition: int
    offset: int
    value: str


class JavaProducer:
    def __init__(self, program: Program, bootstrap: str, transactional_id: str, **settings: object) -> None:
        """Settings are the client's, with _ for each dot."""
        name = f"producer-{program.next_id()}"
        self._ask = partial(program.ask, name=name)
        given = {each.replace("_", "."): value for each, value in settings.items()}
        stated = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **given}
        self._ask("producer", settings=stated)

    def init(self) -> None:
        self._ask("init")

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, *values: str, partition: int = 0, time_ms: int | None = None) -> list[int]:
        """One after the other. Returns their offsets."""
        words = {"topic": topic, "partition": partition, "time_ms": time_ms}
        return [self._ask("send", **words, value=value)["offset"] for value in values]

    def offsets(
        self, topic: str, offset: int, *, group: str = "", member: JavaConsumer | None = None, metadata: str = ""
    ) -> None:
        """Send offsets of a group, or with the metadata of one of its members."""
        words = {"topic": topic, "offset": offset, "metadata": metadata}
        self._ask("offsets", **words, group=group, member=member.name if member else None)

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        self._ask("end_producer")


class JavaConsumer:
    def __init__(self, program: Program, bootstrap: str, **settings: object) -> None:
        self.name = f"consumer-{program.next_id()}"
        self._ask = partial(program.ask, name=self.name)
        given = {each.replace("_", "."): value for each, value in settings.items()}
        stated = {"bootstrap.servers": bootstrap, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._ask("consumer", settings={**stated, **given})

    def assign(self, topic: str, partition: int = 0) -> None:
        """From the start on."""
        self._ask("assign", topic=topic, partition=partition)

    def subscribe(self, topic: str) -> None:
        self._ask("subscribe", topic=topic)

    def poll(self, seconds: float) -> list[Got]:
        return [Got(*each) for each in self._ask("poll", ms=int(seconds * 1000))["items"]]

    def read(self, count: int) -> list[Got]:
        """At least so many."""
        deadline = time.monotonic() + READ_S
        found: list[Got] = []
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records: {found}"
            found += self.poll(0.5)
        return found

    def end(self, topic: str, partition: int = 0) -> int:
        """Where a seek to the end leads."""
        return self._ask("end", topic=topic, partition=partition)["offset"]

    def at_time(self, topic: str, time_ms: int) -> int | None:
        return self._ask("at_time", topic=topic, time_ms=time_ms)["offset"]

    def committed(self, topic: str) -> tuple[int, str] | None:
        found = self._ask("committed", topic=topic)
        return None if found["offset"] is None else (found["offset"], found["metadata"])

    def close(self) -> None:
        self._ask("end_consumer")


class JavaClients:
    """All in one JVM."""

    def __init__(self, jars: Jars, bootstrap: str) -> None:
        self._program = Program(java(jars, str(FOLDER / "Transactions.java")))
        self._bootstrap = bootstrap
        self._settings = {"bootstrap.servers": bootstrap}

    def producer(self, transactional_id: str, **settings: object) -> JavaProducer:
        return JavaProducer(self._program, self._bootstrap, transactional_id, **settings)

    def consumer(self, *, committed: bool = True, **settings: object) -> JavaConsumer:
        level = "read_committed" if committed else "read_uncommitted"
        return JavaConsumer(self._program, self._bootstrap, **{"isolation.level": level, **settings})

    def feature(self) -> int:
        """The level of transaction.version."""
        return self._program.ask("feature", settings=self._settings)["level"]

    def epochs(self, topic: str, partition: int = 0) -> Sequence[tuple[int, int]]:
        """Producers with their epochs."""
        found = self._program.ask("epochs", topic=topic, partition=partition, settings=self._settings)["epochs"]
        return [(producer, epoch) for producer, epoch in found]

    def end(self) -> None:
        self._program.end()
