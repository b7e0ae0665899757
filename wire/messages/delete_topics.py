"""DeleteTopics, key 20: error messages from v5, by topic id from v6 (KIP-516)."""

from __future__ import annotations

from uuid import UUID

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int16,
    int32,
    message,
    string,
    struct,
    uuid,
)


@struct
class DeleteTopicState(Struct):
    name: str | None = field(string, "6+", nullable="6+", default=None)
    topic_id: UUID = field(uuid, "6+")


@message(api_key=20, kind="request", versions="1-6", flexible="4+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DeleteTopicsRequest(Message):
    topics: list[DeleteTopicState] = field(array(DeleteTopicState), "6+")
    topic_names: list[str] = field(array(string), "0-5", ignorable=True)
    timeout_ms: int = field(int32, "0+")


@struct
class DeletableTopicResult(Struct):
    name: str | None = field(string, "0+", nullable="6+")
    topic_id: UUID = field(uuid, "6+", ignorable=True)
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)


@message(api_key=20, kind="response", versions="1-6", flexible="4+")
class DeleteTopicsResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    responses: list[DeletableTopicResult] = field(array(DeletableTopicResult), "0+")
