"""Too many live L0 files: answers to producers come late, then produce is refused, then all is well again by itself.

Nothing merges here. Files pile up because another writer, one without limits, commits them; they go when their topic is
deleted or their log start moves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agents.write.stall
from agents.write.stall import StallLimits, decide
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.contract.store import MetadataStore
from metadata.contract.tail import ChangeKind
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryMetadata
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from siltstone.kafka.client import KafkaClient
from storage.keys import file_key
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all
from tests.fixtures.record_batches import some_records
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import build_batch

LIMITS: dict[str, Any] = {"l0_stall_files": 20, "l0_refuse_files": 100}
RULE = StallLimits(stall_files=20, refuse_files=100)
RECORD = build_batch(some_records(1, timestamp_ms=int(time.time() * 1000)))


def produce(*, acks: int = -1, timeout_ms: int = 20_000) -> ProduceRequest:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=RECORD)])]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=data)


async def answer_of(raw: RawConnection) -> tuple[int, int]:
    part = (await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def live_files(running: RunningAgent) -> int:
    return int(running.metric("live_l0_files"))


class Pile:
    """An agent with limits, and files that another writer has committed; those have no objects, nobody reads them."""

    def __init__(self, dial: Dial, start_agent: StartAgent, store: ObjectStore, metadata: MetadataStore) -> None:
        self._dial, self._start_agent = dial, start_agent
        self._store, self._metadata = store, metadata
        self.agent: RunningAgent
        self.client: KafkaClient

    async def begin(self, partitions: int = 1) -> None:
        self.agent = await self._start_agent(store=self._store, metadata=self._metadata, **LIMITS)
        self.client = await self._dial.kafka(self.agent.address)
        await self.client.create_topic("t", partitions=partitions)

    async def raise_to(self, files: int) -> None:
        """Commit files of the topic "old" until that many are live."""
        metadata, ids, now_ms = self._metadata, SystemIds(), SystemClock().wall_ms()
        if "old" not in {topic.name for topic in await metadata.agents.list_topics()}:
            await metadata.agents.create_topic("old", partitions=1, configs={})
        [partition_id] = (await topic_named(metadata, "old")).partition_ids
        lease = await metadata.agents.register_agent(AgentAddress(host="127.0.0.1", port=1))
        await metadata.agents.unregister_agent(lease)  # so that no client is sent there; its epoch stands
        batch = L0Batch(
            partition_id=partition_id,
            position=0,
            length=len(RECORD),
            record_count=1,
            min_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
        )
        for seq in range(files - live_files(self.agent)):
            key = file_key(
                level=0,
                writer_id=lease.writer_id,
                epoch=lease.epoch,
                file_uuid=ids.uuid7(now_ms),
                created_ms=now_ms,
            )
            await metadata.agents.commit_l0(
                CommitL0(lease=lease, seq=seq + 1, key=key, size_bytes=1000, crc32c=0, batches=[batch])
            )
        await until(lambda: live_files(self.agent) == files)


@pytest.fixture
async def pile(dial: Dial, start_agent: StartAgent) -> Pile:
    metadata = MemoryMetadata()
    await metadata.open()
    pile = Pile(dial, start_agent, MemoryStore(), metadata)
    await pile.begin()
    return pile


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAY_MS_MAX", 800.0)


async def topic_named(metadata: MetadataStore, name: str) -> Topic:
    return next(topic for topic in await metadata.agents.list_topics() if topic.name == name)


async def test_answers_come_late_but_what_is_stored_can_be_read_at_once(
    dial: Dial, pile: Pile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAY_MS_MAX", 6_000.0)
    await pile.raise_to(60)
    raw, reader = await dial.raw(pile.agent.address), await dial.kafka(pile.agent.address)
    started = time.monotonic()
    await raw.begin(produce(), 9)
    answer = asyncio.create_task(answer_of(raw))
    # then: a consumer that waits for it has it long before its writer hears of it, and nobody else waits
    assert len((await reader.fetch("t", 0, 0, max_wait_ms=5_000)).records) > 0
    assert await reader.list_offsets("t", [0]) == {0: 1}
    assert not answer.done()
    assert await answer == (0, 0)
    assert time.monotonic() - started >= decide(60, RULE).delay_ms / 1000 > 3
    assert pile.agent.metric("write_stall_delay_seconds") > 3
    assert pile.agent.metric("produce_stalled_total", outcome="delayed") == 1


@pytest.mark.usefixtures("short_delays")
async def test_a_connection_is_answered_in_order_and_its_delays_run_side_by_side(dial: Dial, pile: Pile) -> None:
    await pile.raise_to(90)
    raw = await dial.raw(pile.agent.address)
    started = time.monotonic()
    for _ in range(10):
        await raw.begin(produce(), 9)
    assert [await answer_of(raw) for _ in range(10)] == [(0, number) for number in range(10)]
    assert decide(90, RULE).delay_ms / 1000 <= time.monotonic() - started < 4


async def test_a_client_that_gives_its_requests_little_time_is_not_kept_past_it(
    dial: Dial, pile: Pile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAY_MS_MAX", 8_000.0)
    await pile.raise_to(100)
    raw = await dial.raw(pile.agent.address)
    started = time.monotonic()
    await raw.begin(produce(timeout_ms=300), 9)
    assert await answer_of(raw) == (0, 0)
    assert time.monotonic() - started < 4, "the delay for others is 8 s, for this one 0.15 s"


@pytest.mark.usefixtures("short_delays")
async def test_above_the_second_limit_produce_is_refused_and_nothing_is_buffered(dial: Dial, pile: Pile) -> None:
    await pile.raise_to(101)
    raw = await dial.raw(pile.agent.address)
    sealed = pile.agent.metric("l0_files_total", reason="linger")
    started = time.monotonic()
    await raw.begin(produce(), 9)
    error, offset = await answer_of(raw)
    assert (error, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert ErrorCode(error).retriable
    assert time.monotonic() - started >= 0.8, "at once, retries would be a flood"
    assert pile.agent.metric("write_stall_refusing") == 1
    assert pile.agent.metric("produce_stalled_total", outcome="refused") == 1
    assert pile.agent.metric("buffered_bytes") == 0
    assert pile.agent.metric("l0_files_total", reason="linger") == sealed
    # and: readers and other requests are served, deleting is what helps
    assert await pile.client.list_offsets("old", [0]) == {0: 101}
    await pile.client.delete_topic("old")
    await until(lambda: live_files(pile.agent) == 0)
    # then: writing goes on by itself, at full speed
    started = time.monotonic()
    assert await pile.client.produce("t", 0, RECORD) == 0
    assert time.monotonic() - started < 5
    assert pile.agent.metric("write_stall_refusing") == pile.agent.metric("write_stall_delay_seconds") == 0


async def test_who_is_held_back_is_answered_when_the_files_go(
    dial: Dial, pile: Pile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAY_MS_MAX", 8_000.0)
    await pile.raise_to(95)
    raw = await dial.raw(pile.agent.address)
    started = time.monotonic()
    await raw.begin(produce(), 9)
    await until(lambda: pile.agent.metric("produce_stalled_total", outcome="delayed") == 1)
    assert isinstance(pile._metadata, MemoryMetadata)
    topic = await topic_named(pile._metadata, "old")
    # when: the log start of what piled up moves to its end, as retention and DeleteRecords will do it
    pile._metadata.database.partitions[topic.partition_ids[0]].log_start_offset = 95
    pile._metadata.agents._changed(ChangeKind.LOG_START_MOVED, topic, offsets={str(topic.partition_ids[0]): 95})
    assert await answer_of(raw) == (0, 0)
    assert time.monotonic() - started < 3, "the delay was 7 s"
    assert live_files(pile.agent) == 1


async def test_an_agent_that_stops_answers_what_it_holds_back(
    dial: Dial, pile: Pile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAY_MS_MAX", 8_000.0)
    await pile.raise_to(95)
    raw = await dial.raw(pile.agent.address)
    for _ in range(3):
        await raw.begin(produce(), 9)
    await until(lambda: pile.agent.metric("produce_stalled_total", outcome="delayed") == 3)
    started = time.monotonic()
    await pile.agent.agent.stop()
    assert time.monotonic() - started < 3, "the delay was 7 s"
    assert [await answer_of(raw) for _ in range(3)] == [(0, number) for number in range(3)]


@pytest.mark.usefixtures("short_delays")
async def test_without_acks_the_line_of_a_connection_is_what_slows_it(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = MemoryMetadata()
    await metadata.open()
    monkeypatch.setattr("agents.connections.connection.REQUESTS_MAX", 5)
    pile = Pile(dial, start_agent, MemoryStore(), metadata)
    await pile.begin()
    await pile.raise_to(80)
    raw = await dial.raw(pile.agent.address)
    started = time.monotonic()
    for _ in range(10):
        await raw.begin(produce(acks=0), 9)
    await raw.begin(produce(), 9)
    assert await answer_of(raw) == (0, 10)
    # twice the line was full of five that were held back, and then comes this answer's own delay
    assert time.monotonic() - started >= 3 * decide(80, RULE).delay_ms / 1000 > 1.5


class Sender:
    """An ordinary idempotent librdkafka producer with its default timeouts."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.delivered: list[tuple[int, bytes]] = []
        self.failed: list[str] = []

    def send(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._producer.produce("t", value=value, partition=0, on_delivery=self._on_delivery)

    def flush(self, timeout_s: float) -> int:
        """How many are not answered yet."""
        return self._producer.flush(timeout_s)

    def timed(self, values: Sequence[bytes]) -> float:
        started = time.monotonic()
        self.send(values)
        assert self.flush(60) == 0
        return time.monotonic() - started

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.delivered.append((message.offset(), message.value()))


@pytest.mark.usefixtures("short_delays")
async def test_an_ordinary_producer_is_slowed_then_waits_then_goes_on_without_an_error(
    dial: Dial, start_agent: StartAgent, postgres_url: str, tmp_path: Path
) -> None:
    metadata = open_metadata(postgres_url)
    await metadata.open()
    try:
        pile = Pile(dial, start_agent, LocalStore(tmp_path / "objects"), metadata)
        await pile.begin()
        sender = Sender(pile.agent.address)
        values = [b"%05d" % number for number in range(40)]
        await asyncio.to_thread(sender.timed, values[:10])
        assert pile.agent.metric("produce_stalled_total", outcome="delayed") == 0
        # when: between the limits
        await pile.raise_to(85)
        late = await asyncio.to_thread(sender.timed, values[10:20])
        assert late >= decide(85, RULE).delay_ms / 1000 > 0.6
        assert pile.agent.metric("produce_stalled_total", outcome="delayed") >= 1
        # and: above the second
        await pile.raise_to(101)
        stored = pile.agent.metric("produce_batches_total", outcome="stored")
        sender.send(values[20:])
        # it tries again and again
        await until(lambda: pile.agent.metric("produce_stalled_total", outcome="refused") >= 2)
        assert await asyncio.to_thread(sender.flush, 0) == 20
        assert pile.agent.metric("produce_batches_total", outcome="stored") == stored
        # and: the files go
        await pile.client.delete_topic("old")
        assert await asyncio.to_thread(sender.flush, 30) == 0
        # then: nobody noticed but by the clock
        assert sender.failed == []
        assert [value for _, value in sender.delivered] == values
        found = {offset: record.value for offset, record in await read_all(pile.client, "t")}
        assert [bytes(found[offset] or b"") for offset, _ in sender.delivered] == values
    finally:
        await pile.agent.agent.stop()
        await metadata.close()
