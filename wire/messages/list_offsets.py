"""ListOffsets, key 2: a list of offsets in v0, one offset and its timestamp from v1 (KIP-79).

Versions 7 to 9 change no layout, only what a negative timestamp may ask for: -3 from v7 (KIP-734), -4 from v8
(KIP-405), -5 from v9 (KIP-1005).
"""

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
    int64,
    message,
    string,
    struct,
)


@struct
class ListOffsetsPartition(Struct):
    partition_index: int = field(int32, "0+")
    current_leader_epoch: int = field(int32, "4+", default=-1, ignorable=True)
    timestamp: int = field(int64, "0+")
    max_num_offsets: int = field(int32, "0", default=1)


@struct
class ListOffsetsTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[ListOffsetsPartition] = field(array(ListOffsetsPartition), "0+")


@message(api_key=2, kind="request", versions="0-9", flexible="6+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ListOffsetsRequest(Message):
    replica_id: int = field(int32, "0+")
    isolation_level: int = field(int8, "2+")
    topics: list[ListOffsetsTopic] = field(array(ListOffsetsTopic), "0+")


@struct
class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    old_style_offsets: list[int] = field(array(int64), "0")
    timestamp: int = field(int64, "1+", default=-1)
    offset: int = field(int64, "1+", default=-1)
    leader_epoch: int = field(int32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse(Struct):
    name: str = field(string, "0+")
    partitions: list[ListOffsetsPartitionResponse] = field(array(ListOffsetsPartitionResponse), "0+")


@message(api_key=2, kind="response", versions="0-9", flexible="6+")
class ListOffsetsResponse(Message):
    throttle_time_ms: int = field(int32, "2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field(array(ListOffsetsTopicResponse), "0+")
