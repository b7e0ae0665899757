"""`siltstone get`: the newest value of a key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import partitions_of
from siltstone.kafka.held_back import FIND, HeldBack, held_back, held_lines
from siltstone.kafka.key_lookup import committed_logs, newest_record
from siltstone.kafka.partitioner import partition_of_key
from siltstone.kafka.record_format import OutputRecord, json_record, safe_text, shown_bytes
from siltstone.kafka.records import TopicPartition
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import print_bytes, print_json
from siltstone.terminal.plain import say


class NoSuchKeyError(BadInputError):
    """No record of the key is in the partitions that were read, or the newest one is a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    newest: OutputRecord | None
    looked: Sequence[TopicPartition]
    held: Sequence[HeldBack]
    """Where an open transaction holds back what may be of the key too."""


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
    counts. Only records of committed transactions count, and those of none. A transaction that has not ended holds back
    all records behind its first; if there are some, the command says so. Exit code 1 if there is no record, or if the
    newest one is a tombstone.

    \b
    Examples:
      siltstone get users alice
      siltstone get users alice --json | jq .timestamp_ms
    """
    hints = given_agents()
    asked = asyncio.run(_find(bootstrap, hints, topic, key, all_partitions=all_partitions))
    found = asked.newest
    shows = f"`{FIND}{hints.places}` shows the transaction"
    if found is None:
        number = "any partition" if all_partitions else f"partition {asked.looked[0][1]}"
        if asked.held:
            raise NoSuchKeyError(
                f"no committed record with the key {shown_bytes(key)} is in {number} of {topic}, and not all of it can"
                f" be read yet: {', '.join(held_lines(asked.held, 'committed records end at'))}",
                remedy=f"{shows}; `siltstone consume {topic} --key KEY --until-end --isolation-level read_uncommitted`"
                " prints the records of the key before it ends",
            )
        raise NoSuchKeyError(
            f"no record with the key {shown_bytes(key)} is in {number} of {topic}",
            remedy="check the key; `siltstone consume` prints keys with --format '%k\\n'"
            if all_partitions
            else "a producer that is not Java's may have put it elsewhere: --all-partitions looks in all of them",
        )
    if asked.held:
        for line in held_lines(asked.held, "committed records end at"):
            say(line, err=True)
        say(f"newer records of the key may be among these; {shows}", err=True)
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


async def _find(bootstrap: str, hints: HintOptions, topic: str, key: bytes, *, all_partitions: bool) -> _Found:
    def told(line: str) -> None:
        say(line, err=True)

    async def places(inner: KafkaClient) -> Sequence[TopicPartition]:
        async with name_hints(inner, topic, hints):
            return await partitions_of(inner, topic, None)

    async with RetryingClient(bootstrap, SystemClock(), told=told) as client:
        every = await client.run(places)
        looked = every if all_partitions else [every[partition_of_key(key, len(every))]]
        logs = await committed_logs(client, looked, told=told)
        found = [await newest_record(client, each, logs[each], key, told=told) for each in looked]
    there = [each for each in found if each is not None]
    return _Found(
        newest=max(there, key=lambda each: each.timestamp_ms, default=None),
        looked=looked,
        held=held_back({place: replace(log, position=log.until or log.position) for place, log in logs.items()}),
    )
