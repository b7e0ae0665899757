"""`siltstone topics alter`. A change that removes records first says which, and asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import click

from metadata.configs.broker import SYNONYMS, as_topic_value
from metadata.configs.topic import TOPIC_CONFIGS
from runtime.clock import SystemClock
from runtime.text import plural
from siltstone.cli.groups.asking import confirm
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.topics.losses import losses_of, policy_of
from siltstone.cli.topics.set_configs import GREW, note_without_effect, parse_configs
from siltstone.kafka.admin import BROKER, configs_of
from siltstone.kafka.client import KafkaClient, connected
from siltstone.kafka.consuming import Reach, read
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.plain import say

SAMPLED_MAX = 100_000
"""Records that are read to count those without a key: about a second. A larger topic is sampled, and that is said."""


@click.command("alter")
@click.argument("name", type=TOPIC)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@click.option(
    "--delete-config", "deleted", multiple=True, metavar="NAME", help="Reset a config to its default. Repeatable."
)
@click.option("--partitions", type=click.IntRange(min=1), help="Grow to this number of partitions; never shrinks.")
@click.option("--yes", is_flag=True, help="Do not ask before a change that removes records.")
@agent_options
def alter_command(
    name: str, configs: Sequence[str], deleted: Sequence[str], partitions: int | None, yes: bool, bootstrap: str
) -> None:
    """Change configs or the number of partitions of topic NAME.

    Before a change to compaction, or to a shorter retention, the command says which records will go, and asks.

    \b
    Examples:
      siltstone topics alter orders --config retention.ms=3600000 --partitions 12
      siltstone topics alter users --config cleanup.policy=compact --yes
    """
    changes: dict[str, str | None] = dict(parse_configs(configs))
    for config in deleted:
        if config in changes:
            raise click.UsageError(f"{config} is both set and deleted")
        changes[config] = None
    if not changes and partitions is None:
        raise click.UsageError("no change was asked for: give --config, --delete-config or --partitions")
    losses = asyncio.run(_losses(bootstrap, given_agents(), name, changes))
    for line in losses:
        say(f"warning: {line}", err=True)
    if losses:
        confirm(yes, f"alter topic {name!r} all the same?")
    asyncio.run(_alter(bootstrap, given_agents(), name, changes, partitions))
    note_without_effect(name for name, value in changes.items() if value is not None)
    say(f"altered {name}")


async def _alter(
    bootstrap: str, hints: HintOptions, name: str, changes: Mapping[str, str | None], partitions: int | None
) -> None:
    async with connected(bootstrap) as client, name_hints(client, name, hints):
        if changes:
            await client.alter_configs(name, changes=changes)
        if partitions is not None:
            await client.create_partitions(name, partitions)
            if "compact" in (await _values(client, name)).get("cleanup.policy", ""):
                say(GREW, err=True)


async def _values(client: KafkaClient, name: str) -> Mapping[str, str]:
    return {each.name: each.value or "" for each in await client.topic_configs(name)}


async def _losses(bootstrap: str, hints: HintOptions, name: str, changes: Mapping[str, str | None]) -> Sequence[str]:
    """A line for each kind of record that the change removes."""
    if not changes:
        return ()
    async with connected(bootstrap) as client:
        async with name_hints(client, name, hints):
            await client.topic(name)
        before = await _values(client, name)
        cluster = {each.name: each.value or "" for each in (await configs_of(client, BROKER, [""])).get("", ())}
        reset = {each: default_of(each, cluster) for each, value in changes.items() if value is None and each in before}
        after = {**before, **reset, **{each: value for each, value in changes.items() if value is not None}}
        old, new = policy_of(before), policy_of(after)
        if old is None or new is None:
            return []  # the agent refuses a value that is no number, and says why
        loss = (await losses_of(client, {name: (old, new)})).get(name)
    if loss is None:
        return ()
    return [*loss.lines, await _keyless(bootstrap, name, loss.spans)] if loss.starts_compaction else loss.lines


def default_of(config: str, cluster: Mapping[str, str]) -> str:
    """The value of a topic config without an override. `cluster`: the cluster-wide configs that are set."""
    brokers = [each for each in SYNONYMS.get(config, ()) if each.name in cluster]
    if brokers:
        return as_topic_value(brokers[0], cluster[brokers[0].name])
    return TOPIC_CONFIGS[config].default if config in TOPIC_CONFIGS else ""


async def _keyless(bootstrap: str, name: str, spans: Mapping[int, tuple[int, int]]) -> str:
    """A sentence about the records without a key, which compaction removes. Reads at most SAMPLED_MAX records, the same
    number at the start of each partition."""
    share = max(1, SAMPLED_MAX // len(spans))
    seen = keyless = 0
    is_all = all(end - start <= share for start, end in spans.values())
    reach = {(name, each): Reach(start, min(end, start + share)) for each, (start, end) in spans.items()}
    async with (
        RetryingClient(bootstrap, SystemClock()) as client,
        aclosing(read(client, reach, told=lambda line: say(line, err=True))) as batches,
    ):
        async for records in batches:
            seen += len(records)
            keyless += sum(each.key is None for each in records)
    sample = "" if is_all else " (a sample of the oldest: the topic has more)"
    return f"compaction removes records without a key: {keyless:,} of {plural(seen, 'record')}{sample}"
