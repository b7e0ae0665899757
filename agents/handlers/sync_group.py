"""SyncGroup 0-5. Held until the leader's SyncGroup has come and the group's record is stored."""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.events import SyncAnswer, SyncRequested
from agents.groups.held import GroupRefusedError
from runtime.logging import get_logger
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_log = get_logger(__name__)

ASSIGNMENTS_BYTES_MAX = 16 << 20
"""Bound over all members: their assignments are stored as one row."""


async def handle(broker: Broker, header: RequestHeader, request: SyncGroupRequest) -> SyncGroupResponse:
    try:
        check_allowed(broker.rights(), Operation.READ, request.group_id)
        check_id(request.group_id)
        size = sum(len(each.member_id) + len(each.assignment) for each in request.assignments)
        if size > ASSIGNMENTS_BYTES_MAX:
            _log.warning("sync refused, its assignments are too large", group=request.group_id, bytes=size)
            raise GroupRefusedError(ErrorCode.MESSAGE_TOO_LARGE, f"assignments may take {ASSIGNMENTS_BYTES_MAX} bytes")
        event = SyncRequested(
            request=broker.groups.next_request(),
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            # Copied: a view would keep the whole request in memory as long as the group lives.
            assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        )
        asked = await broker.groups.ask(request.group_id, event, SyncAnswer)
        answer = asked or SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    except GroupRefusedError as refused:
        answer = SyncAnswer(error=refused.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
