"""Partitions with more keys than a dedupe buffer holds, on a real Spark: one record per key remains."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.loads.merge_inputs import LEASE, NOW_MS, PARTITION_ID, MergeInputFiles, numbered_keys, stamped_batches
from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.heavy.combine import combine
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.codec import sealed
from compactor.heavy.plan.cut import UnitSizes, cut
from compactor.heavy.plan.units import HeavyPlan, UnitKind
from compactor.heavy.rewrite_slice import partition_keys_key, survivors_key
from compactor.heavy.run_unit import run_unit
from compactor.heavy.stored import plan_key, read_result, settle, store_plan
from compactor.heavy.survivors import SliceId, SurvivorsError, SurvivorsWriter
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MIB, MergeSpec
from metadata.contract.jobs import CommitMerge
from runtime.clock import ManualClock, SystemClock
from runtime.runtime import Runtime
from spark_jobs import full_dedupe
from storage.cluster import ClusterFile, encode_cluster_file
from storage.keys import CLUSTER_KEY
from storage.local import LocalStore
from storage.objects import ObjectStore
from storage.urls import object_url, parse_store_url
from tests.fixtures.dedupe_process import peak_bytes
from tests.fixtures.spark import children, command
from wire.batch import BATCH_HEADER_BYTES
from wire.crc import crc32c
from wire.kernels.batches import read_batches
from wire.kernels.scan import scan_records
from wire.records import NewRecord, build_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER = "full-dedupe"
VALUES = np.frombuffer(b"12345678", dtype=np.uint8).reshape(1, 8)
Offsets = NDArray[np.int64]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = LocalStore(tmp_path)
    await store.open()
    await put(store, CLUSTER_KEY, encode_cluster_file(ClusterFile(cluster_id=CLUSTER)))
    yield store
    await store.close()


async def put(store: ObjectStore, key: str, body: bytes) -> None:
    await store.put_if_absent(key, body, crc32c=crc32c(body))


async def planned(
    inputs: MergeInputFiles[LocalStore], folder: Path, *, slice_bytes: int, keys_max: int
) -> tuple[HeavyPlan, str]:
    """A stored plan that slices the partition, and its URL."""
    claimed = inputs.claim()
    spec = MergeSpec.from_json(claimed.job.spec)
    plan = cut(
        claimed,
        spec,
        cluster_id=CLUSTER,
        lease=LEASE,
        sizes=UnitSizes(unit_bytes=slice_bytes, keyed_unit_bytes=slice_bytes, memory=MergeMemory(keys_max=keys_max)),
    )
    # drivers obey this limit
    plan = sealed(replace(plan, commit_by_ms=max(plan.commit_by_ms, SystemClock().wall_ms() + 4 * 3_600_000)))
    assert plan.sliced == [PARTITION_ID]
    await store_plan(inputs.store, plan)
    return plan, object_url(parse_store_url(folder.as_uri()), plan_key(plan))


async def rewritten(store: ObjectStore, plan: HeavyPlan) -> CommitMerge:
    for unit in plan.units_of(UnitKind.REWRITE):
        await run_unit(store, plan, unit.number, runtime=Runtime(clock=ManualClock(plan.claimed_ms)))
    return await combined(store, plan)


async def combined(store: ObjectStore, plan: HeavyPlan) -> CommitMerge:
    found = {unit.number: await read_result(store, plan, unit.number) for unit in plan.units}
    return combine(plan, {number: result for number, result in found.items() if result is not None}, epoch=1)


async def offsets_left(commit: CommitMerge, store: ObjectStore) -> AsyncIterator[Offsets]:
    """The offsets of all records in the outputs, in order, some at a time."""
    extents = [(extent, output.key) for output in commit.outputs for extent in output.extents]
    for extent, key in sorted(extents, key=lambda each: each[0].base_offset):
        if extent.length:
            data = await store.get_range(key, extent.position, extent.length)
            table = read_batches(data)
            starts, ends = table.positions + BATCH_HEADER_BYTES, table.positions + table.sizes
            columns = scan_records(np.frombuffer(data, dtype=np.uint8), starts, ends, table.record_counts)
            yield np.repeat(table.base_offsets, table.record_counts) + columns.offset_deltas


def last_of_each(keys: Offsets, count: int) -> Offsets:
    """The rows of the last record of each of `count` keys, in order."""
    last = np.full(count, -1, dtype=np.int64)
    last[keys] = np.arange(len(keys))
    return np.sort(last[last >= 0])


# Small


async def some_partition(store: LocalStore) -> tuple[MergeInputFiles[LocalStore], Offsets]:
    """24,000 records in eight extents, and the rows that are the last of their keys. The fourth extent holds tombstones
    of keys before and behind it."""
    inputs = MergeInputFiles(store)
    chance = np.random.default_rng(5)
    keys = chance.integers(0, 9_000, 24_000)
    for number in range(8):
        mine = keys[number * 3_000 : (number + 1) * 3_000]
        batches: Iterator[bytes] = stamped_batches(numbered_keys(mine), VALUES, base_offset=inputs.next_offset)
        if number == 3:
            batches = tombstones(numbered_keys(mine), inputs.next_offset)
        await inputs.add_file(batches)
    return inputs, last_of_each(keys, 9_000)


def tombstones(names: NDArray[np.uint8], base_offset: int) -> Iterator[bytes]:
    for first in range(0, len(names), 100):
        records = [NewRecord(NOW_MS, names[at].tobytes(), None) for at in range(first, first + 100)]
        yield build_batch(records, base_offset=base_offset + first)


@pytest.mark.timeout(300)
async def test_one_record_per_key_is_left_though_tasks_die_at_every_step(
    store: LocalStore, spark: SparkSession, tmp_path: Path
) -> None:
    # given a partition with many more keys than its buffer, in slices, and tasks that die: one between its rows, one
    # behind the survivors it wrote, and one whose rows and manifest were all there when Spark lost them
    inputs, last = await some_partition(store)
    plan, url = await planned(inputs, tmp_path, slice_bytes=inputs.bytes // 2, keys_max=500)
    units = plan.units_of(UnitKind.KEYS)
    assert len(units) >= 3
    done = tmp_path / "died"
    done.mkdir()
    read, write = full_dedupe.read_slice, full_dedupe.write_slice

    def dies_once(where: str) -> None:
        try:
            os.close(os.open(done / where, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError(f"died {where}")

    def read_dying(plan_url: str, numbers: Any, place: int) -> Any:
        if place == 1:
            list(read(plan_url, numbers, place))  # Spark lost its rows
        for block in read(plan_url, numbers, place):
            yield block
            if place == 0:
                dies_once("between rows")

    def write_dying(plan_url: str, numbers: Any, place: int, found: Any) -> Any:
        (told,) = write(plan_url, numbers, place, found)
        if place == 1:
            dies_once("behind survivors")
        yield told

    # when the keys are grouped, and the slices rewritten
    with (
        patch.object(full_dedupe, "read_slice", read_dying),
        patch.object(full_dedupe, "write_slice", write_dying),
    ):
        await asyncio.to_thread(full_dedupe.run, spark, plan, url)
    commit = await rewritten(store, plan)
    # then all of them died, and one record per key remains, the last one; tombstones included
    assert {each.name for each in done.iterdir()} == {"between rows", "behind survivors"}
    left = np.concatenate([some async for some in offsets_left(commit, store)])
    assert np.array_equal(left, last)
    kept = int(np.sum((last >= 9_000) & (last < 12_000)))
    assert (commit.summary["tombstones_kept"], commit.summary["tombstones_dropped"]) == (kept, 0)
    (cleaned,) = commit.cleaned
    assert (cleaned.cleaned_through_offset, cleaned.passes_needed) == (24_000, -(-len(last) // 500))
    assert (commit.summary["keys"], commit.summary["records_in"]) == (len(last), 24_000)

    # when another driver runs the same plan, then it finds everything there and asks Spark for nothing
    await asyncio.to_thread(full_dedupe.run, None, plan, url)


async def test_a_driver_goes_on_where_another_was_killed_and_refuses_what_does_not_fit(
    store: LocalStore, spark: SparkSession, tmp_path: Path
) -> None:
    # given a plan in which everything but the last step was done
    inputs, last = await some_partition(store)
    plan, url = await planned(inputs, tmp_path, slice_bytes=inputs.bytes // 3, keys_max=500)
    await asyncio.to_thread(full_dedupe.run, spark, plan, url)
    await store.delete_many([partition_keys_key(plan, PARTITION_ID)])
    # when another driver comes, then it finds the same manifests and survivors again
    await asyncio.to_thread(full_dedupe.run, spark, plan, url)
    # and survivors that differ from its own are an error
    unit = plan.units_of(UnitKind.REWRITE)[-1]
    key = survivors_key(plan, unit)
    stored = await store.get(key)
    await store.delete_many([key])
    await put(store, key, stored[:-40] + bytes(40))
    with pytest.raises(SurvivorsError, match="CRC-32C"):
        await run_unit(store, plan, unit.number, runtime=Runtime(clock=ManualClock(plan.claimed_ms)))
    # and so is a result of a REWRITE unit that disagrees with the keys
    await store.delete_many([key])
    writer = SurvivorsWriter(SliceId(plan.fingerprint, PARTITION_ID, unit.base_offset, unit.last_offset))
    writer.add(last[-1:], 1)
    await put(store, key, writer.finish())
    with pytest.raises(ManifestMismatchError, match="survivors"):
        await run_unit(store, plan, unit.number, runtime=Runtime(clock=ManualClock(plan.claimed_ms)))


async def test_a_scan_that_is_done_again_must_find_what_the_manifest_of_its_unit_says(
    store: LocalStore, tmp_path: Path
) -> None:
    # given a unit whose keys were read, and changed bytes in its slice
    inputs, _ = await some_partition(store)
    plan, _ = await planned(inputs, tmp_path, slice_bytes=inputs.bytes // 3, keys_max=500)
    unit = plan.units_of(UnitKind.KEYS)[0]
    rows = [len(block.offsets) async for block in full_dedupe._key_blocks(store, plan, unit.number)]
    assert sum(rows) > 0
    extent = plan.extents_of(unit)[0]
    body = bytearray(await store.get(extent.key))
    body[extent.position + 100] ^= 1
    await store.delete_many([extent.key])
    await put(store, extent.key, bytes(body))
    # when its keys are read again, then it is not taken for the same slice
    with pytest.raises(ManifestMismatchError, match="read again and is not as it was"):
        _ = [block async for block in full_dedupe._key_blocks(store, plan, unit.number)]


async def test_two_tries_at_once_at_a_slice_that_read_it_otherwise_do_not_both_count(
    store: LocalStore, tmp_path: Path
) -> None:
    # given an attempt at a unit that gave its rows and has not written its manifest yet
    inputs, _ = await some_partition(store)
    plan, _ = await planned(inputs, tmp_path, slice_bytes=inputs.bytes // 3, keys_max=500)
    unit, other = plan.units_of(UnitKind.KEYS)[:2]
    _ = [block async for block in full_dedupe._key_blocks(store, plan, other.number)]
    read = await read_result(store, plan, other.number)
    assert read is not None
    # when another attempt, at the same time, first reports a different result for it
    with pytest.raises(ManifestMismatchError, match=f"two tries at unit {unit.number} .* read different keys"):
        async for _ in full_dedupe._key_blocks(store, plan, unit.number):
            found = {**read.details, "rows": read.details["rows"] + 1}
            await settle(store, plan, replace(read, unit=unit.number, details=found))


# Soak


class Watched:
    """A driver in a process of its own, with the peak memory of JVM and Python workers and the processor time of
    all.
    """

    def __init__(self, url: str, folder: Path, *, memory: str) -> None:
        arguments = ["-m", "spark_jobs.heavy_merge", "--plan", url, "--master", "local[2,4]", "--memory", memory]
        environ = os.environ | {"SPARK_LOCAL_DIRS": str(folder / "spark"), "TMPDIR": str(folder)}
        self.peaks: dict[str, int] = {}
        self.cpu_s: dict[int, float] = {}
        self.lines: list[tuple[float, dict[str, Any]]] = []
        began = time.monotonic()
        output = folder / "driver.out"
        with output.open("wb") as stdout:
            process = subprocess.Popen(
                [sys.executable, *arguments], env=environ, stdout=stdout, cwd=Path(__file__).parents[4]
            )
        while process.poll() is None:
            self._look(process.pid)
            time.sleep(0.25)
        self.wall_s = time.monotonic() - began
        self.units = [json.loads(line) for line in output.read_text().splitlines()]
        assert process.returncode == 0, output.read_text()[-2_000:]

    def _look(self, pid: int) -> None:
        try:
            kind = "jvm" if "java" in command(pid).split(" ")[0] else "python"
            self.peaks[kind] = max(self.peaks.get(kind, 0), peak_bytes(pid))
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            self.cpu_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return
        for child in children(pid):
            self._look(child)


async def dedupe_and_check(store: LocalStore, tmp_path: Path, *, keys: int, overwrites: int, slice_bytes: int) -> None:
    """Dedupe all keys in random order, with random repeats, and check against the last place of each key."""
    chance = np.random.default_rng(11)
    numbers = np.concatenate((chance.permutation(keys), chance.integers(0, keys, overwrites)))
    chance.shuffle(numbers)
    inputs = MergeInputFiles(store)
    per_file = 500_000
    began = time.monotonic()
    for first in range(0, len(numbers), per_file):
        names = numbered_keys(numbers[first : first + per_file])
        await inputs.add_file(stamped_batches(names, VALUES, base_offset=first))
    made_s = time.monotonic() - began
    expected = last_of_each(numbers, keys)
    assert len(expected) == keys
    plan, url = await planned(inputs, tmp_path, slice_bytes=slice_bytes, keys_max=DEDUPE_KEYS_MAX)
    watched = await asyncio.to_thread(Watched, url, tmp_path, memory="1g")
    commit = await combined(store, plan)
    at = 0
    async for offsets in offsets_left(commit, store):
        assert np.array_equal(offsets, expected[at : at + len(offsets)])
        at += len(offsets)
    assert at == keys
    assert (commit.summary["keys"], commit.summary["records_in"]) == (keys, len(numbers))
    (cleaned,) = commit.cleaned
    assert cleaned.cleaned_through_offset == len(numbers)
    survivors = [await store.head(survivors_key(plan, unit)) for unit in plan.units_of(UnitKind.REWRITE)]
    rewriting_s = sum(each["seconds"] for each in watched.units)
    print(
        f"{len(numbers):,} records of {keys:,} keys, {inputs.bytes / MIB:.0f} MiB in {len(survivors)} slices"
        f" (made in {made_s:.0f} s): {watched.wall_s:.0f} s, of these {rewriting_s:.0f} s of tasks that rewrite;"
        f" processor {sum(watched.cpu_s.values()):.0f} s, peaks"
        f" {', '.join(f'{kind} {peak / MIB:.0f} MiB' for kind, peak in sorted(watched.peaks.items()))};"
        f" survivors {sum(each.size_bytes for each in survivors) / MIB:.1f} MiB"
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_eight_million_keys_leave_one_record_each(store: LocalStore, tmp_path: Path) -> None:
    await dedupe_and_check(store, tmp_path, keys=8_000_000, overwrites=4_000_000, slice_bytes=64 * MIB)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3_600)
async def test_a_hundred_million_keys_leave_one_record_each(store: LocalStore, tmp_path: Path) -> None:
    """`SILTSTONE_SOAK_KEYS` sets another number. 100 M keys take 5 GB of disk, and more for the data that Spark
    spills.
    """
    keys = int(os.environ.get("SILTSTONE_SOAK_KEYS", "100000000"))
    await dedupe_and_check(store, tmp_path, keys=keys, overwrites=keys // 4, slice_bytes=256 * MIB)
