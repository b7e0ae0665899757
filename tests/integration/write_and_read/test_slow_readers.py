"""Clients that ask for much and take little: the memory that an agent holds for them is bounded, and others go on."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import pytest

import agents.server
from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all, records_of
from tests.fixtures.record_batches import some_records
from tests.fixtures.waiting import until
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import build_batch

MIB = 1 << 20


def fetch(*places: tuple[int, int, int], wait_ms: int = 0, bytes_max: int = 50 * MIB) -> FetchRequest:
    parts = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
        for partition, offset, size in places
    ]
    topics = [FetchTopic(topic="t", partitions=parts)]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max, topics=topics)


async def filled(dial: Dial, running: RunningAgent, batches: int = 24) -> KafkaClient:
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    records = build_batch(some_records(100, value_bytes=10_000))
    for _ in range(batches):
        await client.produce("t", 0, records)
    return client


def held(running: RunningAgent) -> int:
    server = running.agent._server
    assert server is not None
    return server.broker.reader._budget.taken


async def test_answers_nobody_takes_are_bounded_and_others_are_served(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(fetch_buffer_bytes_max=48 * MIB, fetch_max_bytes=16 * MIB)
    await filled(dial, running)
    tracemalloc.start()
    try:
        mute = [await dial.raw(running.address) for _ in range(12)]
        for raw in mute:
            for _ in range(3):
                await raw.begin(fetch((0, 0, 50 * MIB)), 11)
        await until(lambda: held(running) > 0)
        await asyncio.sleep(0.3)
        _, peak = tracemalloc.get_traced_memory()
        assert 0 < held(running) <= 48 * MIB
        # views of what the cache holds anyway, and one slice a connection that the transport has copied
        assert peak < 32 * MIB, f"{peak} bytes for 12 clients that asked for 3 x 16 MiB each"
    finally:
        tracemalloc.stop()
    # then: a small fetch has its turn as soon as some go
    reader = await dial.kafka(running.address)
    for raw in mute:
        raw.writer.transport.abort()
    assert len(records_of((await reader.fetch("t", 0, 0, max_bytes=2 * MIB)).records)) > 0
    async with asyncio.timeout(10):
        while held(running):
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_is_cut_soon_when_others_wait_for_what_it_holds(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.server, "STALLED_MS_WHEN_WAITED_FOR", 200)
    monkeypatch.setattr(agents.server, "SWEEP_MS", 50)
    running = await start_agent(fetch_buffer_bytes_max=20 * MIB, fetch_max_bytes=20 * MIB)
    client = await filled(dial, running)
    mute = await dial.raw(running.address)
    await mute.begin(fetch((0, 0, 50 * MIB)), 11)
    # given: the mute one holds the whole budget, and nobody minds
    await until(lambda: held(running) == 20 * MIB)
    await asyncio.sleep(0.5)
    assert held(running) == 20 * MIB
    assert running.metric("connections") == 2
    started = time.monotonic()
    assert len((await client.fetch("t", 0, 0, max_bytes=2 * MIB)).records) > 0
    assert time.monotonic() - started < 8
    assert running.metric("connections") == 1


async def test_a_client_that_does_not_read_is_cut_in_the_end(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.server, "STALLED_MS_MAX", 200)
    monkeypatch.setattr(agents.server, "SWEEP_MS", 50)
    running = await start_agent()
    await filled(dial, running)
    mute = await dial.raw(running.address)
    await mute.begin(fetch((0, 0, 50 * MIB)), 11)
    async with asyncio.timeout(8):
        while running.metric("connections") > 1:
            await asyncio.sleep(0.02)


async def test_a_slow_reader_gets_all_of_a_large_answer(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    await filled(dial, running)
    raw: RawConnection = await dial.raw(running.address)
    await raw.begin(fetch((0, 0, 50 * MIB)), 11)
    await asyncio.sleep(0.2)
    answer = await raw.answer(FetchResponse, 11)
    data = memoryview(answer.responses[0].partitions[0].records)  # type: ignore[arg-type]
    assert [offset for offset, _ in records_of(data)] == list(range(2400))
    assert held(running) == 0


async def test_many_small_wishes_for_one_large_extent_are_bounded(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(fetch_max_bytes=4 * MIB, fetch_buffer_bytes_max=8 * MIB)
    raw = await dial.raw(running.address)
    await filled(dial, running, batches=8)
    tracemalloc.start()
    try:
        await raw.begin(fetch(*[(0, 50 + number, 1) for number in range(700)]), 11)
        await raw.answer(FetchResponse, 11)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB


async def test_a_partition_named_twice_is_answered_twice(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    client = await filled(dial, running, batches=1)
    raw = await dial.raw(running.address)
    answer = await raw.call(fetch((0, 100, 100), (0, 100, 100), wait_ms=30), FetchResponse, 11)
    assert [part.error_code for part in answer.responses[0].partitions] == [0, 0]
    answer = await raw.call(fetch((0, 0, 100), (0, 0, 100)), FetchResponse, 11)
    first, second = answer.responses[0].partitions
    assert records_of(memoryview(first.records))  # type: ignore[arg-type]
    assert not second.records, "nothing is left of the limit"
    assert len(await read_all(client, "t")) == 100
