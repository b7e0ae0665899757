"""AlterReplicaLogDirs 1-2 (KIP-113): all records lie in the one "log dir" that DescribeLogDirs shows. A request that
names it changes nothing and succeeds; there is no other."""

from __future__ import annotations

from contextlib import suppress

from agents.broker import Broker
from agents.handlers.describe_log_dirs import LOG_DIR
from agents.yielding import LoopYielder
from runtime.errors import SiltstoneError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(
    broker: Broker, header: RequestHeader, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    asked = [(each.path, topic) for each in request.dirs for topic in each.topics]
    if any(broker.topic_cache.topic(topic.name) is None for _, topic in asked):
        with suppress(SiltstoneError):  # without the store, answer with what we know
            await broker.follower.catch_up()
    results: list[AlterReplicaLogDirTopicResult] = []
    yielder = LoopYielder()
    async for path, topic in yielder.through(asked):
        partitions = [
            AlterReplicaLogDirPartitionResult(
                partition_index=number, error_code=_code(broker, path, topic.name, number)
            )
            async for number in yielder.through(topic.partitions)
        ]
        results.append(AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def _code(broker: Broker, path: str, name: str, number: int) -> ErrorCode:
    topic = broker.topic_cache.topic(name)
    if topic is None or not 0 <= number < len(topic.partition_ids):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if path == LOG_DIR else ErrorCode.LOG_DIR_NOT_FOUND
