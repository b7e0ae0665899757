"""Heavy merges: the compactor's own engine against units in Spark tasks, over the same L1 files.

Both read and write one directory. The engine merges the partition in one go, in this process. On Spark the same job is
cut into units: a plain partition is copied, and a compacted one is deduped in full, which reads the keys of its slices,
shuffles their hashes and rewrites the slices. Each runs the load once cold and then warm. A Spark's start and its end,
which a merge pays once, are columns of their own. The standalone cluster has a master and two workers with one core
each. CPU is that of all processes: this one, Spark's JVMs and its Python workers.

Wall times of a busy machine say little: look at CPU, and at ratios. Two cores cannot show how a cluster scales.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from bench.cases.spark.spent import Spent, least, now, since
from bench.loads.merge_inputs import BATCH_RECORDS, LEASE, MergeInputFiles, json_values, numbered_keys, stamped_batches
from bench.registry import Size
from bench.table import Cell, Column, Table
from compactor.heavy.plan.codec import sealed
from compactor.heavy.plan.cut import UNIT_BYTES, UnitSizes, cut
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.stored import read_result, store_plan
from compactor.merging.execute import MergeEngine
from compactor.planning.spec import MIB, MergeSpec
from metadata.contract.jobs import ClaimedJob
from runtime.clock import SystemClock
from runtime.runtime import Runtime
from spark_jobs.environment import find_environment
from storage.cluster import check_cluster
from storage.local import LocalStore
from storage.urls import object_url, parse_store_url
from wire.kernels import warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER_ID = "Yw3tQzB1TSu1R0pY0h7b2g"


class Load(NamedTuple):
    value_bytes: int
    records: int
    keys: int
    """Distinct keys, chosen at random; 0: a plain partition, which is copied."""
    files: int


class OnSpark(NamedTuple):
    """One Spark's measurements of one load."""

    start: Spent
    """Until the first task has run, kernels loaded."""
    cold: Spent
    warm: Spent
    end: Spent
    units: int
    shuffled_bytes: int
    """Of one warm run."""


SMALL = (Load(1024, 100_000, 0, 16), Load(100, 200_000, 80_000, 16))
FULL = (
    Load(1024, 1_048_576, 0, 16),
    Load(1024, 1_048_576, 400_000, 16),
    Load(100, 8_000_000, 0, 16),
    Load(100, 8_000_000, 4_000_000, 16),
)
WARM_RUNS = 2
UNITS_MIN = 4
"""A small load is cut into so many; a large one into units of the default size."""
ENGINES = {"local[1]": 1, "local[2]": 2, "standalone, 2 workers": 2}
TINY = Load(100, 400, 0, 4)


def run(size: Size) -> Iterator[Table]:
    warm()
    loads = SMALL if size is Size.SMALL else FULL
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        yield asyncio.run(_measured(Path(folder), loads))


async def _measured(folder: Path, loads: Sequence[Load]) -> Table:
    rows: list[list[Cell]] = []
    for number, load in enumerate(loads):
        place = folder / f"load-{number}"
        store = LocalStore(place / "objects")
        await store.open()
        await check_cluster(store, cluster_id=CLUSTER_ID, store_bound=False)
        name = f"{load.value_bytes} B, {'full dedupe' if load.keys else 'plain'}"
        print(f"{load.records:,} records of {name}", file=sys.stderr)
        claimed = await _claim(store, load)
        size_bytes = sum(each.length for each in claimed.extents)
        await _embedded(store, claimed)
        embedded = await _least(lambda: _embedded(store, claimed), WARM_RUNS)  # noqa: B023
        rows.append([name, "embedded", None, embedded.wall_s, embedded.cpu_s, 1.0, *[None] * 7])
        for engine, cores in ENGINES.items():
            found = await _on(engine, place, store, claimed, cores)
            warm_cpu, units = found.warm.cpu_s, found.units
            rows.append(
                [
                    name,
                    engine,
                    units,
                    found.warm.wall_s,
                    warm_cpu,
                    warm_cpu / embedded.cpu_s,
                    embedded.wall_s / (found.warm.wall_s * cores),
                    warm_cpu / units * 1000,
                    found.cold.cpu_s,
                    found.shuffled_bytes / load.records if load.keys else None,
                    found.start.wall_s,
                    found.start.cpu_s,
                    found.end.wall_s,
                ]
            )
        print(f"{size_bytes / MIB:.0f} MiB", file=sys.stderr)
        await store.close()
        shutil.rmtree(place)
    return Table(
        "Heavy merges, on Spark and without",
        "One partition in L1 files, from a directory into it; embedded and warm are the least of 2 after a first."
        " Warm merges are of one session; a merge pays start, cold CPU and end once. Speed per core: the embedded"
        " engine's wall time over that of all cores together. Shuffle: bytes written for each record of the input.",
        (
            Column("values"),
            Column("engine"),
            Column("units"),
            Column("warm wall", "s", 2),
            Column("warm CPU", "s", 2),
            Column("CPU of embedded", "x", 2),
            Column("speed of embedded per core", "x", 2),
            Column("CPU a unit", "ms", 0),
            Column("cold CPU", "s", 2),
            Column("shuffle", "B", 1),
            Column("start wall", "s", 1),
            Column("start CPU", "s", 1),
            Column("end wall", "s", 1),
        ),
        rows,
    )


async def _on(engine: str, folder: Path, store: LocalStore, claimed: ClaimedJob, cores: int) -> OnSpark:
    """The load on one Spark, which is started for it and ended."""
    from spark_jobs.doctor.standalone import standalone
    from spark_jobs.session import end_session, local_session

    with ExitStack() as stack:
        conf: dict[str, str] = {}
        if engine.startswith("standalone"):
            place = folder / "cluster"
            place.mkdir(exist_ok=True)
            environ = find_environment(os.environ).for_child(os.environ)
            cluster = stack.enter_context(standalone(environ, place, worker_memory_mib=1024))
            conf = {"spark.master": cluster.master_url, "spark.executor.memory": "768m"}
        began = now()
        spark = await asyncio.to_thread(local_session, "siltstone-bench", cores, memory="1g", conf=conf)
        try:
            await _on_spark(store, folder, spark, await _plan(store, await _claim(store, TINY), 1))
            start = since(began)
            unit_bytes = min(UNIT_BYTES, sum(each.length for each in claimed.extents) // UNITS_MIN)
            spent: list[Spent] = []
            shuffled: list[int] = [_shuffled_bytes(spark)]
            for _ in range(1 + WARM_RUNS):
                plan = await _plan(store, claimed, unit_bytes)
                began = now()
                await _on_spark(store, folder, spark, plan)
                spent.append(since(began))
                shuffled.append(_shuffled_bytes(spark))
                units = len(plan.units)
        finally:
            began = now()
            await asyncio.to_thread(end_session, spark)
        return OnSpark(start, spent[0], least(spent[1:]), since(began), units, shuffled[2] - shuffled[1])


def _shuffled_bytes(spark: SparkSession) -> int:
    """Bytes that all tasks of the session have written for shuffles, by Spark's own count."""
    executors: Any = cast(Any, spark.sparkContext)._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(at).totalShuffleWrite()) for at in range(executors.size()))


# ---- the work


async def _claim(store: LocalStore, load: Load) -> ClaimedJob:
    """A claim over one partition."""
    inputs = MergeInputFiles(store)
    values = json_values(load.value_bytes)
    chance = np.random.default_rng(7)
    per_file = load.records // load.files // BATCH_RECORDS * BATCH_RECORDS
    for number in range(load.files):
        ids = chance.integers(0, load.keys, per_file) if load.keys else np.arange(per_file) + number * per_file
        await inputs.add_file(stamped_batches(numbered_keys(ids), values, base_offset=inputs.next_offset))
    claimed = inputs.claim()
    if load.keys:
        return claimed
    spec = replace(MergeSpec.from_json(claimed.job.spec), dedupe=False, partitions={})
    plain = {id_: replace(each, configs={}) for id_, each in claimed.partitions.items()}
    return replace(claimed, job=replace(claimed.job, spec=spec.to_json()), partitions=plain)


async def _embedded(store: LocalStore, claimed: ClaimedJob) -> None:
    engine = MergeEngine(store=store, runtime=Runtime(), lease=LEASE)
    commit = await engine.run(claimed)
    await store.delete_many([output.key for output in commit.outputs])


_numbers = iter(range(1, 1_000_000))


async def _plan(store: LocalStore, claimed: ClaimedJob, unit_bytes: int) -> HeavyPlan:
    """A new plan, of a job that nobody has begun. A compacted partition is cut into slices."""
    job = replace(claimed.job, job_id=next(_numbers), deadline_ms=claimed.now_ms + 3_600_000)
    plan = cut(
        replace(claimed, job=job),
        MergeSpec.from_json(claimed.job.spec),
        cluster_id=CLUSTER_ID,
        lease=LEASE,
        sizes=UnitSizes(unit_bytes=unit_bytes, keyed_unit_bytes=unit_bytes),
    )
    # Tasks obey the end of a plan's time.
    return sealed(replace(plan, commit_by_ms=max(plan.commit_by_ms, SystemClock().wall_ms() + 3_600_000)))


async def _on_spark(store: LocalStore, folder: Path, spark: SparkSession, plan: HeavyPlan) -> None:
    """Run the plan. Its outputs are deleted afterwards."""
    url = object_url(parse_store_url((folder / "objects").as_uri()), await store_plan(store, plan))
    from spark_jobs.heavy_merge import Driver

    driver = Driver(spark, plan, url, stop=threading.Event(), tell=lambda _: None)
    await asyncio.to_thread(driver.run)
    results = [await read_result(store, plan, unit.number) for unit in plan.units]
    await store.delete_many([file.key for each in results if each is not None for file in each.outputs])


# ---- the cost


async def _least(work: Callable[[], Any], repeats: int) -> Spent:
    found: list[Spent] = []
    for _ in range(repeats):
        started = now()
        await work()
        found.append(since(started))
    return least(found)
