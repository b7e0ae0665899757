"""`siltstone topics`, over the Kafka protocol. See also `describe.py` and `explain.py` beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import click

from metadata.configs.topic import TOPIC_CONFIGS
from runtime.settings.table import Settings
from runtime.text import age_text, plural
from siltstone.cli.options.agent_options import acts, agent_options, given_agents, name_hints
from siltstone.cli.topics.describe import describe_command
from siltstone.cli.topics.explain import explain_command
from siltstone.kafka.client import KafkaClient, connected
from siltstone.terminal.output import json_option, print_json, print_table
from wire.messages.metadata import MetadataResponseTopic

T = TypeVar("T")

_GREW = (
    "warning: the topic is compacted, and clients now send some keys to another partition. The last record of such a"
    " key stays in its old partition for ever, so readers may take an old value for the latest"
)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics; explain the compaction of one.

    \b
    Examples:
      siltstone topics create orders --partitions 6 --config retention.ms=86400000
      siltstone topics alter orders --config cleanup.policy=compact \\
          --delete-config retention.ms
      siltstone topics explain orders --data ./siltstone-data
      siltstone topics delete orders --yes
    """


topics.add_command(describe_command)
topics.add_command(explain_command)


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions. Default: the agent's.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@agent_options
def create(name: str, partitions: int | None, configs: Sequence[str], bootstrap: str) -> None:
    """Create topic NAME.

    \b
    Example:
      siltstone topics create orders --config cleanup.policy=compact
    """
    overrides = parse_configs(configs)

    async def work(client: KafkaClient) -> int:
        await client.create_topic(name, partitions=partitions or -1, configs=overrides)
        return len((await client.topic(name)).partitions)

    count = _run(bootstrap, work)
    _note_without_effect(overrides)
    click.echo(f"created {name} with {plural(count, 'partition')}")


@topics.command("list")
@agent_options
@json_option
def list_topics(bootstrap: str, as_json: bool) -> None:
    """List all topics.

    \b
    Example:
      siltstone topics list --json
    """

    async def work(client: KafkaClient) -> Sequence[MetadataResponseTopic]:
        return sorted((await client.metadata()).topics, key=lambda topic: topic.name or "")

    rows = [
        {"name": topic.name or "", "topic_id": str(topic.topic_id), "partitions": len(topic.partitions)}
        for topic in _run(bootstrap, work)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        cells = [[str(row[column]) for column in ("name", "partitions", "topic_id")] for row in rows]
        print_table(["topic", "partitions", "id"], cells, right=["partitions"])
    else:
        click.echo("no topics")


@topics.command()
@click.argument("name")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@click.option(
    "--delete-config", "deleted", multiple=True, metavar="NAME", help="Reset a config to its default. Repeatable."
)
@click.option("--partitions", type=click.IntRange(min=1), help="Grow to this number of partitions; never shrinks.")
@agent_options
def alter(name: str, configs: Sequence[str], deleted: Sequence[str], partitions: int | None, bootstrap: str) -> None:
    """Change configs or the number of partitions of topic NAME.

    \b
    Example:
      siltstone topics alter orders --config retention.ms=3600000 --partitions 12
    """
    changes: dict[str, str | None] = dict(parse_configs(configs))
    for config in deleted:
        if config in changes:
            raise click.UsageError(f"{config} is both set and deleted")
        changes[config] = None
    if not changes and partitions is None:
        raise click.UsageError("no change was asked for: give --config, --delete-config or --partitions")

    async def work(client: KafkaClient) -> None:
        async with name_hints(client, name, given_agents()):
            if changes:
                await client.alter_configs(name, changes=changes)
            if partitions is not None:
                await client.create_partitions(name, partitions)
                if await _is_compacted(client, name):
                    click.echo(_GREW, err=True)

    _run(bootstrap, work)
    _note_without_effect(name for name, value in changes.items() if value is not None)
    click.echo(f"altered {name}")


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@agent_options
def delete(name: str, yes: bool, bootstrap: str) -> None:
    """Delete topic NAME and all its records.

    Nobody reads them from then on. Their bytes leave the bucket within purge.deadline.ms, a setting of the compactors.

    \b
    Example:
      siltstone topics delete orders --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "stdin is not a terminal, so this command cannot ask: add --yes to delete the topic and all its records"
            )
        click.confirm(f"delete topic {name!r} and all its records?", abort=True)

    async def work(client: KafkaClient) -> None:
        async with name_hints(client, name, given_agents()):
            await client.delete_topic(name)

    _run(bootstrap, work)
    click.echo(f"deleted {name}")
    within = age_text(Settings().purge_deadline_ms)
    click.echo(
        f"its bytes leave the bucket within purge.deadline.ms of the compactors ({within} unless they set it)", err=True
    )


async def _is_compacted(client: KafkaClient, name: str) -> bool:
    return any(
        entry.name == "cleanup.policy" and "compact" in (entry.value or "")
        for entry in await client.topic_configs(name)
    )


def _note_without_effect(configs: Iterable[str]) -> None:
    """Print a note to stderr for each config that was set but has no effect."""
    for config in configs:
        if not acts(config):
            click.echo(
                f"note: {config} is stored, but has no effect in this version: {TOPIC_CONFIGS[config].doc}", err=True
            )


def parse_configs(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE words. A value may contain "=". Raises click.UsageError."""
    configs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--config {pair!r} is not NAME=VALUE")
        if name.strip() in configs:
            raise click.UsageError(f"--config {name.strip()} is given twice")
        configs[name.strip()] = value.strip()
    return configs


def _run(bootstrap: str, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with connected(bootstrap) as client:
            return await work(client)

    return asyncio.run(main())
