"""ElectLeaders 0-2 (KIP-460): there is nothing to elect, because every partition has its preferred leader.

A named partition is answered ELECTION_NOT_NEEDED. For "all partitions" (null) the answer names none, as in Kafka.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from agents.topics.present import has_partition, look_for, not_there
from agents.yielding import LoopYielder
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(broker: Broker, header: RequestHeader, request: ElectLeadersRequest) -> ElectLeadersResponse:
    asked = request.topic_partitions or []
    if (refused := cluster_refusal(broker.rights(), Operation.ALTER)) is not None:
        return ElectLeadersResponse(
            # Version 0 has errors in partitions alone.
            error_code=refused.code if header.api_version >= 1 else ErrorCode.NONE,
            replica_election_results=[
                ReplicaElectionResult(
                    topic=each.topic,
                    partition_result=[
                        PartitionResult(partition_id=number, error_code=refused.code, error_message=str(refused))
                        for number in each.partitions
                    ],
                )
                async for each in LoopYielder().through(asked)
            ],
        )
    seen = await look_for(broker, ((each.topic, number) for each in asked for number in each.partitions))
    results: list[ReplicaElectionResult] = []
    yielder = LoopYielder()
    async for each in yielder.through(asked):
        answered = [_result(broker, each.topic, number, seen=seen) async for number in yielder.through(each.partitions)]
        results.append(ReplicaElectionResult(topic=each.topic, partition_result=answered))
    return ElectLeadersResponse(replica_election_results=results)


def _result(broker: Broker, name: str, number: int, *, seen: bool) -> PartitionResult:
    if has_partition(broker.topic_cache, name, number):
        return PartitionResult(
            partition_id=number,
            error_code=ErrorCode.ELECTION_NOT_NEEDED,
            error_message="any agent serves any partition: there is no leader to elect",
        )
    error = not_there(f"partition {number} of a topic {name!r}", seen=seen)
    return PartitionResult(partition_id=number, error_code=error.code, error_message=str(error))
