"""`siltstone topics list`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import click

from runtime.text import size_text
from siltstone.cli.options.agent_options import agent_options
from siltstone.kafka.admin import TOPIC, configs_of, stored_bytes
from siltstone.kafka.client import EARLIEST, LATEST, KafkaClient, KafkaError, connected
from siltstone.kafka.records import TopicPartition, offsets_at
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

POLICY = "cleanup.policy"


@click.command("list")
@click.option("--names", "names_only", is_flag=True, help="Print only the names, one on a line; asks for nothing else.")
@agent_options
@json_option
def list_command(bootstrap: str, names_only: bool, as_json: bool) -> None:
    """List all topics with their records, sizes and cleanup policies.

    Records are counted from offsets: on a compacted topic fewer are left, so its number has a "<=" before it. Sizes
    count the live batches in the object store, compressed as they are.

    \b
    Examples:
      siltstone topics list --json
      siltstone topics list --names
    """
    rows = asyncio.run(_rows(bootstrap, names_only=names_only))
    if as_json:
        print_json(rows)
    elif names_only:
        for row in rows:
            say(str(row["name"]))
    elif rows:
        columns = ["topic", "partitions", "records", "size", "policy", "id"]
        print_table(columns, [_cells(row) for row in rows], right=["partitions", "records", "size"])
    else:
        say("no topics, or none that this client may describe")


def _cells(row: Mapping[str, object]) -> Sequence[str]:
    most = "<= " if "compact" in str(row["policy"]) and row["records"] else ""
    records = "-" if row["records"] is None else f"{most}{row['records']:,}"
    size = row["size_bytes"]
    return [
        str(row["name"]),
        str(row["partitions"]),
        records,
        size_text(size) if isinstance(size, int) else "-",
        str(row["policy"] or "-"),
        str(row["topic_id"]),
    ]


async def _rows(bootstrap: str, *, names_only: bool) -> Sequence[Mapping[str, object]]:
    async with connected(bootstrap) as client:
        answer = await client.metadata()
        topics = sorted(answer.topics, key=lambda topic: topic.name or "")
        if names_only or not topics:
            return [{"name": topic.name or ""} for topic in topics]
        places = [(topic.name or "", part.partition_index) for topic in topics for part in topic.partitions]
        records = await _records(client, places)
        names = [topic.name or "" for topic in topics]
        hidden: list[KafkaError] = []
        configs = await configs_of(client, TOPIC, names, [POLICY], denied=hidden.append)
    # One agent that hangs must not hide the topics: only the sizes of those that it leads are not known.
    sizes = await stored_bytes(
        answer, silent=lambda error: say(f"some sizes are not known: {error}", err=True), denied=hidden.append
    )
    if hidden:
        say("shown as - without the right: policies need DescribeConfigs, sizes Describe on the cluster", err=True)
    unsized = {topic for topic, number in places if (topic, number) not in sizes}
    return [
        {
            "name": topic.name or "",
            "topic_id": str(topic.topic_id),
            "partitions": len(topic.partitions),
            "records": _sum(records, topic.name or ""),
            "size_bytes": None if (topic.name or "") in unsized else _sum(sizes, topic.name or ""),
            "policy": next((each.value for each in configs.get(topic.name or "", ()) if each.name == POLICY), None),
        }
        for topic in topics
    ]


def _sum(numbers: Mapping[TopicPartition, int], topic: str) -> int:
    return sum(number for (name, _), number in numbers.items() if name == topic)


async def _records(client: KafkaClient, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Offsets between log start and high watermark. A topic that was deleted meanwhile has none."""
    if not places:
        return {}
    starts = await offsets_at(client, dict.fromkeys(places, EARLIEST))
    ends = await offsets_at(client, dict.fromkeys(places, LATEST))
    found: dict[TopicPartition, int] = {}
    for place in places:
        start, end = starts[place], ends[place]
        for each in (start, end):
            if isinstance(each, KafkaError) and each.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise each
        if isinstance(start, int) and isinstance(end, int):
            found[place] = end - start
    return found
