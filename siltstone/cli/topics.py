"""`siltstone topics`: over the Kafka protocol, so it works wherever an agent answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import click

from metadata.topic_configs import TOPIC_CONFIGS
from siltstone.cli.output import json_option, print_json, print_pairs, print_table
from siltstone.cli.places import Places, place_options, resolved
from siltstone.cli.topics_compaction import bootstrap_of, explain_command, print_states, read_explained
from siltstone.client import EARLIEST, LATEST, ConfigEntry, KafkaClient, connected
from siltstone.compaction_report import is_compacted, states_json
from wire.messages.metadata import MetadataResponseTopic

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def bootstrap_option(command: Command) -> Command:
    return click.option(
        "--bootstrap",
        envvar="SILTSTONE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Where agents answer.",
    )(command)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics; explain how far compaction is with one.

    \b
    Examples:
      siltstone topics create orders --partitions 6 --config retention.ms=86400000
      siltstone topics alter orders --config cleanup.policy=compact --delete-config retention.ms
      siltstone topics explain orders --data ./siltstone-data
      siltstone topics delete orders --yes
    """


topics.add_command(explain_command)


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="How many; the agent's default if not given.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic config; may be repeated.")
@bootstrap_option
def create(name: str, partitions: int | None, configs: Sequence[str], bootstrap: str) -> None:
    """Create topic NAME.

    \b
    Example:
      siltstone topics create orders --partitions 6 --config cleanup.policy=compact
    """
    overrides = parse_configs(configs)

    async def work(client: KafkaClient) -> int:
        await client.create_topic(name, partitions=partitions or -1, configs=overrides)
        return len((await client.topic(name)).partitions)

    count = _run(bootstrap, work)
    _note_without_effect(overrides)
    click.echo(f"created {name} with {count} partition{'' if count == 1 else 's'}")


@topics.command("list")
@bootstrap_option
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
@bootstrap_option
@place_options
@json_option
@click.pass_context
def describe(context: click.Context, name: str, bootstrap: str, places: Places, as_json: bool) -> None:
    """Show the partitions, offsets and configs of topic NAME.

    Of a compacted topic also how far compaction is, where --data or --metadata says where that is known: dirty ratio,
    what no pass has seen yet (the head), last pass, and which partitions are due.

    \b
    Examples:
      siltstone topics describe orders
      siltstone topics describe users --data ./siltstone-data
    """
    if places.data is None and not places.metadata_url:
        topic, starts, ends, configs = _run(bootstrap, _reader(name))
        explained = None
    else:
        with resolved(places) as urls:
            topic, starts, ends, configs = _run(bootstrap_of(context, urls, bootstrap), _reader(name))
            explained = asyncio.run(read_explained(urls.metadata, name, places.settings))
    partitions = [
        {
            "partition": each.partition_index,
            "agent": each.leader_id,
            "log_start_offset": starts[each.partition_index],
            "high_watermark": ends[each.partition_index],
        }
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]
    compacted = is_compacted({each.name: each.value or "" for each in configs if each.name == "cleanup.policy"})
    if as_json:
        shown = [
            {"name": each.name, "value": each.value, "source": each.source, "acts": _acts(each.name)}
            for each in configs
        ]
        answer = {"name": name, "topic_id": str(topic.topic_id), "partitions": partitions, "configs": shown}
        if compacted and explained is not None:
            answer["compaction"] = states_json(explained.states)
        print_json(answer)
        return
    print_pairs({"topic": name, "id": str(topic.topic_id), "partitions": str(len(partitions))})
    columns = ["partition", "agent", "log start offset", "high watermark"]
    print_table(columns, [[str(cell) for cell in row.values()] for row in partitions], right=columns)
    if compacted and explained is not None:
        print_states(explained.states, explained.evidence.now_ms)
    elif compacted:
        click.echo("how far compaction is: add --data DIR or --metadata URL")
    rows = [[each.name, each.value or "", each.source, "acts" if _acts(each.name) else "no effect"] for each in configs]
    print_table(["config", "value", "from", "here"], rows)


_Described = tuple[MetadataResponseTopic, Mapping[int, int], Mapping[int, int], Sequence[ConfigEntry]]


def _reader(name: str) -> Callable[[KafkaClient], Awaitable[_Described]]:
    async def read(client: KafkaClient) -> _Described:
        topic = await client.topic(name)
        partitions = [partition.partition_index for partition in topic.partitions]
        starts = await client.list_offsets(name, partitions, EARLIEST)
        ends = await client.list_offsets(name, partitions, LATEST)
        return topic, starts, ends, await client.topic_configs(name)

    return read


@topics.command()
@click.argument("name")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a config; may be repeated.")
@click.option("--delete-config", "deleted", multiple=True, metavar="NAME", help="Back to the default; may be repeated.")
@click.option("--partitions", type=click.IntRange(min=1), help="Grow to this many.")
@bootstrap_option
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
        raise click.UsageError("nothing to change: give --config, --delete-config or --partitions")

    async def work(client: KafkaClient) -> None:
        if changes:
            await client.alter_configs(name, changes=changes)
        if partitions is not None:
            await client.create_partitions(name, partitions)

    _run(bootstrap, work)
    _note_without_effect(name for name, value in changes.items() if value is not None)
    click.echo(f"altered {name}")


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
def delete(name: str, yes: bool, bootstrap: str) -> None:
    """Delete topic NAME and all its records.

    \b
    Example:
      siltstone topics delete orders --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: --yes is needed to delete a topic and all its records")
        click.confirm(f"delete topic {name!r} and all its records?", abort=True)
    _run(bootstrap, lambda client: client.delete_topic(name))
    click.echo(f"deleted {name}")


def _acts(config: str) -> bool:
    """False for what is kept and shown for Kafka's tools alone. A newer agent's config is its own affair."""
    known = TOPIC_CONFIGS.get(config)
    return known is None or known.effective


def _note_without_effect(configs: Iterable[str]) -> None:
    """Say on stderr which of the configs just set change nothing."""
    for config in configs:
        if not _acts(config):
            click.echo(
                f"note: {config} is kept, but has no effect in this version: {TOPIC_CONFIGS[config].doc}", err=True
            )


def parse_configs(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE words; a value may hold "=". Raises click.UsageError."""
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
