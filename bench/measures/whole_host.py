"""A whole host: merges of many partitions in one process, and in two.

The two processes are two compactors at work at once, each on a merge of its own. They share nothing but the machine.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

import numpy as np

from bench.loads.merge_inputs import (
    LEASE,
    MergeInputFiles,
    claim_of_all,
    json_values,
    leveling_claim,
    numbered_keys,
    stamped_batches,
)
from bench.registry import Size
from bench.table import Cell, Column, Table
from compactor.merging.allocator import keep_freed_memory
from compactor.merging.execute import MergeEngine
from metadata.contract.jobs import ClaimedJob
from runtime.runtime import Runtime
from storage.objects import ObjectStore
from wire.kernels import warm

PARTITIONS = 16
PARTITION_FILES = 4
VALUE_BYTES = 100
LEVELED_BATCH_RECORDS = 8_000
"""About 1 MB."""


class Spent(NamedTuple):
    megabytes: float
    cpu_s: float
    wall_s: float

    @property
    def mb_per_s(self) -> float:
        return self.megabytes / self.wall_s


class Ran(NamedTuple):
    """A merge, or all merges of one process."""

    megabytes: float
    cpu_s: float
    began_s: float
    ended_s: float
    """The host's monotonic clock, which its processes share."""


NewStore = Callable[[], ObjectStore]
"""An empty store that forgets outputs. A function of a module, so that other processes can call it."""


def measure(new_store: NewStore, size: Size) -> Table:
    repeats = 3 if size is Size.SMALL else 7
    rows: list[list[Cell]] = []
    for name, claim in (("dedupe, values of 100 B", dedupe_claim), ("leveling, batches of 1 MB", level_claim)):
        one, two = (_processes(processes, new_store, claim, size, repeats) for processes in (1, 2))
        rows += [_row(name, 1, one, one), _row(name, 2, two, one)]
    note = (
        f"Merges of {PARTITIONS} partitions on the memory store: {repeats} in each process, from the start of the first"
        " to the end of the last. A merge runs on one core; a second `siltstone compactor` takes another."
    )
    columns = (
        Column("merge"),
        Column("processes"),
        Column("MB"),
        Column("MB/s"),
        Column("CPU", "ms a MB", 2),
        Column("rate, to one process", "x", 2),
    )
    return Table("A whole host", note, columns, rows)


def _row(name: str, processes: int, spent: Spent, one: Spent) -> list[Cell]:
    cpu_ms_a_mb = spent.cpu_s * 1000 / spent.megabytes
    return [name, processes, spent.megabytes, spent.mb_per_s, cpu_ms_a_mb, spent.mb_per_s / one.mb_per_s]


async def level_claim(store: ObjectStore, size: Size) -> ClaimedJob:
    (batch,) = stamped_batches(
        numbered_keys(np.arange(LEVELED_BATCH_RECORDS)),
        json_values(VALUE_BYTES),
        batch_records=LEVELED_BATCH_RECORDS,
    )
    return await leveling_claim(store, partitions=PARTITIONS, files=5 if size is Size.SMALL else 20, batch=batch)


async def dedupe_claim(store: ObjectStore, size: Size) -> ClaimedJob:
    """Each key of a partition occurs five times on average."""
    records = 20_000 if size is Size.SMALL else 60_000
    values, claims = json_values(VALUE_BYTES), list[ClaimedJob]()
    for partition_id in range(1, PARTITIONS + 1):
        chance = np.random.default_rng(partition_id)
        keys = numbered_keys(chance.integers(0, records // 5, records))
        inputs = MergeInputFiles(store, partition_id=partition_id)
        for part in np.split(keys, PARTITION_FILES):
            await inputs.add_file(stamped_batches(part, values, base_offset=inputs.next_offset))
        claims.append(inputs.claim())
    return claim_of_all(claims)


Claim = Callable[[ObjectStore, Size], Awaitable[ClaimedJob]]


def _processes(processes: int, new_store: NewStore, claim: Claim, size: Size, repeats: int) -> Spent:
    """All processes merge at once, `repeats` merges each. The time is from the first start to the last end."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    merges = functools.partial(_merges, new_store, claim, size)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_meet_at, initargs=(barrier,)) as pool:
        ran = list(pool.map(merges, [repeats] * processes))
    wall_s = max(each.ended_s for each in ran) - min(each.began_s for each in ran)
    return Spent(sum(each.megabytes for each in ran), sum(each.cpu_s for each in ran), wall_s)


_barrier: list[Barrier] = []


def _meet_at(barrier: Barrier) -> None:
    _barrier.append(barrier)


def _merges(new_store: NewStore, claim: Claim, size: Size, repeats: int) -> Ran:
    async def merges() -> Ran:
        store = new_store()
        claimed = await claim(store, size)
        engine = MergeEngine(store=store, runtime=Runtime(), lease=LEASE)
        await _run(store, engine, claimed)  # allocates the memory for keys
        _barrier[0].wait(timeout=300)
        ran = [await _run(store, engine, claimed) for _ in range(repeats)]
        megabytes, cpu_s = sum(each.megabytes for each in ran), sum(each.cpu_s for each in ran)
        return Ran(megabytes, cpu_s, ran[0].began_s, ran[-1].ended_s)

    keep_freed_memory()  # as the compactor's process does
    warm()
    return asyncio.run(merges())


async def _run(store: ObjectStore, engine: MergeEngine, claimed: ClaimedJob) -> Ran:
    cpu_s, began_s = time.process_time(), time.monotonic()
    commit = await engine.run(claimed)
    ran = Ran(_megabytes(claimed), time.process_time() - cpu_s, began_s, time.monotonic())
    await store.delete_many([output.key for output in commit.outputs])
    return ran


def _megabytes(claimed: ClaimedJob) -> float:
    return (sum(file.size_bytes for file in claimed.l0_files) + sum(each.length for each in claimed.extents)) / 1e6
