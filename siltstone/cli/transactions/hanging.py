"""`siltstone transactions find-hanging`: the transactions that hold readers back for too long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from metadata.transactions.contract import TransactionState
from runtime.text import age_text, plural
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import as_usage
from siltstone.cli.transactions.reading import all_ids
from siltstone.kafka.offset_spec import parse_duration
from siltstone.ops.transaction_report import (
    HANGING_MS,
    HELD_COLUMNS,
    HeldPartition,
    Shown,
    Strays,
    describe_json,
    held_cells,
    held_partitions,
    shown,
    strays_json,
    strays_of,
)
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

FOUND = 1
"""The exit code, as of `siltstone fsck`."""
COLUMNS = ("transactional id", "producer", "epoch", "coordinator", "ongoing for", "time-out", "partitions", "held back")


def _read_duration(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    with as_usage():
        return parse_duration(value)


@click.command("find-hanging")
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    default=f"{HANGING_MS // 60_000}m",
    show_default=True,
    callback=_read_duration,
    help="A transaction hangs if it has been ongoing for longer.",
)
@system_options
@json_option
def find_hanging_command(longer_than_ms: int, given: SystemOptions, as_json: bool) -> None:
    """Find transactions that have been ongoing for too long, and partitions held back by none.

    Exit code 1 if there are any. Agents abort a transaction when its time-out is over, so one that hangs has a long
    time-out, or no agent could end it. A partition that a producer entered without an ongoing transaction is a fault:
    nothing ends it.

    \b
    Examples:
      siltstone transactions find-hanging --data ./siltstone-data
      siltstone transactions find-hanging --longer-than 5m --json
    """
    with resolved(given) as urls:
        hanging, strays = asyncio.run(_find(urls.metadata, longer_than_ms))
    if as_json:
        print_json(
            {
                "hanging": [describe_json(each, held) for each, held in hanging],
                "without_transaction": [strays_json(each) for each in strays],
            }
        )
    else:
        _print(hanging, strays, longer_than_ms, given)
    if hanging or strays:
        sys.exit(FOUND)


async def _find(
    metadata_url: str, longer_than_ms: int
) -> tuple[Sequence[tuple[Shown, Sequence[HeldPartition]]], Sequence[Strays]]:
    """The oldest transaction first."""
    async with opened_metadata(metadata_url) as metadata:
        now_ms = await metadata.now_ms()
        long = [
            each.transactional_id
            for each in await all_ids(metadata)
            if each.started_ms is not None and now_ms - each.started_ms > longer_than_ms
        ]
        infos = await metadata.transactions.transactions(long)
        view = await metadata.operators.transactions_view()
        topics, agents = await metadata.agents.list_topics(), await metadata.agents.live_agents()
    marks = {each.partition_id: each for each in view.watermarks}
    found = [
        (shown(each, agents, now_ms), held_partitions(each.partitions, topics, marks))
        for each in infos
        # It may have ended meanwhile, and the next one begun.
        if each.state is TransactionState.ONGOING and now_ms - (each.started_ms or now_ms) > longer_than_ms
    ]
    return sorted(found, key=lambda each: -(each[0].age_ms or 0)), strays_of(view, topics)


def _print(
    hanging: Sequence[tuple[Shown, Sequence[HeldPartition]]],
    strays: Sequence[Strays],
    longer_than_ms: int,
    given: SystemOptions,
) -> None:
    if not hanging:
        say(f"no transaction has been ongoing for longer than {age_text(longer_than_ms)}")
    else:
        print_table(COLUMNS, [_cells(each, held) for each, held in hanging], right=COLUMNS[1:3] + COLUMNS[4:])
        say(
            "`siltstone transactions describe ID"
            f"{given.hints.places}` shows what one holds back; `siltstone transactions abort ID{given.hints.agents}`"
            " aborts it and fences its producer"
        )
    for each in strays:
        say()
        print_table(
            HELD_COLUMNS,
            [held_cells(one) for one in each.held],
            right=HELD_COLUMNS[1:5],
            title=f"producer {each.producer_id}, epoch {each.producer_epoch}: no transaction of it is ongoing",
        )
    if strays:
        count = sum(len(each.held) for each in strays)
        say(f"{plural(count, 'partition')} without a transaction: a fault of Siltstone; `siltstone fsck` says more")


def _cells(each: Shown, held: Sequence[HeldPartition]) -> list[str]:
    return [
        each.info.transactional_id,
        str(each.info.producer_id),
        str(each.info.producer_epoch),
        each.coordinator or "none",
        age_text(each.age_ms or 0),
        age_text(each.info.timeout_ms),
        f"{len(held):,}",
        f"{sum(one.held_back for one in held if one.holds):,}",
    ]
