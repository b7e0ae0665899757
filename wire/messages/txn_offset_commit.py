"""TxnOffsetCommit, key 28: leader epochs from v2, the consumer's place in its group from v3 (KIP-447).

In v5 it also adds the group to the transaction (KIP-890). TRANSACTION_ABORTABLE may be answered from v4.
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
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(int32, "0+")
    committed_offset: int = field(int64, "0+")
    committed_leader_epoch: int = field(int32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(string, "0+", nullable="0+")


@struct
class TxnOffsetCommitRequestTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[TxnOffsetCommitRequestPartition] = field(array(TxnOffsetCommitRequestPartition), "0+")


@message(api_key=28, kind="request", versions="0-5", flexible="3+", elements_max=PARTITIONS_ELEMENTS_MAX)
class TxnOffsetCommitRequest(Message):
    transactional_id: str = field(string, "0+")
    group_id: str = field(string, "0+")
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int16, "0+")
    generation_id: int = field(int32, "3+", default=-1)
    member_id: str = field(string, "3+")
    group_instance_id: str | None = field(string, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field(array(TxnOffsetCommitRequestTopic), "0+")


@struct
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")


@struct
class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[TxnOffsetCommitResponsePartition] = field(array(TxnOffsetCommitResponsePartition), "0+")


@message(api_key=28, kind="response", versions="0-5", flexible="3+")
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    topics: list[TxnOffsetCommitResponseTopic] = field(array(TxnOffsetCommitResponseTopic), "0+")
