"""`siltstone topics explain`, and what `siltstone topics describe` says of compacted topics. Reads the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from click.core import ParameterSource

from compactor.options import plan_options
from metadata.compaction import JobState
from metadata.service import Topic
from siltstone.cli.output import age_text, json_option, print_json, print_table, size_text
from siltstone.cli.places import Places, Urls, opened_metadata, place_options, resolved
from siltstone.compact_now import JOBS_READ, find_topic
from siltstone.compaction_report import Evidence, PartitionState, Reason, explain, partition_states
from siltstone.settings import Settings

FAILED_SHOWN_MS = 3_600_000
"""Failed jobs older than this explain nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    topic: Topic
    states: Sequence[PartitionState]
    evidence: Evidence
    reasons: Sequence[Reason]


@click.command("explain")
@click.argument("topic")
@place_options
@json_option
def explain_command(topic: str, places: Places, as_json: bool) -> None:
    """Say why TOPIC is not compacted further, or why an old value still shows, and what to do about it.

    What is due is judged by the settings of this command: give it those of the compactors (--config, --set,
    environment) where they differ from the defaults.

    \b
    Examples:
      siltstone topics explain users --data ./siltstone-data
      siltstone topics explain users --metadata postgresql://siltstone@db/siltstone --json
    """
    with resolved(places) as urls:
        explained = asyncio.run(read_explained(urls.metadata, topic, places.settings))
    if as_json:
        print_json({"topic": topic, "reasons": [reason.as_json() for reason in explained.reasons]})
        return
    for reason in explained.reasons:
        click.echo(f"- {reason.says[:1].upper()}{reason.says[1:]}")
        if reason.remedy:
            click.echo(f"  remedy: {reason.remedy}")


async def read_explained(metadata_url: str, name: str, settings: Settings) -> Explained:
    """Everything that is known about the compaction of a topic, judged by the planner's numbers in `settings`.

    Raises NoSuchTopicError.
    """
    async with opened_metadata(metadata_url) as metadata:
        topic = await find_topic(metadata, name)
        view = await metadata.compaction_view()
        partitions = await metadata.partition_views(topic.topic_id)
        live = await metadata.jobs(states=[JobState.READY, JobState.RUNNING], limit=JOBS_READ)
        failed = [
            job
            for job in await metadata.jobs(states=[JobState.FAILED], limit=JOBS_READ)
            if job.finished_ms is not None and view.now_ms - job.finished_ms < FAILED_SHOWN_MS
        ]
        compactors = await metadata.live_compactors()
    evidence = Evidence(
        now_ms=view.now_ms,
        options=plan_options(settings),
        view=view,
        jobs=[*live, *failed],
        compactors=compactors,
        stall_files=settings.l0_stall_files,
    )
    states = partition_states(partitions, now_ms=view.now_ms, options=evidence.options, view=view)
    return Explained(topic=topic, states=states, evidence=evidence, reasons=explain(name, states, evidence))


def print_states(states: Sequence[PartitionState], now_ms: int) -> None:
    """A row for each partition, those that are due marked."""
    columns = ["partition", "dirty ratio", "head offsets", "head", "cleaned through", "in L0", "last compacted", ""]
    rows = [
        [
            str(each.view.partition),
            f"{each.dirtiness.ratio:.2f}",
            f"{each.head_offsets:,}",
            size_text(each.head_bytes),
            str(each.view.cleaned_through_offset),
            f"{each.l0_offsets:,}",
            last_compacted_text(each.view.last_cleaned_ms, now_ms),
            f"<- due: {each.due}" if each.due else "",
        ]
        for each in states
    ]
    print_table(columns, rows, right=columns[:6])


def last_compacted_text(last_cleaned_ms: int | None, now_ms: int) -> str:
    """ "2026-01-27 10:30:00 UTC (12m05s ago)", or "never"."""
    if last_cleaned_ms is None:
        return "never"
    at = datetime.fromtimestamp(last_cleaned_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({age_text(now_ms - last_cleaned_ms)} ago)"


def bootstrap_of(context: click.Context, urls: Urls, bootstrap: str) -> str:
    """What --bootstrap says, or, where it says nothing, the agents of the running `--data` directory."""
    is_given = context.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
    return bootstrap if is_given or not urls.bootstrap else urls.bootstrap
