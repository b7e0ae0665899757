"""`siltstone consume`: records of topics on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing

import click

from siltstone.cli.agents import agent_options, given_agents, name_hints
from siltstone.cli.output import print_bytes
from siltstone.cli.usage import as_usage
from siltstone.client import KafkaClient
from siltstone.client_records import TopicPartition
from siltstone.client_steady import SteadyClient
from siltstone.clock import SystemClock
from siltstone.command_words import CommandWords
from siltstone.consuming import Reach, partitions_of, reaches, read
from siltstone.offset_spec import OffsetRange, parse_offsets, parse_partitions
from siltstone.record_format import VALUE_LINES, OutputRecord, json_record, parse_format, readable, render
from siltstone.stopping import stop_signals, unless

Written = Callable[[OutputRecord], bytes]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    *("-o", "--offset", "offsets"),
    default="start",
    show_default=True,
    metavar="OFFSET",
    help="start, end, N, +N (from the start), -N (before the end), N:M, @TIME, @TIME:@TIME.",
)
@click.option("-p", "--partitions", "partitions", metavar="P,...", help="Only these, for example 0,2,5-7.")
@click.option("-n", "--num", type=click.IntRange(min=1), help="End after this many records.")
@click.option("-f", "--format", "text", metavar="FORMAT", help="How records are printed.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each record.")
@click.option(
    "--follow/--until-end",
    "follow",
    default=True,
    show_default=True,
    help="Wait for records that come, until Ctrl-C, or end where the topic ends now.",
)
@agent_options
def consume(
    topics: Sequence[str],
    offsets: str,
    partitions: str | None,
    num: int | None,
    text: str | None,
    as_json: bool,
    follow: bool,
    bootstrap: str,
) -> None:
    """Print records of TOPICs: on a terminal one readable line each, into a pipe their values.

    It joins no group and commits nothing.

    \b
    Fields of --format:
      %t topic  %p partition  %o offset  %T timestamp in ms  %D as a date
      %k key  %v value  %K %V their lengths (-1 is null)  %h headers (a=1,b=2)
      %k{hex} %v{base64} for bytes; \\n \\t \\xHH; %% is a percent sign

    A range N:M is from N on and below M. A TIME is a date like 2026-01-31 or 2026-01-31T12:00:00Z, ms or s since
    1970, now, or a time ago like -15m.

    \b
    Examples:
      siltstone consume orders --offset start --until-end
      siltstone consume orders -o -10 -n 10 --json | jq .value
      siltstone consume orders users -o @-15m -f '%D %t %k=%v\\n'
      siltstone consume orders -p 3 -o 42:43 --data ./siltstone-data
    """
    if as_json and text is not None:
        raise click.UsageError("--json is a format: give it without --format")
    clock = SystemClock()
    with as_usage():
        span = parse_offsets(offsets, clock.wall_ms())
        wanted = None if partitions is None else parse_partitions(partitions)
        written = _writer(text, as_json=as_json, many=len(set(topics)) > 1)
    asyncio.run(
        _consume(bootstrap, given_agents(), list(dict.fromkeys(topics)), wanted, span, num, written, follow=follow)
    )


def _writer(text: str | None, *, as_json: bool, many: bool) -> Written:
    on_terminal = sys.stdout.isatty()
    if as_json:
        return lambda record: json.dumps(json_record(record), ensure_ascii=on_terminal).encode() + b"\n"
    if text is None and on_terminal:
        return lambda record: readable(record, with_topic=many).encode() + b"\n"
    pieces = parse_format(VALUE_LINES if text is None else text)
    return lambda record: render(pieces, record, for_terminal=on_terminal)


def _tell(line: str) -> None:
    click.echo(line, err=True)


async def _consume(
    bootstrap: str,
    words: CommandWords,
    topics: Sequence[str],
    wanted: Sequence[int] | None,
    span: OffsetRange,
    num: int | None,
    written: Written,
    *,
    follow: bool,
) -> None:
    async def find(inner: KafkaClient) -> dict[TopicPartition, Reach]:
        found: list[TopicPartition] = []
        for topic in topics:
            async with name_hints(inner, topic, words):
                found += await partitions_of(inner, topic, wanted)
        return await reaches(inner, found, span, to_end=not follow, told=_tell)

    stopping = asyncio.Event()
    async with SteadyClient(bootstrap, SystemClock(), told=_tell) as client:
        with stop_signals(stopping):
            await unless(stopping, _print(client, await client.run(find), num, written))


async def _print(client: SteadyClient, found: dict[TopicPartition, Reach], num: int | None, written: Written) -> None:
    left = num
    async with aclosing(read(client, found, told=_tell)) as batches:
        async for records in batches:
            shown = records if left is None else records[:left]
            print_bytes(b"".join(map(written, shown)))
            if left is not None:
                left -= len(shown)
                if not left:
                    return
