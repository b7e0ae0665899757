"""Three agents on one store share a client's quota. Real sockets, real agents; the store is Postgres and memory.

What the parts come to over time is shown in virtual time (`tests/property/test_quota_sharing.py`). Here the state of
the buckets is compared, and the bytes only with what they may be at most.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

import pytest

from runtime.clock import SystemClock
from security.quotas.bucket import BURST_S
from security.quotas.precedence import Share
from security.quotas.values import QuotaKey
from siltstone.kafka.access.quotas import alter_quotas
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import fleet
from tests.fixtures.waiting import until
from tests.integration.agents.quotas.test_quotas_enforced import RAW, fetch
from tests.integration.agents.test_connections import produce
from wire.messages.fetch import FetchResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import ProduceResponse

CLOCK = SystemClock()
SIZE = 40_000
PRODUCES = QuotaKey.PRODUCER_BYTE_RATE
PATIENCE_S = 60


@pytest.fixture
async def three(start_agent: StartAgent, dial: Dial, agent_metadata_url: str) -> AsyncIterator[Sequence[RunningAgent]]:
    async with fleet(start_agent, 3, metadata_url=agent_metadata_url, store=MemoryStore()) as running:
        await running.know_each_other()
        admin = await dial.kafka(running.agents[0].address)
        await admin.create_topic("t", partitions=1)
        await running.know_topic("t")
        yield running.agents


def part(running: RunningAgent, key: QuotaKey = PRODUCES) -> float:
    """0: nothing was asked of this agent yet."""
    buckets = running.agent._access.throttle.buckets[key]
    return buckets.of(Share(client_id="raw")).part if len(buckets) else 0.0


def demand(running: RunningAgent) -> float:
    """As it was told last."""
    return running.agent._access.throttle.buckets[PRODUCES].of(Share(client_id="raw")).demand if part(running) else 0.0


class Producing:
    """A connection that produces as fast as it is read."""

    def __init__(self, dial: Dial, running: RunningAgent) -> None:
        self.sent = 0
        self._task = asyncio.create_task(self._run(dial, running))

    async def _run(self, dial: Dial, running: RunningAgent) -> None:
        raw, value = await dial.raw(running.address), os.urandom(SIZE)
        while True:
            self.sent += SIZE
            await raw.begin(produce(value), 9)
            await raw.answer(ProduceResponse, 9)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def limits(dial: Dial, running: RunningAgent, **quotas: float | None) -> None:
    await alter_quotas(await dial.kafka(running.address), RAW, {QuotaKey(key): value for key, value in quotas.items()})


async def test_a_client_of_three_agents_has_its_quota_in_sum_and_of_one_all_of_it(
    three: Sequence[RunningAgent], dial: Dial
) -> None:
    rate = 100_000.0
    await limits(dial, three[0], producer_byte_rate=rate)
    begun_ms = CLOCK.monotonic_ms()
    producing = [Producing(dial, each) for each in three]
    try:
        # all three have told that it wants more than it gets
        await until(lambda: all(demand(each) == 1.0 for each in three), timeout_s=PATIENCE_S)
        await until(lambda: all(part(each) == pytest.approx(1 / 3) for each in three), timeout_s=PATIENCE_S)
        seconds = (CLOCK.monotonic_ms() - begun_ms) / 1000
        sent = sum(each.sent for each in producing)
        # Before the first beat each agent alone may give ten seconds' worth, and overdraws once.
        assert sent <= rate * (seconds + 3 * BURST_S) + 6 * SIZE
        # when the client goes from two of them
        for each in producing[1:]:
            await each.stop()
        await until(lambda: part(three[0]) > 0.7 and sum(map(part, three)) < 1.2, timeout_s=PATIENCE_S)
    finally:
        for each in producing:
            await each.stop()


async def test_fetches_and_producer_ids_are_shared_likewise(three: Sequence[RunningAgent], dial: Dial) -> None:
    keys = (QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.PRODUCER_ID_RATE)
    await (await dial.raw(three[0].address)).call(produce(os.urandom(50_000)), ProduceResponse, 9)
    await limits(dial, three[0], consumer_byte_rate=100.0, producer_id_rate=0.1)
    for each in three:
        buckets = each.agent._access.throttle.buckets
        await until(lambda some=buckets: [some[key].part for key in keys] == [1 / 3] * 2, timeout_s=PATIENCE_S)
    # ten seconds' worth of an agent's part, or a batch; and an id
    await (await dial.raw(three[1].address)).call(fetch(), FetchResponse, 12)
    asks = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    other = await dial.raw(three[1].address)
    answers = [await other.call(asks, InitProducerIdResponse, 4) for _ in range(2)]
    assert [answer.error_code != 0 for answer in answers] == [False, True]
    await until(lambda: [part(three[1], key) for key in keys] == [1.0, 1.0], timeout_s=PATIENCE_S)
    await limits(dial, three[0], consumer_byte_rate=None, producer_id_rate=None)
    assert not any(each.agent._access.throttle.shares_now for each in three)


async def test_in_the_scope_of_an_agent_each_gives_all(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 2, quota_scope="agent") as running:
        await running.know_each_other()
        admin = await dial.kafka(running.agents[0].address)
        await admin.create_topic("t", partitions=1)
        await running.know_topic("t")
        await alter_quotas(admin, RAW, {PRODUCES: 1_000.0})
        for each in running.agents:
            told = await (await dial.raw(each.address)).call(produce(b"x" * 9_000), ProduceResponse, 9)
            assert told.throttle_time_ms == 0 and part(each) == 1.0
