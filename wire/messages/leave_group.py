"""LeaveGroup, key 13: one member up to v2, many, and static ones, from v3 (KIP-345); reasons from v5 (KIP-800)."""

from __future__ import annotations

from wire.schema import PARTITIONS_ELEMENTS_MAX, Message, Struct, array, field, int16, int32, message, string, struct


@struct
class MemberIdentity(Struct):
    member_id: str = field(string, "3+")
    group_instance_id: str | None = field(string, "3+", nullable="3+", default=None)
    reason: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)


@message(api_key=13, kind="request", versions="0-5", flexible="4+", elements_max=PARTITIONS_ELEMENTS_MAX)
class LeaveGroupRequest(Message):
    group_id: str = field(string, "0+")
    member_id: str = field(string, "0-2")
    members: list[MemberIdentity] = field(array(MemberIdentity), "3+")


@struct
class MemberResponse(Struct):
    member_id: str = field(string, "3+")
    group_instance_id: str | None = field(string, "3+", nullable="3+")
    error_code: int = field(int16, "3+")


@message(api_key=13, kind="response", versions="0-5", flexible="4+")
class LeaveGroupResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "0+")
    members: list[MemberResponse] = field(array(MemberResponse), "3+")
