"""The progress of one topic's compaction, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from siltstone.ops.compaction import compact_now
from siltstone.ops.compaction.evidence import fraction_of

JOB_KINDS_IN_WORDS = {
    "level": "L0 to L1",
    "merge": "merging runs",
    "daily": "daily merge",
    "forced": "deduping",
    "purge": "purging",
    "erase": "erasing",
}


@contextmanager
def shown_progress(target: Console) -> Generator[Callable[[compact_now.Progress], None]]:
    """Draw a bar for the topic and one for each live job; without a terminal draw nothing. Failures are always printed.

    A bar without a known fraction pulses: a job reports its progress every two seconds, and many end before that.
    """
    told: set[int] = set()
    bars: dict[int, TaskID] = {}
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[part]}")]
    with Progress(
        *columns, TimeElapsedColumn(), console=target, transient=True, disable=not target.is_terminal
    ) as progress:
        whole = progress.add_task("cleaned through", total=None, part="")

        def draw(task: TaskID, text: str, fraction: float) -> None:
            part = f"{fraction:.0%}".replace("%", " %") if fraction else ""
            progress.update(task, description=text, total=1.0 if fraction else None, completed=fraction, part=part)

        def show(at: compact_now.Progress) -> None:
            draw(whole, "cleaned through", at.fraction)
            live = {job.job_id: job for job in at.jobs}
            for job_id in [each for each in bars if each not in live]:
                progress.remove_task(bars.pop(job_id))
            for job in live.values():
                step = job.progress.get("step")
                text = f"job {job.job_id} {JOB_KINDS_IN_WORDS.get(job.kind, job.kind)}" + (f" ({step})" if step else "")
                if job.job_id not in bars:
                    bars[job.job_id] = progress.add_task(text, total=None, part="")
                draw(bars[job.job_id], text, fraction_of(job))
            for job in at.failed:
                if job.job_id not in told:
                    told.add(job.job_id)
                    progress.console.print(f"job {job.job_id} ({job.kind}) failed: {job.error}", markup=False)

        yield show
