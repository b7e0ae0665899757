"""DeleteGroups 0-2: groups without members, and their offsets with them."""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_id
from agents.groups.held import GroupRefusedError
from siltstone.logging import get_logger
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

_log = get_logger(__name__)


async def handle(broker: Broker, header: RequestHeader, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=await _delete(broker, group_id))
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


async def _delete(broker: Broker, group_id: str) -> ErrorCode:
    try:
        check_id(group_id, may_be_empty=True)
        error = await broker.groups.delete(group_id)
    except GroupRefusedError as refused:
        return refused.code
    if error is ErrorCode.NONE:
        _log.info("group deleted", group=group_id)
    return error
