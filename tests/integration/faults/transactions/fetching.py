"""Fetches by hand, of committed records and of everything. What is aborted is left out as librdkafka leaves it out: by
the list of each answer, from which an ABORT marker takes the first entry of its producer."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from runtime.errors import SiltstoneError
from tests.integration.faults.transactions.asking import Asking
from tests.integration.faults.transactions.history import Bounds, Kept, Place
from tests.simulation.checks import StoredBatch
from tests.simulation.transactions.checks import stored_of
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

UNCOMMITTED, COMMITTED = 0, 1
LATEST = -1
WAIT_MS = 200
FOLLOW_S = 1.0


async def fetch(
    asking: Asking, offsets: Mapping[Place, int], *, isolation: int, address: str = "", wait_ms: int = WAIT_MS
) -> Mapping[Place, PartitionData]:
    """Those places that were answered without an error. Raises SiltstoneError if it is asked at `address`."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, partition), offset in offsets.items():
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 18)
        topics.setdefault(topic, []).append(asked)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()],
    )
    if address:
        answer = await asking.at(address, request, FetchResponse)
    else:
        answer = await asking.anywhere(request, FetchResponse, lambda it: it.error_code)
    return {
        (topic.topic, part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
        if not part.error_code
    }


def records_of(part: PartitionData, start: int) -> tuple[list[tuple[int, bytes]], int]:
    """Offsets and values from `start` on, and the offset behind them. An answer to a reader of everything lists no
    aborted transactions."""
    aborted: dict[int, deque[int]] = defaultdict(deque)
    for each in part.aborted_transactions or ():
        aborted[each.producer_id].append(each.first_offset)
    shown: list[tuple[int, bytes]] = []
    end = start
    records = memoryview(part.records or b"")
    for at, header in iter_headers(records):
        end = max(end, header.next_offset)
        batch = records[at : at + header.size_bytes]
        firsts = aborted[header.producer_id]
        is_aborted = bool(firsts) and firsts[0] <= header.base_offset
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.commit and is_aborted:
                firsts.popleft()
        elif not (header.is_transactional and is_aborted):
            offsets = ((header.base_offset + each.offset_delta, bytes(each.value or b"")) for each in walk(batch))
            shown += [(offset, value) for offset, value in offsets if offset >= start]
    return shown, end


class WholeLog:
    """A reader of everything, markers too. It goes on where it was."""

    def __init__(self, asking: Asking, places: Sequence[Place]) -> None:
        self._asking, self._one_at_a_time = asking, asyncio.Lock()
        self._batches: dict[Place, list[StoredBatch]] = {place: [] for place in places}
        self._offsets = dict.fromkeys(places, 0)

    async def follow(self) -> None:
        """Read along, so that little is left to be read at the end."""
        while True:
            await self.read()
            await asyncio.sleep(FOLLOW_S)

    async def read(self) -> Mapping[Place, Mapping[int, Kept]]:
        """To the end that an agent names. Whether a record is committed is what its marker says."""
        async with self._one_at_a_time:
            await self._read_on()
        return {place: self._kept(place) for place in self._batches}

    async def _read_on(self) -> None:
        ends = await bounds_of(self._asking, list(self._offsets))
        while behind := {at: start for at, start in self._offsets.items() if start < ends[at].end}:
            for place, part in (await fetch(self._asking, behind, isolation=UNCOMMITTED)).items():
                records = memoryview(part.records or b"")
                for at, header in iter_headers(records):
                    assert header.base_offset == self._offsets[place], f"a hole in {place} at {self._offsets[place]}"
                    batch = records[at : at + header.size_bytes]
                    values = tuple(bytes(each.value or b"") for each in walk(batch))
                    marker = read_marker(batch)
                    is_commit = marker is not None and marker.commit
                    self._batches[place].append(StoredBatch(header.base_offset, header, values, is_commit))
                    self._offsets[place] = header.next_offset

    def _kept(self, place: Place) -> Mapping[int, Kept]:
        stored = stored_of({place: self._batches[place]}, {})[place]
        ended: list[tuple[StoredBatch, bool | None]] = [*stored.ended, *((batch, None) for batch in stored.open)]
        found = {
            batch.offset + number: Kept(value, is_committed)
            for batch, is_committed in ended
            for number, value in enumerate(batch.values)
        }
        return dict(sorted(found.items()))


async def bounds_of(asking: Asking, places: Sequence[Place], *, address: str = "") -> Mapping[Place, Bounds]:
    """The last stable offsets and the ends. Raises SiltstoneError."""
    found: list[Mapping[Place, int]] = []
    for isolation in (COMMITTED, UNCOMMITTED):
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST))
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        if address:
            answer = await asking.at(address, request, ListOffsetsResponse)
        else:
            answer = await asking.anywhere(request, ListOffsetsResponse, _error_of_bounds)
        if code := _error_of_bounds(answer):
            raise SiltstoneError(f"bounds: {ErrorCode(code).name}")
        found.append(
            {(topic.name, each.partition_index): each.offset for topic in answer.topics for each in topic.partitions}
        )
    return {place: Bounds(found[0][place], found[1][place]) for place in places}


def _error_of_bounds(answer: ListOffsetsResponse) -> int:
    return next((each.error_code for topic in answer.topics for each in topic.partitions if each.error_code), 0)
