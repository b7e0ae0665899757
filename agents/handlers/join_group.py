"""JoinGroup 0-9. Held until its rebalance completes; the rules are in `agents/groups/joining.py`.

A member's subscriptions and other texts take at most JOIN_BYTES_MAX: all of it is kept, stored and sent to the leader.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.events import JoinAnswer, JoinRequested
from agents.groups.held import GroupRefusedError
from agents.request_context import client_host
from runtime.logging import get_logger
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

_log = get_logger(__name__)

JOIN_BYTES_MAX = 1 << 20


async def handle(broker: Broker, header: RequestHeader, request: JoinGroupRequest) -> JoinGroupResponse:
    try:
        check_allowed(broker.rights(), Operation.READ, request.group_id)
        check_id(request.group_id)
        _check_size(header, request)
        options = broker.groups.options
        # The group judges this too. Here it keeps the store from creating a group for a client that is refused.
        if not options.session_timeout_ms_min <= request.session_timeout_ms <= options.session_timeout_ms_max:
            answer = JoinAnswer(error=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=request.member_id)
        else:
            event = _event(broker, header, request)
            # A member that brings an id knows a group: if there is none, it must start again, not found a new one.
            asked = await broker.groups.ask(request.group_id, event, JoinAnswer, create=not request.member_id)
            answer = asked or JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
    except GroupRefusedError as refused:
        answer = JoinAnswer(error=refused.code, member_id=request.member_id)
    return _response(header, answer)


def _check_size(header: RequestHeader, request: JoinGroupRequest) -> None:
    texts = (request.member_id, request.group_instance_id, request.protocol_type, header.client_id)
    size = sum(len(text or "") for text in texts)
    size += sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    if size > JOIN_BYTES_MAX:
        _log.warning("join refused, its metadata is too large", group=request.group_id, bytes=size)
        raise GroupRefusedError(ErrorCode.MESSAGE_TOO_LARGE, f"a member's metadata may take {JOIN_BYTES_MAX} bytes")


def _event(broker: Broker, header: RequestHeader, request: JoinGroupRequest) -> JoinRequested:
    client_id = header.client_id or ""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    return JoinRequested(
        request=broker.groups.next_request(),
        member_id=request.member_id,
        new_member_id=f"{request.group_instance_id or client_id}-{broker.runtime.ids.uuid4()}",
        instance_id=request.group_instance_id,
        client_id=client_id,
        # With the slash of Java's `InetAddress.toString`, as Kafka shows it in DescribeGroups.
        client_host=f"/{client_host()}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms if header.api_version >= 1 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        # Copied: a view would keep the whole request in memory as long as the member lives.
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        id_required=header.api_version >= 4,
        skips_assignment=header.api_version >= 9,
    )


def _response(header: RequestHeader, answer: JoinAnswer) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol if header.api_version >= 7 else answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )
