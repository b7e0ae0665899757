"""OffsetCommit, key 8: a retention of its own in v2 to v4 (KIP-211), leader epochs from v6 (KIP-320).

Version 0 has neither generation nor member; version 1 has a timestamp for each partition.
"""

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
class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(int32, "0+")
    committed_offset: int = field(int64, "0+")
    committed_leader_epoch: int = field(int32, "6+", default=-1, ignorable=True)
    commit_timestamp: int = field(int64, "1", default=-1)
    committed_metadata: str | None = field(string, "0+", nullable="0+")


@struct
class OffsetCommitRequestTopic(Struct):
    name: str = field(string, "0-9", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field(array(OffsetCommitRequestPartition), "0+")


@message(api_key=8, kind="request", versions="0-9", flexible="8+", elements_max=PARTITIONS_ELEMENTS_MAX)
class OffsetCommitRequest(Message):
    group_id: str = field(string, "0+")
    generation_id_or_member_epoch: int = field(int32, "1+", default=-1, ignorable=True)
    member_id: str = field(string, "1+", ignorable=True)
    group_instance_id: str | None = field(string, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(int64, "2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field(array(OffsetCommitRequestTopic), "0+")


@struct
class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")


@struct
class OffsetCommitResponseTopic(Struct):
    name: str = field(string, "0-9", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field(array(OffsetCommitResponsePartition), "0+")


@message(api_key=8, kind="response", versions="0-9", flexible="8+")
class OffsetCommitResponse(Message):
    throttle_time_ms: int = field(int32, "3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field(array(OffsetCommitResponseTopic), "0+")
