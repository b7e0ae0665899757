"""Which agents a client is told of, by the listener that it came by."""

from __future__ import annotations

import uuid

from agents.listeners.endpoints import endpoint_at, reachable
from agents.placement import leaders
from metadata.contract.leases import AgentAddress, AgentInfo, Endpoint


def agent(node_id: int, *listeners: str) -> AgentInfo:
    endpoints = tuple(Endpoint(listener=each, host=f"{each}.example", port=node_id) for each in listeners)
    address = AgentAddress(host="10.0.0.1", port=node_id, endpoints=endpoints)
    return AgentInfo(writer_id=node_id, epoch=1, address=address)


def test_an_agent_is_reached_at_the_endpoint_of_that_listener_and_of_no_other() -> None:
    both = agent(1, "default", "external").address
    assert endpoint_at(both, "external") == Endpoint(listener="external", host="external.example", port=1)
    assert endpoint_at(both, "default") == Endpoint(listener="default", host="default.example", port=1)
    assert endpoint_at(both, "internal") is None
    assert endpoint_at(agent(1, "external").address, "default") is None


def test_an_agent_of_an_older_program_has_the_listener_default_alone() -> None:
    older = agent(7).address
    assert endpoint_at(older, "default") == Endpoint(listener="default", host="10.0.0.1", port=7)
    assert endpoint_at(older, "external") is None


def test_the_order_stays_and_those_without_the_listener_are_left_out() -> None:
    fleet = [agent(1), agent(2, "external"), agent(3, "default", "external"), agent(4, "external")]
    assert [found.writer_id for found, _ in reachable(fleet, "external")] == [2, 3, 4]
    assert [found.writer_id for found, _ in reachable(fleet, "default")] == [1, 3]
    assert reachable(fleet, "internal") == []


def test_leaders_are_the_same_on_all_listeners_but_for_agents_that_one_of_them_lacks() -> None:
    topic, partitions = uuid.UUID(int=5), range(200)
    fleet = [agent(1, "a", "b"), agent(2, "a", "b"), agent(3, "a")]

    def led_by(listener: str) -> list[int]:
        return leaders(topic, partitions, [found for found, _ in reachable(fleet, listener)])

    by_a, by_b = led_by("a"), led_by("b")
    assert {1, 2, 3} == set(by_a) and {1, 2} == set(by_b)
    assert all(a == b for a, b in zip(by_a, by_b, strict=True) if a != 3)
