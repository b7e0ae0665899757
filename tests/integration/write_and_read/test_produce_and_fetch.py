"""The write path and the read path of one agent, as a client sees them."""

from __future__ import annotations

import asyncio
import time

import pytest

from agents.write.submission import BATCHES_MAX
from siltstone.kafka.client import KafkaClient, KafkaError
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all, records_of
from tests.fixtures.record_batches import some_records, with_header
from wire.batch import ProducerStamp, iter_headers, read_header
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch

VERSION = 9


def batch(*values: bytes, timestamp_ms: int | None = None, **options: object) -> bytes:
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return build_batch([NewRecord(now_ms, b"k", value) for value in values], **options)  # type: ignore[arg-type]


def produce(topic: str, *parts: tuple[int, bytes], acks: int = -1, timeout_ms: int = 10_000) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records) for index, records in parts]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def only(response: ProduceResponse) -> PartitionProduceResponse:
    [topic] = response.responses
    [part] = topic.partition_responses
    return part


def fetch(
    topic: str, *wants: tuple[int, int, int], max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
) -> FetchRequest:
    parts = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=part_max)
        for partition, offset, part_max in wants
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=parts)],
    )


async def test_what_is_acknowledged_is_read_back_with_its_offsets(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=2)
    assert await client.produce("t", 0, batch(b"a", b"b")) == 0
    assert await client.produce("t", 0, batch(b"c")) == 2
    assert await client.produce("t", 1, batch(b"d")) == 0
    assert [(offset, bytes(record.value or b"")) for offset, record in await read_all(client, "t", 0)] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]
    assert [offset for offset, _ in await read_all(client, "t", 1)] == [0]
    assert await client.list_offsets("t", [0, 1]) == {0: 3, 1: 1}


async def test_stored_batches_carry_leader_epoch_0_and_their_own_crc(client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    sent = batch(b"x", b"y")
    await client.produce("t", 0, batch(b"w"))
    await client.produce("t", 0, sent)
    fetched = await client.fetch("t", 0, 1)
    header = read_header(fetched.records)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (1, 0, read_header(sent).crc)
    assert bytes(fetched.records[16:]) == sent[16:], "payload bytes stay as sent"


async def l0_files(agent: RunningAgent) -> int:
    return len([stat async for stat in agent.store.list("l0/")])


async def test_a_retry_and_its_original_in_one_file_are_stored_once(
    dial: Dial, agent: RunningAgent, raw: RawConnection
) -> None:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    producer_id = (await agent.metadata.agents.allocate_producer_ids(1))[0]

    def numbered(sequence: int, *values: bytes) -> bytes:
        return batch(*values, producer=ProducerStamp(producer_id, 0, sequence))

    # given: original, retry of it, and the next batch, pipelined so that they share a file
    before = await l0_files(agent)
    batches = (numbered(0, b"a", b"b"), numbered(0, b"a", b"b"), numbered(2, b"c"))
    await raw.begin_together([produce("t", (0, records)) for records in batches], VERSION)
    answers = [only(await raw.answer(ProduceResponse, VERSION)) for _ in range(3)]
    # then: both get the original's offset, and readers see it once
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 0), (0, 2)]
    assert await l0_files(agent) == before + 1, "the three were to share one file"
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"a", b"b", b"c"]
    assert agent.metric("produce_batches_total", outcome="duplicate") == 1


async def test_more_requests_than_a_connection_may_have_waiting_are_taken_one_after_the_other(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.connections.connection.REQUESTS_MAX", 2)
    agent = await start_agent()
    await (await dial.kafka(agent.address)).create_topic("t", partitions=1)
    raw = await dial.raw(agent.address)
    for number in range(7):
        await raw.begin(produce("t", (0, batch(b"%d" % number))), VERSION)
    answers = [only(await raw.answer(ProduceResponse, VERSION)) for _ in range(7)]
    assert [answer.base_offset for answer in answers] == list(range(7))


async def test_a_refused_batch_in_mid_extent_is_a_hole_that_readers_do_not_see(
    dial: Dial, agent: RunningAgent, raw: RawConnection
) -> None:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    producer_id = (await agent.metadata.agents.allocate_producer_ids(1))[0]
    out_of_order = batch(b"never", producer=ProducerStamp(producer_id, 0, 7))
    for records in (batch(b"a"), out_of_order, batch(b"b", b"c")):
        await raw.begin(produce("t", (0, records)), VERSION)
    answers = [only(await raw.answer(ProduceResponse, VERSION)) for _ in range(3)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 0),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (0, 1),
    ]
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"a", b"b", b"c"]
    # and from inside: an offset in the middle of the second stretch
    assert [offset for offset, _ in records_of((await client.fetch("t", 0, 2)).records)] == [1, 2]


async def test_partitions_of_one_request_succeed_and_fail_by_themselves(
    client: KafkaClient, raw: RawConnection
) -> None:
    await client.create_topic("t", partitions=2)
    response = await raw.call(
        produce("t", (0, batch(b"good")), (1, with_header(batch(b"old"), magic=1)), (9, batch(b"nowhere"))),
        ProduceResponse,
        VERSION,
    )
    errors = {part.index: part.error_code for part in response.responses[0].partition_responses}
    assert errors == {0: 0, 1: ErrorCode.INVALID_RECORD, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(await read_all(client, "t", 0)) == 1


async def test_acks_0_gets_no_answer_and_is_stored(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    await raw.begin(produce("t", (0, batch(b"a")), acks=0), VERSION)
    # the next answer on the line belongs to the next request
    answer = only(await raw.call(produce("t", (0, batch(b"b"))), ProduceResponse, VERSION))
    assert answer.base_offset == 1
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"a", b"b"]


async def test_an_error_under_acks_0_closes_the_connection(client: KafkaClient, raw: RawConnection) -> None:
    await raw.begin(produce("no-such-topic", (0, batch(b"a")), acks=0), VERSION)
    assert await raw.is_closed_by_peer()


async def test_log_append_time_is_stamped_and_told(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    answer = only(await raw.call(produce("t", (0, batch(b"a", timestamp_ms=5))), ProduceResponse, VERSION))
    assert before_ms <= answer.log_append_time_ms <= before_ms + 5_000
    fetched = await client.fetch("t", 0, 0)
    header = read_header(fetched.records)
    assert header.is_log_append_time
    assert header.max_timestamp_ms == answer.log_append_time_ms
    assert len(records_of(fetched.records)) == 1, "the CRC and the records still read"
    assert await client.list_offsets("t", [0], before_ms) == {0: 0}


async def test_a_long_poll_wakes_when_records_come(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    await raw.begin(fetch("t", (0, 0, 1 << 20), max_bytes=1 << 20, min_bytes=1, wait_ms=20_000), 11)
    started = time.monotonic()
    await client.produce("t", 0, batch(b"a"))
    response = await raw.answer(FetchResponse, 11)
    assert time.monotonic() - started < 10, "the poll did not wait for its time to pass"
    assert records_of(memoryview(response.responses[0].partitions[0].records))  # type: ignore[arg-type]


async def test_a_long_poll_ends_empty_with_its_watermarks(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, batch(b"a"))
    response = await raw.call(
        fetch("t", (0, 1, 1 << 20), max_bytes=1 << 20, min_bytes=1, wait_ms=50), FetchResponse, 11
    )
    part = response.responses[0].partitions[0]
    assert (part.error_code, part.high_watermark, part.last_stable_offset, part.log_start_offset) == (0, 1, 1, 0)
    assert not part.records


async def test_the_first_batch_comes_however_large_and_later_ones_only_whole(
    client: KafkaClient, raw: RawConnection
) -> None:
    await client.create_topic("t", partitions=2)
    large, small = batch(b"x" * 300_000), batch(b"y")
    for partition in (0, 1):
        await client.produce("t", partition, large)
        await client.produce("t", partition, small)
    response = await raw.call(fetch("t", (0, 0, 10), (1, 0, 10), max_bytes=100), FetchResponse, 11)
    first, second = response.responses[0].partitions
    assert len(first.records or b"") == len(large), "larger than every limit, but the first"  # type: ignore[arg-type]
    assert not second.records
    response = await raw.call(fetch("t", (0, 0, 1 << 20), max_bytes=len(large) + 10), FetchResponse, 11)
    [part] = response.responses[0].partitions
    assert len(part.records or b"") == len(large), "the second does not fit and is not cut"  # type: ignore[arg-type]
    response = await raw.call(fetch("t", (0, 0, 1 << 20), max_bytes=1 << 20), FetchResponse, 11)
    [part] = response.responses[0].partitions
    assert len(part.records or b"") == len(large) + len(small)  # type: ignore[arg-type]


async def test_the_limit_of_a_request_covers_all_its_partitions(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=3)
    sent = batch(b"z" * 10_000)
    for partition in range(3):
        await client.produce("t", partition, sent)
    response = await raw.call(
        fetch("t", *[(partition, 0, 1 << 20) for partition in (2, 0, 1)], max_bytes=2 * len(sent) + 100),
        FetchResponse,
        11,
    )
    sizes = [(part.partition_index, len(part.records or b"")) for part in response.responses[0].partitions]  # type: ignore[arg-type]
    assert sizes == [(2, len(sent)), (0, len(sent)), (1, 0)], "in the request's order, whole batches"


async def test_offsets_out_of_range_are_refused_by_the_stores_word(client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, batch(b"a"))
    assert (await client.fetch("t", 0, 1, max_wait_ms=0, min_bytes=0)).high_watermark == 1, "at the end is in range"
    for offset in (2, -1, 2**62):
        with pytest.raises(KafkaError) as refused:
            await client.fetch("t", 0, offset)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_timestamp_finds_the_first_record_at_or_after_it(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, build_batch([NewRecord(1000, None, b"a"), NewRecord(3000, None, b"b")]))
    await client.produce("t", 0, build_batch([NewRecord(2000, None, b"c"), NewRecord(4000, None, b"d")]))
    for asked, expected in ((0, 0), (1000, 0), (1001, 1), (3001, 3), (4001, -1)):
        assert await client.list_offsets("t", [0], asked) == {0: expected}, asked
    largest = await raw.call(_list_offsets("t", -3), ListOffsetsResponse, 7)
    part = largest.topics[0].partitions[0]
    assert (part.offset, part.timestamp) == (3, 4000)


def _list_offsets(topic: str, *timestamps: int) -> ListOffsetsRequest:
    parts = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in timestamps]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=parts)])


async def test_list_offsets_refuses_what_its_version_does_not_know(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    for version, timestamp, expected in (
        (6, -3, ErrorCode.UNSUPPORTED_VERSION),
        (7, -4, ErrorCode.UNSUPPORTED_VERSION),
        (8, -5, ErrorCode.UNSUPPORTED_VERSION),
        (8, -4, ErrorCode.NONE),
        (9, -5, ErrorCode.NONE),
        (9, -6, ErrorCode.UNSUPPORTED_VERSION),
    ):
        answer = await raw.call(_list_offsets("t", timestamp), ListOffsetsResponse, version)
        assert answer.topics[0].partitions[0].error_code == expected, (version, timestamp)
    twice = await raw.call(_list_offsets("t", -1, -2), ListOffsetsResponse, 8)
    assert {part.error_code for part in twice.topics[0].partitions} == {ErrorCode.INVALID_REQUEST}
    old = await raw.call(_list_offsets("t", -1), ListOffsetsResponse, 0)
    assert old.topics[0].partitions[0].old_style_offsets == [0]


async def test_of_tiers_there_is_the_one_that_kafka_calls_local(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    for value in (b"a", b"b"):
        await client.produce("t", 0, batch(value))
    for timestamp, expected in ((-4, (0, 0, 0, -1)), (-5, (0, -1, -1, -1))):
        [part] = (await raw.call(_list_offsets("t", timestamp), ListOffsetsResponse, 9)).topics[0].partitions
        assert (part.error_code, part.offset, part.leader_epoch, part.timestamp) == expected, timestamp


async def test_old_records_come_from_the_store_in_few_gets(dial: Dial, start_agent: StartAgent) -> None:
    store = MemoryStore()
    first = await start_agent(store=store)
    client = await dial.kafka(first.address)
    await client.create_topic("t", partitions=1)
    for _ in range(20):
        await client.produce("t", 0, build_batch(some_records(10, value_bytes=2_000), base_offset=0))
    # given: an agent that has none of it in memory
    second = await start_agent(store=store, metadata=first.metadata)
    reader = await dial.kafka(second.address)
    # when: two replays at once
    one, two = await asyncio.gather(read_all(reader, "t"), _replay(dial, second, "t"))
    # then
    assert [offset for offset, _ in one] == [offset for offset, _ in two] == list(range(200))
    assert second.metric("fetch_bytes_total", source="store") > 0


async def _replay(dial: Dial, running: RunningAgent, topic: str) -> list[tuple[int, object]]:
    return list(await read_all(await dial.kafka(running.address), topic))


async def test_small_fetches_in_a_large_extent_resume_where_they_ended(client: KafkaClient, raw: RawConnection) -> None:
    await client.create_topic("t", partitions=1)
    # given: one file with many batches of one partition
    sent = [batch(bytes([number]) * 1000) for number in range(40)]
    for each in sent:
        await raw.begin(produce("t", (0, each)), VERSION)
    for _ in sent:
        assert only(await raw.answer(ProduceResponse, VERSION)).error_code == 0
    # when: read three batches at a time
    offset, values = 0, []
    while offset < 40:
        data = (await client.fetch("t", 0, offset, max_bytes=3 * len(sent[0]) + 5)).records
        headers = [header for _, header in iter_headers(data)]
        assert [header.base_offset for header in headers] == list(range(offset, offset + len(headers)))
        values += [bytes(record.value or b"")[0] for _, record in records_of(data)]
        offset = headers[-1].next_offset
    assert values == list(range(40))


async def test_a_request_of_more_batches_than_a_file_may_hold_goes_into_several(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    await client.create_topic("t", partitions=1)
    records = batch(b"v")
    await raw.begin(produce("t", *[(0, records)] * (BATCHES_MAX + 10), timeout_ms=60_000), VERSION)
    response = await raw.answer(ProduceResponse, VERSION)
    [answers] = [topic.partition_responses for topic in response.responses]
    assert [answer.base_offset for answer in answers] == list(range(BATCHES_MAX + 10))
    files = await agent.metadata.operators.files()
    assert len(files) == 2
