"""The output of `siltstone tables export` and `follow`: the progress of a run, its result, and the rounds."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runtime.clock import Clock
from runtime.text import plural, printable, size_text
from siltstone.terminal.output import console, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

if TYPE_CHECKING:
    from spark_jobs.tables.contract import Report

TELL_MS = 10_000
"""Without a terminal for a bar, a line of progress is printed this often."""
QUIET_MS = 60_000
"""Rounds that find nothing print a line this often."""
PARTITIONS_SHOWN = 8


class Show(Protocol):
    def __call__(self, done: int, total: int, /) -> None: ...


@contextmanager
def shown_progress(text: str, clock: Clock) -> Generator[Show]:
    """Show a bar on a terminal, otherwise a line on stderr every ten seconds."""
    target = console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    told_ms = clock.monotonic_ms()
    with Progress(
        *columns, TimeElapsedColumn(), console=target, transient=True, disable=not target.is_terminal
    ) as progress:
        bar = progress.add_task(printable(text), total=None)

        def show(done: int, total: int, /) -> None:
            nonlocal told_ms
            progress.update(bar, completed=done, total=total)
            if not target.is_terminal and clock.monotonic_ms() - told_ms >= TELL_MS:
                told_ms = clock.monotonic_ms()
                say(f"{text}: {done} of {plural(total, 'slice')}", err=True)

        yield show


def offsets_text(offsets: Mapping[int, int]) -> str:
    """{0: 3, 1: 7} -> "0:3 1:7". For more than PARTITIONS_SHOWN partitions only the sum."""
    if len(offsets) > PARTITIONS_SHOWN:
        return f"{sum(offsets.values()):,} over {plural(len(offsets), 'partition')}"
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


class Rounds:
    """The lines of `siltstone tables follow`. With `as_json` stdout has only the reports; the first and last line go to
    stderr.
    """

    def __init__(self, topic: str, table: str, every: str, clock: Clock, *, as_json: bool) -> None:
        self._topic, self._table, self._every, self._clock = topic, table, every, clock
        self._as_json = as_json
        self.begun = False
        self._rounds = self._rows = self._files = self._bytes = self._errors = self._dead_letters = 0
        self._held: Mapping[int, int] = {}
        self._told_ms: float | None = None

    def began(self, held: Mapping[int, int] | None, begin: str) -> None:
        """`held`: the offsets where the table ends; None if there is no table yet."""
        self.begun = True
        self._held = held or {}
        place = begin if begin != "start" else "the start"
        where = place if held is None else f"offsets {offsets_text(held)}"
        say(
            f"following {self._topic} -> {self._table} every {self._every}, from {where}; Ctrl-C stops",
            err=self._as_json,
        )

    def ended(self, report: Report, upkeep: str = "") -> None:
        """`upkeep`: what was done for the table beside; empty if nothing."""
        self._rounds += 1
        self._rows += report.rows
        self._files += report.files
        self._bytes += report.size_bytes
        self._errors += report.errors
        self._dead_letters += report.dead_letters
        self._held = report.held or self._held
        if self._as_json:
            return
        now_ms = self._clock.monotonic_ms()
        parts = _parts(report)
        if parts or upkeep or self._told_ms is None or now_ms - self._told_ms >= QUIET_MS:
            self._told_ms = now_ms
            what = ", ".join(parts) or "nothing new"
            behind = f", {report.behind:,} behind its end" if report.behind else ""
            tended = f"; {upkeep}" if upkeep else ""
            say(f"{self._time()} {what}, at offsets {offsets_text(self._held)}{behind}{tended}")

    def failed(self, error: Exception) -> None:
        say(f"{self._time()} round failed, the next one in {self._every} tries again: {error}", err=True)

    def stopped(self) -> None:
        wrong = f", {plural(self._errors, 'error')}" if self._errors else ""
        dead = f", {plural(self._dead_letters, 'dead letter')}" if self._dead_letters else ""
        at = f"; the table ends at offsets {offsets_text(self._held)}" if self._held else ""
        say(
            f"stopped after {plural(self._rounds, 'round')}: {plural(self._rows, 'row')} in"
            f" {plural(self._files, 'file')}, {size_text(self._bytes)}{wrong}{dead}{at}",
            err=self._as_json,
        )

    def _time(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).strftime("%H:%M:%SZ")


def report_json(report: Report, table: str) -> Mapping[str, Any]:
    return {
        "table": table,
        "commits": list(report.commits),
        "rows": report.rows,
        "errors": report.errors,
        "dead_letters": report.dead_letters,
        "files": report.files,
        "bytes": report.size_bytes,
        "fenced": report.fenced,
        "added_columns": list(report.added_columns),
        "erased": {
            "rows": report.erased.rows,
            "files": report.erased.files,
            "requests": sorted(report.erased.requests),
        },
        "partitions": {
            str(partition): {"from": start, "to": end} for partition, (start, end) in (report.offsets or {}).items()
        },
    }


def _parts(report: Report) -> list[str]:
    """The parts of the line that tells people of a run; none if the run did nothing."""
    return ([report_line(report)] if report.commits else []) + ([report.erased.text] if report.erased.text else [])


def report_line(report: Report) -> str:
    wrong = f", {plural(report.errors, 'error')}" if report.errors else ""
    dead = f", {plural(report.dead_letters, 'dead letter')}" if report.dead_letters else ""
    return (
        f"{plural(report.rows, 'row')} in {plural(report.files, 'file')}, {size_text(report.size_bytes)}{wrong}{dead}"
    )


def print_report(report: Report, table: str, *, as_json: bool) -> None:
    if as_json:
        print_json(report_json(report, table))
        return
    if not _parts(report):
        say(f"{table} is up to date")
        return
    pairs: dict[str, str] = {}
    if report.commits:
        pairs = {"written": report_line(report), "commits": ", ".join(report.commits)}
    if report.erased.text:
        pairs["erased"] = report.erased.text.removeprefix("erased ")
    if report.added_columns:
        pairs["new columns"] = ", ".join(report.added_columns)
    print_pairs(pairs, title=table)
    rows = [
        [str(partition), f"{start:,}", f"{end:,}"] for partition, (start, end) in sorted((report.offsets or {}).items())
    ]
    if rows:
        print_table(["partition", "from offset", "up to"], rows, right=["partition", "from offset", "up to"])
