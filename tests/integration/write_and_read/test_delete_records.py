"""DeleteRecords: by ordinary clients, over all levels, and what each kind of bad request is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.records import NewRecord, build_batch


def batch(first: int, count: int = 5) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([NewRecord(now_ms, None, b"%d" % number) for number in range(first, first + count)])


async def filled(client: KafkaClient, batches: int = 4) -> None:
    await client.create_topic("t", partitions=2)
    for number in range(batches):
        await client.produce("t", 0, batch(5 * number))


async def delete(client: KafkaClient, *wanted: tuple[str, int, int]) -> list[tuple[int, int]]:
    """(error, low watermark) of each."""
    topics = [
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=number, offset=offset)])
        for name, number, offset in wanted
    ]
    answer = await client.call(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), DeleteRecordsResponse)
    return [(part.error_code, part.low_watermark) for topic in answer.topics for part in topic.partitions]


async def offsets(client: KafkaClient, first: int = 0) -> list[int]:
    return [offset for offset, _ in await read_all(client, "t", 0, first)]


async def test_the_log_start_moves_and_what_is_below_is_out_of_range(agent: RunningAgent, client: KafkaClient) -> None:
    await filled(client)
    assert await delete(client, ("t", 0, 7)) == [(0, 7)]
    assert await client.list_offsets("t", [0], timestamp=-2) == {0: 7}
    asked = FetchPartition(partition=0, fetch_offset=6, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[asked])])
    answer = (await client.call(request, FetchResponse)).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.high_watermark, answer.log_start_offset) == (-1, -1)
    # the batch that the log start lies in is served whole; clients leave out what is below
    assert await offsets(client, 7) == list(range(7, 20))
    # below the log start: nothing happens, and it is no error
    assert await delete(client, ("t", 0, 3)) == [(0, 7)]
    # -1: all there is
    assert await delete(client, ("t", 0, -1)) == [(0, 20)]
    assert await offsets(client, 20) == []
    await client.produce("t", 0, batch(100))
    assert await offsets(client, 20) == list(range(20, 25))


async def test_each_bad_request_is_told_what_is_wrong_and_the_others_go_on(
    agent: RunningAgent, client: KafkaClient
) -> None:
    await filled(client)
    await client.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    await client.create_topic("both", partitions=1, configs={"cleanup.policy": "compact,delete"})
    assert await delete(
        client,
        ("t", 0, 21),
        ("t", 0, -2),
        ("t", 7, 0),
        ("nope", 0, 0),
        ("compacted", 0, 0),
        ("both", 0, 0),
        ("t", 0, 20),
    ) == [
        (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.POLICY_VIOLATION, -1),
        (0, 0),
        (0, 20),
    ]


async def test_other_agents_hear_of_it(start_agent: StartAgent, dial: Dial) -> None:
    one = await start_agent()
    other = await start_agent(store=one.store, metadata=one.metadata)
    client = await dial.kafka(one.address)
    await filled(client)
    merger = await HandMerger.start(one.metadata, one.store)  # type: ignore[arg-type]
    await merger.merge(l0_files=(await merger.live_l0())[:2])
    assert await delete(client, ("t", 0, 12)) == [(0, 12)]
    there = await dial.kafka(other.address)
    index = other.agent._index
    await until(lambda: index.extents == 2)
    assert await offsets(there, 12) == list(range(12, 20))


async def test_librdkafka_deletes_records(agent: RunningAgent, client: KafkaClient) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    await filled(client)

    def ask() -> dict[Any, Any]:
        admin = AdminClient({"bootstrap.servers": agent.address})
        wanted = [TopicPartition("t", 0, 8), TopicPartition("t", 1, -1)]
        return {part: future.result(10) for part, future in admin.delete_records(wanted, request_timeout=10).items()}

    deleted = await asyncio.to_thread(ask)
    assert {part.partition: found.low_watermark for part, found in deleted.items()} == {0: 8, 1: 0}
    assert await offsets(client, 8) == list(range(8, 20))


async def test_kafka_python_deletes_records(agent: RunningAgent, client: KafkaClient) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    await filled(client)

    def ask() -> Any:
        admin = KafkaAdminClient(bootstrap_servers=agent.address)
        try:
            return admin.delete_records({TopicPartition("t", 0): 8}, timeout_ms=10_000)
        finally:
            admin.close()

    await asyncio.to_thread(ask)
    assert await client.list_offsets("t", [0], timestamp=-2) == {0: 8}
