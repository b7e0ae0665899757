"""DeleteGroups, key 42 (KIP-229)."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@message(api_key=42, kind="request", versions="0-2", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DeleteGroupsRequest(Message):
    groups_names: list[str] = field(array(string), "0+")


@struct
class DeletableGroupResult(Struct):
    group_id: str = field(string, "0+")
    error_code: int = field(int16, "0+")


@message(api_key=42, kind="response", versions="0-2", flexible="2+")
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    results: list[DeletableGroupResult] = field(array(DeletableGroupResult), "0+")
