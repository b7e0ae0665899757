"""DescribeClientQuotas, key 48 (KIP-546)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    float64,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class ComponentData(Struct):
    entity_type: str = field(string, "0+")
    match_type: int = field(int8, "0+")
    match: str | None = field(string, "0+", nullable="0+")


@message(api_key=48, kind="request", versions="0-1", flexible="1+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = field(array(ComponentData), "0+")
    strict: bool = field(boolean, "0+")


@struct
class EntityData(Struct):
    entity_type: str = field(string, "0+")
    entity_name: str | None = field(string, "0+", nullable="0+")


@struct
class ValueData(Struct):
    key: str = field(string, "0+")
    value: float = field(float64, "0+")


@struct
class EntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), "0+")
    values: list[ValueData] = field(array(ValueData), "0+")


@message(api_key=48, kind="response", versions="0-1", flexible="1+")
class DescribeClientQuotasResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    entries: list[EntryData] | None = field(array(EntryData), "0+", nullable="0+")
