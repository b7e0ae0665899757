"""`siltstone quotas`, over the Kafka protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from security.quotas.checks import check_value, entity_of, key_of, keys_of
from security.quotas.filters import Component, EntityType, MatchType, part_of
from security.quotas.values import DEFAULT, QuotaEntity
from siltstone.cli.access.user_words import check_is_no_principal
from siltstone.cli.options.agent_options import agent_options
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.access import quotas as calls
from siltstone.kafka.client import KafkaClient, connected
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

T = TypeVar("T")
Named = Sequence[tuple[str, str | None]]
"""Pairs of an entity type and a name; None: the default."""


def entity_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that name an entity, in the words of `kafka-configs`; the command gets them as `named`."""

    @click.option("--user", metavar="NAME", help="This user.")
    @click.option("--user-defaults", is_flag=True, help="Every user without a quota of its own.")
    @click.option("--client", metavar="ID", help="Clients with this client.id.")
    @click.option("--client-defaults", is_flag=True, help="Every client.id without a quota of its own.")
    @click.option("--ip", metavar="IP", help="Connections from this address.")
    @click.option("--ip-defaults", is_flag=True, help="Every address without a quota of its own.")
    @wraps(command)
    def with_named(
        *args: Any,
        user: str | None,
        user_defaults: bool,
        client: str | None,
        client_defaults: bool,
        ip: str | None,
        ip_defaults: bool,
        **kwargs: Any,
    ) -> T:
        named: list[tuple[str, str | None]] = []
        for kind, word, name, defaults in (
            (EntityType.USER, "user", user, user_defaults),
            (EntityType.CLIENT_ID, "client", client, client_defaults),
            (EntityType.IP, "ip", ip, ip_defaults),
        ):
            if name is not None and defaults:
                raise click.UsageError(f"give either --{word} or --{word}-defaults")
            if name is not None or defaults:
                named.append((kind.value, name))
        return command(*args, named=named, **kwargs)

    return with_named


@click.group()
def quotas() -> None:
    """Bound how much users and clients may do.

    A client over its quota is not refused: its answers come at once and say how long it has to wait, and the agent
    reads nothing more from it for that time. The narrowest quota counts: of a user with a client, then of the user,
    then of the client. The agents share each quota, but for request_percentage, which is of each agent's time.

    \b
    Examples:
      siltstone quotas alter --user ann --add producer_byte_rate=1048576
      siltstone quotas alter --client-defaults --add request_percentage=50
      siltstone quotas list
    """


@quotas.command("list")
@entity_options
@click.option("--strict", is_flag=True, help="Only quotas of exactly this entity, not those that name more.")
@agent_options
@json_option
def list_quotas(named: Named, strict: bool, bootstrap: str, as_json: bool) -> None:
    """List quotas: all of them, or those of the entity given.

    \b
    Examples:
      siltstone quotas list
      siltstone quotas list --user ann
      siltstone quotas list --user ann --strict --json
    """
    components = _components(named)
    if strict and not components:
        raise WrongUsageError("--strict needs an entity", remedy="add --user, --client or --ip")

    async def work() -> calls.Quotas:
        async with connected(bootstrap) as client:
            return await calls.describe_quotas(client, components, strict=strict)

    found = sorted(asyncio.run(work()).items(), key=lambda each: _text(each[0]))
    if as_json:
        print_json([{"entity": _json(entity), "quotas": dict(sorted(values.items()))} for entity, values in found])
    elif found:
        cells = [
            [_text(entity), key, f"{value:,.15g}"] for entity, values in found for key, value in sorted(values.items())
        ]
        print_table(["entity", "quota", "value"], cells, right=["value"])
    else:
        say("no quotas" if not components else "no quota of this entity")


@quotas.command()
@entity_options
@click.option("--add", "added", multiple=True, metavar="KEY=VALUE", help="Set this quota. Repeatable.")
@click.option("--delete", "deleted", multiple=True, metavar="KEY", help="Lift this quota. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Let the agents check it, and change nothing.")
@agent_options
def alter(named: Named, added: Sequence[str], deleted: Sequence[str], dry_run: bool, bootstrap: str) -> None:
    """Set or lift quotas of one entity.

    producer_byte_rate and consumer_byte_rate count bytes a second, request_percentage the share of an agent's core,
    controller_mutation_rate partitions created or deleted a second, producer_id_rate new producer ids a second, and
    connection_creation_rate, of an ip, connections a second.

    \b
    Examples:
      siltstone quotas alter --user ann --add producer_byte_rate=1048576
      siltstone quotas alter --user ann --client app --delete producer_byte_rate
      siltstone quotas alter --ip-defaults --add connection_creation_rate=20
    """
    with as_usage():
        entity = entity_of(named)
        changes = _changes(entity, added, deleted)
    if added and isinstance(entity.user, str):
        check_is_no_principal(entity.user)

    async def work() -> tuple[list[str], dict[str, float]]:
        """The keys that are to be deleted and are not there, and what holds in the end."""
        async with connected(bootstrap) as client:
            before = await _quotas_of(client, named) if deleted else {}
            await calls.alter_quotas(client, entity, changes, validate_only=dry_run)
            now = {} if dry_run else await _quotas_of(client, named)
        return [key for key, value in changes.items() if value is None and key not in before], now

    missing, now = asyncio.run(work())
    if missing:
        say(f"not set: {', '.join(missing)} of {_text(entity)}")
    if len(missing) < len(changes):
        if dry_run:
            say(f"would be changed: {_text(entity)}")
        else:
            values = ", ".join(f"{key}={value:,.15g}" for key, value in sorted(now.items()))
            say(f"changed: {_text(entity)} now has {values or 'no quotas'}")


async def _quotas_of(client: KafkaClient, named: Named) -> dict[str, float]:
    """Those of exactly this entity."""
    found: dict[str, float] = {}
    for values in (await calls.describe_quotas(client, _components(named), strict=True)).values():
        found.update(values)
    return found


def _components(named: Named) -> list[Component]:
    return [
        Component(
            entity_type=EntityType(kind),
            match_type=MatchType.DEFAULT if name is None else MatchType.EXACT,
            name=name or "",
        )
        for kind, name in named
    ]


def _changes(entity: QuotaEntity, added: Sequence[str], deleted: Sequence[str]) -> dict[str, float | None]:
    """Raises BadInputError, WrongUsageError."""
    changes: dict[str, float | None] = {}
    for each in added:
        name, equals, text = each.partition("=")
        key = key_of(entity, name)
        try:
            value = float(text) if equals else None
        except ValueError:
            value = None
        if value is None:
            raise WrongUsageError(f"{each!r} is not KEY=NUMBER", remedy=f"for example --add {key}=1000")
        check_value(key, value)
        changes[key] = value
    for name in deleted:
        key = key_of(entity, name)
        if key in changes:
            raise WrongUsageError(f"{key} is both added and deleted", remedy="give one of them")
        changes[key] = None
    if not changes:
        keys = ", ".join(keys_of(entity))
        raise WrongUsageError("nothing to change", remedy=f"add --add KEY=VALUE; the keys are {keys}")
    return changes


def _text(entity: QuotaEntity) -> str:
    parts = [(each, part_of(entity, each)) for each in EntityType]
    return ", ".join(f"{kind} {'(default)' if name is DEFAULT else name}" for kind, name in parts if name is not None)


def _json(entity: QuotaEntity) -> dict[str, str | None]:
    """A name of null is the default."""
    parts = [(each, part_of(entity, each)) for each in EntityType]
    return {kind.value: None if name is DEFAULT else name for kind, name in parts if name is not None}
