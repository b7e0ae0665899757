"""DescribeAcls, CreateAcls and DeleteAcls 1-3 (KIP-140, KIP-290), keys 29 to 31.

With `acl.mode=off` there is nothing to describe or to change: SECURITY_DISABLED, as in Kafka without an authorizer.

A change is answered when every agent that lives has taken it in, or its lease has run out: nobody who was refused a
right by a change that was answered has it anywhere. If some agent is behind for longer than TAKEN_IN_MS_MAX, the answer
is REQUEST_TIMED_OUT: the change is made, and to ask for it again is no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from agents.broker import Broker
from agents.security.changes import tell_changes
from agents.security.refusals import check_cluster_right
from agents.topics.rules import RequestError, code_of
from agents.yielding import LoopYielder, chunks_with_yields
from runtime.errors import SiltstoneError
from security.acls.checks import InvalidAclError, checked_acl, checked_filter
from security.acls.values import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's words, which tools and people look for."""
CHANGED_MAX = 10_000
"""ACLs and filters of one request, as in Kafka (`MAX_RECORDS_PER_USER_OP`)."""


async def describe(broker: Broker, header: RequestHeader, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        _check_may(broker, Operation.DESCRIBE)
        wanted = _filter_of(request)
        await broker.follower.catch_up()
    except SiltstoneError as error:
        return DescribeAclsResponse(error_code=code_of(error), error_message=str(error))
    resources: dict[tuple[int, int, str], DescribeAclsResource] = {}
    async for some in chunks_with_yields(list(broker.authorizer.known.acls)):
        for acl in filter(wanted.matches, some):
            key = (acl.resource_type, acl.pattern_type, acl.resource_name)
            if key not in resources:
                resources[key] = DescribeAclsResource(
                    resource_type=acl.resource_type, pattern_type=acl.pattern_type, resource_name=acl.resource_name
                )
            resources[key].acls.append(
                AclDescription(
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
                )
            )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def create(broker: Broker, header: RequestHeader, request: CreateAclsRequest) -> CreateAclsResponse:
    results = [AclCreationResult(error_message=None) async for _ in LoopYielder().through(request.creations)]
    good: list[Acl] = []
    try:
        _check_may(broker, Operation.ALTER)
        _check_count(len(results))
        async for asked, result in LoopYielder().through(list(zip(request.creations, results, strict=True))):
            try:
                good.append(_acl_of(asked))
            except InvalidAclError as error:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
        if good:
            change_id = await broker.metadata.security.create_acls(list(dict.fromkeys(good)))
            tell_changes(good, lambda acl: ("ACL created", _facts(acl)))
            await broker.taken_in_everywhere(change_id)
    except SiltstoneError as error:
        _fail_the_rest(results, error)
    return CreateAclsResponse(results=results)


async def delete(broker: Broker, header: RequestHeader, request: DeleteAclsRequest) -> DeleteAclsResponse:
    results = [DeleteAclsFilterResult(error_message=None) async for _ in LoopYielder().through(request.filters)]
    good: list[tuple[DeleteAclsFilterResult, AclFilter]] = []
    try:
        _check_may(broker, Operation.ALTER)
        _check_count(len(results))
        async for asked, result in LoopYielder().through(list(zip(request.filters, results, strict=True))):
            try:
                good.append((result, _filter_of(asked)))
            except InvalidAclError as error:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
        if good:
            change_id, deleted = await broker.metadata.security.delete_acls([wanted for _, wanted in good])
            gone = list(dict.fromkeys(acl for acls in deleted for acl in acls))
            tell_changes(gone, lambda acl: ("ACL deleted", _facts(acl)))
            await broker.taken_in_everywhere(change_id)
            for (result, _), acls in zip(good, deleted, strict=True):
                result.matching_acls = [_deleted(acl) for acl in acls]
    except SiltstoneError as error:
        _fail_the_rest(results, error)
    return DeleteAclsResponse(filter_results=results)


def _fail_the_rest(results: Sequence[AclCreationResult | DeleteAclsFilterResult], error: SiltstoneError) -> None:
    code, said = code_of(error), str(error)
    for result in results:
        if not result.error_code:
            result.error_code, result.error_message = code, said


def _check_may(broker: Broker, operation: Operation) -> None:
    """Raises RequestError."""
    if not broker.authorizer.on:
        raise RequestError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    check_cluster_right(broker.rights(), operation)


def _check_count(count: int) -> None:
    if count > CHANGED_MAX:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"{count} ACLs in one request; send at most {CHANGED_MAX} at a time"
        )


def _acl_of(asked: AclCreation) -> Acl:
    """Raises InvalidAclError."""
    return checked_acl(
        Acl(
            resource_type=_known(ResourceType, asked.resource_type),
            pattern_type=_known(PatternType, asked.resource_pattern_type),
            resource_name=asked.resource_name,
            principal=asked.principal,
            host=asked.host,
            operation=_known(Operation, asked.operation),
            permission=_known(Permission, asked.permission_type),
        )
    )


def _filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Raises InvalidAclError."""
    return checked_filter(
        AclFilter(
            resource_type=_known(ResourceType, asked.resource_type_filter),
            pattern_type=_known(PatternType, asked.pattern_type_filter),
            resource_name=asked.resource_name_filter,
            principal=asked.principal_filter,
            host=asked.host_filter,
            operation=_known(Operation, asked.operation),
            permission=_known(Permission, asked.permission_type),
        )
    )


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        pattern_type=acl.pattern_type,
        resource_name=acl.resource_name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


_Word = TypeVar("_Word", ResourceType, PatternType, Operation, Permission)


def _known(kind: type[_Word], number: int) -> _Word:
    """A number of a newer protocol is UNKNOWN, which no ACL and no filter may hold."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _facts(acl: Acl) -> Mapping[str, str]:
    """For the audit log."""
    return {
        "resource_type": acl.resource_type.name,
        "pattern_type": acl.pattern_type.name,
        "resource": acl.resource_name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
