"""Prints, at the end of a run in which all clients had a cell, the tables of clients and ways to come in: how many
seconds a cell took, or that it failed or was skipped. It is Markdown, as docs/kafka-clients.md shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

CELL = "matrix cell"
FAILED = "**failed**"
TITLES: Mapping[str, str] = {
    "test_a_client_writes_and_reads": "writes, reads, and reads as a member of a group",
    "test_who_may_not_come_in_is_told_by_the_client": "is told in its own words that it may not come in",
    "test_a_user_may_do_what_the_acls_say_and_hears_what_not": "a user with few rights: may, and may not",
}
"""By the name of the test."""


class Cell(NamedTuple):
    test: str
    client: str
    row: str


@dataclass(slots=True)
class Tables:
    results: dict[Cell, str] = field(default_factory=dict[Cell, str])
    notes: list[str] = field(default_factory=list[str])
    """Why cells were skipped."""

    def took(self, cell: Cell, seconds: float) -> None:
        self.results.setdefault(cell, f"{seconds:.1f}")

    def failed(self, cell: Cell) -> None:
        self.results[cell] = FAILED

    def skipped(self, cell: Cell, reason: str) -> None:
        if reason not in self.notes:
            self.notes.append(reason)
        self.results[cell] = f"({self.notes.index(reason) + 1})"

    def have(self, clients: Sequence[str]) -> bool:
        return set(clients) <= {cell.client for cell in self.results}

    def lines(self, clients: Mapping[str, str]) -> Sequence[str]:
        """`clients`: how the row of each is named, in the order of the rows."""
        lines: list[str] = []
        for test, title in TITLES.items():
            ways = list(dict.fromkeys(cell.row for cell in self.results if cell.test == test))
            if not ways:
                continue
            lines += [f"| {title}, s | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
            for client, named in clients.items():
                found = [self.results.get(Cell(test, client, way), "") for way in ways]
                lines.append(f"| {named} | {' | '.join(found)} |")
            lines.append("")
        return [*lines, *(f"({number}) {reason}" for number, reason in enumerate(self.notes, 1))]


class TablesPlugin:
    """Runs where the reports come together: in the only process, or in the one that hands out the work."""

    def __init__(self) -> None:
        self.tables = Tables()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        words = dict(report.user_properties).get(CELL)
        if not isinstance(words, list | tuple):
            return
        cell = Cell(*map(str, words))
        if report.failed:
            self.tables.failed(cell)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self.tables.skipped(cell, reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self.tables.took(cell, report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.tables.results:
            return
        # Not above: this module is loaded by every run, and the clients are many.
        from tests.conformance.clients import CLIENTS

        if not self.tables.have([client.name for client in CLIENTS]):
            return
        terminalreporter.section("clients and the ways to come in")
        named = {each.name: each.name if each.absent() else f"{each.name} {each.version()}" for each in CLIENTS}
        for line in self.tables.lines(named):
            terminalreporter.line(line)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.get_closest_marker("matrix") and hasattr(item, "callspec"):
        words = item.callspec.params
        # Plain strings, because they may come from a worker process.
        item.user_properties.append((CELL, [item.originalname, words["client"].name, words["row"]]))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TablesPlugin(), "tables of clients")
