"""Producers: idempotent ones that retry as Kafka's do, and plain ones that never send a batch twice.

The idempotent producer has one partition and up to five batches in flight. When one fails or the line breaks, it sends
everything unresolved again in order, on this line or on another agent's, while the first copies may still be under way.
A sequence that is refused as out of order is a violation, unless an earlier batch was unresolved when it was sent: if
every earlier batch was acknowledged, the sequence was the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.access.principals import PRODUCER
from tests.simulation.book import Batch, TopicPartition
from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.faults import Fault, Path
from wire.batch import ProducerStamp
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch
from wire.schema import Message

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRIABLE = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
"""Errors that faults may cause. UNKNOWN_TOPIC_OR_PARTITION is only allowed where topics are deleted."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    batch: Batch
    answer: asyncio.Future[Message]
    sent_ms: float
    was_next: bool
    """Whether every earlier batch was acknowledged when it was sent."""


class Producer(Client):
    principal = PRODUCER

    def bytes_of(self, batch: Batch, producer_id: int = -1) -> bytes:
        now_ms = self.world.server_clock.wall_ms()
        records = [NewRecord(now_ms + place, b"k", value) for place, value in enumerate(batch.values)]
        codec = Codec.ZSTD if self.versions[0] >= 7 and batch.number % 7 == 3 else Codec.NONE
        if not batch.is_idempotent:
            return build_batch(records, codec=codec)
        return build_batch(records, codec=codec, producer=ProducerStamp(producer_id, 0, batch.sequence))

    def request_of(self, batches: list[tuple[Batch, bytes]], acks: int) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch, data in batches:
            topic, partition = batch.place
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=data))
        return ProduceRequest(
            acks=acks,
            timeout_ms=1_500,
            topic_data=[TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()],
        )

    def heard(self, batch: Batch, answer: PartitionProduceResponse, sent_ms: float) -> bool:
        """Record the answer for one batch. True if it is acknowledged."""
        error = ErrorCode(answer.error_code)
        self.facts("is told", batch=batch.name, error=error.name, offset=answer.base_offset)
        if error is ErrorCode.NONE:
            self.world.book.acknowledge(batch, answer.base_offset, sent_ms)
            return True
        if error is ErrorCode.REQUEST_TIMED_OUT:
            self.world.faults.count(Path.PRODUCE_TIMED_OUT)
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.world.faults.count(Path.PRODUCER_SENT_AWAY)
        expected = error in RETRIABLE or error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not expected and not (error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self.world.may_vanish(batch.place)):
            self.world.violation(f"{batch.name} was refused with {error.name}: {answer.error_message}")
        return False


class IdempotentProducer(Producer):
    is_trickle = False
    pause_ms: tuple[float, float] = (0, 250)
    """Between an answer and the next request."""
    retry_pause_ms: tuple[float, float] = (5, 150)
    hang_up_rate = 0.04
    refill_rate = 0.5
    """How often it sends the next batch as soon as one is answered, while others are not."""

    def __init__(self, world: World, name: str, place: TopicPartition, batches: int) -> None:
        super().__init__(world, name)
        self._place = place
        self._left = batches
        self._window = self.rng.randint(1, 5)
        self._made = 0
        self._sequence = 0
        self._producer_id = -1
        self._unresolved: deque[Batch] = deque()

    async def run(self) -> None:
        line = await self.dial()
        while self._producer_id < 0:
            line = await self._take_id(line)
        while self._unresolved or self._left:
            if await self._round(line):
                await self.pause(*self.pause_ms)
            else:
                await self.pause(*self.retry_pause_ms)
                if line.is_lost or self.rng.random() < 0.4:
                    line.close()
                    line = await self.dial()
        line.close()

    async def _take_id(self, line: Line) -> Line:
        try:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            answer = await line.call(request, InitProducerIdResponse)
        except LineLostError:
            return await self.dial()
        if answer.error_code == 0:
            self._producer_id = answer.producer_id
        elif answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self.world.violation(f"{self.name} was denied a producer id")
        await self.pause(0, 50)
        return line

    async def _round(self, line: Line) -> bool:
        """Send the unresolved batches and some more, and wait for all answers. False if some have to be tried again."""
        in_flight = deque(self._send(line, batch) for batch in self._unresolved)
        while self._may_make():
            in_flight.append(self._send(line, self._make()))
        all_heard = True
        while in_flight:
            if self.rng.random() < self.hang_up_rate:
                line.close()  # as after a request.timeout.ms: requests in flight may still be carried out
                return False
            sent = in_flight.popleft()
            try:
                response = await sent.answer
            except LineLostError:
                return False
            assert isinstance(response, ProduceResponse)
            answer = response.responses[0].partition_responses[0]
            if self.heard(sent.batch, answer, sent.sent_ms):
                self._unresolved.remove(sent.batch)
            else:
                all_heard = False
                if answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sent.was_next:
                    self.world.violation(f"{sent.batch.name} was the next sequence and was refused as out of order")
            if all_heard and self._may_make() and self.rng.random() < self.refill_rate:
                in_flight.append(self._send(line, self._make()))
        return all_heard

    def _may_make(self) -> bool:
        first = self._unresolved[0].number if self._unresolved else self._made
        return self._left > 0 and self._made - first < self._window

    def _make(self) -> Batch:
        batch = self.world.book.new_batch(
            self.name, self._made, self._place, self.rng.randint(1, 3), is_idempotent=True
        )
        batch.sequence = self._sequence
        self._sequence += len(batch.values)
        self._made += 1
        self._left -= 1
        self._unresolved.append(batch)
        return batch

    def _send(self, line: Line, batch: Batch) -> _InFlight:
        batch.sent_ms = self.world.loop.now_ms
        self.world.seal_watch.sent(self._producer_id, batch.sequence, batch.sent_ms, is_trickle=self.is_trickle)
        self.facts("sends", batch=batch.name, sequence=batch.sequence, to=line.address)
        request = self.request_of([(batch, self.bytes_of(batch, self._producer_id))], acks=-1)
        was_next = batch is self._unresolved[0]
        if self.world.faults.strikes(Fault.DUPLICATED):
            self.world.start_copy(self.process, self._send_copy(batch, request))
        return _InFlight(batch, line.begin(request), batch.sent_ms, was_next)

    async def _send_copy(self, batch: Batch, request: ProduceRequest) -> None:
        """Send the same request once more, at about the same time, on another line."""
        await self.pause(0, 40)
        line = await self.dial()
        try:
            answer = (await line.call(request, ProduceResponse)).responses[0].partition_responses[0]
        except LineLostError:
            return
        self.facts("is told of a copy", batch=batch.name, error=answer.error_code, offset=answer.base_offset)
        if answer.error_code == 0:
            self.world.book.copies_told.append((batch, answer.base_offset))
        line.close()


class PlainProducer(Producer):
    """Each batch is sent once; a batch without an acknowledgement may be there or not."""

    def __init__(self, world: World, name: str, places: list[TopicPartition], requests: int) -> None:
        super().__init__(world, name)
        self._places = places
        self._requests = requests

    async def run(self) -> None:
        line = await self.dial()
        for number in range(self._requests):
            acks = self.rng.choice((-1, -1, 1, 1, 0))
            batches = [
                self.world.book.new_batch(self.name, number, place, self.rng.randint(1, 3), is_idempotent=False)
                for place in self._places
                if self.rng.random() < 0.8 or place is self._places[0]
            ]
            if not await self._send(line, batches, acks) or self.rng.random() < 0.2:
                line.close()
                line = await self.dial()
            await self.pause(0, 400)
        line.close()

    async def _send(self, line: Line, batches: list[Batch], acks: int) -> bool:
        sent_ms = self.world.loop.now_ms
        for batch in batches:
            batch.sent_ms = sent_ms
        self.facts("sends", batches=[batch.name for batch in batches], acks=acks, to=line.address)
        request = self.request_of([(batch, self.bytes_of(batch)) for batch in batches], acks)
        if acks == 0:
            line.begin_unanswered(request)
            return True
        try:
            response = await line.call(request, ProduceResponse)
        except LineLostError:
            return False
        answers = {(topic.name, part.index): part for topic in response.responses for part in topic.partition_responses}
        for batch in batches:
            self.heard(batch, answers[batch.place], sent_ms)
        return True
