"""Merges that a command runs in its own process: `--engine`, the services, Ctrl-C, and the progress on a terminal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from metadata.contract.jobs import MergeJob
from runtime.errors import BadInputError
from runtime.logging import configure
from runtime.runtime import Runtime
from siltstone.cli.options.system_options import SystemOptions, Urls
from siltstone.processes.opening import opened_stores
from siltstone.processes.spark_note import EngineChoice
from siltstone.processes.stopping import INTERRUPTED, stop_signals
from siltstone.terminal.output import console
from siltstone.terminal.plain import say

if TYPE_CHECKING:
    from compactor.merging.execute import Progress as Step
    from compactor.worker import Worker
    from siltstone.ops.compaction.run_job import Parts

T = TypeVar("T", bound=Callable[..., object])


def stopped_here(text: str) -> click.exceptions.Exit:
    """Print `text`; the returned exception ends the command with 130, the exit code after Ctrl-C in shells."""
    say(text, err=True)
    return click.exceptions.Exit(INTERRUPTED)


def engine_option(command: T) -> T:
    """Add `--engine spark|embedded`; the command gets an EngineChoice or None as `engine`."""

    def chosen(_context: click.Context, _option: click.Parameter, value: str | None) -> EngineChoice | None:
        return None if value is None else EngineChoice(value)

    return click.option(
        "--engine",
        type=click.Choice([each.value for each in EngineChoice]),
        callback=chosen,
        help="Run merges on Spark (spark.submitter names it), or embedded in this process.",
    )(command)


@asynccontextmanager
async def opened_parts(urls: Urls, given: SystemOptions) -> AsyncGenerator[Parts]:
    """The open services of a merge. Raises BadInputError without an object store, and the errors of opening it."""
    if not urls.object_store:
        raise BadInputError(
            "no option or setting says where the object store is; no merge was started",
            remedy="give --data DIR, or --object-store URL",
        )
    from siltstone.ops.compaction.run_job import Parts  # loads the compiler of the kernels, which takes seconds

    settings = replace(given.settings, metadata_url=urls.metadata, object_store_url=urls.object_store)
    if settings.log_level == "info":  # the log lines of a compactor are not part of a command's answer
        configure("warning", settings.log_format)
    runtime = Runtime()
    async with opened_stores(settings, runtime) as (store, metadata):
        yield Parts(settings=settings, store=store, metadata=metadata, runtime=runtime)


@asynccontextmanager
async def worker_here(
    parts: Parts, engine: EngineChoice | None, command: str, on_progress: Callable[[int, Step], None]
) -> AsyncGenerator[tuple[Worker, asyncio.Event]]:
    """A worker, and the event that Ctrl-C or SIGTERM sets. The worker then gives its merge back to the compactors."""
    from siltstone.ops.compaction.run_job import foreground_worker

    stopping = asyncio.Event()
    host = f"{socket.gethostname()} (siltstone {command})"
    with stop_signals(stopping):
        async with foreground_worker(parts, choice=engine, host=host, on_progress=on_progress) as worker:

            async def watch() -> None:
                await stopping.wait()
                worker.stop()

            watching = asyncio.create_task(watch())
            try:
                yield worker, stopping
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)


async def run_here(urls: Urls, given: SystemOptions, job_id: int, engine: EngineChoice | None) -> tuple[MergeJob, int]:
    """Run one job. Returns the finished job and the time of the store. Raises the errors of `run_job`."""
    from siltstone.ops.compaction.run_job import JobFailedError, check_runnable, run_job

    async with opened_parts(urls, given) as parts:
        await check_runnable(parts.metadata, job_id, engine)
        with shown_steps() as show:
            async with worker_here(parts, engine, "jobs run", show) as (worker, stopping):
                try:
                    job = await run_job(parts, worker, job_id)
                except JobFailedError:
                    if not stopping.is_set():
                        raise
                    raise stopped_here(f"stopped: job {job_id} is ready again, for any compactor") from None
        return job, await parts.metadata.now_ms()


@contextmanager
def shown_steps() -> Generator[Callable[[int, Step], None]]:
    """Show the steps of a merge: a bar on a terminal, otherwise a line on stderr for each new step."""
    target = console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    tasks: dict[int, TaskID] = {}
    said: dict[int, str] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=target, transient=True, disable=not target.is_terminal
    ) as progress:

        def show(job_id: int, step: Step) -> None:
            text = f"job {job_id}: {step.step}"
            if target.is_terminal:
                if job_id not in tasks:
                    tasks[job_id] = progress.add_task(text, total=1.0)
                progress.update(tasks[job_id], description=text, completed=step.fraction)
            elif said.get(job_id) != text:
                said[job_id] = text
                say(text, err=True)

        yield show
