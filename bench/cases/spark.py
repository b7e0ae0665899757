"""Heavy merges: the compactor's own engine against units in Spark tasks, over the same L1 files.

Both read and write one directory. The engine merges the plain partition in one go, in this process. On Spark the same
job is cut into units of equal size, and a warm session runs them on one and on two cores; the driver's start, which a
merge pays once, is a row of its own. CPU is that of all processes: this one, Spark's JVM and its Python workers. The
cost of a unit beyond its bytes is measured with many units of almost nothing.

Wall times of a busy machine say little: look at CPU, and at ratios.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.loads.merge_inputs import BATCH_RECORDS, LEASE, MergeInputFiles, json_values, numbered_keys, stamped_batches
from bench.loads.merge_price import merge_price
from bench.measures.price import MERGE_PRICE_COLUMNS, MERGE_PRICE_NOTE
from bench.measures.usage import children
from bench.registry import Size
from bench.table import Cell, Column, Table
from compactor.heavy.plan.codec import sealed
from compactor.heavy.plan.cut import UnitSizes, cut
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.stored import store_plan
from compactor.merging.execute import MergeEngine
from compactor.planning.spec import MIB, MergeSpec
from metadata.contract.jobs import ClaimedJob
from runtime.clock import SystemClock
from runtime.runtime import Runtime
from storage.cluster import check_cluster
from storage.local import LocalStore
from storage.urls import object_url, parse_store_url
from wire.kernels import warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER_ID = "Yw3tQzB1TSu1R0pY0h7b2g"
VALUE_BYTES = 1024
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spent:
    wall_s: float
    cpu_s: float


def run(size: Size) -> Iterator[Table]:
    warm()
    records, files = (100_000, 16) if size is Size.SMALL else (1_000_000, 64)
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        yield asyncio.run(_measured(Path(folder), records, files, tiny_units=64, repeats=2))


async def _measured(folder: Path, records: int, files: int, *, tiny_units: int, repeats: int) -> Table:
    store = LocalStore(folder / "objects")
    await store.open()
    await check_cluster(store, cluster_id=CLUSTER_ID, store_bound=False)
    print(f"{records:,} records of {VALUE_BYTES} B in {files} files", file=sys.stderr)
    claimed = await _claim(store, records, files)
    size_bytes = sum(each.length for each in claimed.extents)
    tiny = await _claim(store, tiny_units * BATCH_RECORDS, tiny_units)
    price = await merge_price(store, [claimed])
    embedded = await _least(lambda: _embedded(store, claimed), repeats)
    rows: list[list[Cell]] = [_row("embedded", 1, _Work(size_bytes, records, 1), embedded, embedded, price)]
    per_unit: list[str] = []
    for cores in (1, 2):
        started = _now()
        spark = await asyncio.to_thread(_session, cores)
        start = _since(started)
        try:
            await _on_spark(store, folder, spark, tiny, 1)  # workers are started, kernels loaded
            plan = await _plan(store, claimed, 1)
            price = await merge_price(store, [plan.claimed(unit) for unit in plan.units])
            spent = await _least(lambda: _on_spark(store, folder, spark, claimed, 1), repeats)  # noqa: B023
            rows.append(_row("Spark, warm", cores, _Work(size_bytes, records, len(plan.units)), spent, embedded, price))
            small = await _least(lambda: _on_spark(store, folder, spark, tiny, 1), repeats)  # noqa: B023
            own = await _least(lambda: _each_embedded(store, tiny), repeats)
            each_ms = (small.cpu_s - own.cpu_s) / tiny_units * 1000
            wall_ms = small.wall_s / tiny_units * 1000
            per_unit.append(f"{cores} core{'s' * (cores > 1)}: {each_ms:.0f} ms of CPU, {wall_ms:.0f} ms")
            rows.append(_row("Spark's start", cores, _Work(), start, embedded, [None] * len(MERGE_PRICE_COLUMNS)))
        finally:
            await asyncio.to_thread(_end, spark)
    return Table(
        "Heavy merges, on Spark and without",
        f"A plain partition of {records:,} records of {VALUE_BYTES} B in {files} L1 files, from a directory into it;"
        f" the least of {repeats}. A unit is one file here; in production it is 256 MiB."
        f" What a unit of almost nothing costs beyond the same merge in this process, and how long it takes:"
        f" {'; '.join(per_unit)}. {MERGE_PRICE_NOTE} That of Spark is without plans and manifests.",
        (
            Column("engine"),
            Column("cores"),
            Column("units"),
            Column("wall", "s", 2),
            Column("CPU", "s", 2),
            Column("MB/s", digits=0),
            Column("records/s"),
            Column("wall", "x", 2),
            Column("CPU", "x", 2),
            *MERGE_PRICE_COLUMNS,
        ),
        rows,
    )


class _Work(NamedTuple):
    """The work of one row; all zero if only a session was started."""

    size_bytes: int = 0
    records: int = 0
    units: int = 0


def _row(engine: str, cores: int, work: _Work, spent: Spent, embedded: Spent, price: Sequence[Cell]) -> list[Cell]:
    size, records = work.size_bytes, work.records
    return [
        engine,
        cores,
        work.units or None,
        spent.wall_s,
        spent.cpu_s,
        size / spent.wall_s / 1e6 if size else None,
        records / spent.wall_s if records else None,
        spent.wall_s / embedded.wall_s,
        spent.cpu_s / embedded.cpu_s,
        *price,
    ]


# ---- the work


async def _claim(store: LocalStore, records: int, files: int) -> ClaimedJob:
    """A claim over one plain partition of this many files."""
    inputs = MergeInputFiles(store)
    values = json_values(VALUE_BYTES)
    per_file = records // files // BATCH_RECORDS * BATCH_RECORDS
    for number in range(files):
        keys = numbered_keys(np.arange(number * per_file, (number + 1) * per_file))
        await inputs.add_file(stamped_batches(keys, values, base_offset=inputs.next_offset))
    claimed = inputs.claim()
    spec = replace(MergeSpec.from_json(claimed.job.spec), dedupe=False, partitions={})
    plain = {id_: replace(each, configs={}) for id_, each in claimed.partitions.items()}
    return replace(claimed, job=replace(claimed.job, spec=spec.to_json()), partitions=plain)


async def _embedded(store: LocalStore, claimed: ClaimedJob) -> None:
    engine = MergeEngine(store=store, runtime=Runtime(), lease=LEASE)
    commit = await engine.run(claimed)
    await store.delete_many([output.key for output in commit.outputs])


async def _each_embedded(store: LocalStore, claimed: ClaimedJob) -> None:
    """Run its units one after the other, as a task does."""
    plan = await _plan(store, claimed, 1)
    for unit in plan.units:
        await _embedded(store, plan.claimed(unit))


_numbers = iter(range(1, 1_000_000))


async def _plan(store: LocalStore, claimed: ClaimedJob, unit_bytes: int) -> HeavyPlan:
    """A new plan, of a job that nobody has begun."""
    job = replace(claimed.job, job_id=next(_numbers), deadline_ms=claimed.now_ms + 3_600_000)
    plan = cut(
        replace(claimed, job=job),
        MergeSpec.from_json(claimed.job.spec),
        cluster_id=CLUSTER_ID,
        lease=LEASE,
        sizes=UnitSizes(unit_bytes=unit_bytes, keyed_unit_bytes=1024 * MIB),
    )
    # Tasks obey the end of a plan's time.
    return sealed(replace(plan, commit_by_ms=max(plan.commit_by_ms, SystemClock().wall_ms() + 3_600_000)))


async def _on_spark(store: LocalStore, folder: Path, spark: SparkSession, claimed: ClaimedJob, unit_bytes: int) -> None:
    from spark_jobs.heavy_merge import Driver

    plan = await _plan(store, claimed, unit_bytes)
    url = object_url(parse_store_url((folder / "objects").as_uri()), await store_plan(store, plan))
    driver = Driver(spark, plan, url, stop=threading.Event(), tell=lambda _: None)
    await asyncio.to_thread(driver.run)


def _session(cores: int) -> SparkSession:
    from spark_jobs.session import local_session

    return local_session("siltstone-bench", cores, memory="1g")


def _end(spark: SparkSession) -> None:
    from spark_jobs.session import end_session

    end_session(spark)


# ---- the cost


async def _least(work: Callable[[], Any], repeats: int) -> Spent:
    found: list[Spent] = []
    for _ in range(repeats):
        started = _now()
        await work()
        found.append(_since(started))
    return Spent(min(each.wall_s for each in found), min(each.cpu_s for each in found))


def _now() -> tuple[float, float]:
    return time.perf_counter(), _cpu_s(os.getpid())


def _since(started: tuple[float, float]) -> Spent:
    wall_s, cpu_s = _now()
    return Spent(wall_s - started[0], cpu_s - started[1])


def _cpu_s(pid: int) -> float:
    """The CPU of a process and of all its living descendants: the higher of two readings, because a reading misses a
    process between its end and its parent's wait.
    """
    return max(_cpu_of_tree(pid), _cpu_of_tree(pid))


def _cpu_of_tree(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    spent: Sequence[str] = fields[11:15]  # utime, stime, and those of children that were waited for
    return sum(map(int, spent)) / TICKS + sum(map(_cpu_of_tree, children(pid)))
