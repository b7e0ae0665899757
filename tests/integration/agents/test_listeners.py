"""Agents with several listeners: clients of each are told its endpoints and no others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from agents.server import AddressError
from metadata.contract.leases import AgentAddress
from runtime.settings.listeners import ListenerSettings
from siltstone.kafka.client import connected
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Fleet, fleet, metadata_services
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.records import NewRecord, build_batch

LOCAL = "127.0.0.1:0"
DEFAULT = ListenerSettings(name="default", address=LOCAL)
EXTERNAL = ListenerSettings(name="external", address="127.0.0.2:0")
BOTH = {"listen": "", "listeners": (DEFAULT, EXTERNAL)}
GROUP = 0


def told(agent: RunningAgent, listener: str) -> tuple[str, int]:
    host, _, port = agent.agent.addresses[listener].rpartition(":")
    return host.strip("[]"), int(port)


async def brokers(address: str) -> set[tuple[int, str, int]]:
    """The endpoints that Metadata tells. DescribeCluster tells the same."""
    async with connected(address) as client:
        metadata = await client.metadata([])
        described = await client.call(DescribeClusterRequest(), DescribeClusterResponse)
    found = {(each.node_id, each.host, each.port) for each in metadata.brokers}
    assert {(each.broker_id, each.host, each.port) for each in described.brokers} == {
        each for each in found if each[0] > 0
    }
    assert described.controller_id == metadata.controller_id
    assert {metadata.controller_id} <= {each[0] for each in found} | {-1}
    return found


async def coordinator(address: str, group_id: str) -> FindCoordinatorResponse:
    async with connected(address) as client:
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group_id])
        return await client.call(request, FindCoordinatorResponse)


async def leaders(address: str, topic: str) -> list[int]:
    async with connected(address) as client:
        return [part.leader_id for part in (await client.topic(topic)).partitions]


@asynccontextmanager
async def mixed(start_agent: StartAgent, *listeners: tuple[ListenerSettings, ...]) -> AsyncIterator[Fleet]:
    """An agent with each of these sets of listeners."""
    async with metadata_services(len(listeners)) as services:
        agents = [
            await start_agent(metadata=service, listen="", listeners=each)
            for service, each in zip(services, listeners, strict=True)
        ]
        made = Fleet(agents, services)
        try:
            await made.know_each_other()
            yield made
        finally:
            await asyncio.gather(*(each.agent.stop() for each in agents))


async def test_clients_of_each_listener_are_told_its_endpoints_and_the_same_leaders(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 3, **BOTH) as agents:
        await agents.know_each_other()
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=40)
        await agents.know_topic("t")
        led: set[tuple[int, ...]] = set()
        for listener in ("default", "external"):
            expected = {(number, *told(each, listener)) for number, each in enumerate(agents.agents, start=1)}
            for each in agents.agents:
                address = each.agent.addresses[listener]
                assert await brokers(address) == expected
                [found] = (await coordinator(address, "g")).coordinators
                assert (found.node_id, found.host, found.port) in expected
                led.add(tuple(await leaders(address, "t")))
        assert len(led) == 1 and set(*led) == {1, 2, 3}


async def test_one_coordinator_on_all_listeners(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 3, **BOTH) as agents:
        await agents.know_each_other()
        for group_id in ("a", "b", "c", "d"):
            found = {
                (await coordinator(address, group_id)).coordinators[0].node_id
                for each in agents.agents
                for address in each.agent.addresses.values()
            }
            assert len(found) == 1


async def test_real_clients_work_by_the_endpoints_of_their_listener_alone(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 2, **BOTH) as agents:
        await agents.know_each_other()
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=6)
        await agents.know_topic("t")
        for number, listener in enumerate(("default", "external")):
            bootstrap = agents[number].agent.addresses[listener]
            endpoints = {told(each, listener) for each in agents.agents}
            # given librdkafka, which writes to all partitions and reads with a group
            known = await asyncio.to_thread(write_and_read_by_librdkafka, bootstrap, f"rd-{listener}", 60)
            assert known == endpoints
            # and aiokafka
            await write_and_read_by_aiokafka(bootstrap, f"aio-{listener}", endpoints)
            # then no connection of theirs came by another listener
            assert agents_seen(agents) <= {listener}
            await until(lambda: not agents_seen(agents))


def agents_seen(agents: Fleet) -> set[str]:
    """The listeners of all connections."""
    servers = [each.agent._server for each in agents.agents]
    return {each.client.listener for server in servers if server is not None for each in server.talking()}


def write_and_read_by_librdkafka(bootstrap: str, group_id: str, timeout_s: float) -> set[tuple[str, int]]:
    """Returns the brokers that the client knows."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(6):
        producer.produce("t", f"{group_id}-{partition}".encode(), partition=partition)
    assert producer.flush(timeout_s) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id, "auto.offset.reset": "earliest"})
    seen: set[bytes] = set()
    wanted = {f"{group_id}-{partition}".encode() for partition in range(6)}
    deadline = time.monotonic() + timeout_s
    with closing(consumer):
        consumer.subscribe(["t"])
        while not wanted <= seen and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                seen.add(message.value() or b"")
    assert wanted <= seen
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {(each.host, each.port) for each in admin.list_topics(timeout=timeout_s).brokers.values()}


async def write_and_read_by_aiokafka(bootstrap: str, group_id: str, endpoints: set[tuple[str, int]]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for partition in range(6):
            await producer.send_and_wait("t", group_id.encode(), partition=partition)
        assert {(each.host, each.port) for each in producer.client.cluster.brokers()} == endpoints
    finally:
        await producer.stop()
    consumer: Any = AIOKafkaConsumer("t", bootstrap_servers=bootstrap, group_id=group_id, auto_offset_reset="earliest")
    await consumer.start()
    seen: set[int] = set()
    try:
        async with asyncio.timeout(60):
            async for message in consumer:
                if message.value == group_id.encode():
                    seen.add(message.partition)
                if len(seen) == 6:
                    break
    finally:
        await consumer.stop()


# ---- fleets in which not all agents have a listener


async def test_an_agent_without_the_listener_is_left_out_of_what_its_clients_are_told(start_agent: StartAgent) -> None:
    async with mixed(start_agent, (DEFAULT, EXTERNAL), (DEFAULT,), (DEFAULT, EXTERNAL)) as agents:
        async with connected(agents[1].address) as client:
            await client.create_topic("t", partitions=60)
        await agents.know_topic("t")
        by_default = await leaders(agents[0].address, "t")
        assert await brokers(agents[0].address) == {(n + 1, *told(agents[n], "default")) for n in range(3)}
        assert set(by_default) == {1, 2, 3}
        for each in (agents[0], agents[2]):
            address = each.agent.addresses["external"]
            assert await brokers(address) == {(n + 1, *told(agents[n], "external")) for n in (0, 2)}
            # a leader that the client can reach stays the leader
            here = await leaders(address, "t")
            assert set(here) == {1, 3}
            assert all(a == b for a, b in zip(here, by_default, strict=True) if b != 2)


async def test_a_coordinator_without_the_listener_is_not_available_by_it(start_agent: StartAgent) -> None:
    async with mixed(start_agent, (DEFAULT, EXTERNAL), (DEFAULT,)) as agents:
        seen: set[int] = set()
        for number in range(40):
            [there] = (await coordinator(agents[1].address, f"g{number}")).coordinators
            [here] = (await coordinator(agents[0].agent.addresses["external"], f"g{number}")).coordinators
            seen.add(there.node_id)
            if there.node_id == 1:
                assert (here.node_id, here.host, here.port) == (1, *told(agents[0], "external"))
            else:
                assert (here.error_code, here.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
                assert here.error_message == "the coordinator has no listener of this name"
        assert seen == {1, 2}


async def test_an_agent_of_an_older_program_is_told_to_clients_of_the_listener_default_alone(
    start_agent: StartAgent,
) -> None:
    async with metadata_services(2) as services:
        await services[1].agents.register_agent(AgentAddress(host="10.0.0.9", port=9092))
        agent = await start_agent(metadata=services[0], **BOTH)
        await until(lambda: len(agent.agent._membership.agents) == 2)  # type: ignore[union-attr]
        assert await brokers(agent.address) == {(1, "10.0.0.9", 9092), (2, *told(agent, "default"))}
        assert await brokers(agent.agent.addresses["external"]) == {(2, *told(agent, "external"))}
        await agent.agent.stop()


async def test_where_no_agent_has_the_listener_partitions_have_no_leader_and_say_why(
    start_agent: StartAgent, dial: Dial
) -> None:
    """The only agent with a listener leaves the answers before it stops serving."""
    async with mixed(start_agent, (DEFAULT, EXTERNAL), (DEFAULT,)) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=2)
        raw = await dial.raw(agents[0].agent.addresses["external"])
        stopping = asyncio.create_task(agents[0].agent.stop())
        await until(lambda: len(agents[0].agent._membership.agents) == 1)  # type: ignore[union-attr]
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        for version, error in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)):
            answer = await raw.call(request, MetadataResponse, version)
            assert (answer.brokers, answer.controller_id) == ([], -1)
            parts = answer.topics[0].partitions
            assert [(part.error_code, part.leader_id) for part in parts] == [(error, -1)] * 2
        await raw.close()
        await stopping


# ---- addresses


async def test_ipv6_and_an_advertised_endpoint_that_is_not_the_address(start_agent: StartAgent) -> None:
    six = ListenerSettings(name="six", address="[::1]:0")
    known = ListenerSettings(name="known", address=LOCAL, advertised="localhost:0")
    far = ListenerSettings(name="far", address=LOCAL, advertised="kafka.example.com:443")
    agent = await start_agent(listen="", listeners=(six, known, far))
    addresses = agent.agent.addresses
    # no `default`: the first by name names the agent
    assert list(addresses) == ["far", "known", "six"] and agent.address == "kafka.example.com:443"
    assert addresses["known"].startswith("localhost:") and addresses["six"].startswith("[::1]:")
    assert await brokers(addresses["known"]) == {(1, *told(agent, "known"))}
    assert await brokers(addresses["six"]) == {(1, *told(agent, "six"))}
    [info] = await agent.metadata.agents.live_agents()
    assert (info.address.host, info.address.port) == ("kafka.example.com", 443)
    assert [each.listener for each in info.address.endpoints] == ["far", "known", "six"]


async def test_the_load_balancer_is_told_to_clients_of_the_first_listener(start_agent: StartAgent) -> None:
    agent = await start_agent(advertised_bootstrap="lb.example.com:9092", **BOTH)
    assert await brokers(agent.address) == {(0, "lb.example.com", 9092), (1, *told(agent, "default"))}
    assert await brokers(agent.agent.addresses["external"]) == {(1, *told(agent, "external"))}


async def test_all_listeners_share_the_bound_on_connections_and_end_together(
    start_agent: StartAgent, dial: Dial
) -> None:
    agent = await start_agent(connections_max=2, **BOTH)
    first = await dial.kafka(agent.address)
    second = await dial.kafka(agent.agent.addresses["external"])
    refused = await dial.raw(agent.agent.addresses["external"])
    assert await refused.is_closed_by_peer()
    await first.create_topic("t", partitions=1)
    batch = build_batch([NewRecord(1_700_000_000_000, None, b"v")])
    assert [await each.produce("t", 0, batch) for each in (first, second)] == [0, 1]
    await agent.agent.stop()
    for address in agent.agent.addresses.values():
        with pytest.raises(OSError):
            await dial.raw(address)


async def test_a_listener_that_cannot_be_bound_ends_the_start_and_frees_the_others(start_agent: StartAgent) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        closing(socket.create_server(("127.0.0.1", 0))) as one,
    ):
        port = one.getsockname()[1]
        one.close()
        free = ListenerSettings(name="default", address=f"127.0.0.1:{port}")
        other = ListenerSettings(name="external", address=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(AddressError, match=r"listener\.external\.address: address .* is already in use") as refused:
            await start_agent(listen="", listeners=(free, other))
        assert "choose another port for listener.external.address" in refused.value.remedy
    socket.create_server(("127.0.0.1", port)).close()  # nobody listens there any more
