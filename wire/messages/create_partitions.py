"""CreatePartitions, key 37 (KIP-195)."""

from __future__ import annotations

from wire.schema import Message, Struct, array, boolean, field, int16, int32, message, string, struct


@struct
class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = field(array(int32), "0+")


@struct
class CreatePartitionsTopic(Struct):
    name: str = field(string, "0+")
    count: int = field(int32, "0+")
    assignments: list[CreatePartitionsAssignment] | None = field(array(CreatePartitionsAssignment), "0+", nullable="0+")


@message(api_key=37, kind="request", versions="0-3", flexible="2+")
class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = field(array(CreatePartitionsTopic), "0+")
    timeout_ms: int = field(int32, "0+")
    validate_only: bool = field(boolean, "0+")


@struct
class CreatePartitionsTopicResult(Struct):
    name: str = field(string, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+", default=None)


@message(api_key=37, kind="response", versions="0-3", flexible="2+")
class CreatePartitionsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    results: list[CreatePartitionsTopicResult] = field(array(CreatePartitionsTopicResult), "0+")
