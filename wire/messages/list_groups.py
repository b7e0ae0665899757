"""ListGroups, key 16: states from v4 (KIP-518), types from v5 (KIP-848); an empty filter passes everything."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@message(api_key=16, kind="request", versions="0-5", flexible="3+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ListGroupsRequest(Message):
    states_filter: list[str] = field(array(string), "4+")
    types_filter: list[str] = field(array(string), "5+")


@struct
class ListedGroup(Struct):
    group_id: str = field(string, "0+")
    protocol_type: str = field(string, "0+")
    group_state: str = field(string, "4+", ignorable=True)
    group_type: str = field(string, "5+", ignorable=True)


@message(api_key=16, kind="response", versions="0-5", flexible="3+")
class ListGroupsResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "0+")
    groups: list[ListedGroup] = field(array(ListedGroup), "0+")
