"""Metadata, key 3. Null topics mean all of them (in v0 an empty list does); topic ids from v10 (KIP-516).

The answer has an error code of its own from v13 (KIP-1102).
"""

from __future__ import annotations

from uuid import UUID

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    message,
    string,
    struct,
    uuid,
)


@struct
class MetadataRequestTopic(Struct):
    topic_id: UUID = field(uuid, "10+", ignorable=True)
    name: str | None = field(string, "0+", nullable="10+")


@message(api_key=3, kind="request", versions="0-13", flexible="9+", elements_max=PARTITIONS_ELEMENTS_MAX)
class MetadataRequest(Message):
    topics: list[MetadataRequestTopic] | None = field(array(MetadataRequestTopic), "0+", nullable="1+")
    allow_auto_topic_creation: bool = field(boolean, "4+", default=True)
    include_cluster_authorized_operations: bool = field(boolean, "8-10")
    include_topic_authorized_operations: bool = field(boolean, "8+")


@struct
class MetadataResponseBroker(Struct):
    node_id: int = field(int32, "0+")
    host: str = field(string, "0+")
    port: int = field(int32, "0+")
    rack: str | None = field(string, "1+", nullable="1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition(Struct):
    error_code: int = field(int16, "0+")
    partition_index: int = field(int32, "0+")
    leader_id: int = field(int32, "0+")
    leader_epoch: int = field(int32, "7+", default=-1, ignorable=True)
    replica_nodes: list[int] = field(array(int32), "0+")
    isr_nodes: list[int] = field(array(int32), "0+")
    offline_replicas: list[int] = field(array(int32), "5+", ignorable=True)


@struct
class MetadataResponseTopic(Struct):
    error_code: int = field(int16, "0+")
    name: str | None = field(string, "0+", nullable="12+")
    topic_id: UUID = field(uuid, "10+", ignorable=True)
    is_internal: bool = field(boolean, "1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field(array(MetadataResponsePartition), "0+")
    topic_authorized_operations: int = field(int32, "8+", default=-0x80000000)


@message(api_key=3, kind="response", versions="0-13", flexible="9+")
class MetadataResponse(Message):
    throttle_time_ms: int = field(int32, "3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field(array(MetadataResponseBroker), "0+")
    cluster_id: str | None = field(string, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(int32, "1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = field(array(MetadataResponseTopic), "0+")
    cluster_authorized_operations: int = field(int32, "8-10", default=-0x80000000)
    error_code: int = field(int16, "13+", ignorable=True)
