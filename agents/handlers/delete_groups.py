"""DeleteGroups 0-2: groups without members, together with their offsets.

If a request names many groups, names that no group has are sorted out first, together. The rest are deleted one by one.
One request deletes DELETED_MAX groups; further ones are told to come again (COORDINATOR_LOAD_IN_PROGRESS).
"""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id, unknown_groups
from agents.groups.held import GroupRefusedError
from agents.yielding import LoopYielder
from runtime.logging import get_logger
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

_log = get_logger(__name__)

DELETED_MAX = 1_000
"""Groups deleted for one request: the store needs some seconds for so many, and clients wait for half a minute. Further
groups get COORDINATOR_LOAD_IN_PROGRESS, and the store is not asked."""
_AT_ONCE = (ErrorCode.INVALID_GROUP_ID, ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED)
"""Errors found without asking the store; these groups do not count towards DELETED_MAX."""


async def handle(broker: Broker, header: RequestHeader, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    rights = broker.rights()
    try:
        unknown = await unknown_groups(
            broker.groups, [each for each in names if rights.sees(Operation.DELETE, ResourceType.GROUP, each)]
        )
    except GroupRefusedError as refused:
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=each, error_code=refused.code) for each in names]
        )
    results: list[DeletableGroupResult] = []
    deleted = 0
    async for group_id in LoopYielder().through(names):
        if group_id in unknown:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif deleted >= DELETED_MAX:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        else:
            error = await _delete(broker, group_id)
            # Failed attempts count too: each of them cost the store some statements.
            deleted += error not in _AT_ONCE
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    return DeleteGroupsResponse(results=results)


async def _delete(broker: Broker, group_id: str) -> ErrorCode:
    try:
        check_allowed(broker.rights(), Operation.DELETE, group_id)
        check_id(group_id, may_be_empty=True)
        error = await broker.groups.delete(group_id)
    except GroupRefusedError as refused:
        return refused.code
    if error is ErrorCode.NONE:
        _log.info("group deleted", group=group_id)
    return error
