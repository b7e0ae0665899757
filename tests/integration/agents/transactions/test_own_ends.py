"""An agent knows the transactions that it has just ended, before anybody tells it."""

from __future__ import annotations

import time

from tests.fixtures.agents import Dial, StartAgent, records_of
from tests.fixtures.transaction_clients import TransactionalClient
from wire.batch import ProducerStamp
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

SECOND_PROTOCOL_PRODUCE = 12
NEVER_MS = 60_000


async def write(client: TransactionalClient, value: bytes) -> None:
    record = NewRecord(int(time.time() * 1000), None, value)
    batch = build_batch([record], producer=ProducerStamp(client.producer_id, client.epoch, 0), transactional=True)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=client.name, acks=-1, timeout_ms=10_000, topic_data=[data])
    answer = await client.raw.call(request, ProduceResponse, SECOND_PROTOCOL_PRODUCE)
    assert answer.responses[0].partition_responses[0].error_code == 0


async def test_a_client_reads_what_it_committed_before_the_agent_hears_of_it(
    start_agent: StartAgent, dial: Dial
) -> None:
    running = await start_agent(tail_poll_ms=NEVER_MS)
    kafka = await dial.kafka(running.address)
    await kafka.create_topic("t", partitions=1)
    client = TransactionalClient(await dial.raw(running.address), "tx")
    await client.begin()

    async def committed() -> list[bytes | None]:
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[part])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=topics)
        (found,) = (await client.raw.call(request, FetchResponse, 12)).responses[0].partitions
        aborted = {each.producer_id: each.first_offset for each in found.aborted_transactions or []}
        data = memoryview(b"".join(found.records)) if isinstance(found.records, list) else found.records
        assert found.error_code == 0
        return [record.value for at, record in records_of(memoryview(data or b"")) if at not in aborted.values()]

    for commit, value in ((True, b"one"), (False, b"two"), (True, b"three")):
        before = await committed()
        await write(client, value)
        assert await committed() == before
        assert await client.end(commit=commit) == 0
        values = await committed()
        assert (value in values) == commit
