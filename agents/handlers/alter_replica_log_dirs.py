"""AlterReplicaLogDirs 1-2 (KIP-113): all records lie in the one "log dir" that DescribeLogDirs shows. A request that
names it changes nothing and succeeds; there is no other."""

from __future__ import annotations

from agents.broker import Broker
from agents.handlers.describe_log_dirs import LOG_DIR
from agents.security.refusals import cluster_refusal
from agents.topics.present import has_partition, look_for, not_there
from agents.yielding import LoopYielder
from security.acls.values import Operation
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
    if (refused := cluster_refusal(broker.rights(), Operation.ALTER)) is not None:
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name=topic.name,
                    partitions=[
                        AlterReplicaLogDirPartitionResult(partition_index=number, error_code=refused.code)
                        for number in topic.partitions
                    ],
                )
                async for each in LoopYielder().through(request.dirs)
                for topic in each.topics
            ]
        )
    asked = [(each.path, topic) for each in request.dirs for topic in each.topics]
    seen = await look_for(broker, ((topic.name, number) for _, topic in asked for number in topic.partitions))
    results: list[AlterReplicaLogDirTopicResult] = []
    yielder = LoopYielder()
    async for path, topic in yielder.through(asked):
        partitions = [
            AlterReplicaLogDirPartitionResult(
                partition_index=number, error_code=_code(broker, path, topic.name, number, seen=seen)
            )
            async for number in yielder.through(topic.partitions)
        ]
        results.append(AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=partitions))
    return AlterReplicaLogDirsResponse(results=results)


def _code(broker: Broker, path: str, name: str, number: int, *, seen: bool) -> ErrorCode:
    if not has_partition(broker.topic_cache, name, number):
        return not_there(f"partition {number} of a topic {name!r}", seen=seen).code
    return ErrorCode.NONE if path == LOG_DIR else ErrorCode.LOG_DIR_NOT_FOUND
