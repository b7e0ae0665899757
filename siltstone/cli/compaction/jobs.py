"""`siltstone jobs`: planned, running and finished merges, from the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import click

from metadata.contract.jobs import JobState, MergeJob
from metadata.rules.jobs import UNREADABLE, rests
from runtime.errors import BadInputError
from runtime.text import age_text, plural, size_text
from siltstone.cli.compaction.run_here import EngineChoice, engine_option, run_here
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.ops.hint_options import HintOptions
from siltstone.processes.spark_note import ENGINE, spark_note
from siltstone.terminal.output import console, json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

BAR_CELLS = 16
BAR_WIDTH_MIN = 110
"""A terminal with fewer columns has no room for bars in the list."""
ERROR_CHARS_SHOWN = 60


class UnknownJobError(BadInputError):
    """There is no job of this id, or it ended so long ago that its row was deleted."""


def _job_id(text: str, hints: HintOptions) -> int:
    """Raises WrongUsageError."""
    if not text.isdecimal() or not int(text):
        raise WrongUsageError(
            f"{text!r} is not a job id; a job id is a number, 1 or more",
            remedy=f"`siltstone jobs list{hints.places}` shows the jobs",
        )
    return int(text)


@click.group()
def jobs() -> None:
    """List merges, show one (state, progress, result), or run one here.

    \b
    Examples:
      siltstone jobs list --data ./siltstone-data
      siltstone jobs show 17 --data ./siltstone-data
      siltstone jobs run 17 --engine spark --data ./siltstone-data
    """


@jobs.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState]),
    help="Only jobs in this state; may be repeated.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show at most this many.")
@system_options
@json_option
def list_jobs(states: tuple[str, ...], limit: int, given: SystemOptions, as_json: bool) -> None:
    """List merges, newest first: kind, state, inputs, age, progress.

    \b
    Examples:
      siltstone jobs list --data ./siltstone-data
      siltstone jobs list --state running --state ready --json \\
          --metadata postgresql://siltstone@db/siltstone
    """
    with resolved(given) as urls:
        now_ms, found = asyncio.run(_read(urls.metadata, [JobState(state) for state in states], limit))
    if as_json:
        print_json([_as_json(job) for job in found])
        return
    if not found:
        say("no jobs")
        return
    columns = ["id", "kind", "state", "files", "size", "age", "took", "progress", "error"]
    cells = [
        [
            str(job.job_id),
            job.kind,
            job.state.value,
            str(job.input_files),
            size_text(job.input_bytes),
            age_text(now_ms - job.created_ms),
            _took(job, now_ms),
            bar(fraction_of(job)) if console().width >= BAR_WIDTH_MIN else percent(fraction_of(job)),
            _shortened(job.error),
        ]
        for job in found
    ]
    print_table(columns, cells, right=["id", "files", "size", "age", "took"], cut="error")


@jobs.command("show")
@click.argument("job_id", metavar="ID")
@system_options
@json_option
def show_job(job_id: str, given: SystemOptions, as_json: bool) -> None:
    """Show one merge: why it was planned, its inputs, its progress and its result.

    \b
    Example:
      siltstone jobs show 17 --data ./siltstone-data
    """
    number = _job_id(job_id, given.hints)
    with resolved(given) as urls:
        now_ms, job = asyncio.run(_read_one(urls.metadata, number))
    if job is None:
        raise UnknownJobError(
            f"there is no job {number}, or it ended long ago and was forgotten",
            remedy=f"`siltstone jobs list{given.hints.places}` shows the jobs",
        )
    if as_json:
        print_json({**_as_json(job), "spec": dict(job.spec)})
        return
    print_pairs(described(job, now_ms, spark_note(job, given.settings)))


@jobs.command("run")
@click.argument("job_id", metavar="ID")
@engine_option
@system_options
@json_option
def run_one(job_id: str, engine: EngineChoice | None, given: SystemOptions, as_json: bool) -> None:
    """Run one merge in the foreground of this process.

    The job must be ready, that is, waiting for a compactor; it may also be resting after a failure. Without --engine
    the size decides between Spark and this process, as in a compactor with these settings. Ctrl-C makes the job ready
    again; the finished parts of a merge on Spark are kept.

    \b
    Examples:
      siltstone jobs run 17 --data ./siltstone-data
      siltstone jobs run 17 --data ./siltstone-data \\
          --engine spark --set spark.submitter=local
    """
    number = _job_id(job_id, given.hints)
    with resolved(given) as urls:
        job, now_ms = asyncio.run(run_here(urls, given, number, engine))
    if as_json:
        print_json({**_as_json(job), "spec": dict(job.spec)})
        return
    print_pairs(described(job, now_ms))


async def _read(metadata_url: str, states: Sequence[JobState], limit: int) -> tuple[int, Sequence[MergeJob]]:
    async with opened_metadata(metadata_url) as metadata:
        return await metadata.now_ms(), await metadata.operators.jobs(states=states, limit=limit)


async def _read_one(metadata_url: str, job_id: int) -> tuple[int, MergeJob | None]:
    async with opened_metadata(metadata_url) as metadata:
        return await metadata.now_ms(), await metadata.compactors.job(job_id)


def fraction_of(job: MergeJob) -> float:
    """The progress of a job, from 0 to 1."""
    if job.state is JobState.DONE:
        return 1.0
    said = job.progress.get("fraction", 0.0)
    return min(max(float(said), 0.0), 1.0) if isinstance(said, int | float) else 0.0


def bar(fraction: float) -> str:
    """0.5 -> "########........  50%"."""
    filled = int(fraction * BAR_CELLS)
    return f"{'#' * filled}{'.' * (BAR_CELLS - filled)} {fraction * 100:3.0f}%"


def percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"


def described(job: MergeJob, now_ms: int, note: str = "") -> dict[str, str]:
    step = str(job.progress.get("step", ""))
    if job.state is not JobState.RUNNING:  # a finished job has no step; a failed or ready one shows its last
        step = f"(last: {step})" if step and job.state is not JobState.DONE else ""
    pairs = {
        "job": str(job.job_id),
        "kind": job.kind,
        "state": job.state.value,
        "why": str(job.spec.get("reason", "")) or "-",
        "inputs": f"{plural(job.input_files, 'file')}, {size_text(job.input_bytes)}",
        "to level": f"L{job.spec.get('level', '?')}",
        "partitions deduped": str(len(job.spec.get("partitions", ()))),
        "planned": f"{age_text(now_ms - job.created_ms)} ago",
        "attempts": str(job.attempts),
        "compactor": "-" if job.holder is None else str(job.holder),
        "engine": _engine(job),
        "took": _took(job, now_ms) or "-",
        "progress": f"{bar(fraction_of(job))} {step}".rstrip(),
    }
    if job.state is JobState.READY and rests(job.not_before_ms, now_ms):
        pairs["tried again in"] = age_text(job.not_before_ms - now_ms)
    if job.state is JobState.RUNNING and job.deadline_ms is not None:
        pairs["time left"] = age_text(job.deadline_ms - now_ms)
    results = ((name, value) for name, value in job.result.items() if name != ENGINE)
    pairs |= {f"result: {name.replace('_', ' ')}": _shown(name, value) for name, value in results}
    if job.error:
        pairs["error"] = job.error
    if note:
        pairs["note"] = note
    return pairs


def _engine(job: MergeJob) -> str:
    """The engine of the merge: "Spark, by SUBMITTER", or "embedded" for the compactor's own process."""
    elsewhere = str(job.result.get(ENGINE) or job.progress.get(ENGINE) or "")
    if elsewhere:
        return f"Spark, by {elsewhere}"
    return "embedded" if job.state is JobState.DONE or job.progress else "-"


def _shown(name: str, value: Any) -> str:
    if name == UNREADABLE and isinstance(value, list):
        rows = [cast(dict[str, Any], each) for each in cast(list[Any], value) if isinstance(each, dict)]
        return "; ".join(
            f"{row.get('topic')}-{row.get('partition')}: {row.get('batches')}, the first at offset"
            f" {row.get('first_offset')}: {row.get('reason')}"
            for row in rows
        )
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return size_text(value) if "bytes" in name else f"{value:,}"


def _took(job: MergeJob, now_ms: int) -> str:
    if job.started_ms is None or job.state is JobState.READY:  # a job that was given back does not run
        return ""
    return age_text((job.finished_ms or now_ms) - job.started_ms)


def _shortened(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= ERROR_CHARS_SHOWN else f"{line[: ERROR_CHARS_SHOWN - 3]}..."


def _as_json(job: MergeJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "state": job.state.value,
        "reason": job.spec.get("reason", ""),
        "epoch": job.epoch,
        "holder": job.holder,
        "attempts": job.attempts,
        "created_ms": job.created_ms,
        "started_ms": job.started_ms,
        "deadline_ms": job.deadline_ms,
        "finished_ms": job.finished_ms,
        "input_files": job.input_files,
        "input_bytes": job.input_bytes,
        "fraction": fraction_of(job),
        "progress": dict(job.progress),
        "result": dict(job.result),
        "error": job.error,
    }
