"""Clients in a closed loop with one agent's write buffer, in virtual time: what they send depends on the answers.

The agent is the real `WriteBuffer` behind a model of the rest: PUTs take `put_ms` side by side, commits take
`commit_ms` one after another in the order of sealing. A client is a generator of `Wait`s.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from agents.sender import Sender
from agents.write.buffer import SealOptions, SealReason, WriteBuffer
from agents.write.submission import PendingBatch, Submission
from wire.batch import read_header
from wire.records import NewRecord, build_batch

KIB = 1 << 10
OPTIONS = SealOptions(
    linger_ms=250,
    file_bytes=8 << 20,
    file_batches=5_000,
    early_bytes=256 * KIB,
    early_idle_ms=3,
    early_per_second=250,
    early_free_bytes=512 * KIB,
)


@dataclass(frozen=True, slots=True)
class Pause:
    ms: float


@dataclass(frozen=True, slots=True)
class Answers:
    """Until at most this many requests are outstanding."""

    outstanding: int


Wait = Pause | Answers
Behaviour: TypeAlias = "Callable[[Client], Generator[Wait]]"


@dataclass(frozen=True, slots=True)
class File:
    sealed_ms: float
    reason: SealReason
    requests: int
    bytes: int


@cache
def _batch(size: int) -> PendingBatch:
    records = memoryview(build_batch([NewRecord(0, None, bytes(max(size - 70, 0)))]))
    return PendingBatch(1, uuid.UUID(int=1), 0, records, read_header(records), False)


class Client:
    """One connection. `answer_times_ms`: from each request to its answer."""

    def __init__(self, world: World, behaviour: Behaviour) -> None:
        self._world = world
        self.sender = Sender()
        self.outstanding = 0
        self.answer_times_ms: list[float] = []
        self._awaits: int | None = None
        self.behave(behaviour)

    @property
    def now_ms(self) -> float:
        return self._world.now_ms

    def behave(self, behaviour: Behaviour) -> None:
        """From now on, after the end of the behaviour before."""
        self._steps = behaviour(self)
        self._world.at(self._world.now_ms, self._go_on)

    def send(self, size: int) -> None:
        self.outstanding += 1
        sent_ms = self._world.now_ms

        def answered() -> None:
            self.outstanding -= 1
            self.answer_times_ms.append(self._world.now_ms - sent_ms)
            if self._awaits is not None and self.outstanding <= self._awaits:
                self._awaits = None
                # The answers of one file leave in one write.
                self._world.at(self._world.now_ms, self._go_on)

        self._world.submit(Submission([_batch(size)], _Promise(answered), None, self.sender))

    def _go_on(self) -> None:
        for step in self._steps:
            if isinstance(step, Pause):
                return self._world.at(self._world.now_ms + step.ms, self._go_on)
            if self.outstanding > step.outstanding:
                self._awaits = step.outstanding
                return None
        return None


@dataclass(slots=True)
class _Promise:
    answered: Callable[[], None]
    is_done: bool = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: object, /) -> None:
        self.is_done = True
        self.answered()


@dataclass(slots=True)
class World:
    put_ms: float
    commit_ms: float
    options: SealOptions = OPTIONS
    now_ms: float = 0.0
    files: list[File] = field(default_factory=list[File])
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _committed_ms: float = 0.0
    buffer: WriteBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = WriteBuffer(self.options)

    def at(self, at_ms: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._count), call))

    def client(self, behaviour: Behaviour) -> Client:
        return Client(self, behaviour)

    def run(self, seconds: float) -> None:
        end_ms = self.now_ms + seconds * 1000
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            call()
        self.now_ms = end_ms

    def files_since(self, at_ms: float) -> list[File]:
        return [file for file in self.files if file.sealed_ms >= at_ms]

    def submit(self, submission: Submission) -> None:
        self.buffer.add(submission, self.now_ms)
        self._poke()

    def _poke(self) -> None:
        while (reason := self.buffer.due(self.now_ms)) is not None:
            taken = self.buffer.take(reason, self.now_ms)
            self.files.append(File(self.now_ms, reason, len(taken), sum(each.bytes for each in taken)))
            put_ms = self.now_ms + self.put_ms
            self._committed_ms = max(put_ms, self._committed_ms) + self.commit_ms
            self.at(self._committed_ms, lambda taken=taken: self._answer(taken))
        due_ms = self.buffer.next_due_ms(self.now_ms)
        if due_ms is not None:
            # As the real timer, which rings a little late.
            self.at(max(due_ms, self.now_ms + 0.2), self._poke)

    def _answer(self, taken: list[Submission]) -> None:
        for each in taken:
            each.promise.set_result([])
        self.buffer.answered((each.sender for each in taken if each.sender is not None), self.now_ms)
        self._poke()


# ---- clients


def windowed(
    window: int, size: int, *, return_ms: float = 1.0, pause_ms: float = 0.1, until_ms: float = float("inf")
) -> Behaviour:
    """Always has more to send: `window` requests at a time; `pause_ms` lie between two of them."""

    def steps(client: Client) -> Generator[Wait]:
        while client.now_ms < until_ms:
            if client.outstanding >= window:
                yield Answers(window - 1)
                yield Pause(return_ms)
            client.send(size)
            yield Pause(pause_ms)

    return steps


def trickle(interval_ms: float, size: int = KIB, *, from_ms: float = 0.0, until_ms: float = float("inf")) -> Behaviour:
    """Sends by the clock and waits for nobody."""

    def steps(client: Client) -> Generator[Wait]:
        yield Pause(from_ms)
        while client.now_ms < until_ms:
            client.send(size)
            yield Pause(interval_ms)

    return steps


def one_by_one(think_ms: float, size: int = KIB) -> Behaviour:
    """Waits for each answer, and then thinks."""

    def steps(client: Client) -> Generator[Wait]:
        while True:
            client.send(size)
            yield Answers(0)
            yield Pause(think_ms)

    return steps
