"""`siltstone topics`, over the Kafka protocol. See also `describe.py` and `explain.py` beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click

from runtime.settings.table import Settings
from runtime.text import age_text, plural
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.topics.alter import alter_command
from siltstone.cli.topics.describe import describe_command
from siltstone.cli.topics.explain import explain_command
from siltstone.cli.topics.list_topics import list_command
from siltstone.cli.topics.set_configs import note_without_effect, parse_configs
from siltstone.cli.topics.trim import trim_command
from siltstone.kafka.client import KafkaClient, connected
from siltstone.terminal.plain import say

T = TypeVar("T")


@click.group()
def topics() -> None:
    """Create, list, describe, alter, trim and delete topics; explain the compaction of one.

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
topics.add_command(list_command)
topics.add_command(alter_command)
topics.add_command(trim_command)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions. Default: the agent's.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@agent_options
def create(names: Sequence[str], partitions: int | None, configs: Sequence[str], bootstrap: str) -> None:
    """Create the topics NAME..., all with the same partitions and configs.

    If one cannot be created, the error names it; those before it were created and printed.

    \b
    Examples:
      siltstone topics create orders --config cleanup.policy=compact
      siltstone topics create orders users clicks --partitions 6
    """
    overrides = parse_configs(configs)

    async def work(client: KafkaClient) -> None:
        for name in dict.fromkeys(names):
            await client.create_topic(name, partitions=partitions or -1, configs=overrides)
            count = len((await client.topic(name)).partitions)
            say(f"created {name} with {plural(count, 'partition')}")

    _run(bootstrap, work)
    note_without_effect(overrides)


@topics.command()
@click.argument("name", type=TOPIC)
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
    say(f"deleted {name}")
    within = age_text(Settings().purge_deadline_ms)
    say(
        f"its bytes leave the bucket within purge.deadline.ms of the compactors ({within} unless they set it)", err=True
    )


def _run(bootstrap: str, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with connected(bootstrap) as client:
            return await work(client)

    return asyncio.run(main())
