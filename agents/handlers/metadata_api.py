"""Metadata 0-12: which agents there are and which of them is named for each partition.

Every partition names one live agent of the client's zone as leader, its only replica and its in-sync set, by
rendezvous hashing; leader epoch 0 always, because there is nothing to diverge. In v0 an empty list asks for all
topics, from v1 null does. Topics may be created on the way, as Kafka's two flags say. A topic this agent has not
heard of is looked for in the store once before it is called unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from agents.broker import Broker
from agents.placement import eligible, leader, zone_of
from agents.topics import RequestError, check_name, code_of
from metadata.service import AgentInfo, Topic, TopicExistsError
from siltstone.errors import SiltstoneError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.schema import ZERO_UUID

CREATED_PER_REQUEST_MAX = 100
"""Topics made on the way by one request; the client asks again for the rest. Nobody types so many by intent."""
NOT_ASKED = -0x80000000
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: everything, as without an
authorizer."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


async def handle(broker: Broker, header: RequestHeader, request: MetadataRequest) -> MetadataResponse:
    agents = broker.membership.agents
    named = eligible(agents, zone_of(header.client_id))
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    wanted = request.topics
    if wanted is None or (header.api_version == 0 and not wanted):
        topics = [_describe(topic, named, operations) for topic in broker.catalog.topics()]
    else:
        if any(_find(broker, each) is None for each in wanted):
            await _look_again(broker, wanted, request.allow_auto_topic_creation)
        topics = [_answer(broker, header.api_version, each, named, operations) for each in wanted]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=agent.writer_id,
                host=agent.address.host,
                port=agent.address.port,
                rack=agent.address.zone or None,
            )
            for agent in agents
        ],
        cluster_id=broker.cluster_id,
        controller_id=agents[0].writer_id if agents else -1,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _find(broker: Broker, wanted: MetadataRequestTopic) -> Topic | None:
    if wanted.name is not None:
        return broker.catalog.topic(wanted.name)
    return broker.catalog.topic_by_id(wanted.topic_id)


async def _look_again(broker: Broker, wanted: Sequence[MetadataRequestTopic], allow_creation: bool) -> None:
    """See the present, and create what is still missing if both flags allow it. Failing leaves them unknown."""
    try:
        await broker.follower.catch_up()
        if not (allow_creation and broker.settings.auto_create_topics_enable):
            return
        missing = {each.name for each in wanted if each.name is not None and broker.catalog.topic(each.name) is None}
        created = [await _create(broker, name) for name in sorted(missing)[:CREATED_PER_REQUEST_MAX]]
        if any(created):
            await broker.follower.catch_up()
    except SiltstoneError:
        return


async def _create(broker: Broker, name: str) -> bool:
    try:
        check_name(name)
        await broker.metadata.create_topic(name, partitions=broker.settings.num_partitions, configs={})
    except RequestError:
        return False
    except TopicExistsError:
        pass  # another agent was quicker
    return True


def _answer(
    broker: Broker, version: int, wanted: MetadataRequestTopic, named: Sequence[AgentInfo], operations: int
) -> MetadataResponseTopic:
    topic = _find(broker, wanted)
    if topic is not None:
        return _describe(topic, named, operations)
    if wanted.name is None:
        # The answer may leave the name out from v12 only; until then nobody can ask by id alone.
        name = None if version >= 12 else ""
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_name(wanted.name)
    except RequestError as refused:
        error = code_of(refused)
    return MetadataResponseTopic(error_code=error, name=wanted.name, topic_id=ZERO_UUID)


def _describe(topic: Topic, named: Sequence[AgentInfo], operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[_partition(topic.topic_id, number, named) for number in range(len(topic.partition_ids))],
        topic_authorized_operations=operations,
    )


def _partition(topic_id: UUID, number: int, named: Sequence[AgentInfo]) -> MetadataResponsePartition:
    node_id = leader(topic_id, number, named)
    if node_id < 0:
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=number, leader_id=-1, leader_epoch=0
        )
    return MetadataResponsePartition(
        partition_index=number, leader_id=node_id, leader_epoch=0, replica_nodes=[node_id], isr_nodes=[node_id]
    )
