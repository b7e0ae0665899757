"""OffsetForLeaderEpoch, key 23 (KIP-101): the client's own leader epoch from v2 (KIP-320).

`replica_id` is on the wire from v3; its default marks a request of a debugging tool.
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
class OffsetForLeaderPartition(Struct):
    partition: int = field(int32, "0+")
    current_leader_epoch: int = field(int32, "2+", default=-1, ignorable=True)
    leader_epoch: int = field(int32, "0+")


@struct
class OffsetForLeaderTopic(Struct):
    topic: str = field(string, "0+")
    partitions: list[OffsetForLeaderPartition] = field(array(OffsetForLeaderPartition), "0+")


@message(api_key=23, kind="request", versions="0-4", flexible="4+", elements_max=PARTITIONS_ELEMENTS_MAX)
class OffsetForLeaderEpochRequest(Message):
    replica_id: int = field(int32, "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field(array(OffsetForLeaderTopic), "0+")


@struct
class EpochEndOffset(Struct):
    error_code: int = field(int16, "0+")
    partition: int = field(int32, "0+")
    leader_epoch: int = field(int32, "1+", default=-1, ignorable=True)
    end_offset: int = field(int64, "0+", default=-1)


@struct
class OffsetForLeaderTopicResult(Struct):
    topic: str = field(string, "0+")
    partitions: list[EpochEndOffset] = field(array(EpochEndOffset), "0+")


@message(api_key=23, kind="response", versions="0-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: int = field(int32, "2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field(array(OffsetForLeaderTopicResult), "0+")
