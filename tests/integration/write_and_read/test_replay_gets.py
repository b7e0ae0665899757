"""The cost of replays of merged files: at most a GET for each file that holds a partition, and one for each 8 MiB."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from agents.read.cache import BLOCK_BYTES
from siltstone.kafka.client import KafkaClient
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.hand_merges import HandMerger
from wire.batch import iter_headers
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import NewRecord, build_batch

MIB = 1 << 20
GET_BYTES = 8 * MIB
RECORDS = 50


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((key, start, length))
        return await super().get_range(key, start, length)

    def blocks_read(self) -> list[tuple[str, int]]:
        return [
            (key, block)
            for key, start, length in self.gets
            for block in range(start // BLOCK_BYTES, -(-(start + length) // BLOCK_BYTES))
        ]


async def history(
    start_agent: StartAgent, dial: Dial, *, partitions: int, files: int, batches: int, merged: bool = True
) -> tuple[CountingStore, RunningAgent, int]:
    """`files` files, each with `batches` batches of 0.48 MiB of every partition. Returns the batches' size too."""
    store = CountingStore()
    writer = await start_agent(store=store, produce_file_bytes=64 * MIB)
    client = await dial.kafka(writer.address)
    await client.create_topic("t", partitions=partitions)
    batch = build_batch([NewRecord(int(time.time() * 1000), None, bytes(10_000))] * RECORDS)
    merger = await HandMerger.start(writer.metadata, store)  # type: ignore[arg-type]
    for _ in range(files):
        for _ in range(batches):
            await asyncio.gather(*(client.produce("t", number, batch) for number in range(partitions)))
        if merged:
            await merger.merge(l0_files=await merger.live_l0())
    return store, writer, len(batch)


async def fetch(client: KafkaClient, places: Mapping[int, int]) -> dict[int, int]:
    """One fetch from these offsets, by partition. Returns where to go on, of those that answered with records."""
    asked = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=2 * MIB)
        for number, offset in places.items()
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=50 * MIB, topics=[FetchTopic(topic="t", partitions=asked)]
    )
    answers = (await client.call(request, FetchResponse)).responses[0].partitions
    assert [each.error_code for each in answers] == [0] * len(places)
    headers = {each.partition_index: [head for _, head in iter_headers(each.records or b"")] for each in answers}
    return {number: found[-1].next_offset for number, found in headers.items() if found}


async def replay(client: KafkaClient, places: dict[int, int], end: int) -> None:
    """One consumer of all these partitions, from the offsets given, as librdkafka asks: all of them in each fetch."""
    while places:
        places |= await fetch(client, places)
        places = {number: offset for number, offset in places.items() if offset < end}


@pytest.mark.parametrize(
    ("partitions", "files", "batches"),
    [(1, 3, 42), (1, 1, 17), (12, 2, 7), (12, 1, 20)],
    ids=["one partition", "one of 8.1 MiB", "twelve of 3.3 MiB a file", "twelve of 9.5 MiB"],
)
async def test_a_replay_costs_a_get_per_file_and_one_per_8_mib(
    start_agent: StartAgent, dial: Dial, partitions: int, files: int, batches: int
) -> None:
    # given: history in merged files, and an agent that has none of it in memory
    store, writer, batch_bytes = await history(start_agent, dial, partitions=partitions, files=files, batches=batches)
    reader = await start_agent(store=store, metadata=writer.metadata)
    client = await dial.kafka(reader.address)
    store.gets.clear()
    # when: one consumer reads all of it
    await replay(client, dict.fromkeys(range(partitions), 0), files * batches * RECORDS)
    # then: GETs as promised, however the files' extents lie across the blocks of the cache
    data_bytes = partitions * files * batches * batch_bytes
    assert len(store.gets) <= partitions * files + data_bytes / GET_BYTES, store.gets
    assert sum(length for _, _, length in store.gets) <= data_bytes + (partitions + 1) * files * MIB


async def test_a_replay_from_the_middle_costs_two_looks_more(start_agent: StartAgent, dial: Dial) -> None:
    store, writer, batch_bytes = await history(start_agent, dial, partitions=1, files=2, batches=42)
    reader = await start_agent(store=store, metadata=writer.metadata)
    client = await dial.kafka(reader.address)
    store.gets.clear()
    await replay(client, {0: 9 * RECORDS}, 2 * 42 * RECORDS)
    # The file's block index, and the fetch that nobody knew would be followed by others.
    assert len(store.gets) <= 2 + 2 + (2 * 42 - 9) * batch_bytes / GET_BYTES, store.gets
    repeated = len(store.blocks_read()) - len(set(store.blocks_read()))
    assert repeated == 0


async def test_looks_at_old_records_do_not_drive_out_what_is_read_ahead(start_agent: StartAgent, dial: Dial) -> None:
    # given: a cold cache with room for three GETs ahead (two of the replay, one that a look began), and a replay
    store, writer, _ = await history(start_agent, dial, partitions=2, files=1, batches=60)
    reader = await start_agent(store=store, metadata=writer.metadata, cache_cold_bytes=28 * MIB)
    client = await dial.kafka(reader.address)
    store.gets.clear()
    end = 60 * RECORDS
    places = {0: 0}
    looks = 0
    while places[0] < end:
        places |= await fetch(client, places)
        # when: somebody looks here and there in the other partition after each of its fetches
        for offset in range(looks % 7, end, 8 * RECORDS):
            await fetch(client, {1: offset})
        looks += 1
    # then: nothing of the replay is read twice
    [extent] = await writer.metadata.readers.leveled_extents(1, 0)  # type: ignore[attr-defined]
    inner = range(-(-extent.position // BLOCK_BYTES), (extent.position + extent.length) // BLOCK_BYTES)
    read = [block for _, block in store.blocks_read() if block in inner]
    assert sorted(read) == list(inner)


async def test_a_reader_of_the_tail_costs_what_its_fetches_need_and_no_more(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: L0 files of twelve partitions, and an agent that did not write them
    store, writer, batch_bytes = await history(start_agent, dial, partitions=12, files=4, batches=1, merged=False)
    reader = await start_agent(store=store, metadata=writer.metadata)
    client = await dial.kafka(reader.address)
    store.gets.clear()
    await replay(client, dict.fromkeys(range(12), 0), 4 * RECORDS)
    assert len(store.blocks_read()) == len(set(store.blocks_read()))
    files = len({key for key, _, _ in store.gets})
    assert len(store.gets) <= 12 * 4 and sum(length for *_, length in store.gets) <= 48 * batch_bytes + files * MIB
    # and who reads on reads nothing twice, and nothing ahead
    found = await read_all(client, "t")
    assert len(found) == 4 * RECORDS
