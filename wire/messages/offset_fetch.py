"""OffsetFetch, key 9: null topics (all of a group's) from v2 (KIP-88), stable offsets from v7, many groups from v8.

Up to v7 a request names one group in its own fields, from v8 (KIP-709) a list of them; so do the answers.
"""

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
    int64,
    message,
    string,
    struct,
)


@struct
class OffsetFetchRequestTopic(Struct):
    name: str = field(string, "0-7")
    partition_indexes: list[int] = field(array(int32), "0-7")


@struct
class OffsetFetchRequestTopics(Struct):
    name: str = field(string, "8-9", ignorable=True)
    partition_indexes: list[int] = field(array(int32), "8+")


@struct
class OffsetFetchRequestGroup(Struct):
    group_id: str = field(string, "8+")
    member_id: str | None = field(string, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(int32, "9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = field(array(OffsetFetchRequestTopics), "8+", nullable="8+")


@message(api_key=9, kind="request", versions="0-9", flexible="6+", elements_max=PARTITIONS_ELEMENTS_MAX)
class OffsetFetchRequest(Message):
    group_id: str = field(string, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = field(array(OffsetFetchRequestTopic), "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field(array(OffsetFetchRequestGroup), "8+")
    require_stable: bool = field(boolean, "7+")


@struct
class OffsetFetchResponsePartition(Struct):
    partition_index: int = field(int32, "0-7")
    committed_offset: int = field(int64, "0-7")
    committed_leader_epoch: int = field(int32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(string, "0-7", nullable="0-7")
    error_code: int = field(int16, "0-7")


@struct
class OffsetFetchResponseTopic(Struct):
    name: str = field(string, "0-7")
    partitions: list[OffsetFetchResponsePartition] = field(array(OffsetFetchResponsePartition), "0-7")


@struct
class OffsetFetchResponsePartitions(Struct):
    partition_index: int = field(int32, "8+")
    committed_offset: int = field(int64, "8+")
    committed_leader_epoch: int = field(int32, "8+", default=-1, ignorable=True)
    metadata: str | None = field(string, "8+", nullable="8+")
    error_code: int = field(int16, "8+")


@struct
class OffsetFetchResponseTopics(Struct):
    name: str = field(string, "8-9", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field(array(OffsetFetchResponsePartitions), "8+")


@struct
class OffsetFetchResponseGroup(Struct):
    group_id: str = field(string, "8+")
    topics: list[OffsetFetchResponseTopics] = field(array(OffsetFetchResponseTopics), "8+")
    error_code: int = field(int16, "8+")


@message(api_key=9, kind="response", versions="0-9", flexible="6+")
class OffsetFetchResponse(Message):
    throttle_time_ms: int = field(int32, "3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(array(OffsetFetchResponseTopic), "0-7")
    error_code: int = field(int16, "2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(array(OffsetFetchResponseGroup), "8+")
