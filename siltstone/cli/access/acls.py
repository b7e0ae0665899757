"""`siltstone acls`, over the Kafka protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from runtime.text import plural
from security.acls.values import Acl, Operation, PatternType
from siltstone.cli.access.acl_options import (
    OPERATION_NAMES,
    PATTERNS,
    RESOURCE_NAMES,
    AclWords,
    acl_options,
    acls_of,
    doubts_of,
    exactly,
    filter_options,
    filters_of,
)
from siltstone.cli.groups.asking import confirm
from siltstone.cli.options.agent_options import agent_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.kafka.access import acls as calls
from siltstone.kafka.client import connected
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

_PRODUCER_NEEDS = (
    "What a producer needs: Write, Describe and Create on topics, Write and Describe on transactional ids."
)
_PATTERN_NAMES = {pattern: name for name, pattern in PATTERNS.items()}


@click.group()
def acls() -> None:
    """Say who may do what: list, create and delete ACLs.

    Without an ACL that allows it, only super users (setting super.users) may do anything once acl.mode is on. A rule
    that denies wins over every rule that allows. `siltstone acls create --help` shows how producers and consumers get
    what they need.

    \b
    Examples:
      siltstone acls create --allow-principal User:ann --producer \\
          --topic orders
      siltstone acls create --allow-principal User:bob --consumer \\
          --topic orders --group billing
      siltstone acls list --topic orders
      siltstone acls delete --allow-principal User:ann --topic orders
    """


@acls.command("list")
@filter_options
@agent_options
@json_option
def list_acls(words: AclWords, bootstrap: str, as_json: bool) -> None:
    """List ACLs: all of them, or those that match every word given.

    --resource-pattern-type match shows everything that applies to a resource of the given name: rules for exactly this
    name, for a prefix of it, and for '*'.

    \b
    Examples:
      siltstone acls list
      siltstone acls list --topic orders --resource-pattern-type match
      siltstone acls list --principal User:ann --json
    """
    found = asyncio.run(_find(bootstrap, words))
    if as_json:
        print_json([_json(each) for each in found])
    elif found:
        _print(found)
    else:
        say("no ACLs" if words.is_empty else "no ACL matches")


@acls.command()
@acl_options("literal", "prefixed")
@click.option("--producer", is_flag=True, help=_PRODUCER_NEEDS)
@click.option("--consumer", is_flag=True, help="What a consumer needs: Read and Describe on topics, Read on groups.")
@agent_options
def create(words: AclWords, producer: bool, consumer: bool, bootstrap: str) -> None:
    """Create ACLs: one for each combination of principal, host, operation and resource.

    A host is one IP address, or '*'. An ACL that exists already is left as it is. The agents judge by the new ones when
    this command ends.

    \b
    Examples:
      siltstone acls create --allow-principal User:ann --operation Read \\
          --topic orders --group billing
      siltstone acls create --allow-principal User:ann --producer \\
          --topic orders- --resource-pattern-type prefixed
      siltstone acls create --allow-principal User:ann --producer \\
          --topic orders --transactional-id orders-1
      siltstone acls create --deny-principal User:bob \\
          --deny-host 10.0.0.7 --operation All --topic '*'
    """
    made = acls_of(words, producer=producer, consumer=consumer)
    for doubt in doubts_of(made):
        say(f"warning: {doubt}", err=True)

    async def work() -> None:
        async with connected(bootstrap) as client:
            await calls.create_acls(client, made)

    asyncio.run(work())
    _print(made)
    say(f"created {plural(len(made), 'ACL')}")


@acls.command()
@filter_options
@click.option("--yes", is_flag=True, help="Delete without asking.")
@agent_options
def delete(words: AclWords, yes: bool, bootstrap: str) -> None:
    """Delete the ACLs that match every word given. It shows them and asks first.

    When this command ends, no agent judges by the deleted ACLs any more.

    \b
    Examples:
      siltstone acls delete --allow-principal User:ann --topic orders
      siltstone acls delete --allow-principal User:ann --yes
    """
    if words.is_empty:
        raise WrongUsageError(
            "this names no ACL; nothing was deleted",
            remedy="name a principal or a resource; `--resource-pattern-type any` alone names every ACL",
        )
    found = asyncio.run(_find(bootstrap, words))
    if not found:
        say("no ACL matches; nothing was deleted")
        return
    _print(found)
    confirm(yes, f"delete {plural(len(found), 'ACL')}?")

    async def work() -> Sequence[Acl]:
        async with connected(bootstrap) as client:
            # Those that were shown, not whatever matches by now.
            return await calls.delete_acls(client, [exactly(each) for each in found])

    say(f"deleted {plural(len(asyncio.run(work())), 'ACL')}")


async def _find(bootstrap: str, words: AclWords) -> Sequence[Acl]:
    async with connected(bootstrap) as client:
        found = [each for wanted in filters_of(words) for each in await calls.describe_acls(client, wanted)]
    return list(dict.fromkeys(found))


def _print(found: Sequence[Acl]) -> None:
    print_table(
        ["principal", "host", "permission", "operation", "resource", "name", "pattern"],
        [
            [
                each.principal,
                each.host,
                _permission(each),
                _name(each.operation),
                RESOURCE_NAMES.get(each.resource_type, str(each.resource_type)),
                each.resource_name,
                _pattern(each.pattern_type),
            ]
            for each in found
        ],
    )


def _permission(acl: Acl) -> str:
    return acl.permission.name.lower()


def _json(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "permission": _permission(acl),
        "operation": _name(acl.operation),
        "resource_type": RESOURCE_NAMES.get(acl.resource_type, str(acl.resource_type)),
        "resource_name": acl.resource_name,
        "pattern_type": _pattern(acl.pattern_type),
    }


def _name(operation: Operation) -> str:
    return OPERATION_NAMES.get(operation, operation.name)


def _pattern(pattern: PatternType) -> str:
    return _PATTERN_NAMES.get(pattern, pattern.name)
