"""ElectLeaders 0-2 (KIP-460): there is nothing to elect, because every partition has its preferred leader.

A named partition is answered ELECTION_NOT_NEEDED. For "all partitions" (null) the answer names none, as in Kafka.
"""

from __future__ import annotations

from contextlib import suppress

from agents.broker import Broker
from agents.yielding import LoopYielder
from runtime.errors import SiltstoneError
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
    if any(broker.topic_cache.topic(each.topic) is None for each in asked):
        with suppress(SiltstoneError):  # without the store, answer with what we know
            await broker.follower.catch_up()
    results: list[ReplicaElectionResult] = []
    yielder = LoopYielder()
    async for each in yielder.through(asked):
        answered = [_result(broker, each.topic, number) async for number in yielder.through(each.partitions)]
        results.append(ReplicaElectionResult(topic=each.topic, partition_result=answered))
    return ElectLeadersResponse(replica_election_results=results)


def _result(broker: Broker, name: str, number: int) -> PartitionResult:
    topic = broker.topic_cache.topic(name)
    if topic is not None and 0 <= number < len(topic.partition_ids):
        return PartitionResult(
            partition_id=number,
            error_code=ErrorCode.ELECTION_NOT_NEEDED,
            error_message="any agent serves any partition: there is no leader to elect",
        )
    return PartitionResult(
        partition_id=number,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f"no partition {number} of a topic {name!r}",
    )
