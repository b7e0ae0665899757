"""Kafka clients on the wire: one connection, and the behaviour that all kinds of clients share. See `producers.py` and
`consumers.py`.

`wire.api` writes requests and reads answers. Both sides rely on Kafka's order: answers come in the order of their
requests, each with its correlation id. A client that waits too long cuts the line, as Kafka's do; after the faults are
healed no client may have to.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.network import ClientEnd
from wire.api import decode_response, encode_request
from wire.schema import Message, message_table

if TYPE_CHECKING:
    from tests.simulation.world import World

Response = TypeVar("Response", bound=Message)

TIMEOUT_MS = 2_500

VERSIONS = {0: (3, 7, 8, 12), 1: (4, 7, 11, 12), 2: (1, 5, 8), 3: (12,), 19: (5, 7), 20: (5, 6), 22: (1, 4)}
"""The APIs that agents serve and clients here use, by API key."""


class LineLostError(Exception):
    """The line broke: the request may have been carried out."""


@dataclass(slots=True)
class _Waiting:
    api_key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[Message]
    sent_ms: float


@dataclass(slots=True)
class Line:
    """One connection of a client to one agent."""

    world: World
    owner: Client
    address: str
    _waiting: deque[_Waiting] = field(default_factory=deque["_Waiting"])
    _read: bytearray = field(default_factory=bytearray)
    _correlation_id: int = 0
    is_lost: bool = False

    def __post_init__(self) -> None:
        owner = self.owner
        self._end = ClientEnd(
            owner.process, owner.name, principal=owner.principal, on_data=self._on_data, on_lost=self._on_lost
        )

    _end: ClientEnd = field(init=False)

    async def open(self) -> None:
        try:
            await self.world.network.connect(self._end, self.address)
        except ConnectionRefusedError as error:
            raise LineLostError("refused") from error

    def begin(self, request: Message) -> asyncio.Future[Message]:
        """Send without waiting. The future ends with the answer or with LineLostError."""
        answer: asyncio.Future[Message] = self.world.loop.create_future()
        answer.add_done_callback(_mark_heard)
        if self.is_lost:
            answer.set_exception(LineLostError("lost before"))
            return answer
        data, waiting = self._encoded(request, answer)
        self._waiting.append(waiting)
        self.world.loop.after(self.owner.timeout_ms, self.owner.process, self._expire, waiting)
        self._end.send(self.world.network, data)
        return answer

    def begin_unanswered(self, request: Message) -> None:
        """Send a produce request with acks 0."""
        answer: asyncio.Future[Message] = self.world.loop.create_future()
        self._end.send(self.world.network, self._encoded(request, answer)[0])

    async def call(self, request: Message, response: type[Response]) -> Response:
        answer = await self.begin(request)
        assert isinstance(answer, response)
        return answer

    def close(self) -> None:
        if not self.is_lost:
            self._end.close()
            self._on_lost()

    def _encoded(self, request: Message, answer: asyncio.Future[Message]) -> tuple[bytes, _Waiting]:
        key = message_table(type(request)).api_key
        version = self.owner.versions[key]
        self._correlation_id += 1
        data = b"".join(encode_request(key, version, self._correlation_id, self.owner.name, request))
        return data, _Waiting(key, version, self._correlation_id, answer, self.world.loop.now_ms)

    def _on_data(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 4:
            size = int.from_bytes(self._read[:4], "big")
            if len(self._read) < 4 + size:
                return
            frame = memoryview(bytes(self._read[4 : 4 + size]))
            del self._read[: 4 + size]
            waiting = self._waiting.popleft()
            correlation_id, message = decode_response(waiting.api_key, waiting.version, frame)
            if correlation_id != waiting.correlation_id:
                self.world.violation(f"{self.owner.name} got answer {correlation_id} to {waiting.correlation_id}")
            if not waiting.answer.done():
                waiting.answer.set_result(message)

    def _on_lost(self) -> None:
        self.is_lost = True
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(LineLostError("lost"))

    def _expire(self, waiting: _Waiting) -> None:
        if not waiting.answer.done() and not self.is_lost:
            self.world.note(self.owner.name, "waits no longer", agent=self.address, api=waiting.api_key)
            if self.world.is_healed_since(waiting.sent_ms):
                self.world.violation(f"{self.owner.name} got no answer from {self.address} though nothing fails")
            self.close()


def _mark_heard(answer: asyncio.Future[Message]) -> None:
    if not answer.cancelled():
        answer.exception()


class Client(ABC):
    """A process that talks to any of the agents."""

    principal = ""
    """Its principal at the agents, without any proof. Empty: nobody that they know."""
    versions_known: Mapping[int, Sequence[int]] = VERSIONS
    timeout_ms: float = TIMEOUT_MS

    def __init__(self, world: World, name: str, *, rng: random.Random | None = None) -> None:
        self.world = world
        self.name = name
        self.rng: random.Random = rng or world.rng
        self.process = world.new_process(name)
        self.versions = {key: self.rng.choice(versions) for key, versions in self.versions_known.items()}
        self.is_done = False

    def start(self) -> None:
        task = self.process.spawn(self._run_to_end(), self.name)
        task.add_done_callback(self._ended)

    @abstractmethod
    async def run(self) -> None: ...

    async def _run_to_end(self) -> None:
        await self.run()
        self.is_done = True

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.violation(f"{self.name} broke: {error!r}", error)

    async def pause(self, low_ms: float, high_ms: float) -> None:
        await asyncio.sleep((low_ms + (high_ms - low_ms) * self.rng.random()) / 1000)

    async def dial(self, address: str = "") -> Line:
        """A line to a random agent, or to the given one. Tries until an agent answers."""
        while True:
            line = Line(self.world, self, address or self.rng.choice(self.world.addresses))
            try:
                await line.open()
                return line
            except LineLostError:
                await self.pause(20, 200)

    def facts(self, what: str, **facts: Any) -> None:
        self.world.note(self.name, what, **facts)
