"""FindCoordinator, key 10: key type from v1 (0 group, 1 transactional id), many keys from v4 (KIP-699)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@message(api_key=10, kind="request", versions="0-5", flexible="3+", elements_max=PARTITIONS_ELEMENTS_MAX)
class FindCoordinatorRequest(Message):
    key: str = field(string, "0-3")
    key_type: int = field(int8, "1+")
    coordinator_keys: list[str] = field(array(string), "4+")


@struct
class Coordinator(Struct):
    key: str = field(string, "4+")
    node_id: int = field(int32, "4+")
    host: str = field(string, "4+")
    port: int = field(int32, "4+")
    error_code: int = field(int16, "4+")
    error_message: str | None = field(string, "4+", nullable="4+", ignorable=True)


@message(api_key=10, kind="response", versions="0-5", flexible="3+")
class FindCoordinatorResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "0-3")
    error_message: str | None = field(string, "1-3", nullable="1-3", ignorable=True)
    node_id: int = field(int32, "0-3")
    host: str = field(string, "0-3")
    port: int = field(int32, "0-3")
    coordinators: list[Coordinator] = field(array(Coordinator), "4+")
