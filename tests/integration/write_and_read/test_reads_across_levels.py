"""Consumers read on while the files under them are merged, cleaned and swept; and replays of what was merged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.read import leveled
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.readers import LeveledWindow, ReaderMetadata
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from siltstone.kafka.client import KafkaClient, KafkaError
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all, records_of
from tests.fixtures.fleet import code_of
from tests.fixtures.hand_merges import HandMerger, Stretch
from tests.fixtures.metadata_parts import Part
from tests.fixtures.steady_readers import AiokafkaReader, LibrdkafkaReader
from tests.fixtures.waiting import until
from wire.batch import read_header
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import NewRecord, build_batch

MIB = 1 << 20


def batch(*values: bytes, timestamp_ms: int | None = None) -> bytes:
    at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return build_batch([NewRecord(at_ms + number, None, value) for number, value in enumerate(values)])


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((key, start, length))
        return await super().get_range(key, start, length)


async def merger_of(running: RunningAgent) -> HandMerger:
    return await HandMerger.start(running.metadata, running.store)  # type: ignore[arg-type]


async def heard(running: RunningAgent) -> None:
    await running.agent._follower.catch_up()


async def fetch(client: KafkaClient, offset: int, partition: int = 0) -> tuple[int, list[int]]:
    """(error, offsets of the records) of one fetch of "t" that does not wait."""
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MIB)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=50 * MIB, topics=[FetchTopic(topic="t", partitions=[asked])]
    )
    answer = (await client.call(request, FetchResponse)).responses[0].partitions[0]
    return answer.error_code, [at for at, _ in records_of(memoryview(answer.records or b""))]


# ---- under consumers


async def test_consumers_notice_nothing_of_merges_and_sweeps(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=2)
    merger = await merger_of(agent)
    metadata: MetadataStore = agent.metadata  # type: ignore[assignment]
    to = {"topic": "t", "partitions": 2}
    written = 0
    with LibrdkafkaReader(agent.address, **to) as one, AiokafkaReader(agent.address, **to) as other:
        for turn in range(12):
            for number in range(6):
                await client.produce("t", number % 2, batch(b"%d" % written, b"-"))
                written += 2
            live = await merger.live_l0()
            if turn % 2:
                await merger.merge(l0_files=live[: len(live) - 2])
            if turn % 4 == 3:
                extents = [each for number in (1, 2) for each in await metadata.readers.leveled_extents(number, 0)]
                await merger.merge(extents=[each.extent_id for each in extents], level=2)
                # nothing is graced: readers that still plan with what is gone have to look again
                await agent.store.delete_many([each.key for each in await metadata.deletion.dead_files(grace_ms=0)])
        for each in (one, other):
            await asyncio.to_thread(each.until, written)
        # and who comes now reads all of it from where it lies by now
        with LibrdkafkaReader(agent.address, **to) as late:
            await asyncio.to_thread(late.until, written)
            assert late.found == one.found == other.found
    await until(lambda: agent.metric("live_l0_files") < 12)


async def test_an_agent_that_starts_after_a_merge_reads_what_was_before(start_agent: StartAgent, dial: Dial) -> None:
    first = await start_agent()
    client = await dial.kafka(first.address)
    await client.create_topic("t", partitions=1)
    for number in range(10):
        await client.produce("t", 0, batch(b"%d" % number))
    merger = await merger_of(first)
    await merger.merge(l0_files=(await merger.live_l0())[2:7])
    second = await start_agent(store=first.store, metadata=first.metadata)
    there = await dial.kafka(second.address)
    assert [bytes(record.value or b"") for _, record in await read_all(there, "t")] == [b"%d" % n for n in range(10)]
    # a long poll is answered at once by what lies in a merged file
    started = time.monotonic()
    assert len((await there.fetch("t", 0, 3, max_wait_ms=20_000, min_bytes=1)).records)
    assert time.monotonic() - started < 5


async def test_timestamps_are_found_in_merged_files(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    for stamp in (100, 500, 300, 700, 400):
        await client.produce("t", 0, batch(b"a", b"b", timestamp_ms=stamp))
    merger = await merger_of(agent)
    await merger.merge(l0_files=(await merger.live_l0())[:4])
    await heard(agent)
    for asked, found in ((0, 0), (101, 1), (102, 2), (502, 6), (701, 7)):
        assert await client.list_offsets("t", [0], timestamp=asked) == {0: found}
    assert await client.list_offsets("t", [0], timestamp=702) == {0: -1}
    assert await client.list_offsets("t", [0], timestamp=-3) == {0: 7}


# ---- gaps, damage, loss


async def test_a_fetch_in_a_gap_finds_the_next_batch_however_far(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    for number in range(8):
        await client.produce("t", 0, batch(b"%d" % number, b"-"))

    def cleaned(stretch: Stretch) -> Sequence[Stretch]:
        kept = [each for each in stretch.batches if read_header(each).base_offset == 0]
        empty = [Stretch(stretch.partition_id, base, base + 1, []) for base in range(2, stretch.last_offset, 2)]
        return [Stretch(stretch.partition_id, 0, 1, kept), *empty]

    merger = await merger_of(agent)
    await merger.merge(l0_files=(await merger.live_l0())[:7], shape=cleaned)
    await heard(agent)
    assert await fetch(client, 0) == (0, [0, 1, 14, 15])
    for offset in range(2, 15):
        assert await fetch(client, offset) == (0, [14, 15])


async def test_a_flagged_extent_says_so_and_what_is_around_it_reads(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    for number in range(4):
        await client.produce("t", 0, batch(b"%d" % number))

    def flagged(stretch: Stretch) -> Sequence[Stretch]:
        return [
            Stretch(stretch.partition_id, number, number, [each], flagged="damaged" if number == 1 else None)
            for number, each in enumerate(stretch.batches)
        ]

    merger = await merger_of(agent)
    await merger.merge(l0_files=await merger.live_l0(), shape=flagged)
    await heard(agent)
    assert await fetch(client, 0) == (0, [0])
    assert await fetch(client, 1) == (ErrorCode.CORRUPT_MESSAGE, [])
    assert await fetch(client, 2) == (0, [2, 3])


async def test_an_object_that_is_lost_is_said_to_be_and_others_read(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    for number in range(4):
        await client.produce("t", 0, batch(b"%d" % number))
    merger = await merger_of(agent)
    live = await merger.live_l0()
    lost = await merger.merge(l0_files=live[:2])
    await merger.merge(l0_files=live[2:3])
    await heard(agent)
    await agent.store.delete_many([lost])
    assert await fetch(client, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert await fetch(client, 2) == (0, [2, 3])
    with pytest.raises(KafkaError) as refused:
        await client.list_offsets("t", [0], timestamp=0)
    assert code_of(refused.value) is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_lost_object_of_l0_is_said_to_be_lost_as_often_as_it_is_asked_for(
    start_agent: StartAgent, dial: Dial
) -> None:
    first = await start_agent()
    writer = await dial.kafka(first.address)
    await writer.create_topic("t", partitions=1)
    for number in range(3):
        await writer.produce("t", 0, batch(b"%d" % number))
    # given: an agent that has none of it in memory, and a live L0 object that is gone
    second = await start_agent(store=first.store, metadata=first.metadata)
    client = await dial.kafka(second.address)
    merger = await merger_of(first)
    lost_id = (await merger.live_l0())[0]
    [lost] = [file for file in await first.metadata.operators.files() if file.file_id == lost_id]
    await first.store.delete_many([lost.key])
    for _ in range(2):
        assert await fetch(client, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        # then its extent stays: nothing has taken its place
        log = second.agent._index.partition(1)
        assert log is not None
        extent = log.extent_at(0)
        assert extent is not None and extent.file_id == lost_id
    assert await fetch(client, 1) == (0, [1, 2])


# ---- Postgres away


class AwayForLookUps(Part):
    """Answers all but the look-ups of merged files: refuses them, or is silent."""

    def __init__(self, inner: ReaderMetadata) -> None:
        super().__init__(inner)
        self.away = self.silent = False

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            raise MetadataUnavailableError("refused")
        return await self.inner.leveled_window(partition_id, offset, limit=limit)


async def test_without_look_ups_a_merged_partition_alone_fails_and_the_others_carry_records(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = MemoryMetadata()
    metadata.readers = look_ups = AwayForLookUps(metadata.readers)  # type: ignore[assignment]
    await metadata.open()
    running = await start_agent(metadata=metadata)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=2)
    await client.produce("t", 0, batch(b"old"))
    merger = await merger_of(running)
    await merger.merge(l0_files=await merger.live_l0())
    await client.produce("t", 1, batch(b"new"))
    await heard(running)
    raw = await dial.raw(running.address)

    async def both() -> list[tuple[int, int]]:
        parts = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=MIB) for number in (0, 1)]
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(topic="t", partitions=parts)]
        )
        answer = await raw.call(request, FetchResponse, 12)
        return [
            (part.error_code, len(records_of(memoryview(part.records or b""))))
            for part in answer.responses[0].partitions
        ]

    look_ups.away = True
    assert await both() == [(ErrorCode.KAFKA_STORAGE_ERROR, 0), (0, 1)]
    assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
    look_ups.away, look_ups.silent = False, True
    started = time.monotonic()
    assert await both() == [(0, 0), (0, 1)], "it is not waited for: the client asks again"
    assert time.monotonic() - started < 4
    monkeypatch.setattr(leveled, "WAIT_MS_MAX", 100)
    running.agent._reads._leveled.forget(1)
    assert (await fetch(client, 0))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    look_ups.silent = False
    assert await both() == [(0, 1), (0, 1)]


# ---- replays


async def large_partition(
    start_agent: StartAgent, dial: Dial, files: int, file_mib: int, **settings: Any
) -> tuple[RunningAgent, CountingStore]:
    """A partition of `files` merged files of `file_mib` each, and an agent that has none of it in memory."""
    store = CountingStore()
    first = await start_agent(store=store, produce_file_bytes=64 * MIB)
    client = await dial.kafka(first.address)
    await client.create_topic("t", partitions=1, configs={"max.message.bytes": str(4 * MIB)})
    merger = await merger_of(first)
    for _ in range(files):
        for _ in range(file_mib * 2):
            await client.produce("t", 0, batch(*[bytes(10_000)] * 52))
        await merger.merge(l0_files=await merger.live_l0())
    second = await start_agent(store=store, metadata=first.metadata, **settings)
    return second, store


async def test_a_replay_costs_a_get_per_file_and_one_per_8_mib(start_agent: StartAgent, dial: Dial) -> None:
    running, store = await large_partition(start_agent, dial, files=3, file_mib=20)
    client = await dial.kafka(running.address)
    store.gets.clear()
    found = await read_all(client, "t")
    assert len(found) == 3 * 40 * 52
    data_bytes = sum(length for _, _, length in store.gets)
    assert data_bytes < 66 * MIB, "nothing is read twice"
    assert len(store.gets) <= 3 + data_bytes / (8 * MIB), store.gets


async def test_a_single_look_at_old_records_reads_little(start_agent: StartAgent, dial: Dial) -> None:
    running, store = await large_partition(start_agent, dial, files=1, file_mib=20)
    client = await dial.kafka(running.address)
    store.gets.clear()
    middle = 21 * 52 + 7
    error, offsets = await fetch(client, middle)
    assert (error, offsets[0]) == (0, 21 * 52)
    assert sum(length for _, _, length in store.gets) <= 4 * MIB
    store.gets.clear()
    assert await client.list_offsets("t", [0], timestamp=int(time.time() * 1000) + 1_000_000) == {0: -1}
    assert store.gets == [], "no extent promises such a time"


async def test_replays_of_many_partitions_share_what_the_cold_pool_holds(start_agent: StartAgent, dial: Dial) -> None:
    store = CountingStore()
    first = await start_agent(store=store, produce_file_bytes=64 * MIB)
    client = await dial.kafka(first.address)
    await client.create_topic("t", partitions=6)
    for _ in range(12):
        for partition in range(6):
            await client.produce("t", partition, batch(*[bytes(10_000)] * 52))
    merger = await merger_of(first)
    await merger.merge(l0_files=await merger.live_l0())
    running = await start_agent(store=store, metadata=first.metadata, cache_cold_bytes=24 * MIB)
    readers = [await dial.kafka(running.address) for _ in range(6)]
    store.gets.clear()
    found = await asyncio.gather(*(read_all(reader, "t", number) for number, reader in enumerate(readers)))
    assert [len(each) for each in found] == [12 * 52] * 6
    assert running.agent._reads._ahead.held_bytes <= 21 * MIB
    assert sum(length for _, _, length in store.gets) < 60 * MIB, "36 MiB, and seams; not each block again and again"
    await until(lambda: running.metric("cache_bytes", pool="cold") <= 24 * MIB)


async def test_a_replay_on_postgres_and_a_directory(agent: RunningAgent, client: KafkaClient, tmp_path: Path) -> None:
    await client.create_topic("t", partitions=1)
    for number in range(20):
        await client.produce("t", 0, batch(*[b"%d" % number * 1000] * 100))
    merger = await merger_of(agent)
    live = await merger.live_l0()
    await merger.merge(l0_files=live[:8])
    await merger.merge(l0_files=live[8:15])
    await heard(agent)
    assert [offset for offset, _ in await read_all(client, "t")] == list(range(2000))
    for offset in (1, 799, 800, 801, 1499, 1500, 1999):
        assert (await fetch(client, offset))[1][0] == offset // 100 * 100
