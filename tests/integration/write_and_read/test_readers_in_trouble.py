"""Readers while the object store or Postgres is down, silent or slow, and while producers flood a slow store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.handlers import fetch
from agents.read import pools
from agents.tail import fresh_watermarks as fresh
from metadata.contract.agents import AgentMetadata
from metadata.contract.leases import BEAT_MS, LEASE_MS
from metadata.contract.tail import Cursor, Tail
from metadata.memory.store import MemoryMetadata
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from siltstone.kafka.client import KafkaClient, KafkaError
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.retrying import Retrying
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_known, records_of
from tests.fixtures.faults import Postgres
from tests.fixtures.fleet import Counted, code_of, fleet
from tests.fixtures.metadata_parts import Part
from tests.fixtures.steady_readers import AiokafkaReader, LibrdkafkaReader
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

MIB = 1 << 20
DOWN = FaultRule(fault=Fault.UNREACHABLE)
NOTHING_COMES = FaultRule(fault=Fault.DELAY, op="get_range", delay_ms=3_600_000)


def batch(value: bytes) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, value)])


class Store:
    """A memory store behind a plan of faults, as agents see it: with or without the retries of a real agent."""

    def __init__(self, inner: ObjectStore | None = None, *, retrying: bool = False) -> None:
        self.plan = FaultPlan()
        clock, ids = SystemClock(), SystemIds()
        faulty = Faulty(inner or MemoryStore(), self.plan, ids, clock)
        self.store: ObjectStore = Retrying(faulty, clock, ids) if retrying else faulty

    def have(self, *rules: FaultRule) -> None:
        self.plan.rules = rules


def fetch_of(wanted: dict[str, int], *, max_wait_ms: int = 0) -> FetchRequest:
    topics = [
        FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)])
        for topic, offset in wanted.items()
    ]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=50 * MIB, topics=topics)


async def fetched(raw: RawConnection) -> dict[str, PartitionData]:
    answer = await raw.answer(FetchResponse, 12)
    assert answer.error_code == 0
    return {topic.topic: topic.partitions[0] for topic in answer.responses}


def values(part: PartitionData) -> list[bytes]:
    return [bytes(record.value or b"") for _, record in records_of(memoryview(part.records or b""))]


async def two_topics(
    start_agent: StartAgent, dial: Dial, store: Store, **settings: Any
) -> tuple[RunningAgent, KafkaClient, RawConnection]:
    """An agent that has "hot" in its memory and must fetch "cold", which another one wrote."""
    other = await start_agent(store=store.store)
    writer = await dial.kafka(other.address)
    await writer.create_topic("cold", partitions=1)
    await writer.create_topic("hot", partitions=1)
    await writer.produce("cold", 0, batch(b"cold"))
    # the other is done; it must not be asked for its place in the list of agents
    running = await start_agent(store=store.store, metadata=other.metadata, **settings)
    client = await dial.kafka(running.address)
    await client.produce("hot", 0, batch(b"hot"))
    return running, client, await dial.raw(running.address)


# ---- the object store is down --------------------------------------------------------------------------------------


async def test_with_the_store_down_a_cold_partition_alone_fails_and_the_others_carry_records(
    start_agent: StartAgent, dial: Dial
) -> None:
    store = Store()
    _, client, raw = await two_topics(start_agent, dial, store)
    store.have(DOWN)
    for order in ({"cold": 0, "hot": 0}, {"hot": 0, "cold": 0}):
        await raw.begin(fetch_of(order), 12)
        answer = await fetched(raw)
        assert answer["cold"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values(answer["cold"]) == []
        assert (answer["hot"].error_code, values(answer["hot"])) == (0, [b"hot"])
    # and writing is refused with an error that says "again", and works again when the store does
    with pytest.raises(KafkaError) as refused:
        await client.produce("hot", 0, batch(b"not now"))
    assert code_of(refused.value).retriable
    store.have()
    await raw.begin(fetch_of({"cold": 0}), 12)
    assert values((await fetched(raw))["cold"]) == [b"cold"]
    assert await client.produce("hot", 0, batch(b"again")) == 1


async def test_records_at_hand_do_not_wait_for_a_store_that_is_tried_again_and_again(
    start_agent: StartAgent, dial: Dial
) -> None:
    store = Store(retrying=True)  # as an agent has it: it goes on trying for 20 s
    _, _, raw = await two_topics(start_agent, dial, store)
    store.have(DOWN)
    for _ in range(2):
        started = time.monotonic()
        await raw.begin(fetch_of({"cold": 0, "hot": 0}), 12)
        answer = await fetched(raw)
        assert time.monotonic() - started < 6
        assert values(answer["hot"]) == [b"hot"]
        assert (answer["cold"].error_code, values(answer["cold"])) == (0, []), "not there yet: the client asks again"
    # when the store is back the next answer has both
    store.have()
    async with asyncio.timeout(10):
        while not values(answer["cold"]):
            await raw.begin(fetch_of({"cold": 0, "hot": 1}, max_wait_ms=100), 12)
            answer = await fetched(raw)
    assert values(answer["cold"]) == [b"cold"]


async def test_records_that_arrive_while_old_ones_are_waited_for_are_delivered_soon(
    start_agent: StartAgent, dial: Dial
) -> None:
    store = Store()
    _, client, raw = await two_topics(start_agent, dial, store)
    store.have(NOTHING_COMES)
    await raw.begin(fetch_of({"cold": 0, "hot": 1}, max_wait_ms=60_000), 12)
    await asyncio.sleep(0.05)
    started = time.monotonic()
    assert await client.produce("hot", 0, batch(b"new")) == 1
    found: list[bytes] = []
    while not found:
        answer = await fetched(raw)
        found = values(answer["hot"])
        assert answer["cold"].error_code == 0
        await raw.begin(fetch_of({"cold": 0, "hot": 1 + len(found)}, max_wait_ms=60_000), 12)
    assert found == [b"new"]
    assert time.monotonic() - started < 6


async def test_a_store_that_does_not_answer_is_said_to_be_down_before_clients_give_us_up(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "STORE_WAIT_MS_MAX", 100)
    store = Store()
    running, client, raw = await two_topics(start_agent, dial, store)
    store.have(NOTHING_COMES)
    await raw.begin(fetch_of({"cold": 0}), 12)
    assert (await fetched(raw))["cold"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as refused:
        await client.list_offsets("cold", [0], timestamp=1)
    assert code_of(refused.value) is ErrorCode.KAFKA_STORAGE_ERROR
    assert running.agent._server is not None and running.agent._server.broker.reader._budget.taken == 0


async def test_reads_that_hang_do_not_take_the_memory_of_answers_from_the_tail(
    start_agent: StartAgent, dial: Dial
) -> None:
    store = Store()
    first, client, _ = await two_topics(start_agent, dial, store)
    await client.produce("cold", 0, batch(b"x" * 400_000))
    bounds = {"fetch_max_bytes": MIB, "fetch_buffer_bytes_max": MIB}
    other = await start_agent(store=store.store, metadata=first.metadata, **bounds)
    client = await dial.kafka(other.address)
    await client.produce("hot", 0, batch(b"own"))
    # given: more is asked for from a store that does not answer than all answers together may hold
    store.have(NOTHING_COMES)
    hanging = [await dial.raw(other.address) for _ in range(20)]
    for raw in hanging:
        await raw.begin(fetch_of({"cold": 0}), 12)
    assert other.agent._server is not None
    budget = other.agent._server.broker.reader._budget
    await until(lambda: budget.taken >= 400_000 and any(budget._waiting))
    # then: who reads what is in memory does not wait in their line
    for _ in range(5):
        started = time.monotonic()
        assert values_of(await client.fetch("hot", 0, 1, max_wait_ms=0)) == [b"own"]
        assert time.monotonic() - started < 6
    for raw in hanging:
        await raw.close()
    await until(lambda: budget.taken == 0 and not any(budget._waiting))


def values_of(answer: Any) -> list[bytes]:
    return [bytes(record.value or b"") for _, record in records_of(answer.records)]


# ---- Postgres is down, or silent -----------------------------------------------------------------------------------


@pytest.fixture
async def on_postgres(
    postgres: Postgres, start_agent: StartAgent, tmp_path: Path
) -> AsyncIterator[tuple[Postgres, RunningAgent]]:
    metadata = Counted(open_metadata(postgres.url))
    await metadata.open()
    running = await start_agent(store=LocalStore(tmp_path / "objects"), metadata=metadata)  # type: ignore[arg-type]
    yield postgres, running
    await running.agent.stop()
    await metadata.close()


async def test_with_postgres_down_consumers_at_the_end_wait_without_an_error_and_go_on_when_it_is_back(
    on_postgres: tuple[Postgres, RunningAgent], dial: Dial
) -> None:
    postgres, running = on_postgres
    client, writer = await dial.kafka(running.address), await dial.kafka(running.address)
    await client.create_topic("t", partitions=2)
    for number in range(10):
        await client.produce("t", number % 2, batch(b"%d" % number))
    to = {"topic": "t", "partitions": 2}
    with LibrdkafkaReader(running.address, **to) as one, AiokafkaReader(running.address, **to) as other:
        readers = (one, other)
        await until(lambda: all(len(each.found) == 10 for each in readers))
        await asyncio.to_thread(postgres.stop)
        errors = running.metric("tail_errors_total")
        down_s = time.monotonic()
        writing = asyncio.create_task(writer.produce("t", 0, batch(b"meanwhile")))
        while time.monotonic() - down_s < 3:
            # known records are served, the end is waited at, and Metadata is answered from memory
            assert len(await read_known(client, "t", 1)) == 5
            assert len((await client.fetch("t", 0, 5, max_wait_ms=200)).records) == 0
            assert [part.leader_id for part in (await client.topic("t")).partitions] == [1, 1]
        for each in readers:
            each.check()
            assert len(each.found) == 10
        assert running.metric("tail_errors_total") > errors, "it was really down"
        assert not writing.done(), "what may be stored or not is not answered"
        # when it is back
        await asyncio.to_thread(postgres.start)
        assert await writing == 5
        await until(lambda: all(len(each.found) == 11 for each in readers))
        for each in readers:
            each.check()
            assert each.found[0, 5] == b"meanwhile"
        assert await client.list_offsets("t", [0, 1]) == {0: 6, 1: 5}


class Silent(Part):
    """Takes questions and does not answer them."""

    def __init__(self, inner: AgentMetadata) -> None:
        super().__init__(inner)
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.asked = 0

    async def tail(self, cursor: Cursor) -> Tail:
        await self._speak()
        return await self.inner.tail(cursor)

    async def watermarks(self, partition_ids: Sequence[int]) -> Any:
        self.asked += 1
        await self._speak()
        return await self.inner.watermarks(partition_ids)

    async def _speak(self) -> None:
        await self.speaks.wait()


async def test_a_silent_postgres_holds_up_no_answer_for_long(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "WAIT_MS_MAX", 100)
    metadata = MemoryMetadata()
    metadata.agents = silent = Silent(metadata.agents)  # type: ignore[assignment]
    await metadata.open()
    running = await start_agent(metadata=metadata)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, batch(b"v"))
    silent.speaks.clear()
    started = time.monotonic()
    assert len(await read_known(client, "t")) == 1
    assert len((await client.fetch("t", 0, 1, max_wait_ms=50)).records) == 0
    # beyond what we know nobody can say: no error that would make a consumer jump
    for _ in range(3):
        assert len((await client.fetch("t", 0, 7, max_wait_ms=50)).records) == 0
    with pytest.raises(KafkaError) as refused:
        await client.list_offsets("t", [0])
    assert code_of(refused.value).retriable
    assert time.monotonic() - started < 10
    assert silent.asked == 1, "and it is not asked again while it owes an answer"
    silent.speaks.set()
    await until(lambda: running.agent._server.broker.fresh._running.done())  # type: ignore[union-attr]
    assert await client.list_offsets("t", [0]) == {0: 1}
    with pytest.raises(KafkaError) as refused:
        await client.fetch("t", 0, 7, max_wait_ms=50)
    assert code_of(refused.value) is ErrorCode.OFFSET_OUT_OF_RANGE


# ---- a slow store and a flood --------------------------------------------------------------------------------------


async def test_a_flood_on_a_slow_store_stops_neither_beats_nor_fetches(start_agent: StartAgent, dial: Dial) -> None:
    store = Store()
    async with fleet(
        start_agent,
        1,
        store=store.store,
        produce_buffer_bytes_max=4 * MIB,
        produce_file_bytes=MIB,
        produce_uploads_max=2,
    ) as agents:
        [running], [metadata] = agents.agents, agents.services
        client = await dial.kafka(running.address)
        await client.create_topic("t", partitions=1)
        assert await client.produce("t", 0, batch(b"known")) == 0
        reader = await dial.kafka(running.address)
        # given: every PUT takes most of a second, and thirty connections push as fast as they are read
        store.have(FaultRule(fault=Fault.DELAY, op="put", delay_ms=700))
        flood = [await dial.raw(running.address) for _ in range(30)]
        large = batch(b"x" * 500_000)
        sending = [asyncio.create_task(_send(raw, large, 6)) for raw in flood]
        await until(lambda: running.metric("buffered_bytes") >= 4 * MIB)
        beats, started, slowest_s = metadata.calls["heartbeat"], time.monotonic(), 0.0
        lease_ms: list[int] = []
        offset, polls = 0, 0
        while (passed := (time.monotonic() - started) * 1000 / BEAT_MS) < 2.2 or (
            passed < 3.2 and metadata.calls["heartbeat"] - beats < 2
        ):
            asked = time.monotonic()
            answer = await reader.fetch("t", 0, offset, max_wait_ms=100)
            slowest_s = max(slowest_s, time.monotonic() - asked)
            offset += len(values_of(answer))
            polls += 1
            [writer] = metadata.inner.database.writers.values()
            lease_ms.append(writer.lease_until_ms - SystemClock().wall_ms())
        assert running.metric("produce_batches_total", outcome="stored") < 30 * 6, "the store is still behind"
        assert running.metric("buffered_bytes") <= 6 * MIB
        # then: readers read on while it is written, and the lease never comes near its end
        print(f"{polls} fetches, the slowest {slowest_s * 1000:.0f} ms, {offset} records")
        assert slowest_s < 2.5 and polls > 10 and offset > 1
        assert metadata.calls["heartbeat"] - beats >= 2
        assert min(lease_ms) > LEASE_MS - 2 * BEAT_MS
        # and every producer is answered in the end
        store.have()
        await asyncio.gather(*sending)
        for raw in flood:
            errors = [
                (await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0].error_code for _ in range(6)
            ]
            assert errors == [0] * 6
        assert await client.list_offsets("t", [0]) == {0: 1 + 30 * 6}


async def _send(raw: RawConnection, records: bytes, count: int) -> None:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    for _ in range(count):
        await raw.begin(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data), 9)


async def test_connections_that_send_their_first_batch_while_the_agent_is_full_wait_like_the_others(
    start_agent: StartAgent, dial: Dial
) -> None:
    store = Store()
    running = await start_agent(
        store=store.store, produce_buffer_bytes_max=2 * MIB, produce_file_bytes=MIB, produce_uploads_max=2
    )
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    store.have(FaultRule(fault=Fault.DELAY, op="put", delay_ms=1_500))
    large, sending = batch(b"x" * 900_000), list[asyncio.Task[None]]()
    raws = [await dial.raw(running.address) for _ in range(30)]
    for raw in raws:
        sending.append(asyncio.create_task(_send(raw, large, 1)))
    most = 0.0
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        most = max(most, running.metric("buffered_bytes"))
        await asyncio.sleep(0.01)
    print(f"{most / MIB:.1f} MiB held")
    assert most <= 4 * MIB
    store.have()
    await asyncio.gather(*sending)
    for raw in raws:
        assert (await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0].error_code == 0


async def test_a_client_that_leaves_while_its_answer_is_put_together_gives_the_memory_back(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, client, raw = await two_topics(start_agent, dial, Store())
    await client.produce("hot", 0, batch(b"x" * 400_000))
    assert running.agent._server is not None
    budget, in_turns, begun = running.agent._server.broker.reader._budget, fetch.chunks_with_yields, asyncio.Event()

    async def for_ever(parts: Sequence[Any], *more: Any) -> AsyncIterator[Sequence[Any]]:
        if parts and isinstance(parts[0], tuple):  # a part and its answer
            begun.set()
            await asyncio.Event().wait()
        async for some in in_turns(parts, *more):
            yield some

    monkeypatch.setattr(fetch, "chunks_with_yields", for_ever)
    await raw.begin(fetch_of({"hot": 0}), 12)
    await begun.wait()
    assert budget.taken >= 400_000
    await raw.close()
    await until(lambda: budget.taken == 0)
