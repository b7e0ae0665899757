"""One agent while its stores are slow, failing or silent, and while it is told to go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from agents.handlers import list_offsets
from agents.registration import DuplicateAgentError
from agents.tail.log_index import EXTENT_BYTES
from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, CommitRefusedError, Committed
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.memory.store import MemoryMetadata
from siltstone.kafka.client import KafkaClient, KafkaError
from storage.keys import parse_file_key
from storage.memory import MemoryStore
from storage.objects import Body, PutInDoubtError, StoreUnavailableError
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all, read_known
from tests.fixtures.metadata_parts import Part
from tests.fixtures.waiting import until
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch


class GatedStore(MemoryStore):
    """PUTs wait until the gate is open, or fail with `failure`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.puts = 0

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.puts += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().put_if_absent(key, body, crc32c=crc32c)


class DoubtfulAgents(Part):
    """Commits are done and their answers lost, as often as asked for; or refused, or the store is away."""

    def __init__(self, inner: AgentMetadata) -> None:
        super().__init__(inner)
        self.answers_to_lose = 0
        self.calls: list[CommitL0] = []
        self.refuse: Exception | None = None
        self.away = False
        self.tail_is_away = False

    async def commit_l0(self, request: CommitL0) -> Committed:
        self.calls.append(request)
        if self.refuse is not None:
            raise self.refuse
        committed = await self.inner.commit_l0(request)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise CommitInDoubtError("the connection was lost")
        return committed

    async def tail(self, cursor: Any) -> Any:
        if self.away or self.tail_is_away:
            raise MetadataUnavailableError("away")
        return await self.inner.tail(cursor)

    async def watermarks(self, partition_ids: Sequence[int]) -> Any:
        if self.away:
            raise MetadataUnavailableError("away")
        return await self.inner.watermarks(partition_ids)

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        if self.away:
            raise MetadataUnavailableError("away")
        return await self.inner.heartbeat(lease, draining=draining)


def doubtful() -> tuple[MemoryMetadata, DoubtfulAgents]:
    metadata = MemoryMetadata()
    agents = DoubtfulAgents(metadata.agents)
    metadata.agents = agents  # type: ignore[assignment]
    return metadata, agents


def batch(value: bytes = b"v", **options: object) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), b"k", value)], **options)  # type: ignore[arg-type]


def produce(records: bytes, *, timeout_ms: int = 10_000) -> ProduceRequest:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=data)


async def answer_of(raw: RawConnection) -> tuple[int, int]:
    part = (await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0]
    return part.error_code, part.base_offset


async def with_topic(dial: Dial, running: RunningAgent) -> tuple[KafkaClient, RawConnection]:
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    return client, await dial.raw(running.address)


async def test_puts_overlap_and_commits_keep_the_order_of_sealing(dial: Dial, start_agent: StartAgent) -> None:
    class FirstIsSlow(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.first_may_go = asyncio.Event()
            self.begun = self.done = 0

        async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
            self.begun += 1
            if self.begun == 1:
                await self.first_may_go.wait()
            await super().put_if_absent(key, body, crc32c=crc32c)
            self.done += 1

    store, (metadata, agents) = FirstIsSlow(), doubtful()
    running = await start_agent(store=store, metadata=metadata)
    _client, raw = await with_topic(dial, running)
    await raw.begin(produce(batch(b"first")), 9)
    await until(lambda: store.begun == 1)
    # given: the second file is stored while the first is still on its way
    await raw.begin(produce(batch(b"second")), 9)
    await until(lambda: store.done == 1)
    await asyncio.sleep(0.02)
    assert agents.calls == [], "the second may not be committed before the first"
    store.first_may_go.set()
    assert [await answer_of(raw), await answer_of(raw)] == [(0, 0), (0, 1)]
    assert [call.seq for call in agents.calls] == [1, 2]


@pytest.mark.parametrize("failure", [StoreUnavailableError("503 SlowDown"), PutInDoubtError("reset")])
async def test_a_put_that_fails_for_good_is_a_retriable_error_and_is_never_committed(
    dial: Dial, start_agent: StartAgent, failure: Exception
) -> None:
    store, (metadata, agents) = GatedStore(), doubtful()
    running = await start_agent(store=store, metadata=metadata)
    client, raw = await with_topic(dial, running)
    store.failure = failure
    await raw.begin(produce(batch()), 9)
    error, offset = await answer_of(raw)
    assert (error, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert ErrorCode(error).retriable
    assert agents.calls == []
    # and the agent goes on when the store does
    store.failure = None
    assert await client.produce("t", 0, batch()) == 0
    assert len(await read_all(client, "t")) == 1


async def test_a_commit_in_doubt_is_repeated_until_it_answers_and_later_ones_wait(
    dial: Dial, start_agent: StartAgent
) -> None:
    metadata, agents = doubtful()
    running = await start_agent(metadata=metadata)
    client, raw = await with_topic(dial, running)
    agents.answers_to_lose = 3
    await raw.begin(produce(batch(b"a")), 9)
    await until(lambda: len(agents.calls) >= 1)
    await raw.begin(produce(batch(b"b")), 9)
    assert [await answer_of(raw), await answer_of(raw)] == [(0, 0), (0, 1)]
    keys = [call.key for call in agents.calls]
    assert len(keys) == 5
    assert keys[:4] == keys[:1] * 4, "the same call, four times"
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"a", b"b"]
    assert running.metric("commits_total", outcome="in_doubt") == 3


async def test_a_refused_commit_is_a_retriable_error_and_the_next_goes_on(dial: Dial, start_agent: StartAgent) -> None:
    metadata, agents = doubtful()
    running = await start_agent(metadata=metadata)
    client, raw = await with_topic(dial, running)
    agents.refuse = CommitRefusedError("the key was aborted")
    await raw.begin(produce(batch()), 9)
    assert await answer_of(raw) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    agents.refuse = None
    assert await client.produce("t", 0, batch()) == 0


def lease_of(running: RunningAgent) -> WriterLease:
    assert running.agent._membership is not None
    return running.agent._membership.current


async def take_address_of(running: RunningAgent, agents: Any) -> WriterLease:
    host, _, port = running.address.rpartition(":")
    return await agents.register_agent(AgentAddress(host=host, port=int(port)), instead_of=lease_of(running))


async def test_a_fenced_agent_stores_nothing_more_until_it_has_a_new_lease(dial: Dial, start_agent: StartAgent) -> None:
    metadata = MemoryMetadata()
    await metadata.open()
    running = await start_agent(metadata=metadata)
    client, raw = await with_topic(dial, running)
    assert await client.produce("t", 0, batch(b"before")) == 0
    # given: our address is registered, as by a late call of a dead process
    usurper = await take_address_of(running, metadata.agents)
    await raw.begin(produce(batch(b"fenced")), 9)
    error, _ = await answer_of(raw)
    assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # then: it takes a newer epoch when that lease stood still, and only acknowledged records are there
    await until(lambda: lease_of(running).epoch > usurper.epoch)
    assert await client.produce("t", 0, batch(b"after")) == 1
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"before", b"after"]
    [agent] = await metadata.agents.live_agents()
    assert agent.epoch > usurper.epoch


async def test_a_fenced_agent_beside_one_that_runs_halts_and_its_end_comes_soon(
    dial: Dial, start_agent: StartAgent
) -> None:
    metadata = MemoryMetadata()
    await metadata.open()
    running = await start_agent(metadata=metadata)
    client, _ = await with_topic(dial, running)
    assert await client.produce("t", 0, batch(b"before")) == 0
    # when: the process that takes its address beats
    usurper = await take_address_of(running, metadata.agents)
    async with asyncio.timeout(20):
        while not running.agent.failed.done():
            await metadata.agents.heartbeat(usurper)
            await asyncio.sleep(0.1)
    # then
    assert isinstance(running.agent.failed.exception(), DuplicateAgentError)
    assert not running.agent.ready
    server = running.agent._server
    stopping = asyncio.create_task(running.agent.stop())
    ended, _ = await asyncio.wait({stopping}, timeout=10)
    if not ended and server is not None:
        server.stop_accepting()  # or the end of this test would not come either
    assert ended
    assert [agent.epoch for agent in await metadata.agents.live_agents()] == [usurper.epoch]


async def test_a_file_is_committed_under_the_lease_it_was_sealed_under(dial: Dial, start_agent: StartAgent) -> None:
    store, (metadata, agents) = GatedStore(), doubtful()
    await metadata.open()
    running = await start_agent(store=store, metadata=metadata)
    _, raw = await with_topic(dial, running)
    # given: three files on their way when the lease is lost
    store.gate.clear()
    for number in range(3):
        await raw.begin(produce(batch(bytes([number]))), 9)
        await until(lambda number=number: store.puts == number + 1)
    usurper = await take_address_of(running, agents)
    store.gate.set()
    # then: none of them slips into the numbering of the new epoch
    assert [(await answer_of(raw))[0] for _ in range(3)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    await until(lambda: lease_of(running).epoch > usurper.epoch)
    await raw.begin(produce(batch(b"new")), 9)
    assert await answer_of(raw) == (0, 0)
    for call in agents.calls:
        assert parse_file_key(call.key).epoch == call.lease.epoch
    assert len({call.lease.epoch for call in agents.calls}) == 2


async def test_stopping_answers_everything_that_was_sent(dial: Dial, start_agent: StartAgent) -> None:
    store, metadata = GatedStore(), MemoryMetadata()
    await metadata.open()
    running = await start_agent(store=store, metadata=metadata, produce_linger_ms=5_000)
    _client, raw = await with_topic(dial, running)
    store.gate.clear()
    for number in range(10):
        await raw.begin(produce(batch(bytes([number]))), 9)
    await until(lambda: running.metric("buffered_bytes") >= 10 * len(batch(b"x")))
    # when: told to stop with everything in the buffer and a store that is slow
    stopping = asyncio.create_task(running.agent.stop())
    await until(lambda: store.puts == 1)
    assert not stopping.done()
    assert list(await metadata.agents.live_agents()) == [], "it has left the Metadata answers already"
    store.gate.set()
    assert [await answer_of(raw) for _ in range(10)] == [(0, number) for number in range(10)]
    await stopping
    assert await raw.is_closed_by_peer()
    # then: another agent serves all of it
    heir = await start_agent(store=store, metadata=metadata)
    reader = await dial.kafka(heir.address)
    assert [bytes(record.value or b"") for _, record in await read_all(reader, "t")] == [
        bytes([number]) for number in range(10)
    ]


async def test_stopping_does_not_wait_for_ever(dial: Dial, start_agent: StartAgent) -> None:
    store = GatedStore()
    running = await start_agent(store=store, drain_timeout_ms=200)
    _client, raw = await with_topic(dial, running)
    store.gate.clear()
    await raw.begin(produce(batch()), 9)
    await until(lambda: store.puts == 1)
    started = time.monotonic()
    await running.agent.stop()
    assert time.monotonic() - started < 5
    assert await raw.is_closed_by_peer(), "not acknowledged, so it will be sent again"


async def test_a_producer_that_waits_too_long_is_told_and_may_retry(dial: Dial, start_agent: StartAgent) -> None:
    store = GatedStore()
    running = await start_agent(store=store)
    client, raw = await with_topic(dial, running)
    producer_id = (await running.metadata.agents.allocate_producer_ids(1))[0]
    records = batch(b"once", producer=ProducerStamp(producer_id, 0, 0))
    store.gate.clear()
    await raw.begin(produce(records, timeout_ms=1), 9)
    error, _ = await answer_of(raw)
    assert error == ErrorCode.REQUEST_TIMED_OUT
    store.gate.set()
    # then: the retry is recognised although the first was never answered
    await raw.begin(produce(records), 9)
    assert await answer_of(raw) == (0, 0)
    assert len(await read_all(client, "t")) == 1


async def test_a_slow_store_stops_producers_only(dial: Dial, start_agent: StartAgent) -> None:
    store = GatedStore()
    mib = 1 << 20
    running = await start_agent(
        store=store, produce_buffer_bytes_max=4 * mib, produce_file_bytes=mib, produce_early_bytes=mib
    )
    client, raw = await with_topic(dial, running)
    assert await client.produce("t", 0, batch(b"warm")) == 0
    store.gate.clear()
    large = batch(b"x" * 900_000)
    sending = asyncio.create_task(_send_all(raw, [large] * 40))
    # then: what the agent holds stays near its bound, far below what is pushed
    await until(lambda: running.metric("buffered_bytes") >= 4 * mib)
    await asyncio.sleep(0.1)
    assert running.metric("buffered_bytes") <= 6 * mib
    assert not sending.done(), "the producer feels it"
    # and: others are served, readers of the tail and new connections
    reader = await dial.kafka(running.address)
    assert len(await read_all(reader, "t")) == 1
    probe = await dial.raw(running.address)
    assert (await probe.call(ApiVersionsRequest(), ApiVersionsResponse, 0)).error_code == 0
    # when the store comes back, everything arrives, in order
    store.gate.set()
    await sending
    assert [await answer_of(raw) for _ in range(40)] == [(0, 1 + number) for number in range(40)]


async def _send_all(raw: RawConnection, batches: list[bytes]) -> None:
    for records in batches:
        await raw.begin(produce(records, timeout_ms=60_000), 9)


async def test_metadata_away_caught_up_readers_wait_and_known_records_are_served(
    dial: Dial, start_agent: StartAgent
) -> None:
    metadata, agents = doubtful()
    running = await start_agent(metadata=metadata)
    client, _raw = await with_topic(dial, running)
    await client.produce("t", 0, batch())
    agents.away = True
    assert len(await read_known(client, "t")) == 1
    fetched = await client.fetch("t", 0, 1, max_wait_ms=50)
    assert (len(fetched.records), fetched.high_watermark) == (0, 1)
    # out of range cannot be said without the store: empty, so that the client asks again instead of jumping
    assert len((await client.fetch("t", 0, 500, max_wait_ms=10)).records) == 0
    with pytest.raises(KafkaError) as refused:
        await client.list_offsets("t", [0])
    assert ErrorCode(refused.value.code).retriable
    agents.away = False
    with pytest.raises(KafkaError) as refused:
        await client.fetch("t", 0, 500)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_the_partitions_of_one_look_up_by_timestamp_wait_together_for_the_present(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_ms, partitions = 300, 30
    monkeypatch.setattr(list_offsets, "SEE_PRESENT_MS", wait_ms)
    first = await start_agent()
    writer = await dial.kafka(first.address)
    await writer.create_topic("t", partitions=partitions)
    metadata, agents = doubtful()
    agents.inner = first.metadata.agents
    second = await start_agent(store=first.store, metadata=metadata)
    reader = await dial.kafka(second.address)
    # given: an agent that does not see the newest records
    agents.tail_is_away = True
    for partition in range(partitions):
        await writer.produce("t", partition, batch())
    # when
    started = time.monotonic()
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        await reader.list_offsets("t", range(partitions), timestamp=1)
    # then
    assert time.monotonic() - started < partitions * wait_ms / 1000 / 2
    agents.tail_is_away = False
    assert await reader.list_offsets("t", range(partitions), timestamp=1) == dict.fromkeys(range(partitions), 0)


async def test_an_object_that_cannot_be_read_fails_its_partition_alone(dial: Dial, start_agent: StartAgent) -> None:
    store = MemoryStore()
    first = await start_agent(store=store)
    client, _raw = await with_topic(dial, first)
    await client.create_topic("other", partitions=1)
    await client.produce("t", 0, batch(b"lost"))
    keys = [stat.key async for stat in store.list("l0/")]
    await client.produce("other", 0, batch(b"kept"))
    await store.delete_many(keys)
    second = await start_agent(store=store, metadata=first.metadata)
    reader = await dial.kafka(second.address)
    with pytest.raises(KafkaError) as refused:
        await reader.fetch("t", 0, 0)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(await read_all(reader, "other")) == 1
    assert len(await read_all(client, "t")) == 1, "the writer still has it in memory"


async def test_a_second_agent_follows_the_first(dial: Dial, start_agent: StartAgent) -> None:
    first = await start_agent()
    second = await start_agent(store=first.store, metadata=first.metadata)
    writer = await dial.kafka(first.address)
    reader = await dial.kafka(second.address)
    await writer.create_topic("t", partitions=1)
    for number in range(5):
        assert await writer.produce("t", 0, batch(bytes([number]))) == number
        assert await reader.list_offsets("t", [0]) == {0: number + 1}, "latest is the store's word, at once"
    fetched = await reader.fetch("t", 0, 4, max_wait_ms=5_000)
    assert len(fetched.records) > 0
    assert await reader.produce("t", 0, batch(b"from the other")) == 5
    await until(lambda: _end(first) == 6)
    assert len(await read_all(writer, "t")) == 6
    assert {agent.writer_id for agent in await first.metadata.agents.live_agents()} == {1, 2}


def _end(running: RunningAgent) -> int:
    log = running.agent._index.partition(1)
    return log.end if log is not None else -1


async def test_a_full_index_refuses_produce_and_nothing_else(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(index_bytes_max=3 * EXTENT_BYTES)
    client, _ = await with_topic(dial, running)
    for offset in range(3):
        assert await client.produce("t", 0, batch()) == offset
    with pytest.raises(KafkaError, match=r"index\.bytes\.max") as refused:
        await client.produce("t", 0, batch())
    assert ErrorCode(refused.value.code).retriable
    assert len(await read_all(client, "t")) == 3
