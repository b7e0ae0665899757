"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from security.acls.values import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from siltstone.kafka.access.changes import CHANGE_TIMEOUT_MS, remedy_of
from siltstone.kafka.client import KafkaClient, KafkaError
from wire.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

REMEDIES: Mapping[str, str] = {
    "SECURITY_DISABLED": "set acl.mode=on (or shadow, to try it) on every agent, then create ACLs",
    **remedy_of("Describe (to list) or Alter (to change)"),
}


async def describe_acls(client: KafkaClient, wanted: AclFilter) -> Sequence[Acl]:
    """The ACLs that match, sorted. Raises KafkaError."""
    answer = await client.call(description_of(wanted), DescribeAclsResponse)
    if answer.error_code:
        raise KafkaError(answer.error_code, "list ACLs", answer.error_message, remedies=REMEDIES)
    found = [
        Acl(
            resource_type=ResourceType(resource.resource_type),
            pattern_type=PatternType(resource.pattern_type),
            resource_name=resource.resource_name,
            principal=each.principal,
            host=each.host,
            operation=Operation(each.operation),
            permission=Permission(each.permission_type),
        )
        for resource in answer.resources
        for each in resource.acls
    ]
    return sorted(found, key=_order)


async def create_acls(client: KafkaClient, acls: Sequence[Acl]) -> None:
    """Raises KafkaError of the first that was refused. Others may have been created."""
    answer = await client.call(creation_of(acls), CreateAclsResponse, timeout_ms=CHANGE_TIMEOUT_MS)
    for result in answer.results:
        if result.error_code:
            raise KafkaError(result.error_code, "create ACLs", result.error_message, remedies=REMEDIES)


async def delete_acls(client: KafkaClient, filters: Sequence[AclFilter]) -> Sequence[Acl]:
    """Delete what matches any of the filters; returns it, sorted. Raises KafkaError of the first that was refused."""
    answer = await client.call(deletion_of(filters), DeleteAclsResponse, timeout_ms=CHANGE_TIMEOUT_MS)
    found: set[Acl] = set()
    for result in answer.filter_results:
        if result.error_code:
            raise KafkaError(result.error_code, "delete ACLs", result.error_message, remedies=REMEDIES)
        found |= {_acl(each) for each in result.matching_acls}
    return sorted(found, key=_order)


# ---- the requests


def description_of(wanted: AclFilter) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def creation_of(acls: Iterable[Acl]) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )


def deletion_of(filters: Iterable[AclFilter]) -> DeleteAclsRequest:
    return DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.resource_name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in filters
        ]
    )


# ---- inside


def _acl(found: DeleteAclsMatchingAcl) -> Acl:
    if found.error_code:
        raise KafkaError(found.error_code, "delete ACLs", found.error_message, remedies=REMEDIES)
    return Acl(
        resource_type=ResourceType(found.resource_type),
        pattern_type=PatternType(found.pattern_type),
        resource_name=found.resource_name,
        principal=found.principal,
        host=found.host,
        operation=Operation(found.operation),
        permission=Permission(found.permission_type),
    )


def _order(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
