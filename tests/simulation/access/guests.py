"""Clients whose rights come and go: whatever they are answered is held against the rulings.

- Let through: it had the right at some moment from the settled state at the sending to the answer. Records are judged
  from their own commit on, if that is later: a fetch that was parked may bring what was committed before it lost its
  right, and nothing after.
- Denied: it lacked the right at some such moment, whichever agent it asked.
- Stored: as let through, from the sending to the commit, whether or not the client was answered. What was denied is not
  stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from security.acls.values import Operation, ResourceType
from tests.simulation.access.access import Access
from tests.simulation.access.principals import GROUP
from tests.simulation.access.rulings import Question
from tests.simulation.book import Batch, TopicPartition
from tests.simulation.clients import VERSIONS as VERSIONS_OF_ALL
from tests.simulation.clients import Line, LineLostError
from tests.simulation.faults import Path
from tests.simulation.producers import RETRIABLE, Producer
from wire.batch import iter_headers
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from tests.simulation.world import World

VERSIONS = {**VERSIONS_OF_ALL, 10: (1, 3), 30: (1, 3), 31: (1, 3)}
SESSIONS_SINCE = 7
LATEST = -1
THINKS_MS = (1_000, 5_000)
_DENIALS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)
_TRANSIENT = (*RETRIABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(slots=True)
class _Session:
    """A fetch session, by the client's books."""

    line: Line
    session_id: int = 0
    epoch: int = 0
    asked: tuple[TopicPartition, int] | None = None


class Guest(Producer):
    versions_known = VERSIONS
    timeout_ms = 6_000.0

    def __init__(self, world: World, access: Access, name: str, places: list[TopicPartition]) -> None:
        super().__init__(world, name, rng=access.rng)
        self.principal = f"User:{name}"
        self._access = access
        self._places = places
        self._ends = dict.fromkeys(places, 0)
        """The high watermarks that it was told."""
        self._sent = 0
        self._session: _Session | None = None
        self._batches: list[Batch] = []
        self._denied: list[Batch] = []
        self.may_end = False
        """Nobody changes its rights any more."""

    def asks(self, operation: Operation, kind: ResourceType, name: str) -> Question:
        return Question(self.principal, self.name, operation, kind, name)

    async def run(self) -> None:
        line = await self.dial()
        ways = (self._fetch, self._fetch, self._fetch, self._write, self._write, self._look_up, self._find)
        while not self.may_end:
            heard = await self.rng.choice(ways)(line)
            if not heard or self.rng.random() < 0.15:
                line.close()
                await self.pause(0, 100)
                line = await self.dial()
            # One that thinks for long asks an agent that was stopped and replaced meanwhile, by the line that it has.
            await self.pause(*(THINKS_MS if self.rng.random() < 0.12 else (0, 400)))
        line.close()

    # ---- what it asks

    async def _fetch(self, line: Line) -> bool:
        request, place, offset = self._to_fetch(line)
        sent_ms = self.world.loop.now_ms
        try:
            answer = await line.call(request, FetchResponse)
        except LineLostError:
            return False
        question = self.asks(Operation.READ, ResourceType.TOPIC, place[0])
        session = self._session
        if answer.error_code:
            self.world.violation(f"{self.name} got error {answer.error_code} to a fetch by {line.address}")
        if session is not None:
            session.session_id, session.epoch = answer.session_id, session.epoch + 1
            session.asked = (place, offset)
            if not answer.session_id:
                self._session = None
        # No partition at all says nothing: there is no news in the session, or the agent lost its lease meanwhile.
        for part in (part for topic in answer.responses for part in topic.partitions):
            if self._judged(line, question, part.error_code, sent_ms, f"a fetch of {place} from {offset}"):
                self._ends[place] = max(part.high_watermark, self._ends[place])
                self._judge_records(line, question, place, part)
        return True

    def _to_fetch(self, line: Line) -> tuple[FetchRequest, TopicPartition, int]:
        """A session has one partition."""
        if self._session is not None and (self._session.line is not line or self.rng.random() < 0.1):
            self._session = None
        if self._session is None and self.versions[1] >= SESSIONS_SINCE and self.rng.random() < 0.6:
            self._session = _Session(line)
        session = self._session
        place = session.asked[0] if session is not None and session.asked is not None else self.rng.choice(self._places)
        offset = self._ends[place] if self.rng.random() < 0.8 else 0
        topics = [
            FetchTopic(
                topic=place[0],
                partitions=[FetchPartition(partition=place[1], fetch_offset=offset, partition_max_bytes=1 << 20)],
            )
        ]
        request = FetchRequest(max_wait_ms=int(self.rng.choice((0, 1_000, 2_000))), min_bytes=1, topics=topics)
        if session is not None:
            request.session_id, request.session_epoch = session.session_id, session.epoch
            if session.asked == (place, offset):
                request.topics = []
        return request, place, offset

    async def _write(self, line: Line) -> bool:
        place = self.rng.choice(self._places)
        acks = self.rng.choice((-1, 1, 1, 0))
        batch = self.world.book.new_batch(self.name, self._sent, place, 1, is_idempotent=False)
        self._sent += 1
        self._batches.append(batch)
        sent_ms = batch.sent_ms = self.world.loop.now_ms
        request = self.request_of([(batch, self.bytes_of(batch))], acks)
        if acks == 0:
            line.begin_unanswered(request)
            return True
        try:
            answer = (await line.call(request, ProduceResponse)).responses[0].partition_responses[0]
        except LineLostError:
            return False
        question = self.asks(Operation.WRITE, ResourceType.TOPIC, place[0])
        if self._judged(line, question, answer.error_code, sent_ms, batch.name):
            self.world.book.acknowledge(batch, answer.base_offset, sent_ms)
        elif answer.error_code in _DENIALS:
            self._denied.append(batch)
        return True

    async def _look_up(self, line: Line) -> bool:
        place = self.rng.choice(self._places)
        asked = ListOffsetsPartition(partition_index=place[1], timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=place[0], partitions=[asked])])
        sent_ms = self.world.loop.now_ms
        try:
            answer = await line.call(request, ListOffsetsResponse)
        except LineLostError:
            return False
        question = self.asks(Operation.DESCRIBE, ResourceType.TOPIC, place[0])
        self._judged(line, question, answer.topics[0].partitions[0].error_code, sent_ms, f"the end of {place}")
        return True

    async def _find(self, line: Line) -> bool:
        sent_ms = self.world.loop.now_ms
        try:
            answer = await line.call(FindCoordinatorRequest(key=GROUP, key_type=0), FindCoordinatorResponse)
        except LineLostError:
            return False
        question = self.asks(Operation.DESCRIBE, ResourceType.GROUP, GROUP)
        self._judged(line, question, answer.error_code, sent_ms, f"the coordinator of {GROUP}")
        return True

    # ---- what it is answered

    def _judged(self, line: Line, question: Question, error_code: int, sent_ms: float, what: str) -> bool:
        """True: let through, without any error."""
        error = ErrorCode(error_code)
        if error is ErrorCode.NONE:
            self._let_through(line, question, sent_ms, f"let through: {what}")
        elif error in _DENIALS:
            self.world.faults.count(Path.GUEST_DENIED)
            if self._access.rulings.ruling(question, sent_ms, self.world.loop.now_ms) is True:
                self._wrong(line, question, sent_ms, f"denied, though it may: {what}")
        elif error not in _TRANSIENT:
            self.world.violation(f"{self.name} asked {line.address} for {what} and got {error.name}")
        return error is ErrorCode.NONE

    def _let_through(self, line: Line, question: Question, sent_ms: float, what: str) -> None:
        self.world.faults.count(Path.GUEST_LET_THROUGH)
        if self._access.rulings.ruling(question, sent_ms, self.world.loop.now_ms) is False:
            self._wrong(line, question, sent_ms, f"{what}, though it may not")

    def _judge_records(self, line: Line, question: Question, place: TopicPartition, part: PartitionData) -> None:
        for _, header in iter_headers(memoryview(part.records or b"")):
            committed_ms = self._access.committed_ms[place, header.base_offset]
            if self._access.rulings.ruling(question, committed_ms, self.world.loop.now_ms) is False:
                what = f"given the records of {place} {header.base_offset} from later than its loss of the right"
                self._wrong(line, question, committed_ms, what)

    def _wrong(self, line: Line, question: Question, sent_ms: float, what: str) -> None:
        asked = f"{question.operation.name} {question.resource_type.name} {question.name}, since {sent_ms:.2f} ms"
        self.world.violation(f"{self.name} was {what} ({asked}, by {line.address})")

    # ---- the end

    def check_stored(self, stored: dict[tuple[TopicPartition, tuple[bytes, ...]], int]) -> None:
        """`stored`: the offset of each batch that is there."""
        for batch in self._batches:
            offset = stored.get((batch.place, batch.values))
            if offset is None:
                continue
            question = self.asks(Operation.WRITE, ResourceType.TOPIC, batch.place[0])
            committed_ms = self._access.committed_ms[batch.place, offset]
            if self._access.rulings.ruling(question, batch.sent_ms, committed_ms) is False:
                self.world.violation(f"{batch.name} was stored at {batch.place} {offset}, though {self.name} may not")
            if batch in self._denied:
                self.world.violation(f"{batch.name} was denied, and is stored at {batch.place} {offset}")
