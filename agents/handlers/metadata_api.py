"""Metadata 0-13: the live agents, and the one that is named as leader of each partition. A client is told of the agents
that have the listener by which it came.

Every partition names one live agent of the client's zone as leader, by rendezvous hashing. As replicas it shows the
leader and the live agents next in line, as many as the topic was asked for with, and all of them in sync: none can lag
behind the object store. The leader epoch is always 0, because no replica can diverge. In v0 an empty list asks for all
topics, from v1 null does. With `advertised.bootstrap` the brokers have one more, which stands for that address: a
client that lost all agents it knew asks there. It leads nothing. Topics may be created on the way, as Kafka's two flags
say. An unknown topic is looked for in the store before it is called unknown; if the store does not say in time, it is
LEADER_NOT_AVAILABLE, after which clients ask again. The answer about all topics comes from memory, unless this agent
has not seen the store's state for a while.

Topics are encoded once and kept (`agents/topics/topic_entries.py`). If the entries are at hand, or few, the answer is
given at once. Otherwise they are encoded in slices, with turns of the event loop in between, from the topics of one
instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from agents.broker import Broker
from agents.listeners.endpoints import reachable
from agents.placement import eligible, zone_of
from agents.request_context import client_listener
from agents.topics.rules import RequestError, check_name, check_new_name, code_of
from agents.topics.topic_entries import View, encode_error, encode_partitions, encode_topic
from metadata.contract.leases import AgentInfo, Endpoint
from metadata.contract.topics import Topic, TopicExistsError
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from wire.schema import ZERO_UUID, EncodedElements

CREATE_MS_MAX = 10_000.0
"""Longest wait for the creation of topics. A silent store is waited for up to its own time-outs, longer than the client
waits."""
CREATED_PER_REQUEST_MAX = 100
"""Topics that one request may create; the client asks again for the rest. So many are hardly intended."""
NOT_ASKED = -0x80000000
BOOTSTRAP_NODE_ID = 0
"""The broker that stands for `advertised.bootstrap`; agents have ids from 1 on. It leads nothing."""
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: everything, as without an
authorizer."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


SLICE_PARTITIONS = 256
"""Entries encoded without looking at the clock: about a millisecond."""
SLICE_TOPICS = 64
SLICE_MS = 2.0
"""The clock is looked at after each of these slices, and the event loop gets a turn after this time."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The inputs of an answer: the request, and the agents of one instant."""

    broker: Broker
    request: MetadataRequest
    listener: str
    """By which the client came. It is told of the agents that have it."""
    endpoints: Sequence[tuple[AgentInfo, Endpoint]]
    agents: Sequence[AgentInfo]
    named: Sequence[AgentInfo]
    """The agents of the client's zone."""
    view: View
    seen: bool
    """A topic that is not known does not exist."""


def handle(
    broker: Broker, header: RequestHeader, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    wanted = request.topics
    if wanted:
        # A topic is answered once however often it is named, as in Kafka.
        wanted = list({(each.name, each.topic_id): each for each in wanted}.values())
    if wanted is None or (header.api_version == 0 and not wanted):
        if broker.follower.is_late:
            return _all_topics_of_the_present(broker, header, request)
        return _all_topics(_asked(broker, header, request))
    if any(_find(broker, each) is None for each in wanted):
        return _after_looking_again(broker, header, request, wanted)
    return _some_topics(_asked(broker, header, request), wanted)


def _asked(broker: Broker, header: RequestHeader, request: MetadataRequest, *, seen: bool = True) -> _Asked:
    listener = client_listener()
    endpoints = reachable(broker.membership.agents, listener)
    agents = [agent for agent, _ in endpoints]
    named = eligible(agents, zone_of(header.client_id))
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    nobody = ErrorCode.LEADER_NOT_AVAILABLE
    if broker.membership.agents and not agents and header.api_version >= 6:  # as in Kafka
        nobody = ErrorCode.LISTENER_NOT_FOUND
    view = View(header.api_version, operations, _ids(named), _ids(agents), nobody)
    broker.topic_entries.use(view, broker.membership.agents, broker.membership.version, broker.listeners)
    return _Asked(broker, request, listener, endpoints, agents, named, view, seen)


def _ids(agents: Sequence[AgentInfo]) -> tuple[int, ...]:
    return tuple(agent.writer_id for agent in agents)


def _response(asked: _Asked, topics: EncodedElements) -> MetadataResponse:
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=zone or None)
            for node_id, host, port, zone in _brokers(asked)
        ],
        cluster_id=asked.broker.cluster_id,
        controller_id=asked.agents[0].writer_id if asked.agents else -1,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if asked.request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    # The field takes encoded bytes in place of a list (see EncodedElements); its type is that of a reader.
    response.topics = topics  # pyright: ignore[reportAttributeAccessIssue]
    return response


def _brokers(asked: _Asked) -> Iterable[tuple[int, str, int, str]]:
    """(node id, host, port, zone) of each."""
    for agent, endpoint in asked.endpoints:
        yield agent.writer_id, endpoint.host, endpoint.port, agent.address.zone
    bootstrap = asked.broker.bootstrap
    if bootstrap is not None and asked.listener == asked.broker.listeners[0]:
        yield BOOTSTRAP_NODE_ID, bootstrap.host, bootstrap.port, ""


# ---- all topics


async def _all_topics_of_the_present(
    broker: Broker, header: RequestHeader, request: MetadataRequest
) -> MetadataResponse:
    await broker.present_topics.see()  # without the store, answer with what we know
    answer = _all_topics(_asked(broker, header, request))
    return answer if isinstance(answer, MetadataResponse) else await answer


def _all_topics(asked: _Asked) -> MetadataResponse | Awaitable[MetadataResponse]:
    everything = asked.broker.topic_entries.everything(asked.view, asked.broker.topic_cache.version)
    return _join_all(asked) if everything is None else _response(asked, everything)


async def _join_all(asked: _Asked) -> MetadataResponse:
    broker, view = asked.broker, asked.view
    async with broker.topic_entries_lock:
        # Looked up again under the lock: the client in front may have encoded exactly this.
        version = broker.topic_cache.version
        everything = broker.topic_entries.everything(view, version)
        if everything is None:
            topics = broker.topic_cache.topics()
            everything = EncodedElements(len(topics), (b"".join(await _make(asked, topics)),))
            # If a topic changed meanwhile, this answer is still true of its instant, but must not be kept.
            if broker.topic_cache.version == version:
                broker.topic_entries.put_everything(view, version, topics, everything)
    return _response(asked, everything)


# ---- some topics


async def _after_looking_again(
    broker: Broker, header: RequestHeader, request: MetadataRequest, wanted: Sequence[MetadataRequestTopic]
) -> MetadataResponse:
    seen = await _look_again(broker, wanted, request.allow_auto_topic_creation)
    answer = _some_topics(_asked(broker, header, request, seen=seen), wanted)
    return answer if isinstance(answer, MetadataResponse) else await answer


def _some_topics(
    asked: _Asked, wanted: Sequence[MetadataRequestTopic]
) -> MetadataResponse | Awaitable[MetadataResponse]:
    found = [_find(asked.broker, each) for each in wanted]
    ready: dict[UUID, bytes] = {}
    missing: dict[UUID, Topic] = {}
    for topic in found:
        if topic is None or topic.topic_id in ready:
            continue
        entry = asked.broker.topic_entries.entry(asked.view, topic)
        if entry is None:
            missing[topic.topic_id] = topic
        else:
            ready[topic.topic_id] = entry
    # Few entries are encoded right here: that costs less than a task and the lock.
    if sum(len(topic.partition_ids) for topic in missing.values()) > SLICE_PARTITIONS:
        return _make_missing(asked, wanted, found, ready, missing)
    for topic in missing.values():
        partitions = encode_partitions(asked.view, topic, range(len(topic.partition_ids)), asked.named, asked.agents)
        ready[topic.topic_id] = _keep(asked, topic, [partitions])
    return _joined(asked, wanted, found, ready)


async def _make_missing(
    asked: _Asked,
    wanted: Sequence[MetadataRequestTopic],
    found: Sequence[Topic | None],
    ready: Mapping[UUID, bytes],
    missing: Mapping[UUID, Topic],
) -> MetadataResponse:
    async with asked.broker.topic_entries_lock:
        made = await _make(asked, list(missing.values()))
    return _joined(asked, wanted, found, {**ready, **dict(zip(missing, made, strict=True))})


def _joined(
    asked: _Asked,
    wanted: Sequence[MetadataRequestTopic],
    found: Sequence[Topic | None],
    entries: Mapping[UUID, bytes],
) -> MetadataResponse:
    parts = [
        encode_error(asked.view, _unknown(asked, each)) if topic is None else entries[topic.topic_id]
        for each, topic in zip(wanted, found, strict=True)
    ]
    return _response(asked, EncodedElements(len(parts), (b"".join(parts),)))


# ---- entries


async def _make(asked: _Asked, topics: Sequence[Topic]) -> list[bytes]:
    """The entries of these topics, from memory or encoded now, without blocking the event loop for long."""
    made: list[bytes] = []
    pace = _Pace(asked.broker.runtime.clock)
    for number, topic in enumerate(topics):
        entry = asked.broker.topic_entries.entry(asked.view, topic)
        if entry is None:
            slices: list[bytes] = []
            count = len(topic.partition_ids)
            for start in range(0, count, SLICE_PARTITIONS):
                numbers = range(start, min(start + SLICE_PARTITIONS, count))
                slices.append(encode_partitions(asked.view, topic, numbers, asked.named, asked.agents))
                # Small topics are paced by number of topics, below.
                if count > SLICE_PARTITIONS:
                    await pace.breathe()
            entry = _keep(asked, topic, slices)
        made.append(entry)
        if number % SLICE_TOPICS == 0:
            await pace.breathe()
    return made


def _keep(asked: _Asked, topic: Topic, partitions: Sequence[bytes]) -> bytes:
    entry = encode_topic(asked.view, topic, partitions)
    asked.broker.topic_entries.put_entry(asked.view, topic, entry)
    return entry


class _Pace:
    """Gives the event loop a turn once in SLICE_MS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_ms = clock.monotonic_ms() + SLICE_MS

    async def breathe(self) -> None:
        if self._clock.monotonic_ms() >= self._due_ms:
            await asyncio.sleep(0)
            self._due_ms = self._clock.monotonic_ms() + SLICE_MS


# ---- topics that are not there


def _find(broker: Broker, wanted: MetadataRequestTopic) -> Topic | None:
    if wanted.name is not None:
        return broker.topic_cache.topic(wanted.name)
    return broker.topic_cache.topic_by_id(wanted.topic_id)


async def _look_again(broker: Broker, wanted: Sequence[MetadataRequestTopic], allow_creation: bool) -> bool:
    """See the present, and create the topics that are still missing if both flags allow it. False: the topics that are
    not known may exist, because the store did not say in time."""
    if not await broker.present_topics.see():
        return False
    if not (allow_creation and broker.settings.auto_create_topics_enable):
        return True
    missing = {each.name for each in wanted if each.name is not None and not broker.topic_cache.topic(each.name)}
    try:
        async with asyncio.timeout(CREATE_MS_MAX / 1000):
            created = [await _create(broker, name) for name in sorted(missing)[:CREATED_PER_REQUEST_MAX]]
            if any(created):
                await broker.hint_others()
                await broker.follower.catch_up()
    except (SiltstoneError, TimeoutError):
        return False
    return True


async def _create(broker: Broker, name: str) -> bool:
    try:
        check_new_name(name)
        await broker.metadata.agents.create_topic(name, partitions=broker.settings.num_partitions, configs={})
    except RequestError:
        return False
    except TopicExistsError:
        pass  # another agent was quicker
    return True


def _unknown(asked: _Asked, wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    if wanted.name is None:
        # The answer may leave the name out only from v12 on; before that no client can ask by id alone.
        name = None if asked.view.api_version >= 12 else ""
        error = ErrorCode.UNKNOWN_TOPIC_ID if asked.seen else ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponseTopic(error_code=error, name=name, topic_id=wanted.topic_id)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if asked.seen else ErrorCode.LEADER_NOT_AVAILABLE
    try:
        check_name(wanted.name)
    except RequestError as refused:
        error = code_of(refused)
    return MetadataResponseTopic(error_code=error, name=wanted.name, topic_id=ZERO_UUID)
