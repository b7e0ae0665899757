"""How connections affect each other, and what they leave behind when they go."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence

import pytest

from agents.connections.sending import TURN_BYTES, WRITE_BYTES
from agents.write.reply import ProduceReply
from storage.memory import MemoryStore
from storage.objects import Body
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.waiting import until
from wire.api import encode_request
from wire.error_codes import ErrorCode
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch
from wire.schema import Octets

MIB = 1 << 20
FOR_EVER_MS = 2**31 - 1


def produce(value: bytes, *, acks: int = -1, timeout_ms: int = 10_000, topic: str = "t") -> ProduceRequest:
    records = build_batch([NewRecord(int(time.time() * 1000), None, value)])
    parts = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=parts)]
    )


def framed(request: ProduceRequest) -> bytes:
    return b"".join(encode_request(0, 9, 1, "raw", request))


class HeldStore(MemoryStore):
    """While `holds`, PUTs wait until they are let go, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self._held: list[asyncio.Event] = []

    def let_go(self, count: int = 1_000) -> None:
        for gate in self._held[:count]:
            gate.set()
        del self._held[:count]

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if self.holds:
            self._held.append(gate := asyncio.Event())
            await gate.wait()
        await super().put_if_absent(key, body, crc32c=crc32c)


async def test_who_was_told_to_wait_for_room_is_woken_by_whoever_makes_it(dial: Dial, start_agent: StartAgent) -> None:
    store = HeldStore()
    limits = {"request_bytes_max": MIB, "socket_request_max_bytes": MIB, "message_max_bytes": 1_000_000}
    running = await start_agent(store=store, produce_buffer_bytes_max=1_900_000, produce_file_bytes=1_000_000, **limits)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    server = running.agent._server
    assert server is not None
    whole = framed(produce(b"x" * 990_000))
    # given: the write path is full, and the first waits with a whole request
    store.holds = True
    for _ in range(2):
        await (await dial.raw(running.address)).send(whole)
    await until(lambda: server.produce_is_full)
    first, second, third = [await dial.raw(running.address) for _ in range(3)]
    await first.send(whole)
    await until(lambda: server._held_bytes >= 990_000)
    # and: two more are in the middle of theirs, of whom the later one is told to wait
    await second.send(whole[:40_000])
    await until(lambda: len(server._large) == 1)
    await third.send(whole[:40_000])
    await until(lambda: len(server._large) == 2)
    waiting = list(server._large)[1]
    await until(lambda: waiting._read_paused)
    rest = asyncio.create_task(third.send(whole[40_000:]))
    # when: the first one's request makes room by being begun, after which the write path is full as before
    store.let_go(1)
    # then: the later one is read
    await until(lambda: waiting.held_bytes > 40_000)
    while not rest.done() or server.produce_is_full or server._held_bytes > 80_000:
        store.let_go()
        await asyncio.sleep(0.005)
    assert len(await first.read_frame()) > 0
    store.holds = False
    store.let_go()
    assert len(await third.read_frame()) > 0
    await second.send(whole[40_000:])
    assert len(await second.read_frame()) > 0
    assert server._held_bytes == 0


async def test_a_small_batch_counts_for_the_large_request_it_keeps_alive(dial: Dial, start_agent: StartAgent) -> None:
    store = HeldStore()
    running = await start_agent(store=store)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=2)
    good = build_batch([NewRecord(int(time.time() * 1000), None, b"x")])
    torn = bytearray(build_batch([NewRecord(int(time.time() * 1000), None, b"x" * 500_000)]))
    torn[-1] ^= 1
    parts = [PartitionProduceData(index=0, records=good), PartitionProduceData(index=1, records=bytes(torn))]
    store.holds = True
    raw = await dial.raw(running.address)
    await raw.begin(
        ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="t", partition_data=parts)]), 9
    )
    await until(lambda: running.metric("buffered_bytes") > 500_000)
    await until(lambda: bool(store._held))
    store.let_go()
    answer = await raw.answer(ProduceResponse, 9)
    assert [part.error_code for part in answer.responses[0].partition_responses] == [0, ErrorCode.CORRUPT_MESSAGE]
    assert running.metric("buffered_bytes") == 0


async def test_a_reply_whose_client_has_gone_is_not_kept_until_the_clients_own_timeout(
    dial: Dial, start_agent: StartAgent
) -> None:
    store = HeldStore()
    running = await start_agent(store=store)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    store.holds = True
    raw = await dial.raw(running.address)
    for _ in range(20):
        await raw.begin(produce(b"x", timeout_ms=FOR_EVER_MS), 9)
    await until(lambda: running.metric("buffered_bytes") > 0)
    await raw.close()
    store.holds = False
    store.let_go()
    await until(lambda: running.metric("buffered_bytes") == 0)
    await until(lambda: running.metric("connections") == 1)

    def kept() -> int:
        # By their timeout: agents of other tests in this process may have left replies of their own.
        gc.collect()
        found = [each for each in gc.get_objects() if type(each) is ProduceReply]  # a dead proxy has no class
        return sum(each._timeout_ms == FOR_EVER_MS for each in found)

    await until(lambda: kept() == 0)


async def test_a_refusal_without_acks_ends_the_connection_after_the_answers_before_it(
    dial: Dial, start_agent: StartAgent
) -> None:
    running = await start_agent(produce_linger_ms=100)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    raw = await dial.raw(running.address)
    await raw.begin(produce(b"good"), 9)
    await raw.begin(produce(b"refused", acks=0, topic="no such topic"), 9)
    answer = await raw.answer(ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert await raw.is_closed_by_peer()
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"good"]


async def test_an_agent_that_stops_gives_clients_time_to_read_their_last_answers(
    dial: Dial, start_agent: StartAgent
) -> None:
    running = await start_agent(message_max_bytes=10 * MIB)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1, configs={"max.message.bytes": str(10 * MIB)})
    for _ in range(3):
        await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), None, b"x" * (6 * MIB))]))
    raw = await dial.raw(running.address)
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)]
    await raw.begin(
        FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic="t", partitions=parts)]),
        11,
    )
    await until(lambda: running.metric("fetch_bytes_total", source="memory") >= 18 * MIB)
    stopping = asyncio.create_task(running.agent.stop())
    await asyncio.sleep(0.2)
    assert len(await raw.read_frame()) > 18 * MIB
    await stopping


async def test_a_long_answer_leaves_in_turns_of_the_loop_even_to_a_client_that_reads_at_once(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_agent(message_max_bytes=10 * MIB)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1, configs={"max.message.bytes": str(10 * MIB)})
    for _ in range(3):
        await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), None, b"x" * (6 * MIB))]))
    raw = await dial.raw(running.address)
    # given: a socket that is never full, and a count of the loop's turns
    loop, turns, ticking = asyncio.get_running_loop(), [0], [True]
    sent: dict[int, int] = {}

    def tick() -> None:
        turns[0] += 1
        if ticking:
            loop.call_soon(tick)

    def swallow(_: int, parts: Sequence[Octets]) -> int:
        taken = sum(map(len, parts))
        sent[turns[0]] = sent.get(turns[0], 0) + taken
        return taken

    monkeypatch.setattr("agents.connections.sending.os.writev", swallow)
    tick()
    # when
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)]
    await raw.begin(
        FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic="t", partitions=parts)]),
        11,
    )
    await until(lambda: sum(sent.values()) >= 18 * MIB)
    ticking.clear()
    # then: others have a turn after each two MiB or so
    assert max(sent.values()) <= TURN_BYTES + WRITE_BYTES


async def test_what_is_named_many_times_is_answered_once(agent: RunningAgent, dial: Dial) -> None:
    await (await dial.kafka(agent.address)).create_topic("t", partitions=3)
    raw = await dial.raw(agent.address)
    topics = [MetadataRequestTopic(name="t")] * 1_000 + [MetadataRequestTopic(name="nothing")] * 1_000
    described = await raw.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse, 8)
    assert [(each.name, each.error_code) for each in described.topics] == [
        ("t", 0),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in ("t", "nothing")] * 1_000
    configs = await raw.call(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, 4)
    assert [(each.resource_name, each.error_code) for each in configs.results] == [
        ("t", 0),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
