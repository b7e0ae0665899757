"""Fetch, key 1: sessions from v7 (KIP-227), leader epochs from v9 (KIP-320), racks from v11 (KIP-392).

Topics have ids instead of names from v13 (KIP-516), followers an epoch from v15 (KIP-903), and responses the addresses
of new leaders from v16 (KIP-951). `replica_state` carries a follower from v15 on; a consumer does not send it, so it is
None.
"""

from __future__ import annotations

from uuid import UUID

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    RecordData,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    uuid,
)


@struct
class ReplicaState(Struct):
    replica_id: int = field(int32, "15+", default=-1)
    replica_epoch: int = field(int64, "15+", default=-1)


@struct
class FetchPartition(Struct):
    partition: int = field(int32, "0+")
    current_leader_epoch: int = field(int32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(int64, "0+")
    last_fetched_epoch: int = field(int32, "12+", default=-1)
    log_start_offset: int = field(int64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(int32, "0+")


@struct
class FetchTopic(Struct):
    topic: str = field(string, "0-12", ignorable=True)
    topic_id: UUID = field(uuid, "13+", ignorable=True)
    partitions: list[FetchPartition] = field(array(FetchPartition), "0+")


@struct
class ForgottenTopic(Struct):
    topic: str = field(string, "7-12", ignorable=True)
    topic_id: UUID = field(uuid, "13+", ignorable=True)
    partitions: list[int] = field(array(int32), "7+")


@message(api_key=1, kind="request", versions="4-16", flexible="12+", elements_max=PARTITIONS_ELEMENTS_MAX)
class FetchRequest(Message):
    cluster_id: str | None = field(string, "12+", nullable="12+", default=None, tag=0, ignorable=True)
    replica_id: int = field(int32, "0-14", default=-1)
    replica_state: ReplicaState | None = field(nested(ReplicaState), "15+", default=None, tag=1)
    max_wait_ms: int = field(int32, "0+")
    min_bytes: int = field(int32, "0+")
    max_bytes: int = field(int32, "3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = field(int8, "4+", ignorable=True)
    session_id: int = field(int32, "7+", ignorable=True)
    session_epoch: int = field(int32, "7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = field(array(FetchTopic), "0+")
    forgotten_topics_data: list[ForgottenTopic] = field(array(ForgottenTopic), "7+")
    rack_id: str = field(string, "11+", ignorable=True)


@struct
class EpochEndOffset(Struct):
    epoch: int = field(int32, "12+", default=-1)
    end_offset: int = field(int64, "12+", default=-1)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32, "12+", default=-1)
    leader_epoch: int = field(int32, "12+", default=-1)


@struct
class SnapshotId(Struct):
    end_offset: int = field(int64, "0+", default=-1)
    epoch: int = field(int32, "0+", default=-1)


@struct
class AbortedTransaction(Struct):
    producer_id: int = field(int64, "4+")
    first_offset: int = field(int64, "4+")


@struct
class PartitionData(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    high_watermark: int = field(int64, "0+")
    last_stable_offset: int = field(int64, "4+", default=-1, ignorable=True)
    log_start_offset: int = field(int64, "5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = field(nested(EpochEndOffset), "12+", default=None, tag=0)
    current_leader: LeaderIdAndEpoch | None = field(nested(LeaderIdAndEpoch), "12+", default=None, tag=1)
    snapshot_id: SnapshotId | None = field(nested(SnapshotId), "12+", default=None, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        array(AbortedTransaction), "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = field(int32, "11+", default=-1)
    records: RecordData | None = field(records, "0+", nullable="0+")


@struct
class FetchableTopicResponse(Struct):
    topic: str = field(string, "0-12", ignorable=True)
    topic_id: UUID = field(uuid, "13+", ignorable=True)
    partitions: list[PartitionData] = field(array(PartitionData), "0+")


@struct
class NodeEndpoint(Struct):
    node_id: int = field(int32, "16+")
    host: str = field(string, "16+")
    port: int = field(int32, "16+")
    rack: str | None = field(string, "16+", nullable="16+", default=None)


@message(api_key=1, kind="response", versions="4-16", flexible="12+")
class FetchResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "7+", ignorable=True)
    session_id: int = field(int32, "7+")
    responses: list[FetchableTopicResponse] = field(array(FetchableTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "16+", tag=0)
