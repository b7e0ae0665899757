"""AlterPartitionReassignments, key 45 (KIP-455): null replicas cancel; whether the number of replicas may change from
v1 (KIP-860)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class ReassignablePartition(Struct):
    partition_index: int = field(int32, "0+")
    replicas: list[int] | None = field(array(int32), "0+", nullable="0+", default=None)


@struct
class ReassignableTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[ReassignablePartition] = field(array(ReassignablePartition), "0+")


@message(api_key=45, kind="request", versions="0-1", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: int = field(int32, "0+", default=60_000)
    allow_replication_factor_change: bool = field(boolean, "1+", default=True)
    topics: list[ReassignableTopic] = field(array(ReassignableTopic), "0+")


@struct
class ReassignablePartitionResponse(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")


@struct
class ReassignableTopicResponse(Struct):
    name: str = field(string, "0+")
    partitions: list[ReassignablePartitionResponse] = field(array(ReassignablePartitionResponse), "0+")


@message(api_key=45, kind="response", versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    allow_replication_factor_change: bool = field(boolean, "1+", default=True, ignorable=True)
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = field(array(ReassignableTopicResponse), "0+")
