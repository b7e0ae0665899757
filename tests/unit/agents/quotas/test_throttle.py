"""A client's use counts against the quota that binds it, and nothing else does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from agents.quotas.throttle import MUTE_MS_MAX, REQUEST_MUTE_MS_MAX, Throttle
from agents.request_context import ClientConnection, RequestContext
from agents.topics.rules import RequestError
from runtime.clock import ManualClock
from runtime.logging import LOG_CONTEXT
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from security.quotas.bucket import BURST_S, SHARES_MAX
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey
from tests.fixtures.metric_values import metric_value
from wire.api import APIS, RequestHeader, decode_response
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchRequest, FetchResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import ProduceRequest, ProduceResponse
from wire.schema import Message

PRODUCE, FETCH, HEARTBEAT, CREATE_TOPICS = 0, 1, 12, 19
Quotas = dict[QuotaEntity, Mapping[str, float]]


class Known:
    def __init__(self, quotas: Quotas) -> None:
        self.quotas: Mapping[QuotaEntity, Mapping[str, float]] = quotas
        self.on_quotas: list[Callable[[], None]] = []

    def set(self, quotas: Quotas) -> None:
        self.quotas = quotas
        for call in self.on_quotas:
            call()


class World:
    def __init__(self, quotas: Quotas) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.known = Known(quotas)
        self.throttle = Throttle(self.known, Runtime(clock=self.clock, metrics=self.metrics))

    def client(self, user: str = "ann") -> ClientConnection:
        client = ClientConnection(1, "127.0.0.1:5000")
        client.principal = f"User:{user}"
        return client

    @contextmanager
    def asking(self, client: ClientConnection, key: int, version: int, *, client_id: str = "app", size: int = 0) -> Any:
        context = RequestContext(RequestHeader(key, version, 1, client_id), client, size)
        before = LOG_CONTEXT.set(context)
        try:
            yield context
        finally:
            LOG_CONTEXT.reset(before)

    def produce(self, client: ClientConnection, size: int, *, client_id: str = "app") -> int:
        """The wait that the answer tells."""
        with self.asking(client, PRODUCE, 9, client_id=client_id, size=size) as context:
            self.throttle.handle(lambda *_: None, None, context, ProduceRequest())
            answer = ProduceResponse()
            self.throttle.encode(context, answer)
            return answer.throttle_time_ms

    def passes(self, client: ClientConnection) -> None:
        """The client waits as it is told."""
        self.clock.advance_ms(client.mute.left_ms())
        client.mute.end()


async def test_a_producer_keeps_to_its_rate_and_loses_none_of_it() -> None:
    rate = 100_000.0
    world = World({QuotaEntity(user="ann"): {QuotaKey.PRODUCER_BYTE_RATE: rate}})
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    clients = [world.client() for _ in range(3)]  # they share the quota of their user
    sent = 0
    while world.clock.monotonic_ms() < 20_000 + BURST_S * 1000:
        for client in clients:
            if client.mute.left_ms():
                continue
            client.mute.end()
            size = chance.randint(1_000, 60_000)
            sent += size
            world.produce(client, size)
        world.clock.advance_ms(5)
    seconds = world.clock.monotonic_ms() / 1000
    assert 0.95 <= sent / (rate * (seconds + BURST_S)) <= 1.05
    # then no other client waits for them
    assert world.produce(world.client("bob"), 10_000_000) == 0


async def test_the_wait_is_told_and_bounded_and_counted() -> None:
    world = World({QuotaEntity(client_id="app"): {QuotaKey.PRODUCER_BYTE_RATE: 1_000.0}})
    client = world.client()
    assert world.produce(client, 10_000) == 0 and not client.mute.on
    assert world.produce(client, 500) == 500 and client.mute.on
    world.passes(client)
    assert not client.mute.on
    assert world.produce(client, 1_000_000) == MUTE_MS_MAX
    labels = {"quota": "producer_byte_rate"}
    assert metric_value(world.metrics, "throttle_seconds_count", labels) == 2
    assert metric_value(world.metrics, "throttle_seconds_sum", labels) == pytest.approx(10.5)
    # and answers of requests that the quota does not count tell it too
    with world.asking(client, HEARTBEAT, 4) as context:
        [*parts] = world.throttle.encode(context, HeartbeatResponse())
    _, answer = decode_response(HEARTBEAT, 4, memoryview(b"".join(parts))[4:])
    assert isinstance(answer, HeartbeatResponse) and answer.throttle_time_ms == MUTE_MS_MAX


async def test_the_narrowest_quota_binds() -> None:
    def rates(entity: QuotaEntity, rate: float) -> Quotas:
        return {entity: {QuotaKey.PRODUCER_BYTE_RATE: rate}}

    world = World(
        {
            **rates(QuotaEntity(user="ann", client_id="app"), 1e6),
            **rates(QuotaEntity(user="ann"), 100.0),
            **rates(QuotaEntity(user=DEFAULT), 1e6),
            **rates(QuotaEntity(client_id="app"), 1.0),
        }
    )
    assert world.produce(world.client("ann"), 2_000, client_id="app") == 0
    assert world.produce(world.client("ann"), 2_000, client_id="other") == MUTE_MS_MAX
    assert world.produce(world.client("bob"), 2_000, client_id="app") == 0


async def test_a_fetch_over_its_quota_may_have_nothing_and_one_within_it_ten_seconds_worth() -> None:
    world = World({QuotaEntity(user="ann"): {QuotaKey.CONSUMER_BYTE_RATE: 50.0}})
    client, other = world.client(), world.client("bob")
    with world.asking(client, FETCH, 12) as context:
        assert world.throttle.fetch_bytes_max() == 50 * BURST_S
        parts = world.throttle.encode(context, FetchResponse(error_code=1))
        answered = sum(map(len, parts))
        assert not client.mute.on
    with world.asking(client, FETCH, 12) as context:
        world.throttle.handle(lambda *_: None, None, context, FetchRequest())
        while not client.mute.on:
            world.throttle.encode(context, FetchResponse())
            answered += sum(map(len, parts))
    # then another connection of the same user gets nothing, and waits too
    second = world.client()
    with world.asking(second, FETCH, 12):
        assert world.throttle.fetch_bytes_max() == 0 and second.mute.on
    with world.asking(other, FETCH, 12):
        assert world.throttle.fetch_bytes_max() == float("inf")
    world.passes(client)
    with world.asking(client, FETCH, 12):
        assert world.throttle.fetch_bytes_max() == 50 * BURST_S


async def test_the_time_of_the_loop_counts_and_waits_do_not() -> None:
    world = World({QuotaEntity(user="ann"): {QuotaKey.REQUEST_PERCENTAGE: 1.0}})
    client = world.client()

    async def answers(*_: object) -> Message:
        world.clock.advance_ms(40)
        await asyncio.sleep(0)
        world.clock.advance_ms(40)
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(3600)
        except TimeoutError:
            world.clock.advance_ms(15)
        return HeartbeatResponse()

    with world.asking(client, HEARTBEAT, 4) as context:
        begun = asyncio.ensure_future(world.throttle.handle(answers, None, context, HeartbeatRequest()))
        await asyncio.sleep(0)
        world.clock.advance_ms(100_000)  # of others, while it waits
        answer = await begun
        assert context.meter.spent_ms == 95
        world.throttle.encode(context, answer)
        assert not client.mute.on  # 100 ms are ten seconds' worth
    with world.asking(client, HEARTBEAT, 4) as context:
        world.throttle.handle(lambda *_: world.clock.advance_ms(50_000), None, context, HeartbeatRequest())
        world.throttle.encode(context, answer)
        assert answer.throttle_time_ms == REQUEST_MUTE_MS_MAX


async def test_an_error_in_a_measured_handler_and_its_cancellation_reach_it() -> None:
    world = World({QuotaEntity(user="ann"): {QuotaKey.REQUEST_PERCENTAGE: 1.0}})
    told: list[str] = []

    async def fails(*_: object) -> None:
        await asyncio.sleep(0)
        raise ValueError("as it does")

    async def waits(*_: object) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            told.append("cleaned up")

    with world.asking(world.client(), HEARTBEAT, 4) as context:
        with pytest.raises(ValueError, match="as it does"):
            await world.throttle.handle(fails, None, context, HeartbeatRequest())
        waiting = asyncio.ensure_future(world.throttle.handle(waits, None, context, HeartbeatRequest()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert told == ["cleaned up"]


async def test_a_change_of_quotas_ends_the_waits_under_the_old_ones() -> None:
    world = World({QuotaEntity(user="ann"): {QuotaKey.PRODUCER_BYTE_RATE: 1.0}})
    client = world.client()
    ended: list[str] = []
    client.mute.on_end = lambda: ended.append("ann")
    assert world.produce(client, 1_000_000)
    world.known.set({QuotaEntity(user="ann"): {QuotaKey.PRODUCER_BYTE_RATE: 1e9}})
    assert ended == ["ann"] and not client.mute.on
    assert world.produce(client, 1_000_000) <= 2  # what it owed, and this
    world.known.set({})
    assert not world.throttle.on and not world.throttle.binds_addresses


async def test_partitions_are_owed_in_full_and_refused_only_to_clients_that_know_the_error() -> None:
    world = World({QuotaEntity(user="ann"): {QuotaKey.CONTROLLER_MUTATION_RATE: 1.0}})
    client = world.client()

    def creates(version: int, partitions: int) -> None:
        with world.asking(client, CREATE_TOPICS, version) as context:
            world.throttle.count_mutation(context.header, partitions)

    creates(6, 110)  # ten at once, and a hundred seconds' worth
    assert not client.mute.on
    with pytest.raises(RequestError) as refused:
        creates(6, 1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED and client.mute.left_ms() == MUTE_MS_MAX
    world.passes(client)
    creates(5, 1)
    assert client.mute.left_ms() == MUTE_MS_MAX
    world.clock.advance_ms(90_000)
    with pytest.raises(RequestError):
        creates(7, 1)
    world.clock.advance_ms(1_000)
    creates(7, 1)


async def test_producer_ids_and_addresses_have_a_rate() -> None:
    quotas: Quotas = {
        QuotaEntity(user=DEFAULT): {QuotaKey.PRODUCER_ID_RATE: 0.1},
        QuotaEntity(ip="10.0.0.1"): {QuotaKey.CONNECTION_CREATION_RATE: 2.0},
    }
    world = World(quotas)
    with world.asking(world.client(), 22, 4):
        assert [world.throttle.may_take_producer_id() for _ in range(4)] == [True, True, False, False]
        world.clock.advance_ms(10_000)
        assert world.throttle.may_take_producer_id()
    assert world.throttle.binds_addresses
    assert [world.throttle.admits("10.0.0.1") for _ in range(25)] == [True] * 21 + [False] * 4
    assert all(world.throttle.admits("10.0.0.2") for _ in range(100))


async def test_clients_with_ever_new_ids_are_bounded_in_memory() -> None:
    world = World({QuotaEntity(client_id=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: 10.0}})
    for number in range(SHARES_MAX + 500):
        client = world.client()
        world.produce(client, 200, client_id=f"app-{number}")
        client.mute.close()
    assert len(world.throttle.buckets[QuotaKey.PRODUCER_BYTE_RATE]) == SHARES_MAX
    # and those whose connection is gone are not kept
    assert len(world.throttle._muted) <= 1


def test_every_answer_of_every_version_can_tell_the_wait() -> None:
    world = World({QuotaEntity(user=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: 1.0}})
    told = 0
    for api in APIS.values():
        response: Any = api.response
        for version in range(api.advertised[0], api.advertised[1] + 1):
            try:
                answer = response()
            except TypeError:
                continue
            client = world.client()
            client.mute.on, client.mute._clock = True, world.clock
            client.mute._until_ms = world.clock.monotonic_ms() + 7
            with world.asking(client, api.key, version) as context:
                assert world.throttle.encode(context, answer)
            told += getattr(answer, "throttle_time_ms", 0) == 7
    assert told > 100
