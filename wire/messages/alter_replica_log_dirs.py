"""AlterReplicaLogDirs, key 34 (KIP-113)."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@struct
class AlterReplicaLogDirTopic(Struct):
    name: str = field(string, "1+")
    partitions: list[int] = field(array(int32), "1+")


@struct
class AlterReplicaLogDir(Struct):
    path: str = field(string, "1+")
    topics: list[AlterReplicaLogDirTopic] = field(array(AlterReplicaLogDirTopic), "1+")


@message(api_key=34, kind="request", versions="1-2", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AlterReplicaLogDirsRequest(Message):
    dirs: list[AlterReplicaLogDir] = field(array(AlterReplicaLogDir), "1+")


@struct
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = field(int32, "1+")
    error_code: int = field(int16, "1+")


@struct
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field(string, "1+")
    partitions: list[AlterReplicaLogDirPartitionResult] = field(array(AlterReplicaLogDirPartitionResult), "1+")


@message(api_key=34, kind="response", versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: int = field(int32, "1+")
    results: list[AlterReplicaLogDirTopicResult] = field(array(AlterReplicaLogDirTopicResult), "1+")
