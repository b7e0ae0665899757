"""Fetch and ListOffsets for readers of committed records; another agent writes the transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from metadata.contract.readers import LeveledWindow
from metadata.memory.store import MemoryMetadata
from siltstone.kafka.client import KafkaClient
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.metadata_parts import Part
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from tests.fixtures.waiting import until
from wire.batch import iter_headers
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.records import NewRecord

UNCOMMITTED, COMMITTED = 0, 1
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
MIB = 1 << 20


def record(value: bytes = b"v", stamp_ms: int = 1_000) -> list[NewRecord]:
    return [NewRecord(stamp_ms, b"k", value)]


async def writer_of(
    running: RunningAgent, client: KafkaClient, *names: str
) -> tuple[TransactionalWriter, list[Producer]]:
    """A topic, and another agent that writes to it for these producers."""
    await client.create_topic("t", partitions=1)
    [topic] = await running.metadata.agents.list_topics()
    writer = await TransactionalWriter.start(running.metadata, running.store, topic)
    producers = [await writer.producer(name) for name in names]
    await writer.leave()
    return writer, producers


async def heard(running: RunningAgent) -> None:
    await running.agent._follower.catch_up()


def asks(
    offset: int, *, isolation: int = COMMITTED, wait_ms: int = 0, min_bytes: int = 1, session: tuple[int, int] = (0, -1)
) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=50 * MIB,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=[part])],
    )


async def fetch(raw: RawConnection, request: FetchRequest) -> PartitionData:
    answer = await raw.call(request, FetchResponse, 12)
    [topic] = answer.responses
    [part] = topic.partitions
    assert part.error_code == ErrorCode.NONE
    return part


def bases(part: PartitionData) -> list[int]:
    return [header.base_offset for _, header in iter_headers(part.records or b"")]  # type: ignore[arg-type]


def ends(part: PartitionData) -> tuple[int, int]:
    return part.last_stable_offset, part.high_watermark


def named(part: PartitionData) -> list[tuple[int, int]] | None:
    listed = part.aborted_transactions
    return None if listed is None else [(each.producer_id, each.first_offset) for each in listed]


async def test_both_kinds_of_readers_are_told_both_ends(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    writer, (one, two) = await writer_of(agent, client, "one", "two")
    # given: a record of nobody, then one of each transaction, all in one stretch
    await writer.write([Write(0, record()), Write(0, record(), one), Write(0, record(), two)])
    await heard(agent)
    for isolation, found, listed in ((UNCOMMITTED, [0, 1, 2], None), (COMMITTED, [0], [])):
        part = await fetch(raw, asks(0, isolation=isolation))
        assert (ends(part), bases(part), named(part)) == ((1, 3), found, listed)
    for offset in (1, 2, 3):
        part = await fetch(raw, asks(offset))
        assert (ends(part), bases(part), named(part)) == ((1, 3), [], [])
    # when: the second ends first
    aborted_id = two.producer_id
    await writer.end([(two, False)])
    await heard(agent)
    assert (ends(await fetch(raw, asks(1))), bases(await fetch(raw, asks(1)))) == ((1, 4), [])
    await writer.end([(one, True)])
    await heard(agent)
    part = await fetch(raw, asks(1))
    assert (ends(part), bases(part), named(part)) == ((5, 5), [1, 2, 3, 4], [(aborted_id, 2)])
    part = await fetch(raw, asks(4))
    assert (bases(part), named(part)) == ([4], [])
    assert named(await fetch(raw, asks(0, isolation=UNCOMMITTED))) is None


async def test_a_reader_at_the_last_stable_offset_waits_until_the_transaction_ends(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    writer, [producer] = await writer_of(agent, client, "one")
    await writer.write([Write(0, record(), producer)])
    await heard(agent)
    waiting = asyncio.create_task(fetch(raw, asks(0, wait_ms=20_000)))
    # given: more records, which are bytes at hand for others
    for _ in range(3):
        await writer.write([Write(0, record())])
        await heard(agent)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    started = time.monotonic()
    await writer.end([(producer, True)])
    await heard(agent)
    part = await waiting
    assert (bases(part), ends(part)) == ([0, 1, 2, 3, 4], (5, 5))
    assert time.monotonic() - started < 5


async def test_a_session_says_when_the_last_stable_offset_has_moved(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    writer, [producer] = await writer_of(agent, client, "one")
    await writer.write([Write(0, record(), producer)])
    await heard(agent)
    first = await raw.call(asks(1, isolation=UNCOMMITTED, session=(0, 0)), FetchResponse, 12)
    [part] = first.responses[0].partitions
    assert ends(part) == (0, 1)

    async def goes_on(epoch: int, isolation: int) -> list[tuple[int, int]]:
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, isolation_level=isolation, session_id=first.session_id, session_epoch=epoch
        )
        answer = await raw.call(request, FetchResponse, 12)
        assert answer.error_code == ErrorCode.NONE
        return [ends(each) for topic in answer.responses for each in topic.partitions]

    assert await goes_on(1, UNCOMMITTED) == []
    await writer.end([(producer, False)])
    await heard(agent)
    assert await goes_on(2, UNCOMMITTED) == [(2, 2)]
    # the list belongs to the answer, not to the session: the record at 0 is not in this one
    part = await fetch(raw, asks(0))
    assert named(part) is not None and len(named(part) or []) == 1
    assert await goes_on(3, COMMITTED) == [(2, 2)], "the marker is still to be read"


async def test_offsets_are_listed_up_to_the_last_stable_offset(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    writer, [producer] = await writer_of(agent, client, "one")
    await writer.write([Write(0, record(stamp_ms=1_000)), Write(0, record(stamp_ms=2_000), producer)])
    await heard(agent)

    async def listed(timestamp: int, isolation: int) -> tuple[int, int]:
        part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsTopic(name="t", partitions=[part])]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        [topic] = (await raw.call(request, ListOffsetsResponse, 7)).topics
        [answer] = topic.partitions
        assert answer.error_code == ErrorCode.NONE
        return answer.offset, answer.timestamp

    for timestamp, uncommitted, committed in (
        (LATEST, (2, -1), (1, -1)),
        (EARLIEST, (0, -1), (0, -1)),
        (MAX_TIMESTAMP, (1, 2_000), (-1, -1)),
        (500, (0, 1_000), (0, 1_000)),
        (1_500, (1, 2_000), (-1, -1)),
        (5_000, (-1, -1), (-1, -1)),
    ):
        assert await listed(timestamp, UNCOMMITTED) == uncommitted
        assert await listed(timestamp, COMMITTED) == committed
    await writer.end([(producer, True)], timestamp_ms=3_000)
    await heard(agent)
    # markers count, as in Kafka
    for timestamp, found in ((LATEST, (3, -1)), (MAX_TIMESTAMP, (2, 3_000)), (1_500, (1, 2_000)), (2_500, (2, 3_000))):
        for isolation in (UNCOMMITTED, COMMITTED):
            assert await listed(timestamp, isolation) == found


async def test_stock_consumers_read_what_is_committed_and_nothing_else(
    agent: RunningAgent, client: KafkaClient
) -> None:
    writer, producers = await writer_of(agent, client, "one", "two", "three")
    merger = await HandMerger.start(agent.metadata, agent.store)
    expected: list[bytes] = []
    for turn in range(30):
        # given: of each producer the first commits, the second aborts, in turns; some of them end together
        chosen = producers[: 1 + turn % 3]
        writes = [Write(0, record(b"%d %d" % (turn, number)), each) for number, each in enumerate(chosen)]
        await writer.write([*writes, Write(0, record(b"%d" % turn))])
        commits = [(turn + number) % 2 == 0 for number in range(len(chosen))]
        await writer.end(list(zip(chosen, commits, strict=True)))
        expected += [b"%d %d" % (turn, number) for number, commit in enumerate(commits) if commit]
        expected.append(b"%d" % turn)
        if turn % 10 == 5:
            await merger.merge(l0_files=(await merger.live_l0())[:-4])
    # and one that stays open, so that a reader of everything sees more
    await writer.write([Write(0, record(b"open"), producers[0])])
    await heard(agent)
    for read in (librdkafka, aiokafka):
        assert await asyncio.to_thread(read, agent.address, len(expected)) == expected


def librdkafka(address: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "isolation.level": "read_committed"})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        deadline = time.monotonic() + 20
        # Beyond the last one it looks a little longer: nothing else may come.
        while time.monotonic() < deadline and (message := consumer.poll(5 if len(found) < count else 0.5)) is not None:
            assert message.error() is None
            found.append(message.value())  # type: ignore[arg-type]
    finally:
        consumer.close()
    return found


def aiokafka(address: str, count: int) -> list[bytes]:
    return asyncio.run(_aiokafka(address, count))


async def _aiokafka(address: str, count: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer: Any = AIOKafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
    found: list[bytes] = []
    await consumer.start()
    try:
        place = TopicPartition("t", 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        while some := await consumer.getmany(timeout_ms=5_000 if len(found) < count else 500):
            found += [each.value for each in some[place]]
    finally:
        await consumer.stop()
    return found


class CountingStore(MemoryStore):
    gets = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets += 1
        return await super().get_range(key, start, length)


class CountingReaders(Part):
    look_ups = 0

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        self.look_ups += 1
        return await self.inner.leveled_window(partition_id, offset, limit=limit)


async def test_a_caught_up_reader_of_committed_records_costs_no_query_and_no_get(
    start_agent: StartAgent, dial: Dial
) -> None:
    metadata, store = MemoryMetadata(), CountingStore()
    metadata.readers = readers = CountingReaders(metadata.readers)  # type: ignore[assignment]
    await metadata.open()
    running = await start_agent(metadata=metadata, store=store)
    raw = await dial.raw(running.address)
    writer, [producer] = await writer_of(running, await dial.kafka(running.address), "one")
    offset, got = 0, list[int]()
    for turn in range(10):
        own, _ = await writer.write([Write(0, record(), producer), Write(0, record())])
        # given: the bytes are here, as those of own files are
        body = await store.get(own.key)
        store.gets = 0
        running.agent._reads.hot_cache.put_blocks(own.key, range(1), body)
        running.agent._follower.saw_own(own)
        assert bases(await fetch(raw, asks(offset))) == []
        running.agent._follower.saw_own(await writer.end([(producer, turn % 2 == 0)]))
        part = await fetch(raw, asks(offset))
        assert len(named(part) or []) == turn % 2
        got += bases(part)
        offset = got[-1] + 1
        assert bases(await fetch(raw, asks(offset))) == []
    assert got == list(range(30))
    assert (readers.look_ups, store.gets) == (0, 0)


async def test_an_agent_that_starts_amid_transactions_and_merges_reads_the_same(
    start_agent: StartAgent, dial: Dial
) -> None:
    first = await start_agent()
    writer, producers = await writer_of(first, await dial.kafka(first.address), "one", "two")
    merger = await HandMerger.start(first.metadata, first.store)

    async def everything(address: str) -> tuple[list[int], list[tuple[int, int]], tuple[int, int]]:
        raw = await dial.raw(address)
        offset, found, listed = 0, list[int](), list[tuple[int, int]]()
        while True:
            part = await fetch(raw, asks(offset))
            if not bases(part):
                return found, sorted(set(listed)), ends(part)
            found += bases(part)
            listed += named(part) or []
            offset = found[-1] + 1

    seen: Sequence[Any] = ()
    for turn in range(4):
        await writer.write([Write(0, record(), each) for each in producers])
        await writer.end([(producers[0], turn % 2 == 0)])
        await heard(first)
        seen = await everything(first.address)
        late = await start_agent(store=first.store, metadata=first.metadata)
        assert await everything(late.address) == seen
        await writer.end([(producers[1], False)])
        await merger.merge(l0_files=(await merger.live_l0())[: 2 + turn])
        await heard(first)
        await until(lambda: not first.agent._index.gaps)
    assert seen[2] == (13, 15)
