"""Prints, at the end of a test run, how often each fault fired and each path was taken over all its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.faults import Kind, table

COUNTS = "simulation counts"
SEEDS = "simulation seeds"


def record(record_property: Callable[[str, object], None], counts: Counter[Kind], seeds: int) -> None:
    """Add a test's counts to the summary. They are plain strings, because they may come from a worker process."""
    record_property(COUNTS, {str(kind): count for kind, count in counts.items()})
    record_property(SEEDS, seeds)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    seeds = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))
            counts.update(properties.get(COUNTS, {}))
            seeds += properties.get(SEEDS, 0)
    if seeds:
        terminalreporter.section(f"simulation of {seeds:,} seeds")
        terminalreporter.write_line(table(counts))
