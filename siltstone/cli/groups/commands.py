"""`siltstone groups`, over the Kafka protocol. The commands that change offsets are in `offsets.py` beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from runtime.clock import SystemClock
from runtime.text import plural, printable
from siltstone.cli.groups.asking import confirm, group_hints, log_ends, partition_counts, tell
from siltstone.cli.groups.offsets import delete_offsets_command, reset_command
from siltstone.cli.options.agent_options import agent_options, given_agents
from siltstone.kafka.client import KafkaError, connected
from siltstone.kafka.groups.admin import GroupClient, GroupDescription, all_groups
from siltstone.kafka.held_back import FIND
from siltstone.ops.group_report import (
    LAG_COLUMNS,
    PartitionLag,
    bar,
    describe_json,
    lag_cells,
    lags,
    total_lag_text,
)
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead")


@click.group()
def groups() -> None:
    """List consumer groups, show their lag, reset their offsets, delete them.

    \b
    Examples:
      siltstone groups list
      siltstone groups describe billing
      siltstone groups reset billing --topic orders --to-datetime 2026-01-31
      siltstone groups reset billing --topic orders --to-earliest --execute
    """


groups.add_command(reset_command)
groups.add_command(delete_offsets_command)


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state. Repeatable.",
)
@agent_options
@json_option
def list_groups(states: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """List all groups with state, protocol and coordinating agent.

    \b
    Examples:
      siltstone groups list
      siltstone groups list --state Empty --json
    """
    found = asyncio.run(all_groups(bootstrap, states=states, told=tell))
    if as_json:
        print_json([asdict(each) for each in found])
    elif found:
        cells = [[each.group_id, each.state, each.protocol_type or "-", each.coordinator] for each in found]
        print_table(["group", "state", "protocol", "coordinator"], cells)
    else:
        say("no groups")


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@agent_options
@json_option
def describe(names: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """Show the state, members, committed offsets and lag of GROUPs.

    The lag is the number of offsets between the committed offset and the end of the log. On a compacted topic fewer
    records than that are left to read. Where a group waits for an open transaction, a line says so.

    \b
    Examples:
      siltstone groups describe billing
      siltstone groups describe billing --json | jq .total_lag
    """
    hints = given_agents()
    described = asyncio.run(_describe(bootstrap, names, hints))
    if as_json:
        answers = [describe_json(group, rows) for group, rows in described]
        print_json(answers[0] if len(answers) == 1 else answers)
        return
    for number, (group, rows) in enumerate(described):
        if number:
            say()
        _print_group(group, rows, hints)


async def _describe(
    bootstrap: str, names: Sequence[str], hints: HintOptions
) -> Sequence[tuple[GroupDescription, Sequence[PartitionLag]]]:
    clock = SystemClock()
    described: list[tuple[GroupDescription, Sequence[PartitionLag]]] = []
    for name in dict.fromkeys(names):
        client = GroupClient(bootstrap, name, clock, told=tell)
        async with group_hints(bootstrap, name, hints):
            group = await client.describe()
            committed = await client.committed()
            if not group.exists and not committed:
                # GROUP_ID_NOT_FOUND. DescribeGroups calls an unknown group "Dead", which would look like an answer.
                raise KafkaError(69, f"group {name!r}")
        async with connected(bootstrap) as agent:
            counts = await partition_counts(agent, {row.topic for row in lags(group, committed, {})})
        wanted = {(row.topic, row.partition) for row in lags(group, committed, {}, partitions=counts)}
        ends = await log_ends(bootstrap, wanted)
        described.append((group, lags(group, committed, ends, partitions=counts)))
    return described


def _print_group(group: GroupDescription, rows: Sequence[PartitionLag], hints: HintOptions) -> None:
    print_pairs(
        {
            "group": group.group_id,
            "state": group.state,
            "protocol": " ".join(each for each in (group.protocol_type, group.protocol) if each) or "-",
            "coordinator": group.coordinator,
            "members": f"{len(group.members):,}",
            "total lag": total_lag_text(rows),
        }
    )
    if rows:
        say()
        columns, cells = list(LAG_COLUMNS), [lag_cells(each) for each in rows]
        if sys.stdout.isatty():
            columns.insert(5, "read")
            for row, each in zip(rows, cells, strict=True):
                each.insert(5, bar(row.fraction))
        print_table(columns, cells, right=["partition", "committed", "log end", "lag"])
    for row in rows:
        if row.note:
            say(f"{row.topic} partition {row.partition}: {row.note}")
    if any(row.waits for row in rows):
        say(f"`{FIND}{hints.places}` shows the open transactions")
    idle = [each for each in group.members if each.assignment == {}]
    for member in idle:
        who = printable(f"{member.instance_id or member.member_id} ({member.client_id} {member.host})", keep="")
        say(f"nothing assigned to {who}")


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@agent_options
def delete(names: Sequence[str], yes: bool, bootstrap: str) -> None:
    """Delete GROUPs that have no members, with all their committed offsets.

    \b
    Example:
      siltstone groups delete billing --yes
    """
    confirm(yes, f"delete {plural(len(names), 'group')} with all committed offsets?")

    async def work() -> None:
        for name in dict.fromkeys(names):
            async with group_hints(bootstrap, name, given):
                await GroupClient(bootstrap, name, SystemClock(), told=tell).delete()
            say(f"deleted {printable(name)}")

    given = given_agents()
    asyncio.run(work())
