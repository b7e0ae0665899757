"""Metadata answers made from kept entries equal answers built from scratch, byte for byte, whatever changes in
between, also what the client may see.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.broker import Broker
from agents.handlers import metadata_api
from agents.handlers.metadata_api import NOT_ASKED, SLICE_PARTITIONS
from agents.membership import Membership
from agents.placement import eligible, leader, weight, zone_of
from agents.quotas.throttle import Throttle
from agents.request_context import ClientConnection, RequestContext
from agents.security.audit import Audit
from agents.security.known import KnownSecurity
from agents.security.rights import UNLIMITED, JudgedRights, Rights
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.present import PresentTopics
from agents.topics.topic_cache import TopicCache
from agents.topics.topic_entries import TopicEntries
from metadata.contract.leases import AgentAddress, AgentInfo, Endpoint, WriterLease
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryMetadata
from runtime.clock import Clock, SystemClock
from runtime.logging import LOG_CONTEXT
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from security.acls.matcher import Matcher
from security.acls.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from security.acls.values import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.fixtures.acls import an_acl
from tests.fixtures.chance import examples
from wire.api import RequestHeader, encode_response
from wire.error_codes import ErrorCode
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

UNKNOWN_ID = UUID(int=99)
NAMES = ("a", "b", "c", "d")
BAD_NAME = "no/slash"


class RestlessClock(SystemClock):
    """A clock by which every slice is over at once, so that the event loop turns at every place where it may."""

    def __init__(self) -> None:
        self._now_ms = 0.0

    def monotonic_ms(self) -> float:
        self._now_ms += 1000
        return self._now_ms


@dataclass
class Parts:
    """The parts of an agent that the handler uses: real ones, without the sockets between them."""

    entries_bytes_max: int = 1 << 20
    clock: Clock = field(default_factory=RestlessClock)
    cluster_id: str = "cluster"
    bootstrap: None = None
    creates: bool = True
    listeners: Sequence[str] = ("default", "b")
    settings: Settings = field(default_factory=lambda: Settings(num_partitions=2))

    def __post_init__(self) -> None:
        self.runtime = Runtime(clock=self.clock)
        self.metadata = MemoryMetadata()
        self.topic_cache = TopicCache()
        self.follower = Follower(
            metadata=self.metadata.agents,
            topic_cache=self.topic_cache,
            index=LogIndex(),
            parked_readers=ParkedReaders(),
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(on_fatal=_fail),
            runtime=Runtime(),
        )
        self.membership = Membership(
            metadata=self.metadata.agents,
            address=AgentAddress(host="h", port=1),
            runtime=self.runtime,
        )
        self.throttle = Throttle(
            KnownSecurity(metadata=self.metadata.security, lease=_no_lease, runtime=Runtime()), Runtime()
        )
        self.present_topics = PresentTopics(self.follower.catch_up, SystemClock())
        self.topic_entries = TopicEntries(self.entries_bytes_max)
        self.topic_entries_lock = asyncio.Lock()
        self.may: Rights = UNLIMITED
        self.see([agent(1)])

    def rights(self) -> Rights:
        return self.may

    async def hint_others(self) -> None:
        """There are none."""

    def see(self, agents: Sequence[AgentInfo]) -> None:
        """Act as a heartbeat does."""
        self.membership.agents = tuple(agents)
        self.membership.version += 1

    async def answer(self, header: RequestHeader, request: MetadataRequest, listener: str = "default") -> bytes:
        before = LOG_CONTEXT.set(RequestContext(header, ClientConnection(1, "10.0.0.1:5", listener)))
        try:
            answer = metadata_api.handle(cast("Broker", self), header, request)
            response = await answer if inspect.isawaitable(answer) else answer
        finally:
            LOG_CONTEXT.reset(before)
        return b"".join(encode_response(header, response))

    def made_anew(self, header: RequestHeader, request: MetadataRequest, listener: str = "default") -> bytes:
        """The same answer built object by object, without any kept entry."""
        self.creates = request.allow_auto_topic_creation
        agents = [each for each in self.membership.agents if told(each, listener) is not None]
        named = eligible(agents, zone_of(header.client_id))
        is_elsewhere = header.api_version >= 6 and len(self.membership.agents) > 0
        nobody = ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE
        asks = request.include_topic_authorized_operations
        wanted = request.topics
        if wanted is None or (header.api_version == 0 and not wanted):
            topics = [
                described(topic, agents, named, self._operations(topic.name, asks), nobody)
                for topic in self.topic_cache.topics()
                if self._shows(topic.name)
            ]
        else:
            topics = [self._answered(header, each, agents, nobody, asks=asks) for each in _once(wanted)]
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=each.writer_id, host=host, port=port, rack=each.address.zone or None)
                for each in agents
                for host, port in [cast("tuple[str, int]", told(each, listener))]
            ],
            cluster_id=self.cluster_id,
            controller_id=agents[0].writer_id if agents else -1,
            topics=topics,
            cluster_authorized_operations=(
                self._cluster_operations() if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
        return b"".join(encode_response(header, response))

    def _shows(self, name: str) -> bool:
        return self.may.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def _operations(self, name: str, asks: bool) -> int:
        may = (each for each in TOPIC_OPERATIONS if self.may.sees(each, ResourceType.TOPIC, name))
        return sum(1 << each for each in may) if asks else NOT_ASKED

    def _cluster_operations(self) -> int:
        may = [each for each in CLUSTER_OPERATIONS if self.may.sees(each, ResourceType.CLUSTER, CLUSTER_NAME)]
        return sum(1 << each for each in may) if Operation.DESCRIBE in may else 0

    def _may_create(self, name: str) -> bool:
        return self.may.sees(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or self.may.sees(
            Operation.CREATE, ResourceType.TOPIC, name
        )

    def _answered(
        self,
        header: RequestHeader,
        wanted: MetadataRequestTopic,
        agents: Sequence[AgentInfo],
        nobody: ErrorCode,
        *,
        asks: bool,
    ) -> MetadataResponseTopic:
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        named = eligible(agents, zone_of(header.client_id))
        if wanted.name is None:
            topic = self.topic_cache.topic_by_id(wanted.topic_id)
            if topic is None:
                name = None if header.api_version >= 12 else ""
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
            if not self._shows(topic.name):
                name = None if header.api_version >= 12 else ""
                return MetadataResponseTopic(error_code=refused, name=name, topic_id=wanted.topic_id)
            return described(topic, agents, named, self._operations(topic.name, asks), nobody)
        if not self._shows(wanted.name):
            return MetadataResponseTopic(error_code=refused, name=wanted.name)
        topic = self.topic_cache.topic(wanted.name)
        if topic is None:
            if self.creates and not self._may_create(wanted.name):
                return MetadataResponseTopic(error_code=refused, name=wanted.name)
            bad = wanted.name == BAD_NAME
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            operations = self._operations(wanted.name, asks)
            return MetadataResponseTopic(error_code=error, name=wanted.name, topic_authorized_operations=operations)
        return described(topic, agents, named, self._operations(topic.name, asks), nobody)


def _no_lease() -> WriterLease:
    raise AssertionError("nothing is reported")


def _fail(error: Exception) -> None:
    raise AssertionError(error)


def agent(node_id: int, zone: str = "", listeners: Sequence[str] = ()) -> AgentInfo:
    """Without listeners: of an older program, which knows of none."""
    endpoints = tuple(Endpoint(listener=each, host=each, port=node_id) for each in listeners)
    address = AgentAddress(host="h", port=node_id, zone=zone, endpoints=endpoints)
    return AgentInfo(writer_id=node_id, epoch=1, address=address)


def told(agent: AgentInfo, listener: str) -> tuple[str, int] | None:
    """Where clients of the listener reach the agent, if they can."""
    there = {each.listener: (each.host, each.port) for each in agent.address.endpoints}
    return there.get(listener) if there else {"default": (agent.address.host, agent.address.port)}.get(listener)


def described(
    topic: Topic, agents: Sequence[AgentInfo], named: Sequence[AgentInfo], operations: int, nobody: ErrorCode
) -> MetadataResponseTopic:
    partitions: list[MetadataResponsePartition] = []
    for number in range(len(topic.partition_ids)):
        node_id = leader(topic.topic_id, number, named)
        others = sorted({each.writer_id for each in agents} - {node_id}, key=lambda each: _rank(topic, number, each))
        nodes = [] if node_id < 0 else [node_id, *others][: topic.replication_factor]
        error = nobody if node_id < 0 else ErrorCode.NONE
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=number,
                leader_id=node_id,
                leader_epoch=0,
                replica_nodes=nodes,
                isr_nodes=nodes,
            )
        )
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions, topic_authorized_operations=operations
    )


def _rank(topic: Topic, number: int, node_id: int) -> int:
    return -weight(topic.topic_id, number, node_id)


# ---- random histories

names = st.sampled_from(NAMES)
counts = st.one_of(st.integers(1, 5), st.integers(SLICE_PARTITIONS - 1, 2 * SLICE_PARTITIONS + 1))
fleets = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from(["", "x", "y"]),
        st.sampled_from([(), ("default",), ("b",), ("b", "default"), ("b", "default")]),
    ),
    max_size=4,
    unique_by=lambda each: each[0],
)
asks = st.fixed_dictionaries(
    {
        "version": st.integers(0, 13),
        "wanted": st.none() | st.lists(names | st.sampled_from(["missing", BAD_NAME]) | st.integers(0, 3), max_size=5),
        "client_id": st.sampled_from([None, "c", "c,zone=x", "zone=nowhere"]),
        "create": st.booleans(),
        "operations": st.booleans(),
        "listener": st.sampled_from(["default", "b"]),
    }
)
rules = st.builds(
    an_acl,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    resource_name=st.sampled_from([*NAMES, "miss", "*"]),
    operation=st.sampled_from([Operation.ALL, Operation.DESCRIBE, Operation.READ, Operation.CREATE]),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
of_cluster = st.builds(
    an_acl,
    resource_type=st.just(ResourceType.CLUSTER),
    resource_name=st.just(CLUSTER_NAME),
    operation=st.sampled_from([Operation.ALL, Operation.DESCRIBE, Operation.CREATE]),
)
steps = st.one_of(
    st.tuples(st.just("rights"), st.none() | st.lists(rules | of_cluster, max_size=6)),
    st.tuples(st.just("ask"), asks),
    st.tuples(st.just("ask"), asks),
    st.tuples(st.just("create"), names, counts, st.integers(1, 5)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("grow"), names, st.integers(1, SLICE_PARTITIONS)),
    st.tuples(st.just("alter"), names),
    st.tuples(st.just("agents"), fleets),
    st.tuples(st.just("restart"), st.none()),
)


def header_and_request(parts: Parts, ask: dict[str, object]) -> tuple[RequestHeader, MetadataRequest]:
    version = cast("int", ask["version"])
    chosen = cast("list[str | int] | None", ask["wanted"])
    topics = parts.topic_cache.topics()
    wanted: list[MetadataRequestTopic] | None = None
    if chosen is not None or version == 0:
        wanted = []
        for each in chosen or []:
            if isinstance(each, str):
                wanted.append(MetadataRequestTopic(name=each))
            elif version >= 10:
                topic_id = topics[each].topic_id if each < len(topics) else UNKNOWN_ID
                wanted.append(MetadataRequestTopic(name=None, topic_id=topic_id))
    return (
        RequestHeader(3, version, 7, cast("str | None", ask["client_id"])),
        MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=cast("bool", ask["create"]),
            include_topic_authorized_operations=version >= 8 and cast("bool", ask["operations"]),
            include_cluster_authorized_operations=8 <= version <= 10 and cast("bool", ask["operations"]),
        ),
    )


def rights_by(acls: Sequence[Acl]) -> Rights:
    return JudgedRights(Matcher(acls), Audit(), "User:ann", "10.0.0.1", everything=False, shadow=False)


async def change(parts: Parts, step: tuple[object, ...]) -> None:
    kind, what = step[0], step[1]
    if kind == "agents":
        parts.see([agent(*each) for each in sorted(cast("list[tuple[int, str, tuple[str, ...]]]", what))])
        return
    if kind == "rights":
        acls = cast("list[Acl] | None", what)
        parts.may = UNLIMITED if acls is None else rights_by(acls)
        return
    if kind == "restart":  # as after a cold start from a snapshot
        parts.topic_cache.load(await parts.metadata.agents.list_topics())
        return
    topic = parts.topic_cache.topic(cast("str", what))
    if kind == "create" and topic is None:
        count, factor = cast("tuple[int, int]", step[2:])
        await parts.metadata.agents.create_topic(
            cast("str", what), partitions=count, configs={}, replication_factor=factor
        )
    elif kind == "delete" and topic is not None:
        await parts.metadata.agents.delete_topic(topic.topic_id)
    elif kind == "grow" and topic is not None:
        await parts.metadata.agents.create_partitions(topic.topic_id, len(topic.partition_ids) + cast("int", step[2]))
    elif kind == "alter" and topic is not None:
        await parts.metadata.agents.alter_configs(topic.topic_id, {"retention.ms": "1000"})
    await parts.follower.catch_up()


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([0, 3_000, 1 << 20]))
def test_answers_are_those_that_would_be_made_anew(history: list[tuple[object, ...]], bytes_max: int) -> None:
    async def run() -> None:
        parts = Parts(bytes_max)
        for step in history:
            if step[0] != "ask":
                await change(parts, step)
                continue
            asked = cast("dict[str, object]", step[1])
            header, request = header_and_request(parts, asked)
            listener = cast("str", asked["listener"])
            first = await parts.answer(header, request, listener)
            assert first == parts.made_anew(header, request, listener)
            assert await parts.answer(header, request, listener) == first
            assert parts.topic_entries.bytes <= bytes_max

    asyncio.run(run())


# ---- the cost of a change


def _once(wanted: Sequence[MetadataRequestTopic]) -> Sequence[MetadataRequestTopic]:
    """A topic that is named twice is answered once, at its first place."""
    return [each for number, each in enumerate(wanted) if each not in wanted[:number]]


ALL = MetadataRequest(topics=None)
V12 = RequestHeader(3, 12, 7, None)


async def test_an_answer_that_takes_long_is_of_one_instant_and_not_kept_for_another() -> None:
    # given an answer that is being made, slice by slice
    parts = Parts()
    await parts.metadata.agents.create_topic("a", partitions=40 * SLICE_PARTITIONS, configs={})
    await parts.metadata.agents.create_topic("b", partitions=1, configs={})
    await parts.follower.catch_up()
    as_it_was = parts.made_anew(V12, ALL)
    answering = asyncio.create_task(parts.answer(V12, ALL))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not answering.done()
    # when one topic goes, another comes, and the agents change meanwhile
    await change(parts, ("delete", "b"))
    await change(parts, ("create", "c", 3, 2))
    await change(parts, ("agents", [(1, "", ()), (2, "", ())]))
    assert not answering.done()
    # then it describes the moment when it was begun, and the next answer describes the present
    assert await answering == as_it_was
    assert await parts.answer(V12, ALL) == parts.made_anew(V12, ALL)


async def test_clients_that_ask_together_have_it_made_once() -> None:
    parts = Parts()
    await parts.metadata.agents.create_topic("a", partitions=5 * SLICE_PARTITIONS, configs={})
    await parts.follower.catch_up()
    answers = [metadata_api.handle(cast("Broker", parts), V12, ALL) for _ in range(3)]
    made = await asyncio.gather(*(answer for answer in answers if inspect.isawaitable(answer)))
    assert len(made) == 3
    assert made[0].topics is made[1].topics is made[2].topics


async def test_a_change_costs_what_it_changes() -> None:
    # given all topics in memory
    parts = Parts()
    for name in NAMES:
        await change(parts, ("create", name, 3, 1))
    await parts.answer(V12, ALL)
    [view] = parts.topic_entries.views
    before = {name: parts.topic_entries.entry(view, topic_of(parts, name)) for name in NAMES}
    assert None not in before.values()
    # when one topic gets configs, one gets partitions, and one is deleted
    await change(parts, ("alter", "a"))
    assert not inspect.isawaitable(metadata_api.handle(cast("Broker", parts), V12, ALL)), "configs are not shown"
    await change(parts, ("grow", "b", 1))
    await change(parts, ("delete", "c"))
    # then only the topic that looks different is built again
    assert parts.topic_entries.entry(view, topic_of(parts, "a")) is before["a"]
    assert parts.topic_entries.entry(view, topic_of(parts, "b")) is None
    assert parts.topic_entries.entry(view, topic_of(parts, "d")) is before["d"]
    assert await parts.answer(V12, ALL) == parts.made_anew(V12, ALL)


async def test_agents_of_another_zone_change_little_for_a_zone_and_old_views_go() -> None:
    # given answers for zone x and for clients without a zone
    parts = Parts()
    parts.see([agent(1, "x"), agent(2, "y")])
    await change(parts, ("create", "a", 3, 1))
    of_x = RequestHeader(3, 12, 7, "zone=x")
    for header in (V12, of_x):
        await parts.answer(header, ALL)
    assert {view.node_ids for view in parts.topic_entries.views} == {(1, 2), (1,)}
    # when an agent joins zone y
    parts.see([agent(1, "x"), agent(2, "y"), agent(3, "y")])
    # then zone x is answered at once, and entries that named the earlier agents are gone
    assert not inspect.isawaitable(metadata_api.handle(cast("Broker", parts), of_x, ALL))
    assert {view.node_ids for view in parts.topic_entries.views} == {(1,)}
    assert await parts.answer(V12, ALL) == parts.made_anew(V12, ALL)
    # and a topic with several replicas, which may lie in other zones, is built again while the other one is kept
    await change(parts, ("create", "b", 3, 2))
    await parts.answer(of_x, ALL)
    parts.see([agent(1, "x"), agent(3, "y")])
    assert await parts.answer(of_x, MetadataRequest(topics=[])) == parts.made_anew(of_x, MetadataRequest(topics=[]))
    [view] = [view for view in parts.topic_entries.views if view.node_ids == (1,)]
    assert parts.topic_entries.entry(view, topic_of(parts, "a")) is not None
    assert parts.topic_entries.entry(view, topic_of(parts, "b")) is None
    assert await parts.answer(of_x, ALL) == parts.made_anew(of_x, ALL)


async def test_above_the_bound_the_view_not_used_for_longest_goes() -> None:
    parts = Parts(entries_bytes_max=1200)
    await change(parts, ("create", "a", 3, 1))
    for version in (9, 10, 11, 12):
        for _ in range(3):
            await parts.answer(RequestHeader(3, 9, 7, None), ALL)
            await parts.answer(RequestHeader(3, version, 7, None), ALL)
            assert parts.topic_entries.bytes <= 1200
    versions = [view.api_version for view in parts.topic_entries.views]
    assert len(versions) < 4
    assert {9, 12} <= set(versions)


def topic_of(parts: Parts, name: str) -> Topic:
    topic = parts.topic_cache.topic(name)
    assert topic is not None
    return topic
