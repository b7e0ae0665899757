"""AlterClientQuotas, key 49 (KIP-546)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    float64,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class EntityData(Struct):
    entity_type: str = field(string, "0+")
    entity_name: str | None = field(string, "0+", nullable="0+")


@struct
class OpData(Struct):
    key: str = field(string, "0+")
    value: float = field(float64, "0+")
    remove: bool = field(boolean, "0+")


@struct
class EntryData(Struct):
    entity: list[EntityData] = field(array(EntityData), "0+")
    ops: list[OpData] = field(array(OpData), "0+")


@message(api_key=49, kind="request", versions="0-1", flexible="1+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AlterClientQuotasRequest(Message):
    entries: list[EntryData] = field(array(EntryData), "0+")
    validate_only: bool = field(boolean, "0+")


@struct
class AlteredEntryData(Struct):
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    entity: list[EntityData] = field(array(EntityData), "0+")


@message(api_key=49, kind="response", versions="0-1", flexible="1+")
class AlterClientQuotasResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    entries: list[AlteredEntryData] = field(array(AlteredEntryData), "0+")
