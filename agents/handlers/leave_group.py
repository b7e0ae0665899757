"""LeaveGroup 0-5: one member up to v2, with its error in the answer itself; many from v3, each with its own error."""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.events import LeaveAnswer, LeaveRequested, LeavingMember
from agents.groups.held import GroupRefusedError
from agents.yielding import chunks_with_yields
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse


async def handle(broker: Broker, header: RequestHeader, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if header.api_version < 3:
        leaving = [LeavingMember(request.member_id, None)]
    else:
        leaving = list[LeavingMember]()
        async for some in chunks_with_yields(request.members):
            leaving += [LeavingMember(member.member_id, member.group_instance_id) for member in some]
    event = LeaveRequested(request=broker.groups.next_request(), members=leaving)
    try:
        check_allowed(broker.rights(), Operation.READ, request.group_id)
        check_id(request.group_id)
        answer = await broker.groups.ask(request.group_id, event, LeaveAnswer)
    except GroupRefusedError as refused:
        return LeaveGroupResponse(error_code=refused.code)
    if answer is None:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        answer = LeaveAnswer(error=ErrorCode.NONE, members=[(member, unknown) for member in leaving])
    if header.api_version < 3:
        error = answer.error or next((error for _, error in answer.members), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=error)
    response = LeaveGroupResponse(error_code=answer.error)
    async for some in chunks_with_yields(answer.members):
        response.members += [
            MemberResponse(member_id=member.member_id, group_instance_id=member.instance_id, error_code=error)
            for member, error in some
        ]
    return response
