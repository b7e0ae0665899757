"""OffsetDelete, key 47 (KIP-496): its only version is not a flexible one."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@struct
class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(int32, "0+")


@struct
class OffsetDeleteRequestTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[OffsetDeleteRequestPartition] = field(array(OffsetDeleteRequestPartition), "0+")


@message(api_key=47, kind="request", versions="0", elements_max=PARTITIONS_ELEMENTS_MAX)
class OffsetDeleteRequest(Message):
    group_id: str = field(string, "0+")
    topics: list[OffsetDeleteRequestTopic] = field(array(OffsetDeleteRequestTopic), "0+")


@struct
class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")


@struct
class OffsetDeleteResponseTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[OffsetDeleteResponsePartition] = field(array(OffsetDeleteResponsePartition), "0+")


@message(api_key=47, kind="response", versions="0")
class OffsetDeleteResponse(Message):
    error_code: int = field(int16, "0+")
    throttle_time_ms: int = field(int32, "0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field(array(OffsetDeleteResponseTopic), "0+")
