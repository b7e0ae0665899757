"""AlterPartitionReassignments 0-1 (KIP-455): a request that changes nothing succeeds, any other is refused in words.

The replicas that Metadata shows are the live agents that rendezvous hashing names; nobody can place them by hand, and
no data would move. So an assignment succeeds if it names, in any order, the agents that this client is shown already.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.broker import Broker
from agents.placement import eligible, replicas, zone_of
from agents.security.refusals import cluster_refusal
from agents.topics.present import has_partition, look_for, not_there
from agents.yielding import LoopYielder
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

Refusal = tuple[ErrorCode, str]


async def handle(
    broker: Broker, header: RequestHeader, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.ALTER)) is not None:
        said = (refused.code, str(refused))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=refused.code,
            error_message=str(refused),
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[_answer(each.partition_index, said) for each in topic.partitions],
                )
                async for topic in LoopYielder().through(request.topics)
            ],
        )
    asked = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    seen = await look_for(broker, asked)
    answers: list[ReassignableTopicResponse] = []
    yielder = LoopYielder()
    async for topic in yielder.through(request.topics):
        partitions = [
            _answer(each.partition_index, _refusal(broker, header, topic.name, each, seen=seen))
            async for each in yielder.through(topic.partitions)
        ]
        answers.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=answers
    )


def _answer(number: int, refusal: Refusal | None) -> ReassignablePartitionResponse:
    error, said = refusal or (ErrorCode.NONE, None)
    return ReassignablePartitionResponse(partition_index=number, error_code=error, error_message=said)


def _refusal(
    broker: Broker, header: RequestHeader, name: str, asked: ReassignablePartition, *, seen: bool
) -> Refusal | None:
    topic, number = broker.topic_cache.topic(name), asked.partition_index
    if topic is None or not has_partition(broker.topic_cache, name, number):
        error = not_there(f"partition {number} of a topic {name!r}", seen=seen)
        return error.code, str(error)
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no partition is ever being reassigned"
    live = broker.membership.agents
    named = eligible(live, zone_of(header.client_id))
    shown = replicas(topic.topic_id, range(number, number + 1), topic.replication_factor, named, live)[0]
    return _difference(asked.replicas, shown)


def _difference(wanted: Sequence[int], shown: Sequence[int]) -> Refusal | None:
    if sorted(wanted) == sorted(shown):
        return None
    return (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"replicas {list(shown)} cannot become {list(wanted)}: any agent serves any partition, and the object store "
        "holds the records, so there is nothing to move",
    )
