"""ElectLeaders, key 43 (KIP-183): the type of election (0 preferred, 1 unclean) from v1 (KIP-460)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class TopicPartitions(Struct):
    topic: str = field(string, "0+")
    partitions: list[int] = field(array(int32), "0+")


@message(api_key=43, kind="request", versions="0-2", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ElectLeadersRequest(Message):
    election_type: int = field(int8, "1+")
    topic_partitions: list[TopicPartitions] | None = field(array(TopicPartitions), "0+", nullable="0+")
    timeout_ms: int = field(int32, "0+", default=60_000)


@struct
class PartitionResult(Struct):
    partition_id: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")


@struct
class ReplicaElectionResult(Struct):
    topic: str = field(string, "0+")
    partition_result: list[PartitionResult] = field(array(PartitionResult), "0+")


@message(api_key=43, kind="response", versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field(array(ReplicaElectionResult), "0+")
