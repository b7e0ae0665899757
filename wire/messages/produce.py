"""Produce, key 0: zstd from v7 (KIP-110), record errors from v8 (KIP-467), new leaders from v10 (KIP-951).

Topics have ids instead of names from v13 (KIP-516).

Versions 0-2 carry the old message formats; they are declared so that a request can be refused in its own layout.
"""

from __future__ import annotations

from uuid import UUID

from wire.schema import (
    PRODUCE_ELEMENTS_MAX,
    Message,
    Octets,
    Struct,
    array,
    batch,
    field,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uuid,
)


@struct
class PartitionProduceData(Struct):
    index: int = field(int32, "0+")
    records: Octets | None = field(batch, "0+", nullable="0+")


@struct
class TopicProduceData(Struct):
    name: str = field(string, "0-12", ignorable=True)
    topic_id: UUID = field(uuid, "13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field(array(PartitionProduceData), "0+")


@message(api_key=0, kind="request", versions="0-13", flexible="9+", elements_max=PRODUCE_ELEMENTS_MAX)
class ProduceRequest(Message):
    transactional_id: str | None = field(string, "3+", nullable="3+", default=None)
    acks: int = field(int16, "0+")
    timeout_ms: int = field(int32, "0+")
    topic_data: list[TopicProduceData] = field(array(TopicProduceData), "0+")


@struct
class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(int32, "8+")
    batch_index_error_message: str | None = field(string, "8+", nullable="8+", default=None)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: int = field(int32, "10+", default=-1)
    leader_epoch: int = field(int32, "10+", default=-1)


@struct
class PartitionProduceResponse(Struct):
    index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    base_offset: int = field(int64, "0+")
    log_append_time_ms: int = field(int64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(int64, "5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(array(BatchIndexAndErrorMessage), "8+", ignorable=True)
    error_message: str | None = field(string, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = field(nested(LeaderIdAndEpoch), "10+", default=None, tag=0)


@struct
class TopicProduceResponse(Struct):
    name: str = field(string, "0-12", ignorable=True)
    topic_id: UUID = field(uuid, "13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field(array(PartitionProduceResponse), "0+")


@struct
class NodeEndpoint(Struct):
    node_id: int = field(int32, "10+")
    host: str = field(string, "10+")
    port: int = field(int32, "10+")
    rack: str | None = field(string, "10+", nullable="10+", default=None)


@message(api_key=0, kind="response", versions="0-13", flexible="9+")
class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = field(array(TopicProduceResponse), "0+")
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "10+", tag=0)
