"""ListOffsets by timestamp around batches whose records cannot be read: their headers give the answer."""

from __future__ import annotations

import pytest

from metadata.rules.packed_index import iter_index
from siltstone.kafka.client import KafkaClient, KafkaError
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import code_of
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.merge_inputs import NOW_MS, keyed
from tests.fixtures.record_batches import with_payload
from tests.fixtures.unreadable_batches import UNREADABLE, does_not_unfold
from wire.batch import BATCH_HEADER_BYTES, read_header
from wire.crc import crc32c
from wire.error_codes import ErrorCode
from wire.records import build_batch


@pytest.fixture
async def agent(start_agent: StartAgent) -> RunningAgent:
    return await start_agent()


@pytest.fixture
async def client(agent: RunningAgent, dial: Dial) -> KafkaClient:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1, configs={"retention.ms": "-1"})
    return client


def good(timestamp_ms: int) -> bytes:
    """A batch of one record."""
    return build_batch([keyed("a", b"1", timestamp_ms=timestamp_ms)])


async def merged(agent: RunningAgent) -> None:
    merger = await HandMerger.start(agent.metadata, agent.store)  # type: ignore[arg-type]
    await merger.merge(l0_files=await merger.live_l0())
    await agent.agent._follower.catch_up()


async def offset_at(client: KafkaClient, timestamp_ms: int) -> int:
    return (await client.list_offsets("t", [0], timestamp=timestamp_ms))[0]


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_batch_that_nobody_can_read_is_answered_by_its_base_offset_where_it_may_hold_the_answer(
    agent: RunningAgent, client: KafkaClient, name: str, level: int
) -> None:
    # given such a batch between two others, of a second before and a second behind it
    bad = UNREADABLE[name]()
    for batch in (good(NOW_MS - 1_000), bad, good(NOW_MS + 1_000)):
        await client.produce("t", 0, batch)
    if level:
        await merged(agent)
    last = 1 + read_header(bad).last_offset_delta + 1
    # then what lies before and behind is found as ever, and what it may hold begins where it does
    assert await offset_at(client, 0) == await offset_at(client, NOW_MS - 1_000) == 0
    assert await offset_at(client, NOW_MS - 999) == await offset_at(client, NOW_MS) == 1
    assert await offset_at(client, NOW_MS + 1) == await offset_at(client, NOW_MS + 1_000) == last
    assert await offset_at(client, NOW_MS + 1_001) == -1
    assert await offset_at(client, -3) == last


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_batch_that_nobody_can_read_may_have_the_largest_timestamp(
    agent: RunningAgent, client: KafkaClient, name: str, level: int
) -> None:
    for batch in (good(NOW_MS - 1_000), UNREADABLE[name](), good(NOW_MS - 2_000)):
        await client.produce("t", 0, batch)
    if level:
        await merged(agent)
    assert await offset_at(client, -3) == 1


async def test_nothing_below_the_log_start_is_answered_of_such_a_batch(
    agent: RunningAgent, client: KafkaClient
) -> None:
    for batch in (good(NOW_MS), does_not_unfold(), good(NOW_MS + 1_000)):
        await client.produce("t", 0, batch)
    await agent.metadata.agents.delete_records(1, 2)  # type: ignore[attr-defined]
    await agent.agent._follower.catch_up()
    assert await offset_at(client, NOW_MS) == 2


async def test_bytes_that_the_store_broke_are_an_error_and_no_answer(
    agent: RunningAgent, client: KafkaClient, start_agent: StartAgent, dial: Dial
) -> None:
    # given a batch that was sound, whose records cannot be read because a byte of them is another now
    await client.produce("t", 0, good(NOW_MS))
    [file] = await agent.metadata.operators.files()
    body = bytearray(await agent.store.get(file.key))
    body[next(iter(iter_index(file.index))).position + BATCH_HEADER_BYTES] ^= 0x7E  # the length of its record
    await agent.store.delete_many([file.key])
    await agent.store.put_if_absent(file.key, bytes(body), crc32c=crc32c(bytes(body)))
    # when an agent that has it in no memory is asked
    other = await start_agent(store=agent.store, metadata=agent.metadata)
    there = await dial.kafka(other.address)
    # then it says so: the offset would be a guess, and the batch cannot be fetched either
    with pytest.raises(KafkaError) as refused:
        await offset_at(there, NOW_MS)
    assert code_of(refused.value) is ErrorCode.KAFKA_STORAGE_ERROR


async def test_an_offset_delta_that_lies_outside_of_its_batch_leads_nobody_there(
    agent: RunningAgent, client: KafkaClient
) -> None:
    # given a batch of two records, the second of which says that it is the sixty-fourth
    batch = build_batch([keyed("e", b"1"), keyed("f", b"2", timestamp_ms=NOW_MS + 1)])
    payload = bytearray(batch[BATCH_HEADER_BYTES:])
    assert payload[len(payload) // 2 + 3] == 2  # the varint of 1
    payload[len(payload) // 2 + 3] = 126
    await client.produce("t", 0, with_payload(batch, bytes(payload)))
    await client.produce("t", 0, good(NOW_MS + 2))
    # then it cannot be told which it is: the answer is where the batch begins
    assert await offset_at(client, NOW_MS + 1) == 0
    assert await offset_at(client, NOW_MS + 2) == 2
