"""Heartbeat 0-4. Answered from memory; a group that is not held is taken first."""

from __future__ import annotations

from collections.abc import Awaitable

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.events import HeartbeatRequested, PlainAnswer
from agents.groups.held import GroupRefusedError
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(
    broker: Broker, header: RequestHeader, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    event = HeartbeatRequested(
        request=broker.groups.next_request(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    try:
        check_allowed(broker.rights(), Operation.READ, request.group_id)
        check_id(request.group_id)
        # Without a task: after a stall, heartbeats in the queue count before the timers that would end their members.
        answer = broker.groups.heartbeat_at_once(request.group_id, event)
    except GroupRefusedError as refused:
        return HeartbeatResponse(error_code=refused.code)
    if answer is None:
        return _after_taking(broker, request.group_id, event)
    return HeartbeatResponse(error_code=answer.error)


async def _after_taking(broker: Broker, group_id: str, event: HeartbeatRequested) -> HeartbeatResponse:
    try:
        answer = await broker.groups.ask(group_id, event, PlainAnswer)
    except GroupRefusedError as refused:
        return HeartbeatResponse(error_code=refused.code)
    return HeartbeatResponse(error_code=answer.error if answer is not None else ErrorCode.UNKNOWN_MEMBER_ID)
