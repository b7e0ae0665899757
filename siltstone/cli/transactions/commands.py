"""`siltstone transactions`: list and describe, from the metadata. What hangs and what is aborted have modules of their
own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from agents.transactions.patterns import Pattern, compiled
from metadata.transactions.contract import TransactionState
from runtime.errors import BadInputError
from runtime.text import age_text
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.cli.transactions.abort import abort_command
from siltstone.cli.transactions.hanging import find_hanging_command
from siltstone.cli.transactions.reading import all_ids, ids_on, named_ids
from siltstone.kafka.offset_spec import parse_duration
from siltstone.ops.transaction_report import (
    HELD_COLUMNS,
    LIST_COLUMNS,
    Held,
    HeldPartition,
    Shown,
    by_age,
    describe_json,
    held_cells,
    list_cells,
    list_json,
    shown,
)
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

STATES = tuple(each.kafka_name for each in TransactionState)


@click.group()
def transactions() -> None:
    """List transactions, show what they hold back, find those that hang, abort one.

    `abort` asks an agent (--data or --bootstrap), the others read Postgres (--data or --metadata).

    \b
    Examples:
      siltstone transactions list --state Ongoing --data ./siltstone-data
      siltstone transactions describe payments-1 --data ./siltstone-data
      siltstone transactions find-hanging --data ./siltstone-data
      siltstone transactions abort payments-1 --data ./siltstone-data
    """


transactions.add_command(find_hanging_command)
transactions.add_command(abort_command)


def _read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    with as_usage():
        return parse_duration(value)


def _read_pattern(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Pattern | None:
    if value is None:
        return None
    try:
        return compiled(value)
    except BadInputError as error:
        raise WrongUsageError(
            f"{value!r} is not a pattern: {error.message}",
            remedy="give one that matches whole ids, in RE2's syntax, such as 'payments-.*'",
        ) from error


@transactions.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only ids in this state. Repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    callback=_read_duration,
    help="Only transactions that have been ongoing for longer, for example 5m.",
)
@click.option(
    "--pattern",
    metavar="REGEX",
    callback=_read_pattern,
    help="Only ids that the pattern matches as a whole, for example 'payments-.*'.",
)
@click.option("--topic", metavar="NAME", help="Only ongoing transactions that are on a partition of this topic.")
@system_options
@json_option
def list_transactions(
    states: Sequence[str],
    longer_than_ms: int | None,
    pattern: Pattern | None,
    topic: str | None,
    given: SystemOptions,
    as_json: bool,
) -> None:
    """List transactional ids: producer, state, coordinator, and how long a transaction has been ongoing.

    Those with an ongoing transaction come first, the oldest at the top.

    \b
    Examples:
      siltstone transactions list --data ./siltstone-data
      siltstone transactions list --state Ongoing --longer-than 5m
      siltstone transactions list --pattern 'payments-.*' --json
      siltstone transactions list --topic payments
    """

    async def read(metadata_url: str) -> Sequence[Shown]:
        async with opened_metadata(metadata_url) as metadata:
            infos = await (all_ids(metadata) if topic is None else ids_on(metadata, topic, hints=given.hints))
            agents, now_ms = await metadata.agents.live_agents(), await metadata.now_ms()
        return [
            each
            for each in by_age([shown(each, agents, now_ms) for each in infos])
            if (not states or each.info.state.kafka_name in states)
            and (longer_than_ms is None or (each.age_ms is not None and each.age_ms > longer_than_ms))
            and (pattern is None or await pattern.matches(each.info.transactional_id))
        ]

    with resolved(given) as urls:
        found = asyncio.run(read(urls.metadata))
    if as_json:
        print_json([list_json(each) for each in found])
    elif found:
        print_table(LIST_COLUMNS, [list_cells(each) for each in found], right=("producer", "epoch", "ongoing for"))
    else:
        say("no transactions")


@transactions.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@system_options
@json_option
def describe(names: Sequence[str], given: SystemOptions, as_json: bool) -> None:
    """Show all that is known of transactional IDs, and what their transactions hold back.

    Readers of committed records stop at the last stable offset of a partition: the first record of the oldest
    transaction that is open there. "held back" counts the offsets from there to the high watermark, and "by" names
    that transaction.

    All is read at one instant. With --json it is an array, for one id too.

    \b
    Examples:
      siltstone transactions describe payments-1 --data ./siltstone-data
      siltstone transactions describe payments-1 --json | jq '.[].partitions'
    """
    with resolved(given) as urls:
        described = asyncio.run(_describe(urls.metadata, list(dict.fromkeys(names)), given))
    if as_json:
        print_json([describe_json(each, held) for each, held in described])
        return
    for number, (each, held) in enumerate(described):
        if number:
            say()
        _print(each, held)


async def _describe(
    metadata_url: str, names: Sequence[str], given: SystemOptions
) -> Sequence[tuple[Shown, Sequence[HeldPartition]]]:
    async with opened_metadata(metadata_url) as metadata:
        view, infos = await named_ids(metadata, names, places=given.hints.places)
        agents = await metadata.agents.live_agents()
    held = Held(view)
    return [(shown(each, agents, view.now_ms), held.partitions(each.partitions)) for each in infos]


def _print(each: Shown, held: Sequence[HeldPartition]) -> None:
    info, age_ms = each.info, each.age_ms
    left_ms = None if age_ms is None else info.timeout_ms - age_ms
    print_pairs(
        {
            "transactional id": info.transactional_id,
            "state": info.state.kafka_name,
            "producer": f"{info.producer_id}, epoch {info.producer_epoch}",
            "coordinator": f"{each.coordinator or 'none: no agent is there'}, epoch {info.coordinator_epoch}",
            "protocol": f"version {info.client_version}",
            "time-out": age_text(info.timeout_ms)
            + ("" if left_ms is None else f", over in {age_text(left_ms)}" if left_ms > 0 else ", over"),
            "started": "-" if info.started_ms is None else f"{_time(info.started_ms)}, {age_text(age_ms or 0)} ago",
            "changed": _time(info.updated_ms),
            "groups": list(each.group_ids) or "-",
            "partitions": f"{len(held):,}",
        }
    )
    if held:
        say()
        print_table(HELD_COLUMNS, [held_cells(one) for one in held], right=HELD_COLUMNS[1:5])


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
