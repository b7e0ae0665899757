"""`siltstone get`: the newest value of a key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import partitions_of
from siltstone.kafka.key_lookup import newest_record
from siltstone.kafka.partitioner import partition_of_key
from siltstone.kafka.record_format import OutputRecord, json_record, safe_text, shown_bytes
from siltstone.kafka.records import TopicPartition
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import print_bytes, print_json
from siltstone.terminal.plain import say


class NoSuchKeyError(BadInputError):
    """No record of the key is in the partitions that were read, or the newest one is a tombstone."""


def read_key(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bytes | None:
    """The bytes of a key on the command line. A word is UTF-8, or whatever bytes the shell passed."""
    return None if value is None else value.encode(errors="surrogateescape")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("key", callback=read_key)
@click.option(
    "--all-partitions",
    is_flag=True,
    help="Look in every partition: for producers that place keys otherwise than Java's clients do.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON, not only its value.")
@agent_options
def get(topic: str, key: bytes, all_partitions: bool, as_json: bool, bootstrap: str) -> None:
    """Print the newest value of KEY in TOPIC.

    The command reads the key's partition backwards from its end, so a key that was written lately is quick and one that
    is not there costs a read of the whole partition. With --all-partitions the record with the latest timestamp
    counts. Only records of committed transactions count, and those of none. Exit code 1 if there is no record, or if
    the newest one is a tombstone.

    \b
    Examples:
      siltstone get users alice
      siltstone get users alice --json | jq .timestamp_ms
    """
    found, looked = asyncio.run(_find(bootstrap, given_agents(), topic, key, all_partitions=all_partitions))
    if found is None:
        number = "any partition" if all_partitions else f"partition {looked[0][1]}"
        raise NoSuchKeyError(
            f"no record with the key {shown_bytes(key)} is in {number} of {topic}",
            remedy="check the key; `siltstone consume` prints keys with --format '%k\\n'"
            if all_partitions
            else "a producer that is not Java's may have put it elsewhere: --all-partitions looks in all of them",
        )
    if as_json:
        print_json(json_record(found))
    elif found.value is not None:
        on_terminal = sys.stdout.isatty()
        print_bytes((safe_text(found.value, keep="\n\t").encode() if on_terminal else found.value) + b"\n")
    if found.value is None:
        raise NoSuchKeyError(
            f"the key {shown_bytes(key)} was deleted by the tombstone at offset {found.offset} of partition"
            f" {found.partition}",
            remedy=f"`siltstone consume {topic} --key KEY --until-end` shows older records that are not compacted away",
        )


async def _find(
    bootstrap: str, hints: HintOptions, topic: str, key: bytes, *, all_partitions: bool
) -> tuple[OutputRecord | None, Sequence[TopicPartition]]:
    def told(line: str) -> None:
        say(line, err=True)

    async def places(inner: KafkaClient) -> Sequence[TopicPartition]:
        async with name_hints(inner, topic, hints):
            return await partitions_of(inner, topic, None)

    async with RetryingClient(bootstrap, SystemClock(), told=told) as client:
        every = await client.run(places)
        looked = every if all_partitions else [every[partition_of_key(key, len(every))]]
        found = [await newest_record(client, each, key, told=told) for each in looked]
    there = [each for each in found if each is not None]
    return max(there, key=lambda each: each.timestamp_ms, default=None), looked
