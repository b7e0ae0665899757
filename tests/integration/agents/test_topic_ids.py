"""Topics by id (KIP-516) in Produce 13 and Fetch 13: at agents that lag, after a topic was re-created, and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from tests.fixtures.agents import Dial, RawConnection, StartAgent, read_all, records_of
from tests.fixtures.fleet import Counted, HintsLost, fleet
from tests.fixtures.waiting import until
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch
from wire.schema import ZERO_UUID

LAGGING = {"tail_poll_ms": 60_000}
"""Such an agent hears of nothing by itself, if hints are lost too."""


def batch(value: bytes, **numbered: object) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, value)], **numbered)  # type: ignore[arg-type]


def writes(topic_id: UUID, records: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    part = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[part])]
    )


def reads(*topic_ids: UUID, partition: int = 0, offset: int = 0) -> FetchRequest:
    part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(topics=[FetchTopic(topic_id=each, partitions=[part]) for each in topic_ids])


async def write(raw: RawConnection, topic_id: UUID, value: bytes, partition: int = 0) -> PartitionProduceResponse:
    return written(await raw.call(writes(topic_id, batch(value), partition=partition), ProduceResponse, 13), topic_id)


def written(answer: ProduceResponse, topic_id: UUID) -> PartitionProduceResponse:
    [topic] = answer.responses
    [part] = topic.partition_responses
    assert topic.topic_id == topic_id
    assert (part.current_leader, answer.node_endpoints) == (None, []), "no agent sends anybody elsewhere"
    return part


async def read(raw: RawConnection, request: FetchRequest, version: int = 16) -> Sequence[PartitionData]:
    answer = await raw.call(request, FetchResponse, version)
    assert answer.error_code == 0 and answer.node_endpoints == []
    assert [topic.topic_id for topic in answer.responses] == [topic.topic_id for topic in request.topics]
    return [part for topic in answer.responses for part in topic.partitions]


def values(part: PartitionData) -> list[bytes]:
    return [bytes(record.value or b"") for _, record in records_of(memoryview(part.records))]  # type: ignore[arg-type]


async def test_what_is_written_by_id_is_read_by_id_and_by_name(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    client, raw = await dial.kafka(running.address), await dial.raw(running.address)
    await client.create_topic("t", partitions=1)
    topic_id = (await client.topic("t")).topic_id
    assert (await write(raw, topic_id, b"v")).base_offset == 0
    for version in (13, 14, 15, 16):
        [part] = await read(raw, reads(topic_id), version)
        assert (part.error_code, part.high_watermark, values(part)) == (0, 1, [b"v"])
        assert (part.current_leader, part.preferred_read_replica) == (None, -1)
    assert len(await read_all(client, "t")) == 1
    # and: a partition that the topic does not have is not a topic that is not there
    assert (await write(raw, topic_id, b"v", partition=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [part] = await read(raw, reads(topic_id, partition=1))
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_unknown_id_is_looked_for_once_and_never_again(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, **LAGGING) as agents:
        [running], [service] = agents.agents, agents.services
        raw = await dial.raw(running.address)
        stranger = uuid4()
        service.calls.clear()
        for _ in range(3):
            [part, none] = await read(raw, reads(stranger, ZERO_UUID))
            assert part.error_code == none.error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert (await write(raw, stranger, b"v")).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert service.calls["tail"] == 1
        await raw.begin(writes(stranger, batch(b"v"), acks=0), 13)
        assert await raw.is_closed_by_peer(), "an error under acks 0"


@pytest.mark.parametrize("first", ["write", "read", "metadata"])
async def test_an_agent_that_lags_finds_a_new_topic_by_its_id(start_agent: StartAgent, dial: Dial, first: str) -> None:
    async with fleet(start_agent, 2, wrap=HintsLost, **LAGGING) as agents:
        client, raw = await dial.kafka(agents[0].address), await dial.raw(agents[1].address)
        await client.create_topic("t", partitions=1)
        topic_id = (await client.topic("t")).topic_id
        assert agents[1].agent._topic_cache.topic("t") is None
        if first == "write":
            assert (await write(raw, topic_id, b"v")).error_code == 0
        elif first == "read":
            [part] = await read(raw, reads(topic_id))
            assert (part.error_code, part.high_watermark) == (0, 0)
        else:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
            answer = await raw.call(asked, MetadataResponse, 13)
            assert (answer.error_code, answer.topics[0].error_code, answer.topics[0].name) == (0, 0, "t")


async def test_the_old_id_of_a_topic_made_anew_is_unknown_even_where_that_was_not_heard_of(
    start_agent: StartAgent, dial: Dial
) -> None:
    wraps = iter((HintsLost, Counted))  # the second hears nothing of the first, which hears of the second's files
    async with fleet(start_agent, 2, wrap=lambda inner: next(wraps)(inner), **LAGGING) as agents:
        client, lagging = await dial.kafka(agents[0].address), await dial.raw(agents[1].address)
        await client.create_topic("t", partitions=1)
        old_id = (await client.topic("t")).topic_id
        assert (await write(lagging, old_id, b"old")).error_code == 0
        await client.delete_topic("t")
        await client.create_topic("t", partitions=1)
        new_id = (await client.topic("t")).topic_id
        assert new_id != old_id
        # when: this agent still knows the old topic, and none of the new one
        topic = agents[1].agent._topic_cache.topic("t")
        assert topic is not None and topic.topic_id == old_id
        # then: no record goes anywhere under the old id, and an offset out of its range is no reason to jump
        assert (await write(lagging, old_id, b"lost")).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        [part] = await read(lagging, reads(old_id, offset=5))
        assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        # and: to see the new id is to see that the old one is gone
        [new, old] = await read(lagging, reads(new_id, old_id))
        assert (new.error_code, new.high_watermark, old.error_code) == (0, 0, ErrorCode.UNKNOWN_TOPIC_ID)
        assert (await write(lagging, new_id, b"new")).base_offset == 0
        assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"new"]


async def test_pipelined_batches_keep_their_order_while_the_topic_is_looked_for(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2, wrap=HintsLost, **LAGGING) as agents:
        client, raw = await dial.kafka(agents[0].address), await dial.raw(agents[1].address)
        lagging = agents[1].agent
        for turn in range(5):
            name = f"t{turn}"
            await client.create_topic(name, partitions=1)
            topic_id = (await client.topic(name)).topic_id
            producer_id = (await agents[1].metadata.agents.allocate_producer_ids(1))[0]
            numbered = [batch(b"%d" % at, producer=ProducerStamp(producer_id, 0, at)) for at in range(8)]
            for at, records in enumerate(numbered):
                await raw.begin(writes(topic_id, records), 13)
                if at % 3 == turn % 3:
                    await asyncio.sleep(0)  # some come while the first is being looked for, some after
            answers = [written(await raw.answer(ProduceResponse, 13), topic_id) for _ in numbered]
            assert [(each.error_code, each.base_offset) for each in answers] == [(0, at) for at in range(8)]
            assert lagging._topic_cache.topic(name) is not None


async def test_a_client_that_goes_while_its_topic_is_looked_for_holds_up_nobody(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2, wrap=HintsLost, **LAGGING) as agents:
        client = await dial.kafka(agents[0].address)
        await client.create_topic("t", partitions=1)
        topic_id = (await client.topic("t")).topic_id
        for _ in range(5):
            goes = await dial.raw(agents[1].address)
            await goes.begin(writes(topic_id, batch(b"maybe")), 13)
            await goes.close()
        raw = await dial.raw(agents[1].address)
        assert (await write(raw, topic_id, b"v")).error_code == 0
        await until(lambda: not agents[1].agent._server.broker.topic_ids._line)  # type: ignore[union-attr]
