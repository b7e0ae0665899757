"""Shared by the commands of `siltstone groups`: hints for mistyped names, log ends, the question before a deletion."""

from __future__ import annotations

import difflib
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import click

from runtime.text import printable
from siltstone.cli.options.usage import WrongUsageError
from siltstone.kafka.client import EARLIEST, LATEST, KafkaClient, KafkaError, connected
from siltstone.kafka.groups.admin import all_groups
from siltstone.kafka.records import Isolation, TopicPartition, offsets_at
from siltstone.ops.group_report import LogEnds
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.plain import say


@asynccontextmanager
async def group_hints(bootstrap: str, name: str, hints: HintOptions) -> AsyncGenerator[None]:
    """Add a remedy to an unknown-group error of the block: the existing name that is most like `name`."""
    try:
        yield
    except KafkaError as error:
        if error.name == "GROUP_ID_NOT_FOUND":
            error.remedy = nearest_group(name, [each.group_id for each in await all_groups(bootstrap)], hints)
        raise


def nearest_group(name: str, names: Sequence[str], hints: HintOptions) -> str:
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else f"`siltstone groups list{hints.agents}` shows the groups"


async def partition_counts(client: KafkaClient, topics: Collection[str]) -> Mapping[str, int]:
    """The number of partitions of each topic that exists."""
    known = (await client.metadata(sorted(topics))).topics if topics else []
    return {topic.name: len(topic.partitions) for topic in known if topic.name is not None and not topic.error_code}


async def log_ends(bootstrap: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogEnds]:
    """Start and end of the log of each partition that exists. Raises KafkaError for any other error."""
    if not partitions:
        return {}
    async with connected(bootstrap) as client:
        starts = await offsets_at(client, dict.fromkeys(partitions, EARLIEST))
        ends = await offsets_at(client, dict.fromkeys(partitions, LATEST))
        stable = await offsets_at(client, dict.fromkeys(partitions, LATEST), isolation=Isolation.READ_COMMITTED)
    found: dict[TopicPartition, LogEnds] = {}
    for each in partitions:
        start, end, until = starts[each], ends[each], stable[each]
        if isinstance(start, int) and isinstance(end, int) and isinstance(until, int):
            # What was written and committed since the end was asked for is not held back.
            found[each] = LogEnds(start=start, end=end, stable=min(until, end))
            continue
        for error in (start, end, until):
            # A deleted topic is no error here: its row is shown without log ends.
            if isinstance(error, KafkaError) and error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise error
    return found


def confirm(yes: bool, question: str) -> None:
    """Ask before a deletion. Raises click.UsageError when stdin is no terminal, click.Abort when the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsageError(
            "stdin is not a terminal, so this command cannot ask; nothing was done",
            remedy="add --yes to go on without a question",
        )
    click.confirm(printable(question), abort=True)


def tell(line: str) -> None:
    """Print a line to stderr."""
    say(line, err=True)
