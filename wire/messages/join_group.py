"""JoinGroup, key 11: static members from v5 (KIP-345), a leader that need not assign in v9 (KIP-814)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Octets,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    message,
    octets,
    string,
    struct,
)


@struct
class JoinGroupRequestProtocol(Struct):
    name: str = field(string, "0+")
    metadata: Octets = field(octets, "0+")


@message(api_key=11, kind="request", versions="0-9", flexible="6+", elements_max=PARTITIONS_ELEMENTS_MAX)
class JoinGroupRequest(Message):
    group_id: str = field(string, "0+")
    session_timeout_ms: int = field(int32, "0+")
    rebalance_timeout_ms: int = field(int32, "1+", default=-1, ignorable=True)
    member_id: str = field(string, "0+")
    group_instance_id: str | None = field(string, "5+", nullable="5+", default=None)
    protocol_type: str = field(string, "0+")
    protocols: list[JoinGroupRequestProtocol] = field(array(JoinGroupRequestProtocol), "0+")
    reason: str | None = field(string, "8+", nullable="8+", default=None, ignorable=True)


@struct
class JoinGroupResponseMember(Struct):
    member_id: str = field(string, "0+")
    group_instance_id: str | None = field(string, "5+", nullable="5+", default=None, ignorable=True)
    metadata: Octets = field(octets, "0+")


@message(api_key=11, kind="response", versions="0-9", flexible="6+")
class JoinGroupResponse(Message):
    throttle_time_ms: int = field(int32, "2+", ignorable=True)
    error_code: int = field(int16, "0+")
    generation_id: int = field(int32, "0+", default=-1)
    protocol_type: str | None = field(string, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(string, "0+", nullable="7+")
    leader: str = field(string, "0+")
    skip_assignment: bool = field(boolean, "9+")
    member_id: str = field(string, "0+")
    members: list[JoinGroupResponseMember] = field(array(JoinGroupResponseMember), "0+")
