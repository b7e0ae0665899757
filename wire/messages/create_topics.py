"""CreateTopics, key 19: -1 means the broker's default from v4 (KIP-464), the answer has configs from v5 (KIP-525)."""

from __future__ import annotations

from uuid import UUID

from wire.schema import Message, Struct, array, boolean, field, int8, int16, int32, message, string, struct, uuid


@struct
class CreatableReplicaAssignment(Struct):
    partition_index: int = field(int32, "0+")
    broker_ids: list[int] = field(array(int32), "0+")


@struct
class CreatableTopicConfig(Struct):
    name: str = field(string, "0+")
    value: str | None = field(string, "0+", nullable="0+")


@struct
class CreatableTopic(Struct):
    name: str = field(string, "0+")
    num_partitions: int = field(int32, "0+")
    replication_factor: int = field(int16, "0+")
    assignments: list[CreatableReplicaAssignment] = field(array(CreatableReplicaAssignment), "0+")
    configs: list[CreatableTopicConfig] = field(array(CreatableTopicConfig), "0+")


@message(api_key=19, kind="request", versions="2-7", flexible="5+")
class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = field(array(CreatableTopic), "0+")
    timeout_ms: int = field(int32, "0+", default=60000)
    validate_only: bool = field(boolean, "1+")


@struct
class CreatableTopicConfigs(Struct):
    name: str = field(string, "5+")
    value: str | None = field(string, "5+", nullable="5+")
    read_only: bool = field(boolean, "5+")
    config_source: int = field(int8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(boolean, "5+")


@struct
class CreatableTopicResult(Struct):
    name: str = field(string, "0+")
    topic_id: UUID = field(uuid, "7+", ignorable=True)
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = field(int16, "5+", tag=0, ignorable=True)
    num_partitions: int = field(int32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(int16, "5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(
        array(CreatableTopicConfigs), "5+", nullable="5+", ignorable=True
    )


@message(api_key=19, kind="response", versions="2-7", flexible="5+")
class CreateTopicsResponse(Message):
    throttle_time_ms: int = field(int32, "2+", ignorable=True)
    topics: list[CreatableTopicResult] = field(array(CreatableTopicResult), "0+")
