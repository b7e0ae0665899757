"""`siltstone compaction watch TOPIC`: the log of one partition beside its latest values, live."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import RenderableType

from compactor.planning.dirtiness import measure
from metadata.contract.compactors import PartitionView
from metadata.contract.store import MetadataStore
from runtime.clock import SystemClock
from runtime.errors import BadInputError
from siltstone.cli.options.agent_options import bootstrap_of, bootstrap_option
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.compaction.compact_now import configs_in_force, find_topic, require_compacted
from siltstone.ops.compaction.frame import Frame, ReadRecord
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.live import draw_until_stopped, quiet_interrupts
from siltstone.terminal.output import console
from wire.batch import iter_headers
from wire.records import walk

POLL_MS = 500
STRIP_LINES = 20
WINDOW_OFFSETS = 5_000
"""Reading begins this far before the end. This bounds the cost of a frame."""


@click.group()
def compaction() -> None:
    """Watch the compaction of one partition, live.

    \b
    Example:
      siltstone compaction watch users --data ./siltstone-data
    """


@compaction.command()
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True, help="The partition to watch.")
@click.option("--once", is_flag=True, help="Print one frame, then exit.")
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=STRIP_LINES,
    show_default=True,
    help="Lines of the log and the table.",
)
@click.option(
    "--window",
    type=click.IntRange(min=1),
    default=WINDOW_OFFSETS,
    show_default=True,
    metavar="OFFSETS",
    help="Read at most this many offsets before the end.",
)
@bootstrap_option
@system_options
def watch(
    topic: str,
    partition: int,
    once: bool,
    lines: int,
    window: int,
    bootstrap: str,
    given: SystemOptions,
) -> None:
    """Show the end of one partition's log beside the latest value of each key, until Ctrl-C.

    A record that a later one replaces is struck out (x), a tombstone is marked (∅), and a line shows how far the log
    is cleaned. Write to the topic, or compact it, in another terminal and watch.

    \b
    Examples:
      siltstone compaction watch users --data ./siltstone-data
      siltstone compaction watch users --partition 3 --once \\
          --metadata postgresql://siltstone@db/siltstone \\
          --bootstrap 127.0.0.1:9092
    """
    address = bootstrap_of(given.data, bootstrap)
    watched = Watched(topic=topic, partition=partition, lines=lines, window=window, hints=given.hints)
    if once:
        with resolved(given) as urls:
            asyncio.run(_watch(urls.metadata, address, watched, once=True))
        return
    with quiet_interrupts(), resolved(given) as urls:
        asyncio.run(_watch(urls.metadata, address, watched, once=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The partition to show, and how much of it."""

    topic: str
    partition: int
    lines: int
    window: int
    hints: HintOptions


async def _watch(metadata_url: str, bootstrap: str, watched: Watched, *, once: bool) -> None:
    async with opened_metadata(metadata_url) as metadata, RetryingClient(bootstrap, SystemClock()) as client:

        async def drawn() -> RenderableType:
            return await client.run(lambda agent: _frame(metadata, agent, watched))

        if once:
            console().print(await drawn())
        else:
            await draw_until_stopped(drawn, every_ms=POLL_MS)


async def _frame(metadata: MetadataStore, client: KafkaClient, watched: Watched) -> Frame:
    """Read the view of the partition, then its records. A pass that ends in between shows in the next frame.

    Raises NoSuchTopicError, NotCompactedError, BadInputError.
    """
    found = await find_topic(metadata, watched.topic, hints=watched.hints)
    views = await metadata.operators.partition_views(found.topic_id)
    require_compacted(found, configs_in_force(found, views), hints=watched.hints)
    view = _partition(views, watched.topic, watched.partition)
    now_ms = await metadata.now_ms()
    read_from = max(view.log_start_offset, view.high_watermark - watched.window)
    return Frame(
        records=await read_records(client, watched.topic, watched.partition, read_from, view.high_watermark),
        view=view,
        dirty_ratio=measure(view, now_ms=now_ms).ratio,
        now_ms=now_ms,
        read_from=read_from,
        lines=watched.lines,
    )


def _partition(views: Sequence[PartitionView], topic: str, partition: int) -> PartitionView:
    for view in views:
        if view.partition == partition:
            return view
    there = "it has only partition 0" if len(views) == 1 else f"give one from 0 to {len(views) - 1}"
    raise BadInputError(f"topic {topic} has no partition {partition}", remedy=there)


async def read_records(
    client: KafkaClient, topic: str, partition: int, from_offset: int, until_offset: int
) -> Sequence[ReadRecord]:
    """The records from `from_offset` to below `until_offset`, as a consumer gets them."""
    records: list[ReadRecord] = []
    offset = from_offset
    while offset < until_offset:
        fetched = await client.fetch(topic, partition, offset, max_wait_ms=0)
        following = offset
        for position, header in iter_headers(fetched.records):
            following = header.next_offset
            if header.is_control:
                continue
            for record in walk(fetched.records[position : position + header.size_bytes]):
                at = header.base_offset + record.offset_delta
                if offset <= at < until_offset:
                    key = None if record.key is None else bytes(record.key)
                    records.append(ReadRecord(at, key, None if record.value is None else bytes(record.value)))
        if following <= offset:
            break  # this agent does not know the rest yet; the next frame reads on
        offset = following
    return records
