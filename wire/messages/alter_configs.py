"""AlterConfigs, key 33: sets all configs of a resource at once. IncrementalAlterConfigs (KIP-339) supersedes it."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class AlterableConfig(Struct):
    name: str = field(string, "0+")
    value: str | None = field(string, "0+", nullable="0+")


@struct
class AlterConfigsResource(Struct):
    resource_type: int = field(int8, "0+")
    resource_name: str = field(string, "0+")
    configs: list[AlterableConfig] = field(array(AlterableConfig), "0+")


@message(api_key=33, kind="request", versions="0-2", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = field(array(AlterConfigsResource), "0+")
    validate_only: bool = field(boolean, "0+")


@struct
class AlterConfigsResourceResponse(Struct):
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    resource_type: int = field(int8, "0+")
    resource_name: str = field(string, "0+")


@message(api_key=33, kind="response", versions="0-2", flexible="2+")
class AlterConfigsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    responses: list[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse), "0+")
