"""A whole host: one merge of many partitions over its cores, side by side or one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from compactor.merging.execute import MergeEngine
from metadata.contract.jobs import ClaimedJob
from runtime.runtime import Runtime
from storage.objects import ObjectStore

PARTITIONS = 16
PARTITION_FILES = 4
VALUE_BYTES = 100
LEVELED_BATCH_RECORDS = 8_000
"""About 1 MB."""


class Spent(NamedTuple):
    cpu_s: float
    wall_s: float


async def measure(dedupe_store: ObjectStore, level_store: ObjectStore, size: Size) -> Table:
    """The stores are empty, and forget outputs."""
    small = size is Size.SMALL
    repeats = 3 if small else 7
    dedupe = await dedupe_claim(dedupe_store, records=20_000 if small else 60_000)
    (batch,) = stamped_batches(
        numbered_keys(np.arange(LEVELED_BATCH_RECORDS)),
        json_values(VALUE_BYTES),
        batch_records=LEVELED_BATCH_RECORDS,
    )
    level = await leveling_claim(level_store, partitions=PARTITIONS, files=5 if small else 20, batch=batch)
    rows = [
        *await _rows("dedupe, values of 100 B", dedupe_store, dedupe, repeats),
        *await _rows("leveling, batches of 1 MB", level_store, level, repeats),
    ]
    note = (
        f"One merge of {PARTITIONS} partitions on the memory store, the least of {repeats} repeats. Strands: partitions"
        " side by side; `siltstone compactor` has one for each core. One and two take turns."
    )
    columns = (
        Column("merge"),
        Column("strands"),
        Column("MB"),
        Column("MB/s"),
        Column("CPU", "ms a MB", 2),
        Column("wall, to one strand", "x", 2),
    )
    return Table("A whole host", note, columns, rows)


async def dedupe_claim(store: ObjectStore, *, records: int) -> ClaimedJob:
    """Each key of a partition occurs five times on average."""
    values, claims = json_values(VALUE_BYTES), list[ClaimedJob]()
    for partition_id in range(1, PARTITIONS + 1):
        chance = np.random.default_rng(partition_id)
        keys = numbered_keys(chance.integers(0, records // 5, records))
        inputs = MergeInputFiles(store, partition_id=partition_id)
        for part in np.split(keys, PARTITION_FILES):
            await inputs.add_file(stamped_batches(part, values, base_offset=inputs.next_offset))
        claims.append(inputs.claim())
    return claim_of_all(claims)


async def _rows(name: str, store: ObjectStore, claimed: ClaimedJob, repeats: int) -> Sequence[list[Cell]]:
    megabytes = sum(file.size_bytes for file in claimed.l0_files) + sum(each.length for each in claimed.extents)
    megabytes /= 1e6
    engines = {strands: MergeEngine(store=store, runtime=Runtime(), lease=LEASE, strands=strands) for strands in (1, 2)}
    spent: dict[int, list[Spent]] = {strands: [] for strands in engines}
    for turn in range(repeats + 1):
        for strands, engine in engines.items():
            before = Spent(time.process_time(), time.perf_counter())
            commit = await engine.run(claimed)
            after = Spent(time.process_time(), time.perf_counter())
            if turn:  # the first one makes the table of keys
                spent[strands].append(Spent(after.cpu_s - before.cpu_s, after.wall_s - before.wall_s))
            await store.delete_many([output.key for output in commit.outputs])
    least = {strands: Spent(*map(min, zip(*each, strict=True))) for strands, each in spent.items()}
    return [
        [
            name,
            strands,
            megabytes,
            megabytes / each.wall_s,
            each.cpu_s * 1000 / megabytes,
            least[1].wall_s / each.wall_s,
        ]
        for strands, each in least.items()
    ]
