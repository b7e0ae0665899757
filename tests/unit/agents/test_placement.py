"""Rendezvous placement: the same on every agent, with as few moves as possible, inside the client's zone."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agents.placement import eligible, leader, leaders, replicas, weight, zone_of
from metadata.contract.leases import AgentAddress, AgentInfo

TOPIC = UUID("018f2f6e-5a1b-7c3d-9e4f-1234567890ab")


def agent(node_id: int, zone: str = "") -> AgentInfo:
    return AgentInfo(writer_id=node_id, epoch=1, address=AgentAddress(host="h", port=node_id, zone=zone))


def test_the_weight_is_pinned_because_all_agents_must_agree() -> None:
    assert weight(TOPIC, 3, 7) == int.from_bytes(bytes.fromhex("0e1c5db187bf98ee"), "big")


def test_order_of_the_list_does_not_matter() -> None:
    agents = [agent(node_id) for node_id in (1, 2, 3, 4)]
    for partition in range(50):
        assert leader(TOPIC, partition, agents) == leader(TOPIC, partition, agents[::-1])


@given(
    st.uuids(), st.integers(0, 2**31), st.integers(0, 20), st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=5)
)
def test_many_at_once_are_named_as_one_by_one(topic_id: UUID, first: int, count: int, node_ids: list[int]) -> None:
    agents = [agent(node_id) for node_id in node_ids]
    partitions = range(first, first + count)
    assert leaders(topic_id, partitions, agents) == [leader(topic_id, each, agents) for each in partitions]


@given(
    st.uuids(), st.integers(1, 5), st.lists(st.integers(1, 2**31 - 1), unique=True, min_size=1, max_size=6), st.data()
)
def test_replicas_are_the_leader_and_the_next_in_line_in_any_order_of_the_list(
    topic_id: UUID, count: int, node_ids: list[int], data: st.DataObject
) -> None:
    live = [agent(node_id) for node_id in node_ids]
    named = live[: data.draw(st.integers(1, len(live)))]
    shuffled = data.draw(st.permutations(live))

    shown = replicas(topic_id, range(4), count, named, live)

    assert shown == replicas(topic_id, range(4), count, named[::-1], shuffled)
    for partition, ids in enumerate(shown):
        assert ids[0] == leader(topic_id, partition, named), "the routing does not depend on the replication factor"
        assert len(ids) == len(set(ids)) == min(count, len(live))
        others = sorted(set(node_ids) - {ids[0]}, key=lambda each: (-weight(topic_id, partition, each), each))
        assert ids[1:] == others[: count - 1]


def test_without_agents_there_are_no_replicas() -> None:
    assert replicas(TOPIC, range(2), 3, [], []) == [[], []]


def test_only_partitions_of_a_lost_agent_move() -> None:
    agents = [agent(node_id) for node_id in range(1, 6)]
    before = [leader(TOPIC, partition, agents) for partition in range(500)]
    after = [leader(TOPIC, partition, agents[:-1]) for partition in range(500)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 5)
    assert 50 < before.count(5) < 150, "about a fifth each"


def test_without_agents_there_is_no_leader() -> None:
    assert leader(TOPIC, 0, []) == -1


def test_a_zone_is_read_from_the_client_id() -> None:
    assert zone_of("app,zone=use1-az1") == "use1-az1"
    assert zone_of("zone=b;x=1") == "b"
    assert zone_of("ozone=3") == ""
    assert zone_of(None) == ""


def test_a_client_gets_agents_of_its_zone_or_all_when_there_are_none() -> None:
    agents = [agent(1, "a"), agent(2, "b"), agent(3, "b")]
    assert [each.writer_id for each in eligible(agents, "b")] == [2, 3]
    assert list(eligible(agents, "c")) == agents
    assert list(eligible(agents, "")) == agents
