"""Kept parts of answers to clients of several listeners, while agents come and go."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from agents.listeners.endpoints import reachable
from agents.placement import eligible
from agents.topics.topic_entries import TopicEntries, View
from metadata.contract.leases import AgentAddress, AgentInfo, Endpoint
from metadata.contract.topics import Topic

BOTH = ("default", "external")


def agent(node_id: int, *listeners: str, zone: str = "") -> AgentInfo:
    endpoints = tuple(Endpoint(listener=each, host="h", port=node_id) for each in listeners)
    address = AgentAddress(host="h", port=node_id, zone=zone, endpoints=endpoints)
    return AgentInfo(writer_id=node_id, epoch=1, address=address)


def topic(name: str, factor: int = 1) -> Topic:
    return Topic(
        topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name),
        name=name,
        partition_ids=(1,),
        configs={},
        created_ms=0,
        replication_factor=factor,
    )


def view_of(agents: Sequence[AgentInfo], listener: str, zone: str = "") -> View:
    live = [each for each, _ in reachable(agents, listener)]
    named = eligible(live, zone)
    return View(12, 0, tuple(each.writer_id for each in named), tuple(each.writer_id for each in live))


class Kept:
    """Entries of which every client has asked for the topics `one` and `three` (of three replicas)."""

    def __init__(self, agents: Sequence[AgentInfo], *asked: tuple[str, str]) -> None:
        self.entries = TopicEntries()
        self.version = 1
        for listener, zone in asked:
            view = self.see(agents, listener, zone)
            self.entries.put_entry(view, topic("one"), b"one")
            self.entries.put_entry(view, topic("three", 3), b"three")

    def see(self, agents: Sequence[AgentInfo], listener: str, zone: str = "") -> View:
        view = view_of(agents, listener, zone)
        self.entries.use(view, agents, self.version, BOTH)
        return view

    def change(self, agents: Sequence[AgentInfo], listener: str, zone: str = "") -> set[str]:
        """The topics that are still kept for this client."""
        self.version += 1
        view = self.see(agents, listener, zone)
        return {each.name for each in (topic("one"), topic("three", 3)) if self.entries.entry(view, each) is not None}


def test_listeners_that_reach_the_same_agents_share_what_is_kept() -> None:
    kept = Kept([agent(1, *BOTH), agent(2, *BOTH)], ("default", ""), ("external", ""))
    assert len(kept.entries.views) == 1


def test_an_agent_that_clients_of_a_listener_cannot_reach_changes_nothing_for_them() -> None:
    before = [agent(1, *BOTH), agent(2, "default")]
    kept = Kept(before, ("default", ""), ("external", ""))
    assert len(kept.entries.views) == 2
    after = [*before, agent(3, "default")]
    assert kept.change(after, "external") == {"one", "three"}
    assert kept.change(after, "default") == set()


def test_an_agent_of_another_zone_costs_a_listener_its_replicated_topics_alone() -> None:
    before = [agent(1, *BOTH, zone="x"), agent(2, "default", zone="y")]
    kept = Kept(before, ("default", "x"), ("external", "x"))
    after = [*before, agent(3, "default", zone="y")]
    assert kept.change(after, "default", "x") == {"one"}
    assert kept.change(after, "external", "x") == {"one", "three"}


def test_views_that_become_one_are_counted_once() -> None:
    # given two listeners that reach different agents of zone y, and the same one of zone x
    before = [agent(1, *BOTH, zone="x"), agent(2, "default", zone="y")]
    kept = Kept(before, ("default", "x"), ("external", "x"))
    size = kept.entries.bytes
    # when the agent of zone y goes
    assert kept.change(before[:1], "default", "x") == {"one", "three"}
    assert len(kept.entries.views) == 1 and kept.entries.bytes * 2 == size
