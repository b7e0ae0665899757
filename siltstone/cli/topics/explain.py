"""`siltstone topics explain`, and the part of `siltstone topics describe` about compaction. Reads the metadata."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import click

from compactor.planning.dirtiness import config_int
from compactor.planning.options import plan_options
from compactor.planning.plan import explain_plan
from metadata.configs.topic import InvalidConfigError
from metadata.contract.agents import each_live_file
from metadata.contract.compactors import CompactionView, PartitionView
from metadata.contract.files import L0File
from metadata.contract.jobs import JobState
from metadata.contract.operators import HeldBytes
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic
from metadata.erasures.contract import Erasure
from metadata.rules.jobs import UNREADABLE
from metadata.rules.packed_index import iter_index
from runtime.text import age_text, size_text
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, opened_store, resolved, system_options
from siltstone.ops.compaction.compact_now import JOBS_READ, find_topic
from siltstone.ops.compaction.evidence import (
    Evidence,
    PartitionState,
    files_in_trouble,
    has_max_lag,
    has_old_tombstones,
    is_compacted,
    partition_states,
    troubled_by_partition,
)
from siltstone.ops.compaction.reasons import Reason, explain
from siltstone.ops.compaction.report import brief_lines, joined
from siltstone.ops.remains import strays_of, unnamed_objects
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say
from storage.objects import ObjectStore

FAILED_SHOWN_MS = 3_600_000
"""Failed jobs that ended longer ago are left out: they no longer explain anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    topic: Topic
    states: Sequence[PartitionState]
    evidence: Evidence
    reasons: Sequence[Reason]


@click.command("explain")
@click.argument("topic", type=TOPIC)
@system_options
@json_option
def explain_command(topic: str, given: SystemOptions, as_json: bool) -> None:
    """Explain why TOPIC is not compacted further, or why an old value still shows, and what to do.

    Where a pass removed values, the command also says in which files they still lie, or that no object holds them; for
    that it lists the bucket.

    This command decides with its own settings what is due. If the compactors do not run with the defaults, give their
    settings here too (--config, --set, environment).

    \b
    Examples:
      siltstone topics explain users --data ./siltstone-data
      siltstone topics explain users --json \\
          --metadata postgresql://siltstone@db/siltstone \\
          --object-store 's3://records/prod?region=eu-central-1'
    """
    with resolved(given) as urls:
        explained = asyncio.run(read_explained(urls.metadata, topic, given, store_url=urls.object_store))
    if as_json:
        print_json({"topic": topic, "reasons": [reason.as_json() for reason in explained.reasons]})
        return
    for text, remedy in joined(explained.reasons):
        say(f"- {text}")
        if remedy:
            say(f"  remedy: {remedy}")


async def read_explained(metadata_url: str, name: str, given: SystemOptions, *, store_url: str = "") -> Explained:
    """As `explained`. Without `store_url` the bucket is not looked at."""
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(opened_metadata(metadata_url))
        store = await stack.enter_async_context(opened_store(store_url)) if store_url else None
        return await explained(metadata, store, name, given)


async def explained(metadata: MetadataStore, store: ObjectStore | None, name: str, given: SystemOptions) -> Explained:
    """All facts about the compaction of a topic, judged by the planner's settings.

    `store` is listed where that decides whether removed values are gone. Raises NoSuchTopicError.
    """
    topic = await find_topic(metadata, name, hints=given.hints)
    view = await metadata.compactors.compaction_view()
    partitions = await metadata.operators.partition_views(topic.topic_id)
    live = await metadata.operators.jobs(states=[JobState.READY, JobState.RUNNING], limit=JOBS_READ)
    failed = [
        job
        for job in await metadata.operators.jobs(states=[JobState.FAILED], limit=JOBS_READ)
        if job.finished_ms is not None and view.now_ms - job.finished_ms < FAILED_SHOWN_MS
    ]
    l0_files = await _l0_files(metadata, partitions, view)
    compacted = [each for each in partitions if is_compacted(each.configs)]
    # Before the rows of files: an object that loses its row meanwhile is seen by one of the two.
    strays = None if store is None else await _strays(metadata, compacted, store)
    options = plan_options(given.settings)
    evidence = Evidence(
        topic=name,
        options=options,
        view=view,
        plan=explain_plan(view, options),
        jobs=[*live, *failed],
        unreadable_jobs=await metadata.operators.jobs(states=[JobState.DONE], result=UNREADABLE, limit=JOBS_READ),
        troubled=troubled_by_partition(view, partitions, l0_files),
        compactors=await metadata.compactors.live_compactors(),
        stall_files=given.settings.l0_stall_files,
        memory_bytes=given.settings.compactor_memory_bytes,
        young_l0_from=_young_l0_from(l0_files, partitions, view.now_ms),
        l0_since_ms=_l0_since_ms(l0_files, partitions),
        held=await _held(metadata, compacted),
        strays=strays,
        erasures=await _open_erasures(metadata, topic),
        hints=given.hints,
    )
    states = partition_states(partitions, options, view)
    return Explained(topic=topic, states=states, evidence=evidence, reasons=explain(states, evidence))


async def _open_erasures(metadata: MetadataStore, topic: Topic) -> Sequence[Erasure]:
    found = await metadata.erasures.erasures()
    return [each for each in reversed(found) if each.topic_id == topic.topic_id and each.done_ms is None]


async def _held(metadata: MetadataStore, compacted: Sequence[PartitionView]) -> Mapping[int, Sequence[HeldBytes]]:
    held = {each.partition_id: list[HeldBytes]() for each in compacted}
    for each in await metadata.operators.held_bytes(list(held)) if held else ():
        held[each.partition_id].append(each)
    return held


async def _strays(
    metadata: MetadataStore, compacted: Sequence[PartitionView], store: ObjectStore
) -> Mapping[int, Sequence[str]]:
    """Only for partitions whose values may be said to be gone: this lists the whole bucket."""
    wanted = [each for each in compacted if has_old_tombstones(each)]
    keys = await unnamed_objects(metadata, store) if wanted else ()
    return {each.partition_id: await strays_of(store, keys, each.topic_id, each.partition) for each in wanted}


async def _l0_files(metadata: MetadataStore, views: Sequence[PartitionView], view: CompactionView) -> Sequence[L0File]:
    """L0 files: all of them if the topic has a minimum or maximum lag, otherwise only the files in trouble."""
    has_lag = any(_min_lags_ms(views).values()) or any(map(has_max_lag, views))
    in_trouble = {file_id for file_id, file in files_in_trouble(view).items() if file.level == 0}
    # Reading all L0 files is dear in a large cluster, and most topics need none of them.
    if not has_lag and not in_trouble:
        return ()
    return [file async for file in each_live_file(metadata.agents) if has_lag or file.file_id in in_trouble]


def _min_lags_ms(views: Sequence[PartitionView]) -> Mapping[int, int]:
    """The minimum lag by partition id. A partition with an invalid lag is left out: it is never deduped."""
    lags_ms: dict[int, int] = {}
    for view in views:
        with contextlib.suppress(InvalidConfigError):
            lags_ms[view.partition_id] = config_int(view, "min.compaction.lag.ms")
    return lags_ms


def _young_l0_from(files: Sequence[L0File], views: Sequence[PartitionView], now_ms: int) -> Mapping[int, int]:
    """By partition id, the first offset in L0 that is younger than the minimum lag (see `Evidence`)."""
    lags_ms = _min_lags_ms(views)
    young: dict[int, int] = {}
    for file in files:
        for row in iter_index(file.index):
            lag_ms = lags_ms.get(row.partition_id, 0)
            if lag_ms and row.max_timestamp_ms > now_ms - lag_ms:
                young[row.partition_id] = min(row.base_offset, young.get(row.partition_id, row.base_offset))
    return young


def _l0_since_ms(files: Sequence[L0File], views: Sequence[PartitionView]) -> Mapping[int, int]:
    """See `Evidence`."""
    starts = {each.partition_id: each.log_start_offset for each in views if has_max_lag(each)}
    since_ms: dict[int, int] = {}
    for file in files:
        for row in iter_index(file.index) if starts else ():
            if row.last_offset >= starts.get(row.partition_id, row.last_offset + 1):
                since_ms[row.partition_id] = min(file.created_ms, since_ms.get(row.partition_id, file.created_ms))
    return since_ms


def print_states(explained: Explained) -> None:
    """Print a row for each partition and, below the table, which are due and what the others wait for."""
    columns = ["partition", "dirty ratio", "head offsets", "head", "cleaned through", "in L0", "last pass"]
    rows = [
        [
            str(each.view.partition),
            f"{each.dirtiness.ratio:.2f}",
            f"{each.head_offsets:,}",
            size_text(each.head_bytes),
            str(each.view.cleaned_through_offset),
            f"{each.l0_offsets:,}",
            last_pass_text(each.view.last_cleaned_ms, explained.evidence.view.now_ms),
        ]
        for each in explained.states
    ]
    print_table(columns, rows, right=columns[:6])
    for line in brief_lines(explained.reasons):
        say(line)


def last_pass_text(last_cleaned_ms: int | None, now_ms: int) -> str:
    """For example "12m05s ago", or "never"."""
    return "never" if last_cleaned_ms is None else f"{age_text(now_ms - last_cleaned_ms)} ago"
