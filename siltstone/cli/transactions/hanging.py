"""`siltstone transactions find-hanging`: the transactions that hold readers back for too long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from runtime.text import age_text, plural
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import as_usage
from siltstone.kafka.offset_spec import parse_duration
from siltstone.ops.transaction_report import (
    HANGING_COLUMNS,
    HANGING_MS,
    HELD_COLUMNS,
    LATE_MS,
    Held,
    HeldPartition,
    Shown,
    Strays,
    by_age,
    describe_json,
    hanging_cells,
    hangs,
    held_cells,
    shown,
    strays_json,
    strays_of,
)
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

FOUND = 1
"""The exit code, as of `siltstone fsck`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    hanging: Sequence[tuple[Shown, Sequence[HeldPartition]]]
    """The oldest first."""
    strays: Sequence[Strays]
    ongoing: Sequence[Shown]
    """All, the oldest first."""


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
    help="A transaction hangs if it has been ongoing for longer, or if it is past its time-out.",
)
@system_options
@json_option
def find_hanging_command(longer_than_ms: int, given: SystemOptions, as_json: bool) -> None:
    """Find transactions that have been ongoing for too long, and partitions held back by none.

    Exit code 1 if there are any. Agents abort a transaction when its time-out is over. So one that hangs has a long
    time-out, or no agent could end it: one that is past its time-out by 30 seconds hangs too, however young it is.

    "held back" counts the offsets that readers of committed records do not get. If there are none, it counts the groups
    whose members wait for the offsets that the transaction commits. A partition that a producer entered without an
    ongoing transaction is a fault: nothing ends it.

    \b
    Examples:
      siltstone transactions find-hanging --data ./siltstone-data
      siltstone transactions find-hanging --longer-than 5m --json
    """
    with resolved(given) as urls:
        found = asyncio.run(_find(urls.metadata, longer_than_ms))
    if as_json:
        print_json(
            {
                "hanging": [describe_json(each, held) for each, held in found.hanging],
                "without_transaction": [strays_json(each) for each in found.strays],
                "ongoing": len(found.ongoing),
            }
        )
    else:
        _print(found, longer_than_ms, given)
    if found.hanging or found.strays:
        sys.exit(FOUND)


async def _find(metadata_url: str, longer_than_ms: int) -> _Found:
    async with opened_metadata(metadata_url) as metadata:
        view = await metadata.operators.held_view()
        agents = await metadata.agents.live_agents()
    held = Held(view)
    ongoing = by_age([shown(each, agents, view.now_ms) for each in view.infos])
    return _Found(
        hanging=[
            (each, held.partitions(each.info.partitions))
            for each in ongoing
            if hangs(each, longer_than_ms=longer_than_ms)
        ],
        strays=strays_of(view, held),
        ongoing=ongoing,
    )


def _print(found: _Found, longer_than_ms: int, given: SystemOptions) -> None:
    if found.hanging:
        rows = [hanging_cells(each, held) for each, held in found.hanging]
        print_table(HANGING_COLUMNS, rows, right=HANGING_COLUMNS[1:3] + HANGING_COLUMNS[4:])
        say(
            "`siltstone transactions describe ID"
            f"{given.hints.places}` shows what one holds back; `siltstone transactions abort ID{given.hints.agents}`"
            " aborts it and fences its producer"
        )
    else:
        say(_none_hangs(found.ongoing, longer_than_ms, given))
    for each in found.strays:
        say()
        print_table(
            HELD_COLUMNS,
            [held_cells(one) for one in each.held],
            right=HELD_COLUMNS[1:5],
            title=f"producer {each.producer_id}, epoch {each.producer_epoch}: no transaction of it is ongoing",
        )
    if found.strays:
        count = sum(len(each.held) for each in found.strays)
        say(f"{plural(count, 'partition')} without a transaction: a fault of Siltstone; `siltstone fsck` says more")


def _none_hangs(ongoing: Sequence[Shown], longer_than_ms: int, given: SystemOptions) -> str:
    none = (
        f"no transaction has been ongoing for longer than {age_text(longer_than_ms)}, and none is past its time-out by"
        f" {age_text(LATE_MS)}"
    )
    if not ongoing:
        return f"{none}; none is ongoing at all"
    oldest = ongoing[0]
    are, them = ("is", "it") if len(ongoing) == 1 else ("are", "them")
    return (
        f"{none}; {len(ongoing):,} {are} ongoing, the oldest ({oldest.info.transactional_id!r}) for"
        f" {age_text(oldest.age_ms or 0)}: `siltstone transactions find-hanging --longer-than 0s{given.hints.places}`"
        f" shows {them}"
    )
