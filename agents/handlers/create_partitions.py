"""CreatePartitions 0-3 (KIP-195): grow a topic. Assignments are checked as in Kafka and then ignored, because there are
no replicas to place.

When a compacted topic grows, clients send some keys to another partition, and the last record of such a key in the old
partition stays. Kafka says nothing; here the agent warns in its log, and the command line warns its user.
"""

from __future__ import annotations

from collections import Counter

from agents.broker import Broker
from agents.security.refusals import check_right
from agents.topics.rules import RequestError, assigned_replicas, check_partitions, code_of
from agents.yielding import LoopYielder
from metadata.rules.refusals import check_cluster_partitions
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_log = get_logger(__name__)


async def handle(broker: Broker, header: RequestHeader, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    try:
        # The present number of partitions decides. The second catch-up, below, lets a client produce to the new ones at
        # once.
        await broker.follower.catch_up()
        async for asked in LoopYielder().through(request.topics):
            results[asked.name] = await _grow(
                broker, header, asked, validate_only=request.validate_only, named_once=named[asked.name] == 1
            )
        if not request.validate_only:
            await broker.follower.catch_up()
    except SiltstoneError as error:
        # Topics that have grown keep their result; only the others get this error.
        for asked in request.topics:
            results.setdefault(asked.name, _result(asked, error))
    return CreatePartitionsResponse(results=list(results.values()))


async def _grow(
    broker: Broker, header: RequestHeader, asked: CreatePartitionsTopic, *, validate_only: bool, named_once: bool
) -> CreatePartitionsTopicResult:
    try:
        if not named_once:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"topic {asked.name!r} is named more than once")
        check_right(broker.rights(), Operation.ALTER, ResourceType.TOPIC, asked.name)
        topic = broker.topic_cache.topic(asked.name)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {asked.name!r}")
        present = len(topic.partition_ids)
        if asked.count <= present:
            raise RequestError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {asked.name!r} has {present} partitions; ask for more than that, not for {asked.count}",
            )
        check_partitions(asked.count)
        _check_assignments(asked, new=asked.count - present)
        partitions_max = broker.settings.cluster_partitions_max
        if validate_only:
            check_cluster_partitions(broker.topic_cache.partitions_count, asked.count - present, partitions_max)
        else:
            broker.throttle.count_mutation(header, asked.count - present)
            await broker.metadata.agents.create_partitions(
                topic.topic_id, asked.count, cluster_partitions_max=partitions_max
            )
            await broker.hint_others()
            if broker.topic_cache.rules(topic).compacted:
                _log.warning(
                    "a compacted topic grew: keys that move to another partition keep an old record in the former one",
                    topic=asked.name,
                    partitions=asked.count,
                )
    except SiltstoneError as error:
        return _result(asked, error)
    return CreatePartitionsTopicResult(name=asked.name)


def _check_assignments(asked: CreatePartitionsTopic, *, new: int) -> None:
    """Raises RequestError(INVALID_REPLICA_ASSIGNMENT).

    The number of replicas is not compared with the topic's: a client that sees fewer agents than that cannot know it.
    """
    if not asked.assignments:
        return
    if len(asked.assignments) != new:
        raise RequestError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(asked.assignments)} assignments for {new} new partitions of topic {asked.name!r}",
        )
    assigned_replicas([each.broker_ids for each in asked.assignments])


def _result(asked: CreatePartitionsTopic, error: SiltstoneError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=asked.name, error_code=code_of(error), error_message=str(error))
