"""Consumers that hop between agents, and the questions that they ask on the way.

A consumer has a position in every partition of its topic and never leaves it: answers must begin exactly there and go
on without a hole, and the position is never out of range. It also reads again from earlier positions, and asks for the
latest offset, which may not be below any offset that a client was told before.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.access.principals import READER
from tests.simulation.book import TopicPartition
from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.faults import Path
from wire.batch import iter_headers
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.records import walk

if TYPE_CHECKING:
    from tests.simulation.world import World

LATEST = -1


class Consumer(Client):
    """Reads `places`, all of one topic, from the start (or from the latest offset) to their end."""

    principal = READER
    part_bytes_max: tuple[int, ...] = (1, 200, 1 << 20)

    def __init__(
        self,
        world: World,
        name: str,
        places: list[TopicPartition],
        *,
        from_latest: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(world, name, rng=rng)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(places, 0)
        self._from_latest = from_latest

    async def run(self) -> None:
        line = await self.dial()
        while self._from_latest:
            line = await self._start_at_latest(line)
        while not self.world.is_at_end(self.positions):
            goes_on = await self._step(line)
            if not goes_on or self.rng.random() < 0.3:
                line.close()
                await self.pause(0, 30 if goes_on else 200)
                line = await self.dial()
        line.close()

    async def _step(self, line: Line) -> bool:
        draw = self.rng.random()
        if draw < 0.15:
            return await self._ask_latest(line) is not None
        if draw < 0.25 and any(self.positions.values()):
            return await self._fetch(
                line, {place: int(end * self.rng.random()) for place, end in self.positions.items()}
            )
        return await self._fetch(line, self.positions)

    # ---- the latest offset

    async def _start_at_latest(self, line: Line) -> Line:
        latest = await self._ask_latest(line)
        if latest is None:
            line.close()
            await self.pause(5, 100)
            return await self.dial()
        self.positions = latest
        self._from_latest = False
        return line

    async def _ask_latest(self, line: Line) -> dict[TopicPartition, int] | None:
        """None if it could not be read."""
        floors = {place: self.world.book.acknowledged_end[place] for place in self.positions}
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, partition in self.positions:
            topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST))
        asked = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
        try:
            answer = await line.call(ListOffsetsRequest(replica_id=-1, topics=asked), ListOffsetsResponse)
        except LineLostError:
            return None
        latest: dict[TopicPartition, int] = {}
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                place = (topic_answer.name, part.partition_index)
                error = ErrorCode(part.error_code)
                if error is ErrorCode.LEADER_NOT_AVAILABLE:
                    return None
                if error is not ErrorCode.NONE:
                    self.world.violation(f"{self.name} asked for the end of {place} and got {error.name}")
                    return None
                if part.offset < floors[place]:
                    self.world.violation(
                        f"{self.name} asked {line.address} for the end of {place} and got {part.offset},"
                        f" though {floors[place]} was told before"
                    )
                latest[place] = part.offset
        self.facts("latest", of=latest, by=line.address)
        return latest

    # ---- records

    async def _fetch(self, line: Line, offsets: dict[TopicPartition, int]) -> bool:
        part_bytes_max = self.rng.choice(self.part_bytes_max)
        sent_ms = self.world.loop.now_ms
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=part_bytes_max)
            )
        request = FetchRequest(
            max_wait_ms=int(self.rng.choice((0, 100, 500))),
            min_bytes=1,
            max_bytes=self.rng.choice((1, 1 << 20)),
            isolation_level=self.rng.choice((0, 1)),
            topics=[FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()],
        )
        try:
            answer = await line.call(request, FetchResponse)
        except LineLostError:
            return False
        if answer.error_code:
            self.world.violation(f"{self.name} got error {answer.error_code} to a fetch")
            return False
        all_answered = True
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                all_answered = self._take(line, place, offsets[place], part, sent_ms) and all_answered
        return all_answered

    def _take(self, line: Line, place: TopicPartition, offset: int, part: PartitionData, sent_ms: float) -> bool:
        """Check one partition's answer and move on. False if this agent returned nothing."""
        error = ErrorCode(part.error_code)
        who = f"{self.name} asked {line.address} for {place} from {offset}"
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            self.world.faults.count(Path.READ_FAILED)
            if self.world.is_healed_since(sent_ms):
                self.world.violation(f"{who} and got {error.name} though nothing fails")
            return False
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and self.world.was_told_to_stop(line.address):
            self.world.faults.count(Path.READER_SENT_AWAY)
            return False
        if error is not ErrorCode.NONE:
            self.world.violation(f"{who} and got {error.name}")
            return False
        if part.high_watermark < offset:
            self.world.faults.count(Path.READER_AHEAD)
        end = self._read(who, place, offset, memoryview(part.records or b""))
        if end > part.high_watermark and end > offset:
            self.world.violation(f"{who} and got records up to {end}, above the high watermark {part.high_watermark}")
        if end > self.positions[place]:
            self.facts("read", place=place, to=end, by=line.address)
            self.positions[place] = end
        return True

    def _read(self, who: str, place: TopicPartition, offset: int, records: memoryview) -> int:
        """Check the batches of an answer. Returns the offset behind them."""
        end = offset
        seen = self.world.book.seen[place]
        for at, header in iter_headers(records):
            is_first = at == 0
            if header.base_offset > end or (not is_first and header.base_offset != end):
                self.world.violation(f"{who} and got a batch at {header.base_offset} where {end} was next")
            if is_first and header.next_offset <= offset:
                self.world.violation(f"{who} and got a batch that ends before it, at {header.next_offset}")
            if is_first and header.base_offset < offset and offset == self.positions[place]:
                self.world.violation(f"{who} and got again what lies at {header.base_offset}")
            for record in walk(records[at : at + header.size_bytes]):
                value = bytes(record.value or b"")
                known = seen.setdefault(header.base_offset + record.offset_delta, value)
                if known != value:
                    self.world.violation(f"{who} and got {value!r} where somebody got {known!r}")
            end = header.next_offset
        return end


class Browser(Client):
    """Asks for anything, anywhere, also where topics are deleted. Every answer is fine except an unexpected error."""

    principal = READER

    def __init__(self, world: World, name: str, places: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self._places = places

    async def run(self) -> None:
        line = await self.dial()
        while self.world.healed_ms is None:
            place = self.rng.choice(self._places)
            ask = self.rng.choice((self._fetch, self._look_up))
            if not await ask(line, place) or self.rng.random() < 0.3:
                line.close()
                line = await self.dial()
            await self.pause(0, 200)
        line.close()

    async def _fetch(self, line: Line, place: TopicPartition) -> bool:
        asked = FetchPartition(
            partition=place[1],
            fetch_offset=self.rng.randint(-1, self.world.book.acknowledged_end[place] + 2),
            partition_max_bytes=self.rng.choice((1, 300, 1 << 20)),
        )
        request = FetchRequest(
            max_wait_ms=300, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=place[0], partitions=[asked])]
        )
        try:
            answer = await line.call(request, FetchResponse)
        except LineLostError:
            return False
        if not answer.responses:
            return True  # the agent lost its lease meanwhile, and does not know who may still read
        part = answer.responses[0].partitions[0]
        if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.world.was_told_to_stop(line.address):
            self.world.faults.count(Path.READER_SENT_AWAY)
            return False
        self._judge(place, part.error_code, {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR})
        if ErrorCode(part.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.world.faults.count(Path.OUT_OF_RANGE)
        return True

    async def _look_up(self, line: Line, place: TopicPartition) -> bool:
        """The first offset at or after a time."""
        now_ms = self.world.server_clock.wall_ms()
        asked = ListOffsetsPartition(partition_index=place[1], timestamp=now_ms - self.rng.randint(-50, 2_000))
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=place[0], partitions=[asked])])
        try:
            answer = await line.call(request, ListOffsetsResponse)
        except LineLostError:
            return False
        part = answer.topics[0].partitions[0]
        self._judge(place, part.error_code, {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})
        if part.error_code == 0 and part.offset >= 0:
            self.world.faults.count(Path.FOUND_BY_TIME)
        return True

    def _judge(self, place: TopicPartition, error_code: int, expected: set[ErrorCode]) -> None:
        error = ErrorCode(error_code)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self.world.may_vanish(place):
            return
        if error is not ErrorCode.NONE and error not in expected:
            self.world.violation(f"{self.name} asked for {place} and got {error.name}")
