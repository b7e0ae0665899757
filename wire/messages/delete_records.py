"""DeleteRecords, key 21 (KIP-107)."""

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
class DeleteRecordsPartition(Struct):
    partition_index: int = field(int32, "0+")
    offset: int = field(int64, "0+")


@struct
class DeleteRecordsTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[DeleteRecordsPartition] = field(array(DeleteRecordsPartition), "0+")


@message(api_key=21, kind="request", versions="0-2", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = field(array(DeleteRecordsTopic), "0+")
    timeout_ms: int = field(int32, "0+")


@struct
class DeleteRecordsPartitionResult(Struct):
    partition_index: int = field(int32, "0+")
    low_watermark: int = field(int64, "0+")
    error_code: int = field(int16, "0+")


@struct
class DeleteRecordsTopicResult(Struct):
    name: str = field(string, "0+")
    partitions: list[DeleteRecordsPartitionResult] = field(array(DeleteRecordsPartitionResult), "0+")


@message(api_key=21, kind="response", versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    topics: list[DeleteRecordsTopicResult] = field(array(DeleteRecordsTopicResult), "0+")
