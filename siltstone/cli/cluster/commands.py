"""`siltstone cluster`: the agents as a client sees them, and the cluster-wide configs."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

import click

from metadata.configs.broker import BROKER_CONFIGS, topic_defaults
from metadata.configs.topic import TOPIC_CONFIGS
from runtime.errors import BadInputError
from runtime.text import plural
from siltstone.cli.groups.asking import confirm
from siltstone.cli.options.agent_options import agent_options
from siltstone.cli.topics.losses import Loss, Policy, losses_of, policy_of
from siltstone.cli.topics.set_configs import parse_configs
from siltstone.kafka.admin import BROKER, TOPIC, alter_cluster_configs, configs_of
from siltstone.kafka.client import ConfigEntry, KafkaClient, connected
from siltstone.kafka.retrying import address_of
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say
from wire.messages.metadata import MetadataResponse

T = TypeVar("T")

_REMOVING = ("cleanup.policy", "retention.ms", "retention.bytes")
"""The topic configs by which records go."""
TOPICS_AT_ONCE = 500
"""The topics of one DescribeConfigs request."""
TOPICS_NAMED = 20
"""A warning names so many topics, and counts the others."""


class NoSuchConfigError(BadInputError):
    """No broker config has this name."""


@click.group()
def cluster() -> None:
    """Show the agents of a cluster, and show or set the configs that hold for all of it.

    \b
    Examples:
      siltstone cluster info
      siltstone cluster config set log.retention.ms=86400000
    """


@cluster.command()
@agent_options
@json_option
def info(bootstrap: str, as_json: bool) -> None:
    """Show the id of the cluster, its agents, and the number of topics and partitions.

    \b
    Example:
      siltstone cluster info --json
    """

    async def work(client: KafkaClient) -> MetadataResponse:
        return await client.metadata()

    answer = _run(bootstrap, work)
    agents = [
        {"id": each.node_id, "address": address_of(each.host, each.port), "zone": each.rack or None}
        for each in sorted(answer.brokers, key=lambda each: each.node_id)
    ]
    partitions = sum(len(topic.partitions) for topic in answer.topics)
    if as_json:
        print_json(
            {
                "cluster_id": answer.cluster_id,
                "controller": answer.controller_id,
                "topics": len(answer.topics),
                "partitions": partitions,
                "agents": agents,
            }
        )
        return
    print_pairs(
        {
            "cluster": answer.cluster_id or "-",
            "controller": str(answer.controller_id),
            "topics": str(len(answer.topics)),
            "partitions": str(partitions),
        }
    )
    say()
    cells = [[str(each["id"]), str(each["address"]), str(each["zone"] or "-")] for each in agents]
    print_table(["agent", "address", "zone"], cells, right=["agent"])


@cluster.group()
def config() -> None:
    """Show or set cluster-wide configs, the defaults of all topics that do not set their own.

    \b
    Example:
      siltstone cluster config get
    """


@config.command("get")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--all", "show_all", is_flag=True, help="Also show configs that are not set cluster-wide.")
@agent_options
@json_option
def get_config(names: Sequence[str], show_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show the cluster-wide configs that are set, those in NAME..., or with --all every one.

    \b
    Examples:
      siltstone cluster config get
      siltstone cluster config get log.retention.ms
    """
    for name in names:
        if name not in BROKER_CONFIGS:
            raise NoSuchConfigError(f"there is no cluster config {name!r}", remedy=_near(name))

    async def work(client: KafkaClient) -> Sequence[ConfigEntry]:
        if not names and not show_all:
            return (await configs_of(client, BROKER, [""])).get("", ())
        return await _of_agent(client, names)

    entries = _run(bootstrap, work)
    if as_json:
        print_json([asdict(each) for each in entries])
    elif entries:
        print_table(["config", "value", "from"], [[each.name, each.value or "", _from(each)] for each in entries])
    else:
        say("no cluster-wide config is set; --all shows the values in force")


@config.command("set")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE...]")
@click.option("--delete", "deleted", multiple=True, metavar="NAME", help="Reset a config to its default. Repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask before a change that removes records.")
@agent_options
def set_config(pairs: Sequence[str], deleted: Sequence[str], yes: bool, bootstrap: str) -> None:
    """Set cluster-wide configs, at once and without a restart. All of them are set, or none.

    They hold for every topic without a value of its own. Before a change to compaction, or to a shorter retention, the
    command says which records of which topics will go, and asks.

    \b
    Examples:
      siltstone cluster config set log.retention.ms=86400000
      siltstone cluster config set --delete log.retention.ms
    """
    changes: Mapping[str, str | None] = {**parse_configs(pairs), **dict.fromkeys(deleted)}
    if not changes:
        raise click.UsageError("no change was asked for: give NAME=VALUE or --delete NAME")
    if len(changes) < len(pairs) + len(deleted):
        raise click.UsageError("a config is given twice")

    async def look(client: KafkaClient) -> Mapping[str, Loss]:
        return await _losses(client, changes)

    async def work(client: KafkaClient) -> None:
        await alter_cluster_configs(client, changes)

    losses = _run(bootstrap, look)
    for line in _warnings(losses):
        say(f"warning: {line}", err=True)
    if losses:
        confirm(yes, f"set this for the whole cluster all the same? {plural(len(losses), 'topic')} will lose records")
    _run(bootstrap, work)
    for name, value in changes.items():
        say(f"reset {name}" if value is None else f"set {name}={value}")


async def _of_agent(client: KafkaClient, names: Sequence[str]) -> Sequence[ConfigEntry]:
    """The values in force on one agent. An agent answers only for itself, so the client must be connected to it."""
    brokers = (await client.metadata([])).brokers
    # First the agent that took the last `config set`: the others hear of a change a moment later.
    for broker in sorted(brokers, key=lambda each: address_of(each.host, each.port) != client.address):
        async with connected(address_of(broker.host, broker.port)) as agent:
            number = str(broker.node_id)
            return (await configs_of(agent, BROKER, [number], names or None)).get(number, ())
    return ()


async def _losses(client: KafkaClient, changes: Mapping[str, str | None]) -> Mapping[str, Loss]:
    """By topic, the records that the change removes."""
    if not any(BROKER_CONFIGS[name].topic in _REMOVING for name in changes if name in BROKER_CONFIGS):
        return {}
    present = {each.name: each.value or "" for each in (await configs_of(client, BROKER, [""])).get("", ())}
    changed = {name: changes.get(name, value) for name, value in {**present, **changes}.items()}
    try:
        new = topic_defaults({name: value for name, value in changed.items() if value is not None})
    except ValueError:
        return {}  # the agent refuses a value that is no number, and says why
    names = [each.name for each in (await client.metadata()).topics if each.name is not None and not each.is_internal]
    policies: dict[str, tuple[Policy, Policy]] = {}
    for first in range(0, len(names), TOPICS_AT_ONCE):
        chunk = names[first : first + TOPICS_AT_ONCE]
        for name, entries in (await configs_of(client, TOPIC, chunk, _REMOVING)).items():
            before = {each.name: each.value or "" for each in entries}
            following = {each.name for each in entries if each.source != "topic"}
            after = {**before, **{each: new.get(each, TOPIC_CONFIGS[each].default) for each in following}}
            old_policy, new_policy = policy_of(before), policy_of(after)
            if old_policy is not None and new_policy is not None:
                policies[name] = old_policy, new_policy
    return await losses_of(client, policies)


def _warnings(losses: Mapping[str, Loss]) -> Sequence[str]:
    lines: list[str] = []
    for name, loss in sorted(losses.items())[:TOPICS_NAMED]:
        lines += [f"topic {name}: {line}" for line in loss.lines]
        if loss.starts_compaction:
            lines.append(f"topic {name}: compaction removes records without a key")
    if len(losses) > TOPICS_NAMED:
        lines.append(f"{plural(len(losses) - TOPICS_NAMED, 'more topic')} will lose records too")
    return lines


def _from(entry: ConfigEntry) -> str:
    return {"default broker": "cluster", "static broker": "agent"}.get(entry.source, entry.source)


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, BROKER_CONFIGS, n=1)
    return f"did you mean {near[0]!r}?" if near else "`siltstone cluster config get --all` lists all"


def _run(bootstrap: str, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with connected(bootstrap) as client:
            return await work(client)

    return asyncio.run(main())
