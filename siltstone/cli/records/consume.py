"""`siltstone consume`: print the records of topics to stdout."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import click

from runtime.clock import Clock, SystemClock
from siltstone.cli.groups.asking import partition_counts
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.usage import as_usage
from siltstone.cli.records.get import read_key
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import Reach, partitions_of, reaches, read
from siltstone.kafka.groups.admin import GroupClient
from siltstone.kafka.groups.consuming import GroupReader
from siltstone.kafka.groups.member import GroupMember
from siltstone.kafka.held_back import FIND, StandstillNotes
from siltstone.kafka.offset_spec import Anchor, OffsetRange, parse_offsets, parse_partitions
from siltstone.kafka.partitioner import partition_of_key
from siltstone.kafka.record_format import VALUE_LINES, OutputRecord, json_record, parse_format, readable, render
from siltstone.kafka.records import Isolation, TopicPartition
from siltstone.kafka.retrying import PATIENCE_MS, RetryingClient
from siltstone.ops.hint_options import HintOptions
from siltstone.processes.stopping import INTERRUPTED, stop_signals, unless
from siltstone.terminal.output import print_when_taken
from siltstone.terminal.plain import say

Written = Callable[[OutputRecord], bytes]


class _Asked(NamedTuple):
    topics: Sequence[str]
    partitions: Sequence[int] | None
    span: OffsetRange
    follow: bool
    key: bytes | None
    all_partitions: bool
    isolation: Isolation


@click.command()
@click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")
@click.option(
    *("-o", "--offset", "offsets"),
    default="start",
    show_default=True,
    metavar="OFFSET",
    help="Where to begin: start, end, N, +N (after the start), -N (before the end), N:M, @TIME, @TIME:@TIME.",
)
@click.option(
    "-p", "--partitions", "partitions", metavar="P,...", help="Read only these partitions, for example 0,2,5-7."
)
@click.option(
    "-g", "--group", metavar="GROUP", help="Join this consumer group and continue from its committed offsets."
)
@click.option(
    "-k", "--key", callback=read_key, help="Print only the records of this key, from the partition that its key gives."
)
@click.option("--all-partitions", is_flag=True, help="With --key: look in every partition.")
@click.option("-n", "--num", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-f", "--format", "text", metavar="FORMAT", help="How to print a record; see the fields above.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object on one line.")
@click.option(
    "--follow/--until-end",
    "follow",
    default=True,
    show_default=True,
    help="Wait for new records until Ctrl-C, or stop at the present end of the topic.",
)
@click.option(
    "--isolation-level",
    "isolation",
    type=click.Choice([each.name.lower() for each in Isolation]),
    default=Isolation.READ_COMMITTED.name.lower(),
    show_default=True,
    help="Whether to print records of transactions that are open or aborted.",
)
@agent_options
def consume(
    topics: Sequence[str],
    offsets: str,
    partitions: str | None,
    group: str | None,
    key: bytes | None,
    all_partitions: bool,
    num: int | None,
    text: str | None,
    as_json: bool,
    follow: bool,
    isolation: str,
    bootstrap: str,
) -> None:
    """Print the records of TOPICs: a readable line for each on a terminal, only their values into a pipe.

    Without --group the command joins no group and commits nothing. With --group the members share the partitions, and
    the command commits the printed records about once a second and at its end; after a crash some records come twice.
    --offset (start, end, +N, -N or @TIME) then counts only for partitions without a committed offset.

    Records of aborted transactions are left out, and a transaction that has not ended holds up the records behind its
    first: the command says where, at its end or when it has stood still for about 5 s. --isolation-level
    read_uncommitted prints them all.

    \b
    Fields of --format:
      %t topic  %p partition  %o offset  %T timestamp in ms  %D timestamp as a date
      %k key  %v value  %K %V their lengths in bytes (-1: null)  %h headers (a=1,b=2)
      %k{hex} %v{base64} for bytes; \\n \\t \\xHH; %% is a percent sign

    A range N:M begins at N and ends before M. A TIME is a date like 2026-01-31 or 2026-01-31T12:00:00Z, ms or s since
    1970, now, or an age like -15m.

    \b
    Examples:
      siltstone consume orders --offset start --until-end
      siltstone consume orders -o -10 -n 10 --json | jq .value
      siltstone consume orders users -o @-15m -f '%D %t %k=%v\\n'
      siltstone consume orders -p 3 -o 42:43 --data ./siltstone-data
      siltstone consume users --key alice --until-end --json
      siltstone consume orders --group billing --json | ./bill
    """
    if as_json and text is not None:
        raise click.UsageError("give either --json or --format, not both")
    if group is not None and partitions is not None:
        raise click.UsageError("give either --group or --partitions, not both: a group assigns the partitions itself")
    if group is not None and key is not None:
        raise click.UsageError("give either --group or --key, not both: a group commits also what --key leaves out")
    if all_partitions and (key is None or partitions is not None):
        raise click.UsageError("--all-partitions belongs to --key, and goes without --partitions")
    clock = SystemClock()
    with as_usage():
        span = parse_offsets(offsets, clock.wall_ms())
        wanted = None if partitions is None else parse_partitions(partitions)
        written = _writer(text, as_json=as_json, many=len(set(topics)) > 1)
    if group is not None and (span.until is not None or span.first.anchor is Anchor.OFFSET):
        raise click.UsageError(
            f"--offset {offsets} cannot be combined with --group: a group continues from its committed offsets."
            f" `siltstone groups reset {shlex.quote(group)} --topic {topics[0]}` moves them"
        )
    level = Isolation[isolation.upper()]
    asked = _Asked(list(dict.fromkeys(topics)), wanted, span, follow, key, all_partitions, level)
    ended = asyncio.run(_consume(bootstrap, given_agents(), asked, group, num, written))
    # Without an end, Ctrl-C is how it ends.
    if not ended and (not follow or num is not None or span.until is not None):
        say("stopped before the end: not all records were printed", err=True)
        sys.exit(INTERRUPTED)


def _writer(text: str | None, *, as_json: bool, many: bool) -> Written:
    # Records can hold control sequences: on a terminal these are escaped, and a pipe gets the bytes unchanged.
    on_terminal = sys.stdout.isatty()
    if as_json:
        return lambda record: json.dumps(json_record(record), ensure_ascii=on_terminal).encode() + b"\n"
    if text is None and on_terminal:
        return lambda record: readable(record, with_topic=many).encode() + b"\n"
    pieces = parse_format(VALUE_LINES if text is None else text)
    return lambda record: render(pieces, record, for_terminal=on_terminal)


def _tell(line: str) -> None:
    say(line, err=True)


async def _consume(
    bootstrap: str, hints: HintOptions, asked: _Asked, group: str | None, num: int | None, written: Written
) -> bool:
    """False: a signal stopped it."""
    narrowed: list[bool] = []

    async def find(inner: KafkaClient) -> Sequence[TopicPartition]:
        found: list[TopicPartition] = []
        for topic in asked.topics:
            async with name_hints(inner, topic, hints):
                there = await partitions_of(inner, topic, asked.partitions)
            if asked.key is not None and asked.partitions is None and not asked.all_partitions:
                narrowed.append(len(there) > 1)
                there = [there[partition_of_key(asked.key, len(there))]]
            found += there
        return found

    clock, stopping = SystemClock(), asyncio.Event()
    shows = f"`{FIND}{hints.places}` shows the transaction; --isolation-level read_uncommitted prints the records"
    notes = StandstillNotes(clock, _tell, remedy=f"{shows} before it ends")
    async with RetryingClient(bootstrap, clock, told=_tell) as client:
        with stop_signals(stopping):
            if group is None:
                places = await client.run(find)
                batches = _alone(client, places, asked, num, notes, is_narrowed=any(narrowed))
            else:
                await client.run(find)  # report a missing topic before joining the group
                batches = _in_group(client, bootstrap, group, asked, clock, notes).read(num)
            return await unless(stopping, _print(batches, written)) or False


async def _alone(
    client: RetryingClient,
    partitions: Sequence[TopicPartition],
    asked: _Asked,
    num: int | None,
    notes: StandstillNotes,
    *,
    is_narrowed: bool,
) -> AsyncGenerator[Sequence[OutputRecord]]:
    """`is_narrowed`: `partitions` leaves out some, because the key gives one."""

    async def find(inner: KafkaClient) -> Mapping[TopicPartition, Reach]:
        return await reaches(
            inner, partitions, asked.span, to_end=not asked.follow, told=_tell, isolation=asked.isolation
        )

    left, found = num, 0
    found_reaches = await client.run(find)
    async with aclosing(read(client, found_reaches, told=_tell, isolation=asked.isolation)) as batches:
        async for records in batches:
            if asked.key is not None:
                records = [each for each in records if each.key == asked.key]
                found += len(records)
            given = records if left is None else records[:left]
            yield given
            if left is not None:
                left -= len(given)
                if not left:
                    return
            notes.look(found_reaches)
    if notes.end(found_reaches):
        return  # whether the key has a record is not known before the transaction ends
    if is_narrowed and not found:
        _tell(
            "no record with this key is in the partition that the key gives. A producer that is not Java's may have put"
            " it elsewhere: --all-partitions looks in all of them"
        )


def _in_group(
    client: RetryingClient, bootstrap: str, name: str, asked: _Asked, clock: Clock, notes: StandstillNotes
) -> GroupReader:
    async def counts(topics: Collection[str]) -> Mapping[str, int]:
        return await client.run(partial(partition_counts, topics=topics))

    group = GroupClient(bootstrap, name, clock, patience_ms=PATIENCE_MS, told=_tell)
    member = GroupMember(group, asked.topics, counts, clock)
    return GroupReader(
        client,
        member,
        clock,
        first=asked.span.first,
        to_end=not asked.follow,
        told=_tell,
        isolation=asked.isolation,
        notes=notes,
    )


async def _print(batches: AsyncGenerator[Sequence[OutputRecord]], written: Written) -> bool:
    """True: all are printed."""
    async with aclosing(batches):
        async for records in batches:
            if records:
                await print_when_taken(b"".join(map(written, records)))
    return True
