"""The options that name ACLs, in the words of `kafka-acls` and `rpk`. Pure but for click's own errors."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import product
from typing import Any, TypeVar

import click

from runtime.text import printable
from security.acls.operations import OPERATIONS_ON
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
from siltstone.cli.options.usage import WrongUsageError

T = TypeVar("T")

OPERATIONS = {
    each.name.title().replace("_", ""): each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)
}
"""By the names that `kafka-acls` uses: Read, DescribeConfigs."""
OPERATION_NAMES = {operation: name for name, operation in OPERATIONS.items()}
RESOURCE_NAMES = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional-id",
    ResourceType.DELEGATION_TOKEN: "delegation-token",
    ResourceType.USER: "user",
}
_LITERAL, _PREFIXED, _MATCH, _ANY = "literal", "prefixed", "match", "any"
PATTERNS = {
    _LITERAL: PatternType.LITERAL,
    _PREFIXED: PatternType.PREFIXED,
    _MATCH: PatternType.MATCH,
    _ANY: PatternType.ANY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AclWords:
    """The options of the command line."""

    principals: Sequence[str] = ()
    """Of a filter alone: whom the ACLs are about, whether they allow or deny."""
    allow_principals: Sequence[str]
    deny_principals: Sequence[str]
    allow_hosts: Sequence[str]
    deny_hosts: Sequence[str]
    operations: Sequence[Operation]
    resources: Sequence[tuple[ResourceType, str]]
    pattern: PatternType | None

    @property
    def is_empty(self) -> bool:
        named = self.principals, self.allow_principals, self.deny_principals, self.allow_hosts, self.deny_hosts
        return not (any(named) or self.operations or self.resources or self.pattern)


class _OperationName(click.Choice[str]):
    """`DescribeConfigs`, and also `describe_configs`, as `rpk` and ACLs in JSON have it."""

    def __init__(self) -> None:
        super().__init__(list(OPERATIONS), case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        joined = str(value).replace("_", "").lower()
        return super().convert(joined if joined in map(str.lower, OPERATIONS) else value, param, ctx)


def filter_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that name ACLs which are there."""
    with_principal = click.option(
        "--principal", "principals", multiple=True, metavar="User:NAME", help="Whom it allows or denies."
    )
    return with_principal(acl_options(*PATTERNS, narrows=True)(command))


_PATTERNS_OF_FILTER = (
    "How the names are meant. literal: ACLs on exactly this name; prefixed: on exactly this prefix; any: on this name,"
    " literal or prefixed; match: every ACL that counts for a resource of this name, also by a prefix or '*'."
    " Default: any."
)


def acl_options(*patterns: str, narrows: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add the options; the command gets them as `words`. `patterns`: the allowed values of --resource-pattern-type.
    `narrows`: they look for ACLs, so that an option which is not given matches everything."""
    hosts = "From where. Default: from every host, and from anywhere." if narrows else "From where. Default: anywhere."

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @click.option(
            "--allow-principal", "allow_principals", multiple=True, metavar="User:NAME", help="Whom it allows."
        )
        @click.option("--deny-principal", "deny_principals", multiple=True, metavar="User:NAME", help="Whom it denies.")
        @click.option("--allow-host", "allow_hosts", multiple=True, metavar="IP", help=hosts)
        @click.option("--deny-host", "deny_hosts", multiple=True, metavar="IP", help=hosts)
        @click.option(
            "--operation",
            "operations",
            multiple=True,
            type=_OperationName(),
            help="Repeatable. Default: every operation." if narrows else "Repeatable.",
        )
        @click.option("--topic", "topics", multiple=True, metavar="NAME", help="Repeatable; '*' means every topic.")
        @click.option("--group", "groups", multiple=True, metavar="NAME", help="Repeatable; '*' means every group.")
        @click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="Repeatable.")
        @click.option("--cluster", is_flag=True, help="The cluster itself.")
        @click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(patterns),
            help=_PATTERNS_OF_FILTER if narrows else "How the names are meant; prefixed: every name that begins so.",
        )
        @wraps(command)
        def with_words(
            *args: Any,
            allow_principals: Sequence[str],
            deny_principals: Sequence[str],
            allow_hosts: Sequence[str],
            deny_hosts: Sequence[str],
            operations: Sequence[str],
            topics: Sequence[str],
            groups: Sequence[str],
            transactional_ids: Sequence[str],
            cluster: bool,
            pattern: str | None,
            principals: Sequence[str] = (),
            **kwargs: Any,
        ) -> T:
            for principal in (*principals, *allow_principals, *deny_principals):
                check_principal(principal)
            words = AclWords(
                principals=principals,
                allow_principals=allow_principals,
                deny_principals=deny_principals,
                allow_hosts=allow_hosts,
                deny_hosts=deny_hosts,
                operations=[OPERATIONS[each] for each in operations],
                resources=[
                    *((ResourceType.TOPIC, each) for each in topics),
                    *((ResourceType.GROUP, each) for each in groups),
                    *((ResourceType.TRANSACTIONAL_ID, each) for each in transactional_ids),
                    *([(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else []),
                ],
                pattern=PATTERNS[pattern] if pattern else None,
            )
            return command(*args, words=words, **kwargs)

        return with_words

    return decorate


def check_principal(text: str) -> None:
    """Raises WrongUsageError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        named = printable(text.strip(":"), keep="") or "NAME"
        raise WrongUsageError(f"{text!r} is no principal", remedy=f"write it as User:{named}")


def acls_of(words: AclWords, *, producer: bool = False, consumer: bool = False) -> list[Acl]:
    """The ACLs to create. `producer` and `consumer` stand for the operations that they need. Raises WrongUsageError."""
    if not words.allow_principals and not words.deny_principals:
        raise WrongUsageError("nobody is named", remedy="add --allow-principal User:NAME or --deny-principal User:NAME")
    if not words.resources:
        raise WrongUsageError("no resource is named", remedy="add --topic, --group, --transactional-id or --cluster")
    if not (words.operations or producer or consumer):
        raise WrongUsageError("no operation is named", remedy="add --operation, such as --operation Read")
    if (words.allow_hosts and not words.allow_principals) or (words.deny_hosts and not words.deny_principals):
        raise WrongUsageError("a host is named without a principal", remedy="name the principal too, or User:*")
    if words.pattern is PatternType.PREFIXED and (ResourceType.CLUSTER, CLUSTER_NAME) in words.resources:
        raise WrongUsageError("the cluster has no prefix", remedy="create the ACLs of the cluster by another command")
    if consumer and not {ResourceType.TOPIC, ResourceType.GROUP} <= {kind for kind, _ in words.resources}:
        raise WrongUsageError("a consumer needs a topic and a group", remedy="add --topic NAME and --group NAME")
    if producer and ResourceType.TOPIC not in {kind for kind, _ in words.resources}:
        raise WrongUsageError("a producer needs a topic", remedy="add --topic NAME")
    for host in (*words.allow_hosts, *words.deny_hosts):
        _check_host(host)
    for (kind, _), operation in product(words.resources, words.operations):
        _check_fits(kind, operation)
    made = [
        Acl(
            resource_type=kind,
            pattern_type=words.pattern or PatternType.LITERAL,
            resource_name=name,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for kind, name in words.resources
        for operation in _operations(kind, words.operations, producer=producer, consumer=consumer)
        for permission, principal, host in _who(words)
    ]
    return list(dict.fromkeys(made))


def _check_host(host: str) -> None:
    if host == WILDCARD:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise WrongUsageError(
            f"{host!r} is not an IP address; no client would ever match",
            remedy="name one address, such as 10.0.0.7, or '*'; networks and names of hosts never match",
        ) from None


def _check_fits(kind: ResourceType, operation: Operation) -> None:
    fitting = (*OPERATIONS_ON[kind], Operation.ALL)
    if operation not in fitting:
        raise WrongUsageError(
            f"{OPERATION_NAMES[operation]} is no operation on a {RESOURCE_NAMES[kind]}",
            remedy=f"a {RESOURCE_NAMES[kind]} has {', '.join(OPERATION_NAMES[each] for each in fitting)}",
        )


def doubts_of(acls: Sequence[Acl]) -> list[str]:
    """Warnings of ACLs that Kafka takes, and that will hardly do what the user meant."""
    doubts = [
        f"{each.principal} matches no client: agents know principals of type User only"
        for each in acls
        if not each.principal.startswith("User:")
    ]
    doubts += [
        f"prefixed '*' matches only a {RESOURCE_NAMES[each.resource_type]} whose name begins with '*'; for every one"
        " leave out --resource-pattern-type"
        for each in acls
        if each.pattern_type is PatternType.PREFIXED and each.resource_name == WILDCARD
    ]
    return list(dict.fromkeys(doubts))


_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
"""The operations that `kafka-acls --producer` and `--consumer` stand for."""


def _operations(
    kind: ResourceType, named: Sequence[Operation], *, producer: bool, consumer: bool
) -> Sequence[Operation]:
    return [
        *named,
        *(_PRODUCER.get(kind, ()) if producer else ()),
        *(_CONSUMER.get(kind, ()) if consumer else ()),
    ]


def _who(words: AclWords) -> Iterator[tuple[Permission, str, str]]:
    for permission, principals, hosts in (
        (Permission.ALLOW, words.allow_principals, words.allow_hosts),
        (Permission.DENY, words.deny_principals, words.deny_hosts),
    ):
        for principal in principals:
            for host in hosts or [WILDCARD]:
                yield permission, principal, host


def filters_of(words: AclWords) -> list[AclFilter]:
    """The filters whose matches the words name: each word narrows, and a word that is missing matches everything."""
    permissions: list[tuple[Permission, str | None, str | None]] = [
        (Permission.ANY, who, None) for who in words.principals
    ]
    for permission, principals, hosts in (
        (Permission.ALLOW, words.allow_principals, words.allow_hosts),
        (Permission.DENY, words.deny_principals, words.deny_hosts),
    ):
        if principals or hosts:
            permissions += [(permission, who, host) for who in principals or [None] for host in hosts or [None]]
    named: Sequence[tuple[ResourceType, str | None]] = words.resources or [(ResourceType.ANY, None)]
    return [
        AclFilter(
            resource_type=kind,
            pattern_type=words.pattern or PatternType.ANY,
            resource_name=name,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for kind, name in named
        for operation in words.operations or [Operation.ANY]
        for permission, principal, host in permissions or [(Permission.ANY, None, None)]
    ]


def exactly(acl: Acl) -> AclFilter:
    """The filter that matches this ACL alone."""
    return AclFilter(
        resource_type=acl.resource_type,
        pattern_type=acl.pattern_type,
        resource_name=acl.resource_name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )
