"""The checks before a record of a slice is dropped: survivors, keys, and unchanged bytes."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compactor.cleaning.bounds import CleanBounds
from compactor.heavy.key_scan import keys_result, read_keys
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.parts import parts_of
from compactor.heavy.plan.units import HeavyPlan, PlanError, UnitKind
from compactor.heavy.rewrite_slice import open_slice, read_keys_of, survivors_key
from compactor.heavy.slices import KeysFound, join_slices
from compactor.heavy.survivors import (
    BLOCK_OFFSETS,
    SliceId,
    SurvivorLookup,
    Survivors,
    SurvivorsError,
    SurvivorsWriter,
    put_survivors,
)
from compactor.merging.kway_merge import MergeInputError
from runtime.clock import ManualClock
from storage.memory import MemoryStore
from tests.fixtures.cleaning import bounds_of
from tests.fixtures.extent_parts import blocks_of, crc_of_parts
from tests.fixtures.merge_inputs import keyed, stamped
from tests.fixtures.sliced_partitions import (
    PARTITION_ID,
    Extent,
    damage,
    found_by,
    group_keys,
    key_rows,
    left_by,
    plan_of,
    rewrite,
    write_extents,
)
from wire.crc import crc32c
from wire.records import build_batch

PLAN = "ab" * 16
OTHER = "cd" * 16
BASE, LAST = 100, 2**50
SLICE = SliceId(PLAN, 7, BASE, LAST)


def written(*offsets: NDArray[np.int64]) -> bytes:
    writer = SurvivorsWriter(SLICE)
    for some in offsets:
        writer.add(some, 2 * len(some))
    return writer.finish()


def read(data: bytes, **changes: Any) -> Survivors:
    return Survivors(data, SLICE._replace(**changes))


def array(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


SPREAD = [
    np.zeros(0, dtype=np.int64),
    array(BASE),
    array(BASE, LAST),
    np.arange(BASE, BASE + BLOCK_OFFSETS),
    np.arange(BASE, BASE + 3 * BLOCK_OFFSETS + 5) * 2,
    BASE + np.cumsum(np.random.default_rng(1).integers(1, 300, 2 * BLOCK_OFFSETS + 1)),
    BASE + np.cumsum(np.random.default_rng(2).integers(1, 2**31, BLOCK_OFFSETS)),
]


@pytest.mark.parametrize("offsets", SPREAD, ids=len)
def test_survivors_are_read_as_they_were_written_however_they_came(offsets: NDArray[np.int64]) -> None:
    cuts = np.random.default_rng(3).integers(0, len(offsets) + 1, 3)
    cuts.sort()
    data = written(*np.split(offsets, cuts))
    assert data == written(offsets)
    survivors = read(data)
    assert (survivors.count, survivors.records) == (len(offsets), 2 * len(offsets))
    assert np.array_equal(np.concatenate([np.zeros(0, dtype=np.int64), *survivors.blocks()]), offsets)
    # and looked up one stretch after the other, with other offsets between
    asked = np.unique(np.concatenate((offsets, offsets + 1, array(BASE, LAST))))
    lookup = SurvivorLookup(survivors)
    alive = np.concatenate([lookup.among(some) for some in np.array_split(asked, 7)])
    assert np.array_equal(asked[alive], offsets)
    assert lookup.found == len(offsets)
    lookup.end()


@pytest.mark.parametrize(
    "offsets", [array(BASE - 1), array(LAST + 1), array(BASE, BASE), array(BASE + 1, BASE)], ids=str
)
def test_offsets_that_do_not_rise_within_the_slice_are_not_written(offsets: NDArray[np.int64]) -> None:
    with pytest.raises(SurvivorsError, match="do not rise within the slice"):
        written(offsets)
    with pytest.raises(SurvivorsError, match="do not rise within the slice"):
        written(array(LAST), array(BASE))


def test_a_byte_of_survivors_that_is_not_as_it_was_is_an_error() -> None:
    data = written(np.arange(BASE, BASE + 500) * 3)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(SurvivorsError):
            read(bytes(broken))
        with pytest.raises(SurvivorsError):
            read(data[:at])


def test_survivors_whose_sums_are_right_and_whose_blocks_are_not_are_an_error() -> None:
    data = bytearray(written(array(BASE, BASE + 9)))
    data[-struct.calcsize(">QQII") + 7] = 3  # claims three offsets
    resummed = bytes(data[:-4]) + struct.pack(">I", crc32c(bytes(data[:-4])))
    lookup = SurvivorLookup(read(resummed))
    lookup.among(array(BASE))
    with pytest.raises(SurvivorsError, match="not as many"):
        lookup.end()


def test_survivors_of_another_plan_slice_or_version_are_an_error() -> None:
    data = written(array(BASE))
    for one in ({"plan": OTHER}, {"partition_id": 8}, {"base_offset": BASE + 1}):
        with pytest.raises(SurvivorsError, match="another plan or slice"):
            read(data, **one)
    newer = data[:9] + b"\x02" + data[10:]
    with pytest.raises(SurvivorsError, match="version 2"):
        read(newer)


async def test_the_first_survivors_stand_and_others_must_say_the_same() -> None:
    store = MemoryStore(ManualClock(0))
    for _ in range(2):
        assert (await put_survivors(store, "a", written(array(BASE, LAST)), SLICE)).count == 2
    with pytest.raises(SurvivorsError, match="says that 2 records survive, another try 1"):
        await put_survivors(store, "a", written(array(BASE)), SLICE)


# A partition of three slices


def log() -> list[Extent]:
    batches = [
        stamped(build_batch([keyed(f"k{(number + at) % 5}", b"v") for at in range(4)]), number * 4)
        for number in range(6)
    ]
    return [Extent(number * 8, number * 8 + 7, batches[number * 2 : number * 2 + 2]) for number in range(3)]


async def three_slices() -> tuple[MemoryStore, HeavyPlan]:
    store = MemoryStore(ManualClock(0))
    extents = await write_extents(store, log(), random.Random(1))
    bounds: CleanBounds = bounds_of([batch for extent in log() for batch in extent.batches])
    return store, plan_of(extents, bounds, [1, 2], log_start_offset=0)


async def test_slices_leave_the_last_of_each_key() -> None:
    store, plan = await three_slices()
    keys = await group_keys(store, plan)
    commits = await rewrite(store, plan)
    assert (keys.keys, [each.survivors for each in keys.slices.values()]) == (5, [0, 0, 5])
    assert [each.summary["records_out"] for each in commits] == [0, 0, 5]
    assert (await left_by(store, commits)).ranges == [(0, 23)]
    assert await read_keys_of(store, plan, PARTITION_ID) == keys
    only = await read_keys_of(store, plan, PARTITION_ID, slices=[1])
    assert only == replace(keys, slices={1: keys.slices[1]})


async def test_a_rewrite_before_the_keys_are_grouped_is_refused() -> None:
    store, plan = await three_slices()
    with pytest.raises(PlanError, match="before the keys of its partition were grouped"):
        await open_slice(store, plan, plan.units_of(UnitKind.REWRITE)[0])
    await group_keys(store, plan)
    await store.delete_many([survivors_key(plan, plan.units_of(UnitKind.REWRITE)[0])])
    with pytest.raises(PlanError, match="before the keys of its partition were grouped"):
        await open_slice(store, plan, plan.units_of(UnitKind.REWRITE)[0])


async def test_bytes_that_were_sound_when_their_keys_were_read_and_are_not_now_end_the_unit() -> None:
    store, plan = await three_slices()
    await group_keys(store, plan)
    await damage(store, plan.extents[2], 100)
    with pytest.raises(MergeInputError, match="became corrupt after its keys were read"):
        await rewrite(store, plan)


async def test_a_slice_that_reads_otherwise_the_second_time_ends_the_unit() -> None:
    store, plan = await three_slices()
    unit = plan.units_of(UnitKind.KEYS)[1]
    scan = read_keys(store, plan, unit, None, in_thread=False)
    await key_rows(scan)
    known = found_by(keys_result(plan, unit, scan, 0.0))
    await damage(store, plan.extents[1], 100)
    with pytest.raises(ManifestMismatchError, match="read again and is not as it was"):
        await key_rows(read_keys(store, plan, unit, known, in_thread=False))


async def test_parts_with_another_crc_than_the_first_try_read_end_the_unit() -> None:
    # given a slice whose only extent is in two parts, of which its KEYS unit tells the CRC-32Cs
    store, whole = await three_slices()
    extent = whole.extents[1]
    parts = parts_of(extent, await blocks_of(store, extent), [1])
    unit = whole.units_of(UnitKind.KEYS)[1]
    stretch = replace(whole.stretch_of(unit), extents=tuple(parts))
    plan = replace(whole, stretches={**whole.stretches, unit.stretch: stretch})
    scan = read_keys(store, plan, unit, None, in_thread=False)
    rows = await key_rows(scan)
    known = found_by(keys_result(plan, unit, scan, 0.0))
    crcs = {(PARTITION_ID, base): crc for base, crc in known.parts}
    assert crc_of_parts(parts, crcs) == extent.crc32c
    # when a byte changes that no batch's own CRC-32C covers
    await damage(store, extent, 15)
    again = read_keys(store, plan, unit, known, in_thread=False)
    with pytest.raises(ManifestMismatchError, match="parts"):
        await key_rows(again)
    # and a first try with the same bytes tells another CRC-32C
    first = read_keys(store, plan, unit, None, in_thread=False)
    assert await key_rows(first) == rows
    assert [base for base, crc in first.found.parts if crcs[PARTITION_ID, base] != crc] == [8]
    # and of a part with a wrong batch it tells none
    await damage(store, extent, 100)
    flagged = read_keys(store, plan, unit, None, in_thread=False)
    assert [offset for _, offset in await key_rows(flagged)] == list(range(12, 16))
    assert [base for base, _ in flagged.found.flagged] == [8]
    assert [base for base, _ in flagged.found.parts] == [12]


async def test_a_batch_that_the_first_try_could_not_read_is_left_out_by_the_second_which_can() -> None:
    """Its keys were not yielded then: rows must fit the existing manifest."""
    store, plan = await three_slices()
    unit = plan.units_of(UnitKind.KEYS)[1]
    rows = await key_rows(read_keys(store, plan, unit, None, in_thread=False))
    assert [offset for _, offset in rows] == list(range(8, 16))
    known = KeysFound(
        batches=2,
        rows=4,
        records=4,
        dead_at_once=0,
        unreadable=((0, 1),),
        unreadable_first_offset=8,
        unreadable_reason="no memory for its records",
    )
    again = read_keys(store, plan, unit, known, in_thread=False)
    assert await key_rows(again) == rows[4:]
    assert again.found == known


async def test_a_slice_of_which_fewer_records_were_counted_than_had_keys_is_refused_whatever_others_counted() -> None:
    _, plan = await three_slices()
    found = [KeysFound(batches=2, rows=8, records=8, dead_at_once=0) for _ in range(3)]
    assert join_slices(plan, PARTITION_ID, found, [(0, 8), (0, 8), (5, 8)]).keys == 5
    with pytest.raises(ManifestMismatchError, match="unit 1 of partition 7 has 8 records with keys, but 7"):
        join_slices(plan, PARTITION_ID, found, [(0, 8), (0, 7), (5, 9)])


async def test_producers_stay_open_until_their_marker_however_many_slices_lie_between() -> None:
    """If a producer is forgotten, its marker is dropped too early, and its aborted records are read as committed."""
    _, plan = await three_slices()
    opened = KeysFound(batches=2, rows=8, records=8, dead_at_once=0, opened=(1, 2, 3))
    closed = KeysFound(batches=2, rows=8, records=8, dead_at_once=0, opened=(4,), closed=(1,))
    last = KeysFound(batches=2, rows=8, records=8, dead_at_once=0)
    keys = join_slices(plan, PARTITION_ID, [opened, closed, last], [(0, 8), (0, 8), (5, 8)])
    assert [each.open_before for each in keys.slices.values()] == [(), (1, 2, 3), (2, 3, 4)]


async def test_survivors_that_are_no_records_of_the_slice_end_the_unit() -> None:
    store = MemoryStore(ManualClock(0))
    batches = [stamped(build_batch([keyed(f"k{at}", b"v") for at in range(4)]), number * 4) for number in range(2)]
    extents = await write_extents(store, [Extent(0, 3, batches[:1]), Extent(4, 9, batches[1:])], random.Random(1))
    plan = plan_of(extents, bounds_of(batches), [1], log_start_offset=0)
    await group_keys(store, plan)
    unit = plan.units_of(UnitKind.REWRITE)[1]
    writer = SurvivorsWriter(SliceId(plan.fingerprint, PARTITION_ID, 4, 9))
    writer.add(array(4, 5, 6, 9), 8)  # 7 is forgotten; there is no survivor after it
    forged = writer.finish()
    await store.delete_many([survivors_key(plan, unit)])
    await store.put_if_absent(survivors_key(plan, unit), forged, crc32c=crc32c(forged))
    with pytest.raises(ManifestMismatchError, match="holds 3 of the 4 records that should survive"):
        await rewrite(store, plan)
