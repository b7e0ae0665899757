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
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nsmallest
from typing import TypeAlias
from uuid import UUID

from agents.broker import Broker
from agents.listeners.endpoints import reachable
from agents.placement import eligible, zone_of
from agents.request_context import client_listener
from agents.security.rights import Rights, allowed_in_turns
from agents.topics.rules import RequestError, check_name, check_new_name, code_of
from agents.topics.topic_entries import View, encode_error, encode_partitions, encode_topic
from agents.yielding import LoopYielder, chunks_with_yields
from metadata.contract.leases import AgentInfo, Endpoint
from metadata.contract.topics import TooManyPartitionsError, Topic, TopicExistsError
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from security.acls.operations import TOPIC_OPERATIONS
from security.acls.values import Operation, ResourceType
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
ALL_TOPIC_OPERATIONS = sum(1 << operation for operation in TOPIC_OPERATIONS)
"""For a client that may do everything."""
SLICE_PARTITIONS = 256
"""Entries encoded without looking at the clock: about a millisecond."""
SLICE_TOPICS = 64
SLICE_WANTED = 1_000
"""Topics that a request names, answered before the event loop gets a turn: of those that do not exist an error is
encoded."""
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
    rights: Rights
    seen: bool
    """A topic that is not known does not exist."""
    not_created: Set[str] = frozenset()
    """Names that the client asks for and may not create."""

    def view_of(self, topic: Topic) -> View:
        """A client that may not do everything with every topic is told for each one what it may do."""
        if self.rights.is_unlimited or not self.request.include_topic_authorized_operations:
            return self.view
        view = self.view._replace(operations=self.rights.mask(TOPIC_OPERATIONS, ResourceType.TOPIC, topic.name))
        self.broker.topic_entries.use(view, self.agents, self.broker.membership.version)
        return view

    def shows(self, topic: Topic) -> bool:
        return self.rights.is_unlimited or self.rights.sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)


_Told: TypeAlias = Topic | MetadataResponseTopic | None
"""A topic to tell, an error to tell in its place, or None: it is not known."""


def handle(
    broker: Broker, header: RequestHeader, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    wanted = request.topics
    if wanted and len(wanted) > SLICE_WANTED:
        return _many_topics(broker, header, request, wanted)
    if wanted:
        # A topic is answered once however often it is named, as in Kafka.
        wanted = list({(each.name, each.topic_id): each for each in wanted}.values())
    if wanted is None or (header.api_version == 0 and not wanted):
        if broker.follower.is_late:
            return _all_topics_of_the_present(broker, header, request)
        return _all_topics(_asked(broker, header, request))
    rights = broker.rights()
    if any(_find(broker, each) is None and _may_look(rights, each) for each in wanted):
        return _after_looking_again(broker, header, request, wanted)
    return _some_topics(_asked(broker, header, request), wanted)


def _may_look(rights: Rights, wanted: MetadataRequestTopic) -> bool:
    """Ids are no secret, and tell no name."""
    return wanted.name is None or rights.sees(Operation.DESCRIBE, ResourceType.TOPIC, wanted.name)


def _asked(
    broker: Broker,
    header: RequestHeader,
    request: MetadataRequest,
    *,
    seen: bool = True,
    not_created: Set[str] = frozenset(),
) -> _Asked:
    listener = client_listener()
    endpoints = reachable(broker.membership.agents, listener)
    agents = [agent for agent, _ in endpoints]
    named = eligible(agents, zone_of(header.client_id))
    operations = ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    nobody = ErrorCode.LEADER_NOT_AVAILABLE
    if broker.membership.agents and not agents and header.api_version >= 6:  # as in Kafka
        nobody = ErrorCode.LISTENER_NOT_FOUND
    view = View(header.api_version, operations, _ids(named), _ids(agents), nobody)
    broker.topic_entries.use(view, broker.membership.agents, broker.membership.version, broker.listeners)
    return _Asked(broker, request, listener, endpoints, agents, named, view, broker.rights(), seen, not_created)


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
            asked.rights.cluster_mask() if asked.request.include_cluster_authorized_operations else NOT_ASKED
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
    if not _shows_all(asked):
        return _join_shown(asked)
    everything = asked.broker.topic_entries.everything(asked.view, asked.broker.topic_cache.version)
    return _join_all(asked) if everything is None else _response(asked, everything)


def _shows_all(asked: _Asked) -> bool:
    """The answer that is kept for all clients is also this client's."""
    rights = asked.rights
    if rights.is_unlimited:
        return True
    operations = TOPIC_OPERATIONS if asked.request.include_topic_authorized_operations else (Operation.DESCRIBE,)
    return all(rights.allows_every(each, ResourceType.TOPIC) for each in operations)


async def _join_shown(asked: _Asked) -> MetadataResponse:
    """The topics that the client may describe; nothing tells that there are others."""
    shown: list[Topic] = []
    pace = _Pace(asked.broker.runtime.clock)
    topics = asked.broker.topic_cache.topics()
    for start in range(0, len(topics), SLICE_TOPICS):
        shown += filter(asked.shows, topics[start : start + SLICE_TOPICS])
        await pace.breathe()
    async with asked.broker.topic_entries_lock:
        entries = await _make(asked, shown)
    return _response(asked, EncodedElements(len(entries), (b"".join(entries),)))


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


async def _many_topics(
    broker: Broker, header: RequestHeader, request: MetadataRequest, named: Sequence[MetadataRequestTopic]
) -> MetadataResponse:
    by_key: dict[tuple[str | None, UUID], MetadataRequestTopic] = {}
    async for some in chunks_with_yields(named, SLICE_WANTED):
        by_key.update(((each.name, each.topic_id), each) for each in some)
    wanted = list(by_key.values())
    rights, seen, not_created = broker.rights(), True, frozenset[str]()
    async for some in chunks_with_yields(wanted, SLICE_WANTED):
        if any(_find(broker, each) is None and _may_look(rights, each) for each in some):
            seen, not_created = await _look_again(broker, wanted, request.allow_auto_topic_creation)
            break
    asked = _asked(broker, header, request, seen=seen, not_created=not_created)
    found: list[_Told] = []
    ready: dict[UUID, bytes] = {}
    missing: dict[UUID, Topic] = {}
    async for some in chunks_with_yields(wanted, SLICE_WANTED):
        told = _told(asked, some)
        _take_entries(asked, told, ready, missing)
        found += told
    return await _make_missing(asked, wanted, found, ready, missing)


async def _after_looking_again(
    broker: Broker, header: RequestHeader, request: MetadataRequest, wanted: Sequence[MetadataRequestTopic]
) -> MetadataResponse:
    seen, not_created = await _look_again(broker, wanted, request.allow_auto_topic_creation)
    answer = _some_topics(_asked(broker, header, request, seen=seen, not_created=not_created), wanted)
    return answer if isinstance(answer, MetadataResponse) else await answer


def _some_topics(
    asked: _Asked, wanted: Sequence[MetadataRequestTopic]
) -> MetadataResponse | Awaitable[MetadataResponse]:
    found = _told(asked, wanted)
    ready: dict[UUID, bytes] = {}
    missing: dict[UUID, Topic] = {}
    _take_entries(asked, found, ready, missing)
    # Few entries are encoded right here: that costs less than a task and the lock.
    if sum(len(topic.partition_ids) for topic in missing.values()) > SLICE_PARTITIONS:
        return _make_missing(asked, wanted, found, ready, missing)
    for topic in missing.values():
        partitions = encode_partitions(asked.view, topic, range(len(topic.partition_ids)), asked.named, asked.agents)
        ready[topic.topic_id] = _keep(asked, topic, [partitions])
    return _response(asked, EncodedElements(len(wanted), (b"".join(_parts(asked, wanted, found, ready)),)))


def _told(asked: _Asked, wanted: Sequence[MetadataRequestTopic]) -> Sequence[_Told]:
    known = [_find(asked.broker, each) for each in wanted]
    if asked.rights.is_unlimited:
        return known
    return [_allowed(asked, each, topic) for each, topic in zip(wanted, known, strict=True)]


def _take_entries(asked: _Asked, found: Sequence[_Told], ready: dict[UUID, bytes], missing: dict[UUID, Topic]) -> None:
    """The entries that are at hand, and the topics of which there is none."""
    for topic in found:
        if not isinstance(topic, Topic) or topic.topic_id in ready:
            continue
        entry = asked.broker.topic_entries.entry(asked.view_of(topic), topic)
        if entry is None:
            missing[topic.topic_id] = topic
        else:
            ready[topic.topic_id] = entry


async def _make_missing(
    asked: _Asked,
    wanted: Sequence[MetadataRequestTopic],
    found: Sequence[_Told],
    ready: Mapping[UUID, bytes],
    missing: Mapping[UUID, Topic],
) -> MetadataResponse:
    async with asked.broker.topic_entries_lock:
        made = await _make(asked, list(missing.values()))
    entries = {**ready, **dict(zip(missing, made, strict=True))}
    parts: list[bytes] = []
    for start in range(0, len(wanted), SLICE_WANTED):
        some = slice(start, start + SLICE_WANTED)
        parts += _parts(asked, wanted[some], found[some], entries)
        await asyncio.sleep(0)
    return _response(asked, EncodedElements(len(parts), (b"".join(parts),)))


def _parts(
    asked: _Asked,
    wanted: Sequence[MetadataRequestTopic],
    found: Sequence[_Told],
    entries: Mapping[UUID, bytes],
) -> list[bytes]:
    return [
        entries[topic.topic_id]
        if isinstance(topic, Topic)
        else encode_error(asked.view, _unknown(asked, each) if topic is None else topic)
        for each, topic in zip(wanted, found, strict=True)
    ]


# ---- entries


async def _make(asked: _Asked, topics: Sequence[Topic]) -> list[bytes]:
    """The entries of these topics, from memory or encoded now, without blocking the event loop for long."""
    made: list[bytes] = []
    pace = _Pace(asked.broker.runtime.clock)
    for number, topic in enumerate(topics):
        entry = asked.broker.topic_entries.entry(asked.view_of(topic), topic)
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
    view = asked.view_of(topic)
    entry = encode_topic(view, topic, partitions)
    asked.broker.topic_entries.put_entry(view, topic, entry)
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


async def _look_again(
    broker: Broker, wanted: Sequence[MetadataRequestTopic], allow_creation: bool
) -> tuple[bool, Set[str]]:
    """See the present, and create the topics that are still missing if both flags and the client's rights allow it.
    Returns False if the topics that are not known may exist, because the store did not say in time; and the topics that
    the client may not create."""
    if not await broker.present_topics.see():
        return False, frozenset()
    if not (allow_creation and broker.settings.auto_create_topics_enable):
        return True, frozenset()
    rights = broker.rights()
    missing = {
        each.name
        async for each in LoopYielder(SLICE_WANTED).through(wanted)
        if each.name is not None and not broker.topic_cache.topic(each.name) and _may_look(rights, each)
    }
    allowed = missing
    if not rights.holds_cluster(Operation.CREATE):
        allowed = await allowed_in_turns(rights, Operation.CREATE, ResourceType.TOPIC, missing)
    try:
        async with asyncio.timeout(CREATE_MS_MAX / 1000):
            created = [await _create(broker, name) for name in nsmallest(CREATED_PER_REQUEST_MAX, allowed)]
            if any(created):
                await broker.hint_others()
                await broker.follower.catch_up()
    except (SiltstoneError, TimeoutError):
        return False, missing - allowed
    return True, missing - allowed


async def _create(broker: Broker, name: str) -> bool:
    try:
        check_new_name(name)
        if not broker.throttle.may_create(broker.settings.num_partitions):
            return False
        await broker.metadata.agents.create_topic(
            name,
            partitions=broker.settings.num_partitions,
            configs={},
            cluster_partitions_max=broker.settings.cluster_partitions_max,
        )
    except (RequestError, TooManyPartitionsError):
        return False  # the topic is unknown, and the answer says so
    except TopicExistsError:
        pass  # another agent was quicker
    return True


def _allowed(asked: _Asked, wanted: MetadataRequestTopic, found: Topic | None) -> _Told:
    """The topic that was found, or the refusal to tell whether there is one."""
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if wanted.name is None:
        if found is None or asked.rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, found.name):
            return found
        name = None if asked.view.api_version >= 12 else ""
        return MetadataResponseTopic(error_code=error, name=name, topic_id=wanted.topic_id)
    if wanted.name not in asked.not_created and asked.rights.allows(
        Operation.DESCRIBE, ResourceType.TOPIC, wanted.name
    ):
        return found
    return MetadataResponseTopic(error_code=error, name=wanted.name, topic_id=ZERO_UUID)


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
    operations = NOT_ASKED
    if asked.request.include_topic_authorized_operations:  # as in Kafka, though the topic is not there
        operations = asked.rights.mask(TOPIC_OPERATIONS, ResourceType.TOPIC, wanted.name)
    return MetadataResponseTopic(
        error_code=error, name=wanted.name, topic_id=ZERO_UUID, topic_authorized_operations=operations
    )
