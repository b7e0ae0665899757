"""ListPartitionReassignments, key 46 (KIP-455): null topics ask for every reassignment in progress."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@struct
class ListPartitionReassignmentsTopics(Struct):
    name: str = field(string, "0+")
    partition_indexes: list[int] = field(array(int32), "0+")


@message(api_key=46, kind="request", versions="0", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ListPartitionReassignmentsRequest(Message):
    timeout_ms: int = field(int32, "0+", default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        array(ListPartitionReassignmentsTopics), "0+", nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment(Struct):
    partition_index: int = field(int32, "0+")
    replicas: list[int] = field(array(int32), "0+")
    adding_replicas: list[int] = field(array(int32), "0+")
    removing_replicas: list[int] = field(array(int32), "0+")


@struct
class OngoingTopicReassignment(Struct):
    name: str = field(string, "0+")
    partitions: list[OngoingPartitionReassignment] = field(array(OngoingPartitionReassignment), "0+")


@message(api_key=46, kind="response", versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = field(array(OngoingTopicReassignment), "0+")
