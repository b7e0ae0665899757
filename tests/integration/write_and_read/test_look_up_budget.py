"""ListOffsets by timestamp over batches that were made to be costly: others have their turns, and memory is bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from functools import partial

import pytest

from agents.read.plan import ReadRange
from agents.read.timestamps.budget import (
    MIB,
    UNFOLDED_AT_ONCE_BYTES,
    UNFOLDED_BYTES_MAX,
    LookUpBudget,
    LookUpShares,
)
from agents.read.timestamps.walk import FirstAt, TimestampedOffset, look_through
from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.merge_inputs import NOW_MS, keyed
from tests.fixtures.record_batches import some_records, with_header, with_payload
from wire.batch import BATCH_HEADER_BYTES
from wire.codecs import Codec
from wire.records import build_batch

MAX_TIMESTAMP = -3


@pytest.fixture
async def agent(start_agent: StartAgent) -> RunningAgent:
    return await start_agent()


@pytest.fixture
async def client(agent: RunningAgent, dial: Dial) -> KafkaClient:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=3, configs={"retention.ms": "-1"})
    return client


def promising(batch: bytes) -> bytes:
    """Its header promises a timestamp that no record of it has."""
    return with_header(batch, max_timestamp_ms=NOW_MS + 1_000)


def one_large_record(codec: Codec = Codec.ZSTD, size: int = 60 * MIB) -> bytes:
    return promising(build_batch([keyed("k", bytes(size))], codec=codec))


def many_records(count: int = 250_000) -> bytes:
    """The smallest records there are: in a walk they cost the most."""
    batch = build_batch(some_records(1))
    records = b"".join(_record(delta) for delta in range(count))
    return promising(with_payload(batch, records, Codec.ZSTD, records_count=count, last_offset_delta=count - 1))


def _record(delta: int) -> bytes:
    raw, varint = delta << 1, bytearray()
    while raw > 0x7F:
        varint.append(raw & 0x7F | 0x80)
        raw >>= 7
    varint.append(raw)
    return bytes([(5 + len(varint)) << 1, 0, 0, *varint, 1, 1, 0])


def many_headers(count: int = 5_000_000) -> bytes:
    """One record: its headers are not walked."""
    batch = build_batch(some_records(1))
    number, varint = count << 1, bytearray()
    while number > 0x7F:
        varint.append(number & 0x7F | 0x80)
        number >>= 7
    fields = bytes([0, 0, 0, 1, 1, *varint, number]) + bytes(2 * count)
    length, prefix = len(fields) << 1, bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return promising(with_payload(batch, bytes([*prefix, length]) + fields, Codec.ZSTD))


def cut_short() -> bytes:
    """Unfolds far, and turns out to be damaged at the end."""
    whole = build_batch([keyed("k", bytes(60 * MIB))], codec=Codec.GZIP)
    payload = whole[BATCH_HEADER_BYTES:-20]
    header = whole[:BATCH_HEADER_BYTES]
    return promising(with_header(header + payload, batch_length=BATCH_HEADER_BYTES - 12 + len(payload)))


COSTLY = {
    "zstd": one_large_record,
    "gzip": lambda: one_large_record(Codec.GZIP),
    "lz4": lambda: one_large_record(Codec.LZ4),
    "records": many_records,
    "headers": many_headers,
    "damaged": cut_short,
}


async def offset_at(client: KafkaClient, timestamp_ms: int, partitions: list[int] | None = None) -> dict[int, int]:
    return dict(await client.list_offsets("t", partitions or [0], timestamp=timestamp_ms))


@pytest.mark.parametrize("name", COSTLY)
async def test_costly_batches_hold_up_nobody_and_are_answered_by_header_past_the_budget(
    client: KafkaClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more such batches than a request may look into, each of which promises what it does not hold
    small = partial(LookUpBudget, unfolded_bytes=120 * MIB, records=600_000)
    monkeypatch.setattr("agents.handlers.list_offsets.LookUpBudget", small)
    costly = COSTLY[name]()
    for _ in range(5):
        await client.produce("t", 0, costly)
    await client.produce("t", 0, build_batch([keyed("a", b"1", timestamp_ms=NOW_MS + 900)]))
    last = (await offset_at(client, -1))[0] - 1

    async def look_up(timestamp_ms: int) -> LoopStalls:
        # when
        with loop_stalls() as stalls:
            [found] = (await offset_at(client, timestamp_ms)).values()
        # then the answer lies at or before the first record that qualifies, at the head of a batch
        assert 0 <= found <= last
        if name in ("zstd", "gzip", "lz4", "records"):
            assert 0 < found < last, "the first of them were walked, the last ones not"
        return stalls

    for timestamp_ms in (NOW_MS + 500, MAX_TIMESTAMP):
        await assert_holds_up_nobody(partial(look_up, timestamp_ms))


async def test_look_ups_of_many_connections_hold_no_more_than_their_share(
    agent: RunningAgent, client: KafkaClient
) -> None:
    for _ in range(3):
        await client.produce("t", 0, one_large_record())
    search = agent.agent._reads.timestamps

    async def six_at_once() -> LoopStalls:
        release = await search._shares.unfolded.take(UNFOLDED_AT_ONCE_BYTES)
        with loop_stalls() as stalls:
            asking = [asyncio.create_task(search.first_at(1, NOW_MS + 500, LookUpBudget())) for _ in range(6)]
            # A batch that unfolds to little is not held up by them.
            await client.produce("t", 1, build_batch([keyed("a", b"1", timestamp_ms=NOW_MS)], codec=Codec.ZSTD))
            assert await offset_at(client, NOW_MS, [1]) == {1: 0}
            assert not any(each.done() for each in asking)
            release()
            assert await asyncio.gather(*asking) == [None] * 6
        return stalls

    tracemalloc.start()
    try:
        await assert_holds_up_nobody(six_at_once)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < UNFOLDED_AT_ONCE_BYTES + 32 * MIB


async def test_what_waits_for_its_share_goes_on_after_others_gave_up(agent: RunningAgent, client: KafkaClient) -> None:
    """A look-up that ends in the middle leaves its thread behind; the memory is free when that has ended."""
    for _ in range(8):
        await client.produce("t", 0, one_large_record())
    search = agent.agent._reads.timestamps
    for _ in range(5):
        given_up = [asyncio.create_task(search.first_at(1, NOW_MS + 500, LookUpBudget())) for _ in range(4)]
        await asyncio.sleep(0.01)
        for each in given_up:
            each.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
    assert await search.first_at(1, NOW_MS + 500, LookUpBudget(records=0)) == TimestampedOffset(0, NOW_MS + 1_000)
    assert await search.first_at(1, NOW_MS + 1_001, LookUpBudget()) is None
    for shares in (search._shares.unfolded, search._shares.read):
        async with asyncio.timeout(60):
            while shares.taken:
                await asyncio.sleep(0.01)


async def test_an_ordinary_request_about_a_hundred_partitions_is_answered_by_record(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of the default `max.message.bytes` in each, tenfold compressed, and the answer is its last record."""
    partitions = list(range(100))
    await client.create_topic("wide", partitions=len(partitions), configs={"retention.ms": "-1"})
    value = bytes(range(256)) * 4
    batch = build_batch([keyed("k", value, timestamp_ms=NOW_MS + n) for n in range(5_000)], codec=Codec.ZSTD)
    for partition in partitions:
        await client.produce("wide", partition, batch)
    spent: list[bool] = []
    asked = 0

    class Watched(LookUpBudget):
        @property
        def is_spent(self) -> bool:
            spent.append(super().is_spent)
            return spent[-1]

    monkeypatch.setattr("agents.handlers.list_offsets.LookUpBudget", Watched)

    async def ask() -> LoopStalls:
        nonlocal asked
        with loop_stalls() as stalls:
            for timestamp in (NOW_MS + 4_999, MAX_TIMESTAMP):
                found = await client.list_offsets("wide", partitions, timestamp=timestamp)
                assert dict(found) == dict.fromkeys(partitions, 4_999)
                asked += len(partitions)
        return stalls

    await assert_holds_up_nobody(ask)
    assert len(spent) == asked
    assert not any(spent)
    assert len(batch) * 10 < 5_000 * len(value) < UNFOLDED_BYTES_MAX // 100


async def test_an_emptied_batch_is_no_answer_even_when_the_budget_is_spent() -> None:
    emptied = with_payload(build_batch(some_records(2)), b"", records_count=0, max_timestamp_ms=NOW_MS + 5)
    full = build_batch(some_records(2, timestamp_ms=NOW_MS + 5))
    data = memoryview(emptied + full)
    where = ReadRange(1, "k", len(data), 1, 0, len(data), 10, 10, 13, 0, len(data))
    first, spent = FirstAt(NOW_MS + 6), LookUpBudget(records=0)
    assert await look_through(data, where, first, log_start_offset=0, budget=spent, shares=LookUpShares())
    assert first.found is not None
    assert first.found.offset == 12  # by header; its second record, 13, would be the answer by record
