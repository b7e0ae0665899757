"""`siltstone demo`: see `siltstone/demo/run.py`."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from runtime.clock import SystemClock
from siltstone.terminal.output import console


@click.command()
@click.option("--rows", type=click.IntRange(min=1), help="Only the first so many flights.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the stack's files here (a new or empty directory); by default they are removed.",
)
def demo(rows: int | None, data: Path | None) -> None:
    """Send 336,776 flights through an agent and compare what comes back.

    Starts `siltstone dev` on a free port, writes every flight out of New York in 2013 with confluent-kafka (idempotent,
    zstd), reads them back with aiokafka, compares record by record, and shows what lies in the store. Then the same
    flights as a compacted topic, keyed by tail number: merged through L1 to L2, read back as the latest flight of each
    aircraft, compared with a plain dict. Then again, keyed by route and merged on a local Spark, which also reads all
    flights and adds them up. Stops everything; the last line begins with OK.
    Needs extras, in Siltstone's clone: pip install -c constraints.txt '.[demo,spark]'; without `spark` that part is
    left out.

    \b
    Examples:
      siltstone demo
      siltstone demo --rows 10000 --data ./flights-demo
    """
    from siltstone.demo.run import run_demo

    # SIGTERM, like Ctrl-C, must take the stack down with it.
    signal.signal(signal.SIGTERM, _interrupt)
    run_demo(rows=rows, data=data, console=console(), clock=SystemClock())


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
