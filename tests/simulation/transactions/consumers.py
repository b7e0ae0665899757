"""Readers of committed records. They leave out aborted records as librdkafka does: by the list of each answer, from
which an ABORT marker takes the first entry of its producer."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from tests.simulation.access.principals import READER
from tests.simulation.book import TopicPartition
from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.transactions.checks import View
from tests.simulation.transactions.merges import COMPACTED
from tests.simulation.transactions.orders import Order
from wire.batch import iter_headers
from wire.error_codes import ErrorCode
from wire.markers import read_marker
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.records import walk

if TYPE_CHECKING:
    from tests.simulation.transactions.transactions import Transactions
    from tests.simulation.world import World

COMMITTED = 1
LATEST, EARLIEST = -1, -2
VERSIONS = {1: (4, 7, 11, 12), 2: (5, 8)}
_PATTERN = (True, False, True)


class CommittedReader(Client):
    """Reads `places` from the start to their end, through agents that it hops between, or through one."""

    principal = READER
    versions_known = VERSIONS

    def __init__(
        self, world: World, room: Transactions, name: str, places: list[TopicPartition], *, address: str = ""
    ) -> None:
        super().__init__(world, name, rng=room.rng)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(places, 0)
        self._room = room
        self._address = address
        self._is_below_start: set[TopicPartition] = set()

    async def run(self) -> None:
        line = await self.dial(self._address)
        while not self.world.is_at_end(self.positions):
            goes_on = await self._step(line)
            if not goes_on or (not self._address and self.rng.random() < 0.3):
                line.close()
                await self.pause(0, 30 if goes_on else 200)
                line = await self.dial(self._address)
        line.close()

    async def _step(self, line: Line) -> bool:
        if self._is_below_start:
            return await self._ask_start(line, self._is_below_start.pop())
        draw = self.rng.random()
        if draw < 0.12:
            return await self._ask_latest(line)
        if draw < 0.3 and any(self.positions.values()):
            return await self._fetch(line, {place: int(at * self.rng.random()) for place, at in self.positions.items()})
        return await self._fetch(line, self.positions)

    async def _ask_latest(self, line: Line) -> bool:
        """The last stable offset, which is never below one that was told before."""
        floors = dict(self._room.stable)
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, partition in self.positions:
            topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST))
        asked = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=COMMITTED, topics=asked)
        try:
            answer = await line.call(request, ListOffsetsResponse)
        except LineLostError:
            return False
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                place = (topic_answer.name, part.partition_index)
                if part.error_code:
                    continue
                if part.offset < floors.get(place, 0):
                    self.world.violation(
                        f"{self.name} asked {line.address} for the last stable offset of {place} and got {part.offset},"
                        f" though {floors[place]} was told before"
                    )
                self._stable_at(place, part.offset)
        return True

    async def _ask_start(self, line: Line, place: TopicPartition) -> bool:
        """Go on from the start of the log."""
        asked = ListOffsetsPartition(partition_index=place[1], timestamp=EARLIEST)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=COMMITTED, topics=[ListOffsetsTopic(name=place[0], partitions=[asked])]
        )
        try:
            answer = await line.call(request, ListOffsetsResponse)
        except LineLostError:
            return False
        part = answer.topics[0].partitions[0]
        if not part.error_code:
            self.positions[place] = max(part.offset, self.positions[place])
        return not part.error_code

    async def _fetch(self, line: Line, offsets: dict[TopicPartition, int]) -> bool:
        part_bytes_max = self.rng.choice((1, 200, 1 << 20, 1 << 20))
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=part_bytes_max)
            )
        request = FetchRequest(
            max_wait_ms=int(self.rng.choice((0, 100, 500))),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=COMMITTED,
            topics=[FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()],
        )
        try:
            answer = await line.call(request, FetchResponse)
        except LineLostError:
            return False
        all_answered = True
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                all_answered = self._take(line, place, offsets[place], part) and all_answered
        return all_answered

    def _take(self, line: Line, place: TopicPartition, offset: int, part: PartitionData) -> bool:
        """Check one partition's answer and move on. False if this agent returned nothing."""
        who = f"{self.name} asked {line.address} for {place} from {offset}"
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and place[0] == "trimmed":
            self._is_below_start.add(place)
            return True
        if part.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return False
        if part.error_code:
            self.world.violation(f"{who} and got {ErrorCode(part.error_code).name}")
            return False
        if part.last_stable_offset > part.high_watermark:
            self.world.violation(f"{who}: last stable offset {part.last_stable_offset}, end {part.high_watermark}")
        self._stable_at(place, part.last_stable_offset)
        view = self._read(who, place, offset, part)
        if view.end > max(part.last_stable_offset, offset):
            self.world.violation(f"{who} and got records to {view.end}, last stable offset {part.last_stable_offset}")
        self._room.views.append(view)
        if view.end > self.positions[place]:
            self.facts("read", place=place, to=view.end, by=line.address)
            self.positions[place] = view.end
        return True

    def _stable_at(self, place: TopicPartition, offset: int) -> None:
        self._room.stable[place] = max(offset, self._room.stable.get(place, 0))

    def _read(self, who: str, place: TopicPartition, offset: int, part: PartitionData) -> View:
        listed = [(each.first_offset, each.producer_id) for each in part.aborted_transactions or ()]
        aborted: dict[int, deque[int]] = defaultdict(deque)
        for first_offset, producer_id in listed:
            aborted[producer_id].append(first_offset)
        view = View(who, place, offset, offset, self.world.loop.now_ms, listed)
        outcomes: dict[int, list[bool]] = defaultdict(list)
        records = memoryview(part.records or b"")
        for at, header in iter_headers(records):
            is_next = header.base_offset <= view.end and (not at or header.base_offset == view.end)
            may_miss = place[0] == COMPACTED and header.base_offset >= view.end
            if not is_next and place[0] != "trimmed" and not may_miss:
                self.world.violation(f"{who} and got a batch at {header.base_offset} where {view.end} was next")
            view.end = header.next_offset
            batch = records[at : at + header.size_bytes]
            firsts = aborted[header.producer_id]
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None:
                    outcomes[header.producer_id].append(marker.commit)
                if marker is not None and not marker.commit and firsts and firsts[0] <= header.base_offset:
                    firsts.popleft()
                continue
            if header.is_transactional and firsts and firsts[0] <= header.base_offset:
                continue
            for record in walk(batch):
                if (found := header.base_offset + record.offset_delta) >= offset:
                    view.shown[found] = bytes(record.value or b"")
        for ends in outcomes.values():
            if any(tuple(ends[at : at + 3]) == _PATTERN for at in range(len(ends) - 2)):
                self.world.faults.counts[Order.THREE_IN_ONE_ANSWER] += 1
        return view
