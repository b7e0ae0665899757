"""DescribeGroups, key 15: static members from v4 (KIP-345).

From v6 (KIP-1043) a group that does not exist is an error; before, it is described as Dead.
"""

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


@message(api_key=15, kind="request", versions="0-6", flexible="5+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeGroupsRequest(Message):
    groups: list[str] = field(array(string), "0+")
    include_authorized_operations: bool = field(boolean, "3+")


@struct
class DescribedGroupMember(Struct):
    member_id: str = field(string, "0+")
    group_instance_id: str | None = field(string, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(string, "0+")
    client_host: str = field(string, "0+")
    member_metadata: Octets = field(octets, "0+")
    member_assignment: Octets = field(octets, "0+")


@struct
class DescribedGroup(Struct):
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "6+", nullable="6+", default=None)
    group_id: str = field(string, "0+")
    group_state: str = field(string, "0+")
    protocol_type: str = field(string, "0+")
    protocol_data: str = field(string, "0+")
    members: list[DescribedGroupMember] = field(array(DescribedGroupMember), "0+")
    authorized_operations: int = field(int32, "3+", default=-0x80000000)


@message(api_key=15, kind="response", versions="0-6", flexible="5+")
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    groups: list[DescribedGroup] = field(array(DescribedGroup), "0+")
