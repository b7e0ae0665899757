"""A whole host: merges of many partitions over its cores, side by side in one process or in several.

The two processes are two compactors at work at once, each on a merge of its own. They share nothing but the machine, so
their rate is the limit of the strands.
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
    cpu_s: float
    wall_s: float


class Ran(NamedTuple):
    """All merges of one process."""

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
        megabytes, least = asyncio.run(_strands(new_store(), claim, size, repeats))
        one = megabytes / least[1].wall_s
        rows += [_row(name, 1, strands, megabytes, each, one) for strands, each in least.items()]
        for processes in (1, 2):
            merged = processes * repeats * megabytes
            rows.append(_row(name, processes, 1, merged, _processes(processes, new_store, claim, size, repeats), one))
    note = (
        f"Merges of {PARTITIONS} partitions on the memory store. Strands: partitions side by side; `siltstone"
        f" compactor` has one for each core. The first two rows are the least of {repeats} repeats, in turns. The"
        f" others are {repeats} merges in each process, from the start of the first to the end of the last."
    )
    columns = (
        Column("merge"),
        Column("processes"),
        Column("strands in each"),
        Column("MB"),
        Column("MB/s"),
        Column("CPU", "ms a MB", 2),
        Column("rate, to one strand", "x", 2),
    )
    return Table("A whole host", note, columns, rows)


def _row(name: str, processes: int, strands: int, megabytes: float, spent: Spent, one_mb_per_s: float) -> list[Cell]:
    mb_per_s = megabytes / spent.wall_s
    return [
        name,
        processes,
        strands,
        megabytes,
        mb_per_s,
        spent.cpu_s * 1000 / megabytes,
        mb_per_s / one_mb_per_s,
    ]


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


async def _strands(store: ObjectStore, claim: Claim, size: Size, repeats: int) -> tuple[float, dict[int, Spent]]:
    """The megabytes of the merge, and the least that one and two strands spent on it."""
    claimed = await claim(store, size)
    engines = {strands: _engine(store, strands) for strands in (1, 2)}
    spent: dict[int, list[Spent]] = {strands: [] for strands in engines}
    for turn in range(repeats + 1):
        for strands, engine in engines.items():
            ran = await _run(store, engine, claimed)
            if turn:  # the first one makes the table of keys
                spent[strands].append(Spent(ran.cpu_s, ran.ended_s - ran.began_s))
    least = {strands: Spent(*map(min, zip(*each, strict=True))) for strands, each in spent.items()}
    return _megabytes(claimed), least


def _processes(processes: int, new_store: NewStore, claim: Claim, size: Size, repeats: int) -> Spent:
    """What this many processes spent, each on `repeats` merges of its own, all at once."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    merges = functools.partial(_merges, new_store, claim, size)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_meet_at, initargs=(barrier,)) as pool:
        ran = list(pool.map(merges, [repeats] * processes))
    return Spent(sum(each.cpu_s for each in ran), max(each.ended_s for each in ran) - min(each.began_s for each in ran))


_barrier: list[Barrier] = []


def _meet_at(barrier: Barrier) -> None:
    _barrier.append(barrier)


def _merges(new_store: NewStore, claim: Claim, size: Size, repeats: int) -> Ran:
    async def merges() -> Ran:
        store = new_store()
        claimed = await claim(store, size)
        engine = _engine(store, 1)
        await _run(store, engine, claimed)  # makes the table of keys
        _barrier[0].wait(timeout=300)
        ran = [await _run(store, engine, claimed) for _ in range(repeats)]
        return Ran(sum(each.cpu_s for each in ran), ran[0].began_s, ran[-1].ended_s)

    keep_freed_memory()  # as the compactor's process does
    warm()
    return asyncio.run(merges())


def _engine(store: ObjectStore, strands: int) -> MergeEngine:
    return MergeEngine(store=store, runtime=Runtime(), lease=LEASE, strands=strands)


async def _run(store: ObjectStore, engine: MergeEngine, claimed: ClaimedJob) -> Ran:
    cpu_s, began_s = time.process_time(), time.monotonic()
    commit = await engine.run(claimed)
    ran = Ran(time.process_time() - cpu_s, began_s, time.monotonic())
    await store.delete_many([output.key for output in commit.outputs])
    return ran


def _megabytes(claimed: ClaimedJob) -> float:
    return (sum(file.size_bytes for file in claimed.l0_files) + sum(each.length for each in claimed.extents)) / 1e6
