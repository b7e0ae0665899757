"""`siltstone topics trim`: remove the oldest records, as Kafka's DeleteRecords does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.text import plural
from siltstone.cli.groups.asking import LogEnds, confirm, log_ends
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.usage import as_usage
from siltstone.kafka.admin import delete_records_before
from siltstone.kafka.client import connected
from siltstone.kafka.consuming import partitions_of, reaches
from siltstone.kafka.offset_spec import Anchor, OffsetRange, parse_offsets, parse_partitions
from siltstone.kafka.records import TopicPartition
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import print_table
from siltstone.terminal.plain import say


@click.command("trim")
@click.argument("name", type=TOPIC)
@click.option(
    "--before",
    required=True,
    metavar="OFFSET",
    help="Remove the records below this place: N, +N (the first N), -N (all but the last N), @TIME, end.",
)
@click.option("-p", "--partitions", metavar="P,...", help="Only in these partitions, for example 0,2,5-7.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@agent_options
def trim_command(name: str, before: str, partitions: str | None, yes: bool, bootstrap: str) -> None:
    """Remove the oldest records of topic NAME, for ever (Kafka's DeleteRecords).

    Nobody reads them from then on. Offsets stay as they are. Compactors delete the bytes later.

    \b
    Examples:
      siltstone topics trim orders --before @2026-01-31 --yes
      siltstone topics trim orders --before -1000 --partitions 0
    """
    with as_usage():
        span = parse_offsets(before, SystemClock().wall_ms())
        wanted = None if partitions is None else parse_partitions(partitions)
    if span.until is not None:
        raise click.UsageError("--before is one place, not a range")
    places = asyncio.run(_places(bootstrap, given_agents(), name, span, wanted))
    ends = asyncio.run(log_ends(bootstrap, places))
    if span.first.anchor is Anchor.OFFSET:
        _check_not_above(span.first.number, name, ends)
    going = {each: offset for each, offset in places.items() if each in ends and offset > ends[each].start}
    if not going:
        say("nothing to remove: no record lies before that place")
        return
    count = sum(offset - ends[each].start for each, offset in going.items())
    rows = [[str(each[1]), str(ends[each].start), str(offset)] for each, offset in sorted(going.items())]
    print_table(["partition", "log start", "new log start"], rows, right=["partition", "log start", "new log start"])
    confirm(yes, f"remove {plural(count, 'offset')} of topic {name!r} for ever?")
    asyncio.run(_trim(bootstrap, going))
    say(f"trimmed {name}: {plural(count, 'offset')} in {plural(len(going), 'partition')}")


def _check_not_above(offset: int, name: str, ends: Mapping[TopicPartition, LogEnds]) -> None:
    """Kafka refuses an offset above the end too (OFFSET_OUT_OF_RANGE); a slip must not empty a partition."""
    for (_, partition), log in sorted(ends.items()):
        if offset > log.end:
            raise BadInputError(
                f"partition {partition} of topic {name} ends at offset {log.end}, before {offset}; nothing was removed",
                remedy="name the partitions that the offset is meant for with --partitions; `--before end` removes "
                "everything",
            )


async def _places(
    bootstrap: str, hints: HintOptions, name: str, span: OffsetRange, wanted: Sequence[int] | None
) -> Mapping[TopicPartition, int]:
    async with connected(bootstrap) as client:
        async with name_hints(client, name, hints):
            there = await partitions_of(client, name, wanted)
        found = await reaches(client, there, span, to_end=True, told=lambda line: say(line, err=True))
    return {each: reach.position for each, reach in found.items()}


async def _trim(bootstrap: str, going: Mapping[TopicPartition, int]) -> None:
    async with connected(bootstrap) as client:
        await delete_records_before(client, going)
