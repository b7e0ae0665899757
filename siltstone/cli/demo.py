"""`siltstone demo`. The demo itself is in `siltstone/demo/run.py`."""

from __future__ import annotations

import signal
import sys
import warnings
from pathlib import Path
from types import FrameType

import click

from runtime.clock import SystemClock
from siltstone.terminal.output import console


@click.command()
@click.option("--rows", type=click.IntRange(min=1), help="Send only this many flights, the first ones.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the files of the stack in this new or empty directory. Default: remove them at the end.",
)
def demo(rows: int | None, data: Path | None) -> None:
    """Send 336,776 flights through an agent and compare what comes back.

    Starts `siltstone dev` on a free port. Writes every flight out of New York in 2013 with confluent-kafka (idempotent,
    zstd), reads them back with aiokafka, compares record by record, and shows the objects in the store.

    Then writes the same flights to a compacted topic, keyed by tail number, merges them through L1 to L2, and compares
    the latest flight of each aircraft with a plain dict. Then once more, keyed by route and merged on a local Spark,
    which also reads all flights and adds them up.

    At the end everything is stopped; the last line begins with OK. The demo needs extras. In Siltstone's clone:
    pip install -c constraints.txt '.[demo,spark]'. Without `spark` the last part is left out.

    \b
    Examples:
      siltstone demo
      siltstone demo --rows 10000 --data ./flights-demo
    """
    from siltstone.demo.run import run_demo

    # SIGTERM must stop the stack too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    run_demo(rows=rows, data=data, console=console(), clock=SystemClock())


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    # The interrupt may hit asyncio between two lines of making its loop. Python would print a traceback of the half of
    # it that is thrown away.
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    raise KeyboardInterrupt
