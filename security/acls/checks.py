"""Which ACLs and filters a client may name. Pure.

The rules are those of Kafka's `AclApis` and `AclControlManager`. That a text holds no control characters is ours,
because ACLs are shown on terminals and in logs. An address is kept in one way of writing, so that ACLs and clients
meet: IPv6 has many.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from runtime.errors import BadInputError
from security.acls.values import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)


class InvalidAclError(BadInputError):
    """The ACL, or the filter, says nothing that can be kept or looked for."""


def checked_acl(acl: Acl) -> Acl:
    """The ACL as it is to be kept. Raises InvalidAclError."""
    _check_concrete(acl)
    _check_text("resource name", acl.resource_name)
    _check_text("principal", acl.principal)
    _check_text("host", acl.host)
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidAclError(
            f"the cluster has one name, {CLUSTER_NAME!r}, not {acl.resource_name!r}",
            remedy=f"name the resource {CLUSTER_NAME!r}",
        )
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise InvalidAclError(
            f"principal {acl.principal!r} has no type or no name", remedy="write TYPE:NAME, such as User:ann or User:*"
        )
    return replace(acl, host=canonical_host(acl.host))


def checked_filter(wanted: AclFilter) -> AclFilter:
    """The filter as it is to be applied. Raises InvalidAclError."""
    for what, value in (
        ("resource type", wanted.resource_type),
        ("pattern type", wanted.pattern_type),
        ("operation", wanted.operation),
        ("permission", wanted.permission),
    ):
        if not value:
            raise InvalidAclError(f"the filter's {what} is not known")
    return wanted if wanted.host is None else replace(wanted, host=canonical_host(wanted.host))


def canonical_host(host: str) -> str:
    """One text for each address. Anything else stays as it is."""
    if host == WILDCARD:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    # A socket for both families shows IPv4 dressed as IPv6.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _check_concrete(acl: Acl) -> None:
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidAclError(f"an ACL cannot be about resource type {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAclError(f"pattern type {acl.pattern_type.name} is for filters", remedy="use LITERAL or PREFIXED")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidAclError(f"operation {acl.operation.name} is for filters", remedy="name the operation, or ALL")
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidAclError(f"permission {acl.permission.name} is for filters", remedy="use ALLOW or DENY")


def _check_text(what: str, text: str) -> None:
    if not text:
        raise InvalidAclError(f"the {what} is empty", remedy="'*' stands for every one")
    # The control characters of Unicode's first two blocks: Java's `Character.isISOControl`.
    if any(each < " " or "\x7f" <= each <= "\x9f" for each in text):
        raise InvalidAclError(f"the {what} {text[:64]!r} holds control characters")
