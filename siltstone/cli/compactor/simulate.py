"""`siltstone compactor simulate`: days of compaction in seconds, with the planner of a real compactor.

Uses no store and no Postgres. `compactor/simulation/cluster.py` describes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import click

from compactor.planning.spec import MIB
from compactor.simulation.cluster import Load
from compactor.simulation.run import Sample, Simulated, Workers, simulate
from runtime.text import age_text, plural, size_text
from siltstone.terminal.output import console, json_option, print_json, print_pairs, print_table

BLOCKS = " ▁▂▃▄▅▆▇█"
PLOT_WIDTH = 72
PLOT_HEIGHT = 4
TABLE_ROWS = 8
HOUR_MS = 3_600_000

Figure = tuple[str, Callable[[Sample], float], Callable[[float], str]]


def _number(value: float) -> str:
    return f"{value:,.0f}"


FIGURES: Sequence[Figure] = (
    ("live L0 files", lambda each: each.l0_files, _number),
    ("L1 runs, plain", lambda each: each.l1_plain, _number),
    ("L1 runs, compacted", lambda each: each.l1_compacted, _number),
    ("L2 runs, plain", lambda each: each.l2_plain, _number),
    ("L2 runs, compacted", lambda each: each.l2_compacted, _number),
    ("metadata rows per second", lambda each: each.rows_per_second, _number),
    ("write amplification", lambda each: each.write_amplification, lambda value: f"{value:.2f}"),
    ("dedupe lag", lambda each: each.dedupe_lag_ms, age_text),
    ("bytes of compacted topics", lambda each: each.compacted_bytes, size_text),
    ("jobs that wait for a worker", lambda each: each.jobs_ready, _number),
)

COLUMNS = (
    "L0",
    "L1 plain",
    "L1 comp.",
    "L2 plain",
    "L2 comp.",
    "rows /s",
    "write amp.",
    "lag",
    "comp. bytes",
    "jobs wait",
)
assert len(COLUMNS) == len(FIGURES)


@click.command("simulate")
@click.option("--agents", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Number of agents.")
@click.option(
    "--hours", type=click.FloatRange(0.1, 24 * 365), default=48.0, show_default=True, help="Simulated time in hours."
)
@click.option(
    "--mib-per-second",
    type=click.FloatRange(0.001, 10_000),
    default=1.0,
    show_default=True,
    help="MiB that each agent writes a second.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(1, 60_000),
    default=250,
    show_default=True,
    help="Time between two files of an agent, in ms.",
)
@click.option(
    "--early-per-second",
    type=click.FloatRange(0, 20),
    default=0.0,
    show_default=True,
    help="Files that each agent seals early, a second.",
)
@click.option(
    "--partitions", type=click.IntRange(1, 1_000_000), default=128, show_default=True, help="Number of partitions."
)
@click.option(
    "--compacted",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Share of the partitions that are compacted.",
)
@click.option(
    "--keys", type=click.IntRange(1), default=100_000, show_default=True, help="Keys in each compacted partition."
)
@click.option(
    "--record-bytes", type=click.IntRange(1, 1 << 20), default=500, show_default=True, help="Bytes of a record."
)
@click.option(
    "--dirty-ratio",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="min.cleanable.dirty.ratio of the compacted topics.",
)
@click.option(
    "--retention-hours",
    type=click.FloatRange(0.1, 24 * 3650),
    default=168.0,
    show_default=True,
    help="Retention of the other topics, in hours.",
)
@click.option(
    "--workers", type=click.IntRange(1, 1_000), default=4, show_default=True, help="Merges that run at the same time."
)
@click.option(
    "--merge-mib-per-second",
    type=click.FloatRange(0.1, 10_000),
    default=64.0,
    show_default=True,
    help="MiB that each merge processes a second.",
)
@json_option
def simulate_command(
    agents: int,
    hours: float,
    mib_per_second: float,
    linger_ms: int,
    early_per_second: float,
    partitions: int,
    compacted: float,
    keys: int,
    record_bytes: int,
    dirty_ratio: float,
    retention_hours: float,
    workers: int,
    merge_mib_per_second: float,
    as_json: bool,
) -> None:
    """Simulate days of compaction: files, runs, rows, write amplification, dedupe lag. Needs no cluster.

    Dedupe lag: take the oldest record of a partition that no pass from the log start has seen; the lag is its age, in
    the worst partition.

    \b
    Examples:
      siltstone compactor simulate --agents 12 --hours 48
      siltstone compactor simulate --agents 96 --workers 12 --json \\
          --compacted 0.5 --keys 1000000
    """
    load = Load(
        agents=agents,
        bytes_per_second=mib_per_second * MIB,
        linger_ms=linger_ms,
        early_per_second=early_per_second,
        partitions=partitions,
        compacted_share=compacted,
        keys=keys,
        record_bytes=record_bytes,
        dirty_ratio_min=dirty_ratio,
        retention_ms=int(retention_hours * HOUR_MS),
    )
    simulated = simulate(load, hours=hours, workers=Workers(count=workers, bytes_per_second=merge_mib_per_second * MIB))
    if as_json:
        print_json(simulated_json(simulated))
    else:
        _print(simulated)


def simulated_json(simulated: Simulated) -> Mapping[str, Any]:
    return {
        "load": asdict(simulated.load),
        "workers": asdict(simulated.workers),
        "hours": simulated.hours,
        "jobs": {str(kind): count for kind, count in simulated.jobs.items()},
        "job_wait_ms_max": simulated.job_wait_ms_max,
        "workers_busy": round(simulated.workers_busy, 4),
        "compacted_bytes_least": simulated.compacted_bytes_least,
        "samples": [asdict(each) for each in simulated.samples],
    }


def plot(values: Sequence[float], *, width: int = PLOT_WIDTH, height: int = PLOT_HEIGHT) -> Sequence[str]:
    """The lines of a bar plot, top line first. A column shows the largest of its values; its scale begins at 0."""
    width = min(width, len(values))
    bounds = [number * len(values) // width for number in range(width + 1)]
    columns = [max(values[start:end]) for start, end in pairwise(bounds)]
    most = max(columns, default=0) or 1
    eighths = [round(value / most * height * 8) for value in columns]
    return ["".join(BLOCKS[max(0, min(8, each - row * 8))] for each in eighths) for row in range(height - 1, -1, -1)]


def axis(hours: float, *, width: int = PLOT_WIDTH) -> str:
    """The line below a plot: the times of its beginning, middle and end."""
    begin, middle, end = "0", age_text(hours * HOUR_MS / 2), age_text(hours * HOUR_MS)
    left = f"{begin:<{max(1, (width - len(middle)) // 2)}}{middle}"
    return f"{left}{end:>{max(1 + len(end), width - len(left))}}"


def assumed(simulated: Simulated) -> Mapping[str, str]:
    """The assumptions behind the figures, with the defaults of options that were not given."""
    load, workers = simulated.load, simulated.workers
    retention = age_text(load.retention_ms)
    return {
        "agents": f"{load.agents:,}, each {size_text(load.bytes_per_second)}/s, flushed every {load.linger_ms} ms"
        + (f", and {load.early_per_second:g} files a second sealed early" if load.early_per_second else ""),
        "partitions": f"{load.partitions:,}, of which {load.compacted_partitions:,} compacted;"
        f" the others keep {retention}",
        "keys": f"{load.keys:,} in each compacted partition, written evenly, {size_text(load.record_bytes)} each",
        "dirty ratio": f"{load.dirty_ratio_min:g} (min.cleanable.dirty.ratio)",
        "workers": f"{plural(workers.count, 'merge')} at once, each {size_text(workers.bytes_per_second)}/s "
        f"plus {workers.overhead_ms} ms",
        "planner": "default settings",
    }


def _print(simulated: Simulated) -> None:
    out = console()
    print_pairs(assumed(simulated), title=f"Assumed, for {age_text(simulated.hours * HOUR_MS)}")
    out.print()
    for name, figure, text in FIGURES:
        values = [figure(each) for each in simulated.samples]
        out.print(f"{name}: at most {text(max(values))}, at the end {text(values[-1])}", markup=False)
        for line in plot(values):
            out.print(f"  {line}", markup=False)
        out.print(f"  {axis(simulated.hours, width=min(PLOT_WIDTH, len(values)))}", markup=False)
    every = max(1, len(simulated.samples) // TABLE_ROWS)
    shown = simulated.samples[every - 1 :: every]
    rows = [[age_text(each.at_ms), *(text(figure(each)) for _, figure, text in FIGURES)] for each in shown]
    columns = ["after", *COLUMNS]
    out.print()
    print_table(columns, rows, right=columns)
    out.print()
    print_pairs(
        {
            "jobs": ", ".join(f"{count:,} {kind}" for kind, count in simulated.jobs.items()) or "none",
            "longest wait of a job": age_text(simulated.job_wait_ms_max),
            "workers busy": f"{simulated.workers_busy:.0%}",
            "one record for each key": size_text(simulated.compacted_bytes_least),
        }
    )
    out.print("dedupe lag (lag): the age of the oldest record that no pass from the log start has seen", markup=False)
