"""DescribeProducers, key 61 (KIP-664)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class TopicRequest(Struct):
    name: str = field(string, "0+")
    partition_indexes: list[int] = field(array(int32), "0+")


@message(api_key=61, kind="request", versions="0", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = field(array(TopicRequest), "0+")


@struct
class ProducerState(Struct):
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int32, "0+")
    last_sequence: int = field(int32, "0+", default=-1)
    last_timestamp: int = field(int64, "0+", default=-1)
    coordinator_epoch: int = field(int32, "0+")
    current_txn_start_offset: int = field(int64, "0+", default=-1)


@struct
class PartitionResponse(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = field(array(ProducerState), "0+")


@struct
class TopicResponse(Struct):
    name: str = field(string, "0+")
    partitions: list[PartitionResponse] = field(array(PartitionResponse), "0+")


@message(api_key=61, kind="response", versions="0", flexible="0+")
class DescribeProducersResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    topics: list[TopicResponse] = field(array(TopicResponse), "0+")
