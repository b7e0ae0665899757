"""`siltstone groups reset` and `delete-offsets`: change the committed offsets of a group from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.text import plural
from siltstone.cli.groups.asking import confirm, group_hints, log_ends, nearest_group, tell
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.client import KafkaClient, KafkaError, connected
from siltstone.kafka.consuming import partitions_of
from siltstone.kafka.groups.admin import Committed, GroupClient, GroupDescription, all_groups
from siltstone.kafka.offset_spec import parse_partitions, parse_time
from siltstone.kafka.records import TopicPartition, offsets_at
from siltstone.ops.group_report import RESET_COLUMNS, LogEnds, Reset, reset_cells, reset_json, resets, shifted
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

Chosen = Sequence[tuple[str, Sequence[int] | None]]
"""Topics with the chosen partitions of each; None for all partitions."""


class GroupHasMembersError(BadInputError):
    """The group has members. They would overwrite new offsets, or read on without noticing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The offsets to move to. Exactly one field is set."""

    to_earliest: bool
    to_latest: bool
    to_offset: int | None
    to_time_ms: int | None
    shift_by: int | None


def _read_topics(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> Chosen:
    """Read TOPIC or TOPIC:P,... values. The name of a topic cannot contain a colon."""
    chosen: list[tuple[str, Sequence[int] | None]] = []
    with as_usage():
        for value in values:
            topic, colon, numbers = value.partition(":")
            chosen.append((topic, parse_partitions(numbers) if colon else None))
    return chosen


@click.command("reset")
@click.argument("name", metavar="GROUP")
@click.option(
    *("--topic", "chosen"),
    multiple=True,
    callback=_read_topics,
    metavar="TOPIC[:P,...]",
    help="Reset this topic, or only these partitions of it. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="Reset every topic for which the group has committed offsets.")
@click.option("--to-earliest", is_flag=True, help="Move to the start of the log: read everything again.")
@click.option("--to-latest", is_flag=True, help="Move to the end of the log: skip everything.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Move to offset N.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="Move to the first record at or after TIME: 2026-01-31T12:00:00Z, ms since 1970, or -15m.",
)
@click.option("--shift-by", type=int, metavar="N", help="Move N offsets forward, or back if N is negative.")
@click.option("--execute", is_flag=True, help="Change the offsets. Without this option they are only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets; this is the default.")
@agent_options
@json_option
def reset_command(
    name: str,
    chosen: Chosen,
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    execute: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move the committed offsets of GROUP. Without --execute it only shows the new offsets.

    The group must have no members. An offset outside the log becomes the nearer end of the log. A group that does not
    exist is created.

    \b
    Examples:
      siltstone groups reset billing --topic orders --to-earliest
      siltstone groups reset billing --topic orders:0,3 --shift-by -100 --execute
      siltstone groups reset billing --all-topics --to-datetime 2026-01-31
    """
    if execute and dry_run:
        raise click.UsageError("give either --execute or --dry-run, not both")
    if bool(chosen) is all_topics:
        raise WrongUsageError(
            "name the topics to reset, in one way", remedy="give either --topic TOPIC[:P,...] or --all-topics"
        )
    with as_usage():
        time_ms = None if to_datetime is None else parse_time(to_datetime, SystemClock().wall_ms())
    target = Target(
        to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset, to_time_ms=time_ms, shift_by=shift_by
    )
    if sum((to_earliest, to_latest, to_offset is not None, time_ms is not None, shift_by is not None)) != 1:
        raise WrongUsageError(
            "name one target for the offsets",
            remedy="give exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by",
        )
    rows = asyncio.run(_reset(bootstrap, name, chosen, target, given_agents(), execute=execute))
    if as_json:
        print_json({"group": name, "executed": execute, "offsets": [reset_json(each) for each in rows]})
        return
    print_table(
        list(RESET_COLUMNS),
        [reset_cells(each) for each in rows],
        right=["partition", "before", "after", "change", "lag after"],
    )
    say(
        f"reset {plural(len(rows), 'offset')} of {name}"
        if execute
        else "nothing was changed; add --execute to commit these offsets"
    )


async def _reset(
    bootstrap: str, name: str, chosen: Chosen, target: Target, hints: HintOptions, *, execute: bool
) -> Sequence[Reset]:
    client = GroupClient(bootstrap, name, SystemClock(), told=tell)
    group = await client.describe()
    # The coordinator refuses such a commit anyway. This check says what to do, and without --execute as well.
    _require_no_members(group, hints)
    committed = await client.committed()
    if not group.exists and not committed:
        await _tell_of_new(bootstrap, name, chosen, hints)
    async with connected(bootstrap) as inner:
        partitions = await _partitions(inner, chosen, hints) if chosen else sorted(committed)
        # A group can have offsets for topics that have been deleted since; those have no log to move in.
        logs = await log_ends(bootstrap, partitions)
        gone = [each for each in partitions if each not in logs]
        for topic, partition in gone:
            tell(f"{topic} partition {partition} does not exist any more: skipped")
        there = [each for each in partitions if each in logs]
        rows = resets(await _wanted(inner, there, target, committed, logs), committed, logs)
    if not rows:
        raise BadInputError(
            f"group {name!r} has no committed offsets to reset; nothing was changed",
            remedy="name the topics with --topic TOPIC[:P,...]",
        )
    if execute:
        await client.commit({(each.topic, each.partition): each.after for each in rows})
    return rows


def _require_no_members(group: GroupDescription, hints: HintOptions) -> None:
    if group.members or group.state not in ("Empty", "Dead"):
        raise GroupHasMembersError(
            f"group {group.group_id!r} is {group.state}, with {plural(len(group.members), 'member')}; no offset was"
            " changed",
            remedy="stop the members first, because they would overwrite the new offsets;"
            f" `siltstone groups describe {group.group_id}{hints.agents}` shows them",
        )


async def _tell_of_new(bootstrap: str, name: str, chosen: Chosen, hints: HintOptions) -> None:
    hint = nearest_group(name, [each.group_id for each in await all_groups(bootstrap)], hints)
    if not chosen:
        raise KafkaError(69, f"group {name!r}", remedies={"GROUP_ID_NOT_FOUND": hint})
    tell(f"note: group {name!r} does not exist; --execute creates it ({hint})")


async def _partitions(client: KafkaClient, chosen: Chosen, hints: HintOptions) -> Sequence[TopicPartition]:
    found: set[TopicPartition] = set()
    for topic, numbers in chosen:
        async with name_hints(client, topic, hints):
            found.update(await partitions_of(client, topic, numbers))
    return sorted(found)


async def _wanted(
    client: KafkaClient,
    partitions: Sequence[TopicPartition],
    target: Target,
    committed: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, LogEnds],
) -> Mapping[TopicPartition, int]:
    if target.to_earliest:
        return {each: logs[each].start for each in partitions}
    if target.to_latest:
        return {each: logs[each].end for each in partitions}
    if target.to_offset is not None:
        return dict.fromkeys(partitions, target.to_offset)
    if target.shift_by is not None:
        return shifted(partitions, committed, target.shift_by)
    if target.to_time_ms is None:
        raise TypeError("a target sets one of its fields")
    wanted: dict[TopicPartition, int] = {}
    for each, offset in (await offsets_at(client, dict.fromkeys(partitions, target.to_time_ms))).items():
        if isinstance(offset, KafkaError):
            raise offset
        wanted[each] = logs[each].end if offset < 0 else offset
    return wanted


@click.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    *("--topic", "chosen"),
    multiple=True,
    required=True,
    callback=_read_topics,
    metavar="TOPIC[:P,...]",
    help="Delete the offsets of this topic, or only of these partitions of it. Repeatable.",
)
@click.option("--yes", is_flag=True, help="Delete without asking.")
@agent_options
def delete_offsets_command(name: str, chosen: Chosen, yes: bool, bootstrap: str) -> None:
    """Delete the committed offsets of GROUP for topics that none of its members reads.

    \b
    Example:
      siltstone groups delete-offsets billing --topic orders --yes
    """
    confirm(yes, f"delete committed offsets of group {name!r}?")
    hints = given_agents()

    async def work() -> int:
        client = GroupClient(bootstrap, name, SystemClock(), told=tell)
        async with group_hints(bootstrap, name, hints):
            committed = await client.committed()
            partitions = [
                each
                for each in sorted(committed)
                for topic, numbers in chosen
                if each[0] == topic and (numbers is None or each[1] in numbers)
            ]
            if not partitions and not (await client.describe()).exists:
                raise KafkaError(69, f"group {name!r}")
            if partitions:
                await client.delete_offsets(set(partitions))
        return len(set(partitions))

    say(f"deleted {plural(asyncio.run(work()), 'committed offset')} of {name}")
