"""CreateTopics 2-7. -1 partitions or replicas mean the broker's defaults. Topics succeed and fail one by one.

Any replication factor from 1 is accepted and kept, also above the number of live agents, because the object store
replicates: it says how many agents Metadata shows as replicas. Of a manual assignment only the number of replicas is
kept. Its broker ids are not compared with the live agents, which come and go.
"""

from __future__ import annotations

from collections import Counter

from agents.broker import Broker
from agents.handlers.config_entries import TOPIC_OVERRIDE, topic_entries
from agents.security.refusals import check_right
from agents.topics.rules import (
    RequestError,
    assigned_replicas,
    check_configs,
    check_new_name,
    check_partitions,
    code_of,
)
from agents.yielding import LoopYielder
from metadata.configs.broker import topic_defaults
from metadata.rules.refusals import check_cluster_partitions, topic_exists
from runtime.errors import SiltstoneError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TOPICS_PER_TURN = 100
"""Topics that are only validated, and described, before the event loop gets a turn: some 20 ms."""
REPLICATION_FACTOR = 1
"""Kafka's `default.replication.factor`, which is fixed here."""


async def handle(broker: Broker, header: RequestHeader, request: CreateTopicsRequest) -> CreateTopicsResponse:
    try:
        # Another agent may have deleted a topic that this one still knows, or created one.
        await broker.follower.catch_up()
    except SiltstoneError as error:
        return CreateTopicsResponse(topics=_all_failed(request, error))
    of_cluster = broker.rights().holds_cluster(Operation.CREATE)
    named = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    told: set[str] = set()
    async for asked in LoopYielder(TOPICS_PER_TURN).through(request.topics):
        if named[asked.name] > 1:
            # Kafka answers a name that comes twice once, with the error.
            if asked.name not in told:
                told.add(asked.name)
                error = RequestError(ErrorCode.INVALID_REQUEST, f"topic {asked.name!r} is named more than once")
                results.append(_failed(asked, error))
            continue
        try:
            if not of_cluster:
                check_right(broker.rights(), Operation.CREATE, ResourceType.TOPIC, asked.name)
            results.append(_shown(broker, await _create(broker, header, asked, validate_only=request.validate_only)))
        except SiltstoneError as error:
            results.append(_failed(asked, error))
    if not request.validate_only:
        await _see_own_writes(broker)
    return CreateTopicsResponse(topics=results)


async def _create(
    broker: Broker, header: RequestHeader, asked: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    check_new_name(asked.name)
    partitions, replication_factor = _partitions(broker, asked)
    check_partitions(partitions)
    configs = _configs(asked)
    check_configs(configs, topic_defaults(broker.topic_cache.broker_configs))
    if broker.topic_cache.topic(asked.name) is not None:
        raise topic_exists(asked.name)
    partitions_max = broker.settings.cluster_partitions_max
    if validate_only:
        check_cluster_partitions(broker.topic_cache.partitions_count, partitions, partitions_max)
        result = _described(broker, asked.name, configs)
    else:
        broker.throttle.count_mutation(header, partitions)
        topic = await broker.metadata.agents.create_topic(
            asked.name,
            partitions=partitions,
            configs=configs,
            replication_factor=replication_factor,
            cluster_partitions_max=partitions_max,
        )
        await broker.hint_others()
        result = _described(broker, topic.name, configs)
        result.topic_id = topic.topic_id
    result.num_partitions, result.replication_factor = partitions, replication_factor
    return result


def _configs(asked: CreatableTopic) -> dict[str, str]:
    """Raises RequestError(INVALID_CONFIG) for a config without a value."""
    configs: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"config {config.name!r} needs a value")
        configs[config.name] = config.value
    return configs


def _partitions(broker: Broker, asked: CreatableTopic) -> tuple[int, int]:
    """How many partitions and replicas were asked for."""
    if asked.assignments:
        if asked.num_partitions != -1 or asked.replication_factor != -1:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "give either partitions and replication factor, or assignments, not both"
            )
        if sorted(each.partition_index for each in asked.assignments) != list(range(len(asked.assignments))):
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assigned partitions must be numbered 0 to n-1, each once"
            )
        return len(asked.assignments), assigned_replicas([each.broker_ids for each in asked.assignments])
    if asked.replication_factor == 0 or asked.replication_factor < -1:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {asked.replication_factor} is not -1 or at least 1 (any such value is accepted: "
            "the object store replicates)",
        )
    return (
        broker.settings.num_partitions if asked.num_partitions == -1 else asked.num_partitions,
        REPLICATION_FACTOR if asked.replication_factor == -1 else asked.replication_factor,
    )


async def _see_own_writes(broker: Broker) -> None:
    """A client that just created a topic may produce through this agent at once."""
    try:
        await broker.follower.catch_up()
    except SiltstoneError:
        return  # created all the same; the follower sees it when the store answers again


def _described(broker: Broker, name: str, configs: dict[str, str]) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        error_message=None,
        configs=[
            CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
            for entry in topic_entries(configs, broker.topic_cache.broker_configs, broker.settings)
            if entry.source == TOPIC_OVERRIDE or entry.value
        ],
    )


def _shown(broker: Broker, result: CreatableTopicResult) -> CreatableTopicResult:
    """Without what the client may not see: the topic is created all the same, as in Kafka."""
    if not broker.rights().sees(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = -1
        result.configs = []
    return result


def _failed(asked: CreatableTopic, error: SiltstoneError) -> CreatableTopicResult:
    return CreatableTopicResult(name=asked.name, error_code=code_of(error), error_message=str(error))


def _all_failed(request: CreateTopicsRequest, error: SiltstoneError) -> list[CreatableTopicResult]:
    by_name = {asked.name: asked for asked in request.topics}  # as in Kafka, one result per name
    return [_failed(asked, error) for asked in by_name.values()]
