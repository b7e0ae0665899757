"""DescribeConfigs, key 32: sources and synonyms from v1 (KIP-226), types and documentation from v3 (KIP-569)."""

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
class DescribeConfigsResource(Struct):
    resource_type: int = field(int8, "0+")
    resource_name: str = field(string, "0+")
    configuration_keys: list[str] | None = field(array(string), "0+", nullable="0+")


@message(api_key=32, kind="request", versions="0-4", flexible="4+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = field(array(DescribeConfigsResource), "0+")
    include_synonyms: bool = field(boolean, "1+")
    include_documentation: bool = field(boolean, "3+")


@struct
class DescribeConfigsSynonym(Struct):
    name: str = field(string, "1+")
    value: str | None = field(string, "1+", nullable="0+")
    source: int = field(int8, "1+")


@struct
class DescribeConfigsResourceResult(Struct):
    name: str = field(string, "0+")
    value: str | None = field(string, "0+", nullable="0+")
    read_only: bool = field(boolean, "0+")
    config_source: int = field(int8, "1+", default=-1, ignorable=True)
    is_default: bool = field(boolean, "0")
    is_sensitive: bool = field(boolean, "0+")
    synonyms: list[DescribeConfigsSynonym] = field(array(DescribeConfigsSynonym), "1+", ignorable=True)
    config_type: int = field(int8, "3+", ignorable=True)
    documentation: str | None = field(string, "3+", nullable="0+", ignorable=True)


@struct
class DescribeConfigsResult(Struct):
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    resource_type: int = field(int8, "0+")
    resource_name: str = field(string, "0+")
    configs: list[DescribeConfigsResourceResult] = field(array(DescribeConfigsResourceResult), "0+")


@message(api_key=32, kind="response", versions="0-4", flexible="4+")
class DescribeConfigsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    results: list[DescribeConfigsResult] = field(array(DescribeConfigsResult), "0+")
