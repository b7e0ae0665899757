"""DescribeGroups 0-6, by the owner. A group that does not exist is Dead up to v5, GROUP_ID_NOT_FOUND from v6.

A group is described once, however often the request names it. One answer holds ANSWER_BYTES_MAX; further groups are
told to come again (COORDINATOR_LOAD_IN_PROGRESS). If a request names many groups, names that no group has are sorted
out first, together.
"""

from __future__ import annotations

import asyncio

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id, unknown_groups
from agents.groups.events import GroupState, GroupView
from agents.groups.held import GroupRefusedError
from agents.yielding import LoopYielder
from security.acls.operations import GROUP_OPERATIONS
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

GROUP_ID_NOT_FOUND_SINCE = 6
ANSWER_BYTES_MAX = 32 << 20
"""Bytes of members' metadata and assignments in all groups of an answer; one group alone may have more."""


async def handle(broker: Broker, header: RequestHeader, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    groups: list[DescribedGroup] = []
    room = ANSWER_BYTES_MAX
    names = list(dict.fromkeys(request.groups))
    rights = broker.rights()
    try:
        unknown = await unknown_groups(
            broker.groups, [each for each in names if rights.sees(Operation.DESCRIBE, ResourceType.GROUP, each)]
        )
    except GroupRefusedError as refused:
        return DescribeGroupsResponse(groups=[_refused(header, each, refused) for each in names])
    async for group_id in LoopYielder().through(names):
        if group_id in unknown:
            groups.append(_dead(header, group_id))
            continue
        groups.append(
            await _describe(broker, header, group_id)
            if room > 0
            else DescribedGroup(group_id=group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )
        # Counted afterwards, so that the first group is always described, however large.
        room -= sum(len(member.member_metadata) + len(member.member_assignment) for member in groups[-1].members)
        await asyncio.sleep(0)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = rights.mask(GROUP_OPERATIONS, ResourceType.GROUP, group.group_id)
    return DescribeGroupsResponse(groups=groups)


async def _describe(broker: Broker, header: RequestHeader, group_id: str) -> DescribedGroup:
    try:
        check_allowed(broker.rights(), Operation.DESCRIBE, group_id)
        check_id(group_id, may_be_empty=True)
        view = await broker.groups.view(group_id)
    except GroupRefusedError as refused:
        return _refused(header, group_id, refused)
    return _dead(header, group_id) if view is None else _described(view)


def _refused(header: RequestHeader, group_id: str, refused: GroupRefusedError) -> DescribedGroup:
    message = str(refused) if header.api_version >= GROUP_ID_NOT_FOUND_SINCE else None
    return DescribedGroup(group_id=group_id, error_code=refused.code, error_message=message)


def _dead(header: RequestHeader, group_id: str) -> DescribedGroup:
    dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD)
    if header.api_version >= GROUP_ID_NOT_FOUND_SINCE:
        dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        dead.error_message = f"there is no group {group_id!r}"
    return dead


def _described(view: GroupView) -> DescribedGroup:
    return DescribedGroup(
        group_id=view.group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ],
    )
