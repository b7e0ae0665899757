"""Zones: what a client's `client.id` and its rack decide, and what they do not, when agents of its zone go."""

from __future__ import annotations

import asyncio
import time

import pytest

from siltstone.kafka.client import connected
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import fleet
from tests.fixtures.waiting import until
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.metadata import MetadataResponse
from wire.records import NewRecord, build_batch


async def ask(agent: RunningAgent, client_id: str) -> MetadataResponse:
    async with connected(agent.address, client_id=client_id) as client:
        return await client.metadata(["t"])


async def named(agent: RunningAgent, zone: str) -> set[int]:
    """Agents that a client of this zone is sent to."""
    [topic] = (await ask(agent, f"app,zone={zone}")).topics
    return {part.leader_id for part in topic.partitions}


async def test_a_zone_whose_last_agent_drains_is_served_by_the_others_while_it_still_serves(
    start_agent: StartAgent,
) -> None:
    async with fleet(start_agent, 3, zones=["a", "a", "b"]) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=40)
        await agents.know_each_other()
        await agents.know_topic("t")
        assert [await named(each, "b") for each in agents.agents] == [{3}] * 3
        assert [await named(each, "a") for each in agents.agents] == [{1, 2}] * 3
        stopping = asyncio.create_task(agents[2].agent.stop())
        # then: it leaves all answers, its own too, before it stops serving
        await until(lambda: all(len(each.agent._membership.agents) == 2 for each in agents.agents))  # type: ignore[union-attr]
        for each in agents.agents:
            answer = await ask(each, "app,zone=b")
            assert [broker.node_id for broker in answer.brokers] == [1, 2]
            assert await named(each, "b") == await named(each, "a") == {1, 2}
        assert not stopping.done()
        await stopping


async def test_agents_that_come_into_an_empty_zone_are_named_to_its_clients(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 1, zones=["a"]) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=20)
        assert await named(agents[0], "b") == {1}
        late = await start_agent(metadata=agents.services[0], agent_zone="b")
        await until(lambda: len(agents[0].agent._membership.agents) == 2)  # type: ignore[union-attr]
        assert await named(agents[0], "b") == await named(late, "b") == {2}
        assert await named(agents[0], "a") == {1}
        await late.agent.stop()


@pytest.mark.parametrize("version", [11, 12, 16])
async def test_a_rack_sends_no_consumer_to_another_agent(start_agent: StartAgent, dial: Dial, version: int) -> None:
    """Any agent serves any request; there are no nearer replicas (KIP-392) here."""
    async with fleet(start_agent, 2, zones=["a", "b"]) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=1)
            topic_id = (await client.topic("t")).topic_id
            await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), None, b"v")]))
        await agents.know_topic("t")
        for running in agents.agents:
            raw = await dial.raw(running.address)
            for rack in ("a", "b", "nowhere", ""):
                part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                request = FetchRequest(
                    rack_id=rack,
                    max_wait_ms=10_000,
                    min_bytes=1,
                    topics=[FetchTopic(topic="t", topic_id=topic_id, partitions=[part])],
                )
                [topic] = (await raw.call(request, FetchResponse, version)).responses
                [answer] = topic.partitions
                assert (answer.error_code, answer.preferred_read_replica, answer.current_leader) == (0, -1, None)
                assert answer.records
