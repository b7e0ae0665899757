"""The demands of a scenario on a Kafka client of any kind: a Python library, a command-line tool, or a program in
another language. A client lists in `lacks` the scenarios that it cannot support by its nature, and why; it must pass
all others.

Each consumer is polled without a pause in a thread of its own, as in applications (`Live`). Two consumers that one
thread polls in turn block each other: aiokafka's `getmany` returns when a rebalance has ended, which the other consumer
must join; kafka-python (3.0) drops an assignment that came between two of its polls, and joins again.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self

from tests.conformance.security.logins import NOTHING, Login
from tests.fixtures.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 30
POLL_S = 0.05
SESSION_MS = 6_000
HEARTBEAT_MS = 300


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    """None: now."""

    @property
    def content(self) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]:
        return self.key, self.value, self.headers


class Item(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def content(self) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]:
        return self.key, self.value, self.headers


RECORDS = [
    Sent(
        None if number % 5 == 0 else b"key-%d" % number,
        None if number % 7 == 3 and number % 5 else b"value %d " % number * 20,
        (("trace", b"%d" % number), ("empty", b"")) if number % 3 == 0 else (),
    )
    for number in range(60)
]
"""Records with headers, null keys and null values (never both null: aiokafka refuses to send that)."""


class NoOffsetError(Exception):
    """The position is not in the log, and the consumer was told not to choose another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to consume a topic: partition 0 from `start` on, or as a member of `group`."""

    topic: str
    start: int | None = None
    group: str | None = None
    instance: str | None = None
    reset: str = "earliest"
    """earliest, latest, or none."""
    fetch_bytes: int | None = None
    """The bytes to fetch of a partition at a time; the client reads only a little ahead of the application."""
    heartbeat_ms: int = HEARTBEAT_MS
    session_ms: int = SESSION_MS


class Consumer(ABC):
    """A consumer for use by one thread."""

    @abstractmethod
    def poll(self, seconds: float) -> Sequence[Item]:
        """Raises NoOffsetError."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def partitions(self) -> set[int]: ...

    @abstractmethod
    def close(self) -> None: ...


class Admin(ABC):
    """An admin client. Errors are exceptions whose text names Kafka's error."""

    @abstractmethod
    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None: ...

    @abstractmethod
    def count_partitions(self, topic: str) -> int: ...

    @abstractmethod
    def config(self, topic: str, name: str) -> str | None: ...

    @abstractmethod
    def set_config(self, topic: str, name: str, value: str) -> None: ...

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    def delete_records(self, topic: str, before: int) -> None:
        raise NotImplementedError

    @abstractmethod
    def groups(self) -> Mapping[str, str]:
        """The state of each group; "" if the client does not report it."""

    @abstractmethod
    def group(self, group: str) -> tuple[str, int]:
        """The group's state and its number of members."""

    @abstractmethod
    def committed(self, group: str, topic: str) -> Mapping[int, int]: ...

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        return None


class Client(ABC):
    name: str
    lacks: Mapping[str, str] = {}
    """The scenarios that this client lacks, each with the reason."""
    is_heavy = False
    """Whether it takes too long for every run; then it runs in soak only."""
    always_there = False
    """Whether it is one of the project's own test dependencies, which are never skipped."""
    login: Login = NOTHING
    """How `write` and `consumer` come in."""

    def coming_in_by(self, login: Login) -> Self:
        made = copy.copy(self)
        made.login = login
        return made

    def absent(self) -> str:
        """The reason why the client is missing on this machine; "" if it is present."""
        return ""

    def unable_to(self, login: Login) -> str:
        """The reason why it cannot come in like this, whatever the server is; "" if it can."""
        return ""

    def version(self) -> str:
        """That of its library, for people."""
        return ""

    @property
    def records(self) -> Sequence[Sent]:
        return RECORDS

    @abstractmethod
    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        """Write to partition 0, idempotently. Returns the offsets, or [] if the client does not report them."""

    @abstractmethod
    def consumer(self, bootstrap: str, reading: Reading) -> Consumer: ...

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        """The first offset of partition 0, and the next one to be written."""
        raise NotImplementedError

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        """The first offset of partition 0 with that timestamp or a later one."""
        raise NotImplementedError

    def admin(self, bootstrap: str) -> Admin:
        raise NotImplementedError


class Live:
    """A consumer and the thread that polls it."""

    def __init__(self, make: Callable[[], Consumer]) -> None:
        self._orders: SimpleQueue[tuple[Callable[[Consumer], Any], Future[Any]]] = SimpleQueue()
        self._resumed = threading.Event()
        self._resumed.set()
        self._ending = False
        self.items: list[Item] = []
        self.error: BaseException | None = None
        self.partitions: set[int] = set()
        self._thread = threading.Thread(target=self._run, args=(make,), daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Stop polling, except for a poll that is under way."""
        self._resumed.clear()
        self._do(lambda consumer: None)

    def resume(self) -> None:
        self._resumed.set()

    def commit(self) -> None:
        self._do(lambda consumer: consumer.commit())

    def close(self) -> None:
        self._ending = True
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the consumer does not close"

    def await_items(self, count: int) -> Sequence[Item]:
        def there() -> bool:
            self.check()
            return len(self.items) >= count

        wait_until(there, TIMEOUT_S, lambda: f"{len(self.items)} of {count} records: {self.items[-3:]}")
        return self.items

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def _do(self, work: Callable[[Consumer], Any]) -> Any:
        done: Future[Any] = Future()
        self._orders.put((work, done))
        return done.result(TIMEOUT_S)

    def _run(self, make: Callable[[], Consumer]) -> None:
        consumer: Consumer | None = None
        try:
            consumer = make()
            while not self._ending:
                self._obey(consumer)
                if self._resumed.is_set():
                    self.items += consumer.poll(POLL_S)
                    self.partitions = consumer.partitions()
        except BaseException as error:
            self.error = error
        finally:
            self.partitions = set()
            if consumer is not None:
                try:
                    consumer.close()
                except BaseException as error:
                    self.error = self.error or error

    def _obey(self, consumer: Consumer) -> None:
        try:
            work, done = self._orders.get(timeout=0 if self._resumed.is_set() else POLL_S)
        except Empty:
            return
        try:
            done.set_result(work(consumer))
        except BaseException as error:
            done.set_exception(error)
