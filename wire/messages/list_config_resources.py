"""ListConfigResources, key 74: v0 lists client metrics subscriptions alone (KIP-714), v1 all types of resources
(KIP-1142)."""

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


@message(api_key=74, kind="request", versions="0-1", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ListConfigResourcesRequest(Message):
    resource_types: list[int] = field(array(int8), "1+")


@struct
class ConfigResource(Struct):
    resource_name: str = field(string, "0+")
    resource_type: int = field(int8, "1+", default=16, ignorable=True)


@message(api_key=74, kind="response", versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    config_resources: list[ConfigResource] = field(array(ConfigResource), "0+")
