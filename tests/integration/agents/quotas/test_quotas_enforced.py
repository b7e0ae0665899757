"""Clients over their quota wait, and others do not. Real sockets, real clients."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import confluent_kafka
import pytest

from agents.server import Server
from metadata.security.contract import UserChange
from runtime.clock import SystemClock
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey
from security.scram import Mechanism
from siltstone.kafka.access.quotas import alter_quotas
from siltstone.kafka.client import KafkaClient, connected
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.waiting import until
from tests.integration.agents.test_connections import produce
from tests.integration.agents.test_sasl import as_ann, sasl_listener
from tests.unit.agents.security.session_client import credential
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import ProduceResponse
from wire.records import NewRecord, build_batch

RAW = QuotaEntity(client_id="raw")
"""The client id of raw connections; `KafkaClient` has another."""
CLOCK = SystemClock()


@pytest.fixture
async def admin(agent: RunningAgent, dial: Dial) -> KafkaClient:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    return client


def server_of(running: RunningAgent) -> Server:
    assert running.agent._server is not None
    return running.agent._server


def muted(running: RunningAgent) -> int:
    return sum(each.client.mute.on for each in server_of(running).talking())


def waiting_readers(running: RunningAgent) -> int:
    return len(server_of(running).broker.parked_readers._waiting)


def waits(running: RunningAgent, key: QuotaKey) -> float:
    return running.metric("throttle_seconds_count", quota=key.value)


def fetch(offset: int = 0, *, session_id: int = 0, epoch: int = -1, max_wait_ms: int = 0) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[asked])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics, session_id=session_id, session_epoch=epoch)


async def test_a_producer_keeps_to_its_rate(raw: RawConnection, admin: KafkaClient, agent: RunningAgent) -> None:
    rate = 100_000
    await alter_quotas(admin, RAW, {QuotaKey.PRODUCER_BYTE_RATE: float(rate)})
    value = os.urandom(30_000)
    sent, begun_ms = 0, CLOCK.monotonic_ms()
    burst = await raw.call(produce(os.urandom(10 * rate - 30_000)), ProduceResponse, 9)
    assert burst.throttle_time_ms == 0
    told: list[int] = []
    while sent < 5 * rate:
        answer = await raw.call(produce(value), ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        told.append(answer.throttle_time_ms)
        sent += len(value)
    # the last wait is not over yet
    allowed = rate * ((CLOCK.monotonic_ms() - begun_ms) / 1000) + 2 * len(value)
    assert sent <= 1.2 * allowed
    # A wait that was shorter than the commit is not told.
    assert 0 < sum(ms > 0 for ms in told) <= waits(agent, QuotaKey.PRODUCER_BYTE_RATE)


async def test_librdkafka_hears_of_its_waits_and_keeps_to_them(admin: KafkaClient, agent: RunningAgent) -> None:
    rate, count = 200_000, 130
    await alter_quotas(admin, QuotaEntity(client_id="load"), {QuotaKey.PRODUCER_BYTE_RATE: float(rate)})
    events: list[float] = []
    errors: list[Any] = []

    def run() -> float:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": agent.address,
                "client.id": "load",
                "throttle_cb": lambda event: events.append(event.throttle_time),
                "batch.size": 50_000,
                "linger.ms": 5,
            }
        )
        begun_ms = CLOCK.monotonic_ms()
        for _ in range(count):
            producer.produce("t", os.urandom(20_000), on_delivery=lambda error, _: errors.append(error))
            producer.poll(0)
        assert producer.flush(60) == 0
        return CLOCK.monotonic_ms() - begun_ms

    took_ms = await asyncio.to_thread(run)
    assert errors == [None] * count and max(events) > 0
    # ten seconds' worth at once, and the request that overdraws
    assert count * 20_000 <= 1.2 * (rate * (took_ms / 1000 + 10) + 100_000)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    async def get(self, key: str) -> bytes:
        self.gets += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets += 1
        return await super().get_range(key, start, length)


async def test_a_fetch_over_the_quota_reads_nothing_and_goes_on_when_it_may(
    dial: Dial, start_agent: StartAgent
) -> None:
    store = CountingStore()
    writer = await start_agent(store=store)
    admin = await dial.kafka(writer.address)
    await admin.create_topic("t", partitions=1)
    for _ in range(3):
        await (await dial.raw(writer.address)).call(produce(os.urandom(250_000)), ProduceResponse, 9)
    # another agent, which has none of the records in memory
    reader = await start_agent(store=store, metadata=writer.metadata)
    await alter_quotas(admin, RAW, {QuotaKey.CONSUMER_BYTE_RATE: 12_000.0})
    raw, second = await dial.raw(reader.address), await dial.raw(reader.address)
    # one answer holds ten seconds' worth, or a batch
    over = await raw.call(fetch(), FetchResponse, 12)
    assert 250_000 < len(over.responses[0].partitions[0].records or b"") < 300_000 and over.throttle_time_ms > 5_000
    gets = store.gets
    assert gets > 0
    for epoch in (-1, 0):  # without a session, and with the wish for one
        empty = await second.call(fetch(2, epoch=epoch), FetchResponse, 12)
        assert (empty.error_code, empty.responses, empty.session_id) == (0, [], 0)
        assert 0 < empty.throttle_time_ms <= 10_000
        assert store.gets == gets
        second = await dial.raw(reader.address)
    # who has no quota reads on
    assert (await (await dial.kafka(reader.address)).fetch("t", 0, 2)).records
    # a change counts at once: it does not wait for the end of what was told
    await raw.begin(fetch(2), 12)
    assert muted(reader) >= 1
    await alter_quotas(admin, RAW, {QuotaKey.CONSUMER_BYTE_RATE: None})
    again = await raw.answer(FetchResponse, 12)
    assert len(again.responses[0].partitions[0].records or b"") > 100_000 and again.throttle_time_ms == 0


async def test_a_fetch_in_a_session_goes_on_after_an_empty_answer(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    admin = await dial.kafka(running.address)
    await admin.create_topic("t", partitions=1)
    raw = await dial.raw(running.address)
    begun = await raw.call(fetch(epoch=0), FetchResponse, 12)
    assert begun.session_id
    await alter_quotas(admin, RAW, {QuotaKey.CONSUMER_BYTE_RATE: 10.0})
    await raw.call(produce(b"x" * 1_000), ProduceResponse, 9)
    # another connection of the same client uses the quota up
    other = await dial.raw(running.address)
    await other.call(fetch(), FetchResponse, 12)
    empty = await raw.call(fetch(session_id=begun.session_id, epoch=1), FetchResponse, 12)
    assert (empty.responses, empty.session_id) == ([], begun.session_id) and empty.throttle_time_ms > 0
    await alter_quotas(admin, RAW, {QuotaKey.CONSUMER_BYTE_RATE: None})
    read = await raw.call(fetch(session_id=begun.session_id, epoch=2), FetchResponse, 12)
    assert read.responses[0].partitions[0].records


async def test_a_fetch_that_waited_reads_nothing_if_the_quota_is_used_up_meanwhile(
    raw: RawConnection, admin: KafkaClient, agent: RunningAgent, dial: Dial
) -> None:
    await raw.call(produce(b"x" * 1_000), ProduceResponse, 9)
    await alter_quotas(admin, RAW, {QuotaKey.CONSUMER_BYTE_RATE: 10.0})
    await raw.begin(fetch(1, max_wait_ms=60_000), 12)
    await until(lambda: waiting_readers(agent))
    over = await (await dial.raw(agent.address)).call(fetch(), FetchResponse, 12)
    assert over.throttle_time_ms > 0
    await admin.produce("t", 0, build_batch([NewRecord(1, None, b"news")]))
    empty = await raw.answer(FetchResponse, 12)
    assert empty.responses == [] and empty.throttle_time_ms > 0


@pytest.mark.parametrize("acks", [-1, 0])
async def test_who_waits_is_not_read_and_others_are_served(
    raw: RawConnection, admin: KafkaClient, agent: RunningAgent, dial: Dial, acks: int
) -> None:
    await alter_quotas(admin, QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCER_BYTE_RATE: 10.0})
    await raw.begin(produce(b"x" * 5_000, acks=acks), 9)
    await raw.begin(ApiVersionsRequest(), 0)
    if acks:
        # the records are taken in first, and the answer does not wait
        answer = await raw.answer(ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 0 < answer.throttle_time_ms <= 10_000
    await until(lambda: muted(agent) == 1)
    for _ in range(20):
        await (await dial.raw(agent.address)).call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        await admin.metadata(["t"])
    assert muted(agent) == 1
    waiting = asyncio.ensure_future(raw.answer(ApiVersionsResponse, 0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await alter_quotas(admin, QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCER_BYTE_RATE: None})
    assert (await waiting).error_code == 0
    await until(lambda: muted(agent) == 0)
    assert len((await admin.fetch("t", 0, 0)).records) > 5_000


async def test_a_wait_ends_by_itself(raw: RawConnection, admin: KafkaClient) -> None:
    await alter_quotas(admin, RAW, {QuotaKey.PRODUCER_BYTE_RATE: 10_000.0})
    answer = await raw.call(produce(b"x" * 130_000), ProduceResponse, 9)
    assert 0 < answer.throttle_time_ms < 3_100
    assert (await raw.call(ApiVersionsRequest(), ApiVersionsResponse, 1)).throttle_time_ms == 0


async def test_a_user_who_proved_himself_has_his_own_quota(start_agent: StartAgent) -> None:
    running = await start_agent(listen="", listeners=(sasl_listener(),), acl_mode="off", super_users="User:ann")
    for name in ("ann", "bob"):
        change = UserChange(
            name=name, mechanism=Mechanism.SCRAM_SHA_256, credential=credential("secret", Mechanism.SCRAM_SHA_256)
        )
        await running.metadata.security.alter_users([change])
    await running.agent._follower.catch_up()
    async with (
        connected(running.address, security=as_ann("SCRAM-SHA-256")) as ann,
        connected(running.address, security=as_ann("SCRAM-SHA-256", username="bob")) as bob,
    ):
        await ann.create_topic("t", partitions=1)
        await alter_quotas(bob, QuotaEntity(user="ann"), {QuotaKey.REQUEST_PERCENTAGE: 0.000_001})
        await alter_quotas(bob, QuotaEntity(user=DEFAULT), {QuotaKey.REQUEST_PERCENTAGE: 10_000.0})
        await bob.metadata(["t"])
        assert waits(running, QuotaKey.REQUEST_PERCENTAGE) == 0
        # also a super user
        await ann.metadata(["t"])
        assert waits(running, QuotaKey.REQUEST_PERCENTAGE) == 1 and muted(running) == 1


async def test_changes_of_topics_are_refused_where_the_client_knows_the_error(
    raw: RawConnection, admin: KafkaClient, agent: RunningAgent, dial: Dial
) -> None:
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    everybody = QuotaEntity(client_id=DEFAULT)

    def topic(name: str, partitions: int) -> CreatableTopic:
        return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)

    async def created(version: int, *topics: CreatableTopic, dry: bool = False) -> tuple[list[int], int]:
        request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=dry)
        answer = await (await dial.raw(agent.address)).call(request, CreateTopicsResponse, version)
        return [each.error_code for each in answer.topics], answer.throttle_time_ms

    await alter_quotas(admin, everybody, {QuotaKey.CONTROLLER_MUTATION_RATE: 0.5})
    # ten seconds' worth are five; a request is judged topic by topic
    codes, wait_ms = await created(7, topic("a", 3), topic("b", 20), topic("c", 1))
    assert codes == [0, 0, exceeded] and 0 < wait_ms <= 10_000
    codes, wait_ms = await created(5, topic("d", 1))
    assert codes == [0] and wait_ms > 0
    assert (await created(7, topic("e", 1), dry=True))[0] == [0]
    assert (await created(7, topic("a", 1)))[0] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    # nor can more come by another way
    grows = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=9, assignments=None)], timeout_ms=1)
    grown = await (await dial.raw(agent.address)).call(grows, CreatePartitionsResponse, 3)
    assert [each.error_code for each in grown.results] == [exceeded]
    deletes = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1)
    deleted = await (await dial.raw(agent.address)).call(deletes, DeleteTopicsResponse, 6)
    assert [each.error_code for each in deleted.responses] == [exceeded]
    asks = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
    found = await (await dial.raw(agent.address)).call(asks, MetadataResponse, 8)
    assert [each.error_code for each in found.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await alter_quotas(admin, everybody, {QuotaKey.CONTROLLER_MUTATION_RATE: None})
    assert await created(7, topic("c", 1)) == ([0], 0)


async def test_producer_ids_have_a_rate_and_a_producer_asks_again(
    raw: RawConnection, admin: KafkaClient, agent: RunningAgent
) -> None:
    await alter_quotas(admin, RAW, {QuotaKey.PRODUCER_ID_RATE: 1.0})
    codes: list[int] = []
    while ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in codes:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        codes.append((await raw.call(request, InitProducerIdResponse, 4)).error_code)
        assert len(codes) < 1_000
    assert len(codes) > 10 and set(codes[:-1]) == {0}
    errors: list[Any] = []

    def run() -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": agent.address, "client.id": "raw", "enable.idempotence": True}
        )
        producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0

    await asyncio.to_thread(run)
    assert errors == [None]


async def test_new_connections_of_an_address_have_a_rate(agent: RunningAgent, admin: KafkaClient, dial: Dial) -> None:
    host = QuotaEntity(ip="127.0.0.1")
    await alter_quotas(admin, host, {QuotaKey.CONNECTION_CREATION_RATE: 1.0})
    came = 0
    while not agent.metric("connections_refused_total", reason="ip_rate"):
        raw = await dial.raw(agent.address)
        came += 1
        assert came < 1_000
        if not agent.metric("connections_refused_total", reason="ip_rate"):
            continue
        assert await raw.is_closed_by_peer()
    assert came > 10
    # who is connected already is not concerned
    await alter_quotas(admin, host, {QuotaKey.CONNECTION_CREATION_RATE: None})
    await (await dial.raw(agent.address)).call(ApiVersionsRequest(), ApiVersionsResponse, 0)
