"""An agent that stops sends its clients to the others, API by API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from agents.draining import QUIET_MS
from agents.handlers.metadata_api import BOOTSTRAP_NODE_ID
from metadata.contract.errors import WentBackError
from metadata.contract.leases import WriterLease
from runtime.clock import SystemClock
from runtime.errors import UnavailableError
from siltstone.kafka.client import KafkaClient, KafkaError
from siltstone.kafka.records import TopicPartition, fetch_partitions, produce_batches
from siltstone.kafka.retrying import RetryingClient
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

AWAY = ErrorCode.NOT_LEADER_OR_FOLLOWER
PLACE: TopicPartition = ("t", 0)


def batch(value: bytes) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, value)])


@asynccontextmanager
async def two_agents(start_agent: StartAgent, dial: Dial, **settings: Any) -> AsyncIterator[Fleet]:
    """Two agents with a topic; the first is about to be told to stop."""
    async with fleet(start_agent, 2, **{"drain_notice_ms": 60_000, **settings}) as agents:
        await agents.know_each_other()
        await (await dial.kafka(agents[1].address)).create_topic("t", partitions=1)
        await agents.know_topic("t")
        try:
            yield agents
        finally:
            for each in agents.agents:
                each.agent.hurry()


async def sends_away(agent: RunningAgent) -> asyncio.Task[None]:
    """Tell it to stop, and wait until it sends clients away."""
    stopping = asyncio.create_task(agent.agent.stop())
    await until(lambda: agent.agent._draining.sends_away, 10)
    return stopping


def fetch(offset: int, *, wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[part])])


async def test_records_and_fetches_are_refused_and_all_else_is_answered(start_agent: StartAgent, dial: Dial) -> None:
    async with two_agents(start_agent, dial) as agents:
        goes, stays = agents.agents
        client = await dial.kafka(goes.address)
        assert await client.produce("t", 0, batch(b"before")) == 0
        parked = await dial.raw(goes.address)
        await parked.begin(fetch(1, wait_ms=30_000), 12)
        stopping = await sends_away(goes)
        # a fetch that waits is let go at once, with nothing
        assert (await parked.answer(FetchResponse, 12)).responses[0].partitions[0].error_code == 0
        # produce and fetch
        refused = (await produce_batches(client, "t", {0: batch(b"late")}, acks=-1))[0]
        assert refused.error_code == AWAY and "this agent stops" in refused.message
        [fetched] = await fetch_partitions(client, {PLACE: 0}, max_wait_ms=0)
        assert fetched.error_code == AWAY
        # groups
        beat = await client.call(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), HeartbeatResponse)
        assert beat.error_code == ErrorCode.NOT_COORDINATOR
        found = await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse)
        assert [each.port for each in found.coordinators] == [int(stays.address.rpartition(":")[2])]
        # the rest, also on a new connection
        newcomer = await dial.kafka(goes.address)
        assert [each.node_id for each in (await newcomer.metadata(["t"])).brokers] == [2]
        assert await newcomer.list_offsets("t", [0]) == {0: 1}
        assert not stopping.done()
        assert len(await read_all(await dial.kafka(stays.address), "t")) == 1


async def test_a_writer_without_acks_is_served_and_then_cut_off(start_agent: StartAgent, dial: Dial) -> None:
    async with two_agents(start_agent, dial) as agents:
        goes, stays = agents.agents
        raw = await dial.raw(goes.address)
        await sends_away(goes)
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"kept"))])
        await raw.begin(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[data]), 9)
        # sooner than one that is silent: such a writer never is
        assert await raw.is_closed_by_peer(QUIET_MS / 1000 - 1)
        assert [record.value for _, record in await read_all(await dial.kafka(stays.address), "t")] == [b"kept"]


async def test_answers_keep_their_order_so_that_no_refusal_overtakes_an_acknowledgement(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: a batch that waits for its commit when the agent begins to send clients away
    async with two_agents(start_agent, dial, produce_linger_ms=8_000) as agents:
        goes = agents[0]
        raw = await dial.raw(goes.address)

        def request(value: bytes) -> ProduceRequest:
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(value))])
            return ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])

        stopping = asyncio.create_task(goes.agent.stop())
        await until(lambda: len(goes.agent._membership.agents) == 1)  # type: ignore[union-attr]
        await raw.begin(request(b"first"), 9)
        await until(lambda: goes.agent._draining.sends_away, 10)
        await raw.begin(request(b"second"), 9)
        answers = [(await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0] for _ in range(2)]
        assert [each.error_code for each in answers] == [0, AWAY]
        assert not stopping.done()


async def test_a_connection_is_not_silent_while_its_client_takes_in_an_answer_that_took_long(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: a batch that waits for its commit for longer than silent connections stay
    async with two_agents(start_agent, dial, produce_linger_ms=QUIET_MS + 4_000) as agents:
        raw = await dial.raw(agents[0].address)
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"slow"))])
        await raw.begin(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data]), 9)
        await asyncio.sleep(0.5)
        await sends_away(agents[0])
        answer = await raw.answer(ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await asyncio.sleep(1)
        refused = await raw.call(fetch(0), FetchResponse, 12)
        assert refused.responses[0].partitions[0].error_code == AWAY


async def test_a_client_that_fetches_without_a_pause_is_slowed_down(start_agent: StartAgent, dial: Dial) -> None:
    async with two_agents(start_agent, dial) as agents:
        raw = await dial.raw(agents[0].address)
        await sends_away(agents[0])
        began = time.monotonic()
        for _ in range(11):
            await raw.call(fetch(0, wait_ms=500), FetchResponse, 12)
        assert time.monotonic() - began >= 1, "ten refusals after the first, a tenth of a second each"


async def test_a_store_that_hangs_does_not_hold_up_the_end(start_agent: StartAgent, dial: Dial) -> None:
    hangs = asyncio.Event()

    class Hanging(Counted):
        async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
            if draining and hangs.is_set():
                await asyncio.sleep(60)
            return await self.inner.agents.heartbeat(lease, draining=draining)

    async with fleet(start_agent, 2, wrap=Hanging, drain_timeout_ms=1_000, drain_notice_ms=60_000) as agents:
        await agents.know_each_other()
        hangs.set()
        async with asyncio.timeout(10):
            await agents[0].agent.stop()
        # and a second signal does not wait for it either
        stopping = asyncio.create_task(agents[1].agent.stop())
        agents[1].agent.hurry()
        async with asyncio.timeout(10):
            await stopping


async def test_whatever_goes_wrong_nothing_stays_open(start_agent: StartAgent, dial: Dial) -> None:
    class Gone(Counted):
        async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
            if draining:
                raise WentBackError("back in time")
            return await self.inner.agents.heartbeat(lease, draining=draining)

    async with fleet(start_agent, 2, wrap=Gone) as agents:
        raw = await dial.raw(agents[0].address)
        await agents[0].agent.stop()
        assert await raw.is_closed_by_peer()
        with pytest.raises(UnavailableError):
            await dial.kafka(agents[0].address)


async def test_it_ends_when_nobody_talks_any_more(start_agent: StartAgent, dial: Dial) -> None:
    async with two_agents(start_agent, dial) as agents:
        goes = agents[0]
        reader, asker = await dial.raw(goes.address), await dial.raw(goes.address)
        health_check = await dial.raw(goes.address)
        await asker.call(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 1)
        stopping = await sends_away(goes)
        refused = await reader.call(fetch(0), FetchResponse, 12)
        assert refused.responses[0].partitions[0].error_code == AWAY
        await reader.call(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 1)
        began = time.monotonic()
        async with asyncio.timeout(QUIET_MS / 1000 + 10):
            await stopping
        assert time.monotonic() - began > 1
        for each in (reader, asker, health_check):
            assert await each.is_closed_by_peer()


@pytest.mark.parametrize("reads_its_refusal", [True, False])
async def test_a_reader_that_sleeps_is_cut_off_and_finds_the_agent_again_to_ask(
    start_agent: StartAgent, dial: Dial, reads_its_refusal: bool
) -> None:
    async with two_agents(start_agent, dial, drain_notice_ms=12_000) as agents:
        goes = agents[0]
        idle = await dial.raw(goes.address)
        await idle.call(fetch(0), FetchResponse, 12)
        began = time.monotonic()
        stopping = await sends_away(goes)
        if reads_its_refusal:
            assert (await idle.call(fetch(0), FetchResponse, 12)).responses[0].partitions[0].error_code == AWAY
        # its library sees the end of the connection, and asks again
        assert await idle.is_closed_by_peer(QUIET_MS / 1000 + 5)
        again = await dial.kafka(goes.address)
        assert [each.node_id for each in (await again.metadata(["t"])).brokers] == [2]
        assert not stopping.done()
        await stopping
        assert time.monotonic() - began > 11, "it may come until the notice is over"


@pytest.mark.parametrize("pause_s", [0, QUIET_MS / 1000 + 1])
async def test_commands_go_on_at_another_agent(start_agent: StartAgent, dial: Dial, pause_s: float) -> None:
    async with two_agents(start_agent, dial) as agents:
        goes = agents[0]
        told: list[str] = []
        begin = partial(RetryingClient, goes.address, SystemClock(), told=told.append)
        async with begin() as once, begin() as client:
            stopping = await sends_away(goes)

            async def write(inner: KafkaClient) -> int:
                result = (await produce_batches(inner, "t", {0: batch(b"once")}, acks=-1))[0]
                if result.error_code:
                    raise KafkaError(result.error_code, "partition 0")
                return result.base_offset

            # clients that only asked the way hold up nothing
            await asyncio.sleep(pause_s)
            if pause_s:
                await asyncio.wait_for(stopping, 20)
            # one that must not be repeated, then one that may
            assert await once.run_once(write) == 0
            assert await client.run(write) == 1
            assert pause_s or (not stopping.done() and told == [])


async def test_the_load_balancer_is_one_more_broker_that_leads_nothing(start_agent: StartAgent, dial: Dial) -> None:
    agent = await start_agent(advertised_bootstrap="kafka.example.com:9094")
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=9)
    answer = await client.metadata(["t"])
    brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
    assert brokers.pop(BOOTSTRAP_NODE_ID) == ("kafka.example.com", 9094)
    assert len(brokers) == 1 and answer.controller_id in brokers
    assert {each.leader_id for each in answer.topics[0].partitions} == set(brokers)
    # commands that ask every broker do not ask it
    cluster = await client.call(DescribeClusterRequest(), DescribeClusterResponse)
    assert {each.broker_id for each in cluster.brokers} == set(brokers)
