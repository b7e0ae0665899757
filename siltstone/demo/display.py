"""The terminal of the demo: its console, its clock, and a progress bar for each step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.clock import Clock
from siltstone.demo import clients


@dataclass(frozen=True, slots=True)
class Display:
    console: Console
    clock: Clock

    def print(self, text: str) -> None:
        """One line, which the terminal may wrap."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: int) -> Generator[clients.Progress]:
        """Show a progress bar on a terminal, otherwise one line at the end."""
        done = 0

        def count(records: int) -> None:
            nonlocal done
            done += records

        if not self.console.is_terminal:
            yield count
            self.console.print(f"{what}: {done:,} records", markup=False)
            return
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(what, total=total)

            def advance(records: int) -> None:
                count(records)
                progress.update(task, completed=done)

            yield advance
            progress.update(task, total=done)  # flights without a key may have been left out
