"""Merges that dedupe: the results that a pass reports, the bytes that it reads, and the same result on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.merging.execute import MergeEngine
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import ClaimedJob, CommitMerge
from metadata.contract.leveled import FileClass
from metadata.rules.retention import TIMESTAMP_MS_MAX
from storage.objects import ObjectStore, SupportsOpen
from storage.urls import open_store
from tests.fixtures.merge_inputs import (
    LEASE,
    MergeWorld,
    Sent,
    a_batch,
    extents_of,
    keyed,
    ranges_of,
    records_in,
)
from tests.fixtures.record_batches import NOW_MS
from wire.batch import iter_headers
from wire.records import build_batch

DAY_MS = 86_400_000


def values(*pairs: tuple[str, bytes | None]) -> bytes:
    return build_batch([keyed(key, value) for key, value in pairs])


def dedupe_job(world: MergeWorld, partition_id: int = 1, *, passes: int = 1, **bounds: int) -> ClaimedJob:
    spec = world.dedupe_spec(partition_id, passes=passes, **bounds)
    return world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe={partition_id: spec})


async def a_compacted_log(*files: bytes, world: MergeWorld | None = None, **configs: str) -> MergeWorld:
    """A partition with a leveled file for each argument; each argument is one batch."""
    world = world or MergeWorld()
    world.add_partition(1, topic="compacted", cleanup_policy="compact", **configs)
    for batch in files:
        await world.add_leveled({1: [batch]})
    return world


async def test_the_latest_record_of_every_key_is_left_at_its_offset() -> None:
    world = await a_compacted_log(
        values(("a", b"1"), ("b", b"1")), values(("a", b"2"), ("c", b"1")), values(("b", b"2"), ("d", None))
    )
    commit = await world.engine().run(dedupe_job(world))
    assert records_in((await world.log_of(commit))[1]) == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"d", None),
    ]
    assert ranges_of(commit, 1) == [(0, 5)]
    assert [output.file_class for output in commit.outputs] == [FileClass.COMPACTED]
    assert [(each.cleaned_through_offset, each.passes_needed) for each in commit.cleaned] == [(6, 1)]
    summary = commit.summary
    assert (summary["records_in"], summary["records_out"], summary["keys"], summary["clears"]) == (6, 4, 4, 0)
    assert (summary["tombstones_kept"], summary["tombstones_dropped"], summary["passes"]) == (1, 0, 2)
    assert summary["deduped_partitions"] == 1
    assert summary["bytes_in"] == sum(extent.length for extent in world.extents)
    assert summary["bytes_out"] == sum(extent.length for extent in extents_of(commit, 1))


async def test_the_delete_horizon_counts_from_the_claim_because_old_values_vanish_at_the_commit() -> None:
    world = await a_compacted_log(values(("a", b"1")), values(("a", None)))
    # given a job that waited for a compactor: its time limit runs from the claim, and so must its horizons
    planned = dedupe_job(world)
    waited_ms = 3_600_000
    commit = await world.engine().run(replace(planned, now_ms=planned.now_ms + waited_ms))
    # then a reader of an old value right before the commit has as much time as if the job had run at once
    log = (await world.log_of(commit))[1]
    stamped_ms = [header.base_timestamp_ms for _, header in iter_headers(log)]
    assert stamped_ms == [NOW_MS + 86_400_000 + waited_ms]


@pytest.mark.parametrize(
    ("planned_later_ms", "claimed_later_ms", "stays"),
    [(2 * DAY_MS, 60_000, True), (60_000, 2 * DAY_MS, True), (2 * DAY_MS, 2 * DAY_MS, False)],
)
async def test_a_tombstone_goes_when_its_horizon_has_passed_both_at_the_planning_and_at_the_claim(
    planned_later_ms: int, claimed_later_ms: int, stays: bool
) -> None:
    # given a tombstone with a horizon a day ahead, behind a record of another key
    world = await a_compacted_log(values(("a", b"1")), values(("a", None)), values(("b", b"1")))
    world.adopt(await world.engine().run(dedupe_job(world)))
    # when the store's clock was ahead at one of the two, and right at the other
    planned = dedupe_job(world)
    spec = {**planned.job.spec, "now_ms": planned.now_ms + planned_later_ms}
    claimed = replace(planned, job=replace(planned.job, spec=spec), now_ms=planned.now_ms + claimed_later_ms)
    commit = await world.engine().run(claimed)
    # then the horizon is not over yet
    assert [offset for offset, _, _ in records_in((await world.log_of(commit))[1])] == ([1, 2] if stays else [2])


async def test_a_horizon_beyond_all_time_is_stamped_as_the_end_of_time() -> None:
    world = await a_compacted_log(values(("a", b"1")), values(("a", None)))
    # given a spec of a planner that knew no bound, and a job that waited
    for horizon_ms in (TIMESTAMP_MS_MAX, 2**63 - 1, 2**63 + 86_400_000):
        planned = dedupe_job(world, delete_horizon_ms=horizon_ms)
        commit = await world.engine().run(replace(planned, now_ms=planned.now_ms + 3_600_000))
        log = (await world.log_of(commit))[1]
        assert [header.base_timestamp_ms for _, header in iter_headers(log)] == [TIMESTAMP_MS_MAX]
        assert records_in(log) == [(1, b"a", None)]


async def test_has_tombstones_is_exact_after_a_dedupe() -> None:
    with_one = await a_compacted_log(values(("a", b"1"), ("b", None)))
    without = await a_compacted_log(values(("a", None), ("a", b"1")))
    assert [each.has_tombstones for each in extents_of(await with_one.engine().run(dedupe_job(with_one)), 1)] == [True]
    assert [each.has_tombstones for each in extents_of(await without.engine().run(dedupe_job(without)), 1)] == [False]


@pytest.mark.parametrize(
    ("bounds", "through"),
    [
        ({}, 6),
        ({"first_uncleanable_offset": 4}, 4),
        ({"whole_through_offset": 5}, 5),
        ({"whole_through_offset": 0}, None),
    ],
)
async def test_cleaned_through_is_the_least_of_what_bounds_the_pass(
    bounds: dict[str, int], through: int | None
) -> None:
    world = await a_compacted_log(*[values(("a", b"1"), ("b", b"1"))] * 3)
    commit = await world.engine().run(dedupe_job(world, **bounds))
    assert [each.cleaned_through_offset for each in commit.cleaned] == [through]


async def test_a_pass_that_no_longer_begins_at_the_log_start_cleans_nothing_through() -> None:
    # given a plan over three extents whose first one is not among the inputs, though no other merge took it
    world = await a_compacted_log(*[values(("a", b"1"), ("t", None))] * 3)
    world.extents = world.extents[1:]
    commit = await world.engine().run(dedupe_job(world))
    assert [each.cleaned_through_offset for each in commit.cleaned] == [None]
    # then no horizon is stamped either: an older value of the key may be in the extent that was not read
    assert not (await world.log_of(commit))[1][22] & 0x40


async def test_extents_that_retention_took_since_the_plan_do_not_end_the_stretch() -> None:
    world = await a_compacted_log(*[values(("a", b"1"), ("b", b"1"))] * 3)
    world.extents = world.extents[1:]
    model = world.partitions[1]
    model.info = replace(model.info, log_start_offset=2)
    commit = await world.engine().run(dedupe_job(world))
    assert [each.cleaned_through_offset for each in commit.cleaned] == [6]


async def test_a_gap_ends_the_cleaned_stretch_and_the_extent() -> None:
    world = await a_compacted_log(*[values(("a", b"1"), ("b", b"1"))] * 4)
    del world.extents[2]
    commit = await world.engine().run(dedupe_job(world))
    assert [each.cleaned_through_offset for each in commit.cleaned] == [4]
    assert ranges_of(commit, 1) == [(0, 3), (6, 7)]
    assert [each.length > 0 for each in extents_of(commit, 1)] == [False, True]


async def test_a_buffer_that_overflows_asks_for_a_deep_pass_and_that_leaves_one_record_a_key() -> None:
    # given 30 keys, twice, and a buffer of 7
    batches = [values(*[(f"k{n}", b"%d" % turn) for n in range(30)]) for turn in range(2)]
    world = await a_compacted_log(*batches)
    commit = await world.engine(keys_max=7).run(dedupe_job(world))
    # when it overflowed, then records that were read after the first clear do not count as cleaned
    (cleaned,) = commit.cleaned
    assert commit.summary["clears"] == 8
    assert (cleaned.cleaned_through_offset, cleaned.passes_needed) == (7, 9)
    # when the next pass is deep
    world.adopt(commit)
    again = await world.engine(keys_max=7).run(dedupe_job(world, passes=cleaned.passes_needed))
    # then one record per key remains, and the pass after it must be deep too: the keys still do not fit
    assert [key for _, key, _ in records_in((await world.log_of(again))[1])] == [b"k%d" % n for n in range(30)]
    assert [(each.cleaned_through_offset, each.passes_needed) for each in again.cleaned] == [(60, 5)]
    assert again.summary["clears"] == 0


@pytest.mark.parametrize("passes", [1, 3])
async def test_each_pass_reads_each_byte_once_in_large_requests(passes: int) -> None:
    # given a large partition between two small ones, in four files
    world = MergeWorld()
    for partition_id in (1, 2, 3):
        world.add_partition(partition_id, partition=partition_id, cleanup_policy="compact")
    for turn in range(4):
        large = [values((f"k{turn}-{n}", b"v" * 1_000_000)) for n in range(10)]
        await world.add_leveled({1: [a_batch(2)], 2: large, 3: [a_batch(2)]})
    specs = {n: world.dedupe_spec(n, passes=passes) for n in (1, 2, 3)}
    claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe=specs)
    engine = MergeEngine(
        store=world.store,
        runtime=world.runtime,
        lease=LEASE,
        memory=MergeMemory(keys_max=100, kept_bytes_max=MIB),
    )
    commit = await engine.run(claimed)
    # then the scan read everything, and the other passes only the large partition
    all_bytes = sum(extent.length for extent in world.extents)
    large_bytes = sum(extent.length for extent in world.extents if extent.partition_id == 2)
    assert sum(length for _, _, length in world.store.reads) == all_bytes + passes * large_bytes
    assert commit.summary["passes"] == passes + 1
    assert len(world.store.reads) == commit.summary["gets"]
    assert len(world.store.reads) <= (4 + all_bytes // (8 * MIB)) + passes * (4 + large_bytes // (8 * MIB))
    assert len(records_in((await world.log_of(commit))[2])) == 40


async def test_a_partition_that_is_not_compacted_any_more_is_copied() -> None:
    world = await a_compacted_log(values(("a", b"1"), ("a", b"2")))
    world.partitions[1].info = replace(world.partitions[1].info, configs={"cleanup.policy": "delete"})
    commit = await world.engine().run(dedupe_job(world))
    assert await world.log_of(commit) == world.model_log()
    assert list(commit.cleaned) == []
    assert [output.file_class for output in commit.outputs] == [FileClass.PLAIN]


async def test_l0_files_may_be_among_the_inputs_of_a_dedupe() -> None:
    world = await a_compacted_log(values(("a", b"1"), ("b", b"1")))
    await world.add_l0([Sent(1, values(("a", b"2")))])
    commit = await world.engine().run(dedupe_job(world))
    assert records_in((await world.log_of(commit))[1]) == [(1, b"b", b"1"), (2, b"a", b"2")]


async def test_merges_of_one_engine_at_once_do_not_mix_their_keys() -> None:
    # given two jobs of partitions with the same keys, and one engine on threads
    worlds: list[MergeWorld] = []
    first = MergeWorld()
    for number in range(2):
        world = await a_compacted_log(world=MergeWorld(first.inner, seed=number + 1))
        for turn in range(20):
            await world.add_leveled({1: [values(*[(f"k{n}", b"%d" % turn * 500) for n in range(200)])]})
        worlds.append(world)
    engine = MergeEngine(store=first.inner, runtime=first.runtime, lease=LEASE, memory=MergeMemory(keys_max=1_000))
    commits = await asyncio.gather(*(engine.run(dedupe_job(world)) for world in worlds))
    for world, commit in zip(worlds, commits, strict=True):
        left = records_in((await world.log_of(commit))[1])
        assert [(key, value) for _, key, value in left] == [(b"k%d" % n, b"19" * 500) for n in range(200)]


async def test_the_tables_of_partitions_are_no_larger_than_their_records_need_and_lie_in_one_memory() -> None:
    # given partitions of several sizes, two of them with more keys than the memory holds
    world, sizes = MergeWorld(), {1: 30, 2: 3, 3: 60, 4: 45}
    for number in sizes:
        world.add_partition(number, topic="compacted", partition=number, cleanup_policy="compact")
    for turn in range(2):
        for number, keys in sizes.items():
            await world.add_leveled({number: [values(*[(f"k{n}", b"%d" % turn) for n in range(keys)])]})
    engine = world.engine(keys_max=40)
    # when all are deduped, each in as many passes as its keys need
    specs = {number: world.dedupe_spec(number, passes=-(-keys // 40) * 2) for number, keys in sizes.items()}
    commit = await engine.run(world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe=specs))
    # then the last record of each key is left
    logs = await world.log_of(commit)
    for number, keys in sizes.items():
        assert [(key, value) for _, key, value in records_in(logs[number])] == [(b"k%d" % n, b"1") for n in range(keys)]
    small, large = engine.buffer(6), engine.buffer(41)
    assert (small.keys_max, engine.buffer(0).keys_max, large.keys_max) == (6, 1, 40)
    assert small.bytes_allocated < large.bytes_allocated == DedupeBuffer(40).bytes_allocated


# Every store


@pytest.fixture(params=["memory", "local", "moto"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    match request.param:
        case "memory":
            opened = open_store("memory://")
        case "local":
            opened = open_store(tmp_path.as_uri())
        case _:
            opened = open_store(request.getfixturevalue("s3_url")())
    if isinstance(opened, SupportsOpen):
        await opened.open()
    yield opened
    await opened.close()


async def test_a_history_is_leveled_and_deduped_over_every_store(store: ObjectStore) -> None:
    # given two topics, 12 files and 12 MB
    world = MergeWorld(store)
    world.add_partition(1, topic="compacted", cleanup_policy="compact")
    world.add_partition(2, topic="plain")
    for turn in range(12):
        keyed_batch = build_batch([keyed(f"k{n % 50}", b"%d" % turn * 3_000, timestamp_ms=NOW_MS) for n in range(60)])
        await world.add_l0(
            [Sent(1, keyed_batch), Sent(1, a_batch(3), accepted=False), Sent(2, a_batch(1, value_bytes=MIB))]
        )
    engine = MergeEngine(store=world.store, runtime=world.runtime, lease=LEASE, memory=MergeMemory(keys_max=1_000))
    # when they are leveled, on threads, and then deduped
    leveled: CommitMerge = await engine.run(world.claim())
    assert await world.log_of(leveled) == world.model_log()
    world.adopt(leveled)
    commit = await engine.run(dedupe_job(world))
    # then the plain log is unchanged, and the compacted one holds the last record of each key
    log = await world.log_of(commit)
    assert log[2] == world.model_log()[2]
    assert {key for _, key, _ in records_in(log[1])} == {b"k%d" % n for n in range(50)}
    assert len(records_in(log[1])) == 50
    assert await store.abort_multiparts(older_than_ms=2**42) == 0
