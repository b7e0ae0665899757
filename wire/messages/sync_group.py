"""SyncGroup, key 14: static members from v3 (KIP-345), the chosen protocol is checked from v5 (KIP-559)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Octets,
    Struct,
    array,
    field,
    int16,
    int32,
    message,
    octets,
    string,
    struct,
)


@struct
class SyncGroupRequestAssignment(Struct):
    member_id: str = field(string, "0+")
    assignment: Octets = field(octets, "0+")


@message(api_key=14, kind="request", versions="0-5", flexible="4+", elements_max=PARTITIONS_ELEMENTS_MAX)
class SyncGroupRequest(Message):
    group_id: str = field(string, "0+")
    generation_id: int = field(int32, "0+")
    member_id: str = field(string, "0+")
    group_instance_id: str | None = field(string, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field(array(SyncGroupRequestAssignment), "0+")


@message(api_key=14, kind="response", versions="0-5", flexible="4+")
class SyncGroupResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "0+")
    protocol_type: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)
    assignment: Octets = field(octets, "0+")
