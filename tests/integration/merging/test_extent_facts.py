"""The facts that a merge leaves in its output extents: size uncompressed, commit time, delete horizon, erasures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.planning.dirtiness import due_reason, measure
from compactor.planning.spec import MIB, MergeKind, PlanOptions
from metadata.contract.jobs import CommitMerge
from tests.fixtures.merge_inputs import MergeWorld, Sent, a_batch, extents_of, keyed
from tests.fixtures.plan_views import a_partition
from tests.fixtures.record_batches import NOW_MS
from wire.batch import iter_headers
from wire.codecs import Codec
from wire.records import build_batch

DAY_MS = 86_400_000


def values(*pairs: tuple[str, bytes | None], codec: Codec = Codec.NONE) -> bytes:
    return build_batch([keyed(key, value) for key, value in pairs], codec=codec)


async def deduped(world: MergeWorld) -> CommitMerge:
    spec = world.dedupe_spec(1)
    claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe={1: spec})
    return await world.engine().run(claimed)


async def copied(world: MergeWorld, *, output_bytes: int = MIB) -> CommitMerge:
    return await world.engine().run(world.claim(kind=MergeKind.MERGE, level=2, output_bytes=output_bytes))


async def test_records_of_l0_were_committed_with_their_file_and_the_earliest_counts() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_l0([Sent(1, a_batch(3))])
    await world.add_l0([Sent(1, a_batch(2))])
    world.l0_files[0] = replace(world.l0_files[0], created_ms=NOW_MS + 9)
    world.l0_files[1] = replace(world.l0_files[1], created_ms=NOW_MS + 5)
    (extent,) = extents_of(await world.engine().run(world.claim()), 1)
    assert (extent.committed_ms, extent.earliest_horizon_ms, extent.erased_through) == (NOW_MS + 5, None, 0)
    assert extent.uncompressed_bytes == extent.length


async def test_an_output_is_as_old_as_its_oldest_input_and_erased_as_far_as_the_least() -> None:
    world = MergeWorld()
    world.add_partition(1, segment_bytes="400")
    for _ in range(3):
        await world.add_leveled({1: [a_batch(3, value_bytes=100)]})
    facts = [(NOW_MS + 30, 7), (NOW_MS + 10, 9), (NOW_MS + 20, 8)]
    world.extents = [
        each._replace(committed_ms=committed, erased_through=erased)
        for each, (committed, erased) in zip(world.extents, facts, strict=True)
    ]
    # when each input becomes an extent of its own
    apart = extents_of(await copied(world), 1)
    assert [(each.committed_ms, each.erased_through) for each in apart] == facts
    # when all become one
    world.partitions[1].info = replace(world.partitions[1].info, configs={})
    (joined,) = extents_of(await copied(world), 1)
    assert (joined.committed_ms, joined.erased_through) == (NOW_MS + 10, 7)
    # when an older program wrote one of them
    world.extents[2] = world.extents[2]._replace(committed_ms=None)
    (unknown,) = extents_of(await copied(world), 1)
    assert unknown.committed_ms is None


async def test_the_earliest_horizon_is_that_of_the_batches_that_stay() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    for batch in (values(("a", b"1"), ("b", b"1")), values(("a", None)), values(("b", None)), values(("c", b"1"))):
        await world.add_leveled({1: [batch]})
    commit = await deduped(world)
    (extent,) = extents_of(commit, 1)
    assert extent.earliest_horizon_ms == NOW_MS + DAY_MS
    # and a copy keeps it
    world.adopt(commit)
    (again,) = extents_of(await copied(world), 1)
    assert again.earliest_horizon_ms == NOW_MS + DAY_MS
    # and a dedupe after it leaves none: the batch at the end keeps no record that could go
    planned = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe={1: world.dedupe_spec(1)})
    later_ms = NOW_MS + 2 * DAY_MS
    spec = {**planned.job.spec, "now_ms": later_ms}
    last = await world.engine().run(replace(planned, job=replace(planned.job, spec=spec), now_ms=later_ms))
    (gone,) = extents_of(last, 1)
    assert (gone.record_count, gone.earliest_horizon_ms) == (1, None)


async def test_the_tombstones_of_an_idle_partition_make_one_pass_due_and_no_other() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    for batch in (values(("a", b"1")), values(("a", None)), values(("c", b"1"))):
        await world.add_leveled({1: [batch]})
    world.adopt(await deduped(world))

    def reason(now_ms: int, last_cleaned_ms: int) -> str:
        partition = a_partition(1, world.extents, cleaned_through_offset=3, last_cleaned_ms=last_cleaned_ms)
        return due_reason(partition, measure(partition, now_ms=now_ms), PlanOptions(), now_ms=now_ms)

    # given a horizon a day after the pass: due then, and not before
    later_ms = NOW_MS + DAY_MS
    assert reason(later_ms - 1, NOW_MS) == ""
    assert "tombstones" in reason(later_ms, NOW_MS)
    # when that pass runs
    planned = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe={1: world.dedupe_spec(1)})
    spec = {**planned.job.spec, "now_ms": later_ms}
    world.adopt(await world.engine().run(replace(planned, job=replace(planned.job, spec=spec), now_ms=later_ms)))
    # then the tombstone is gone, and nothing is due ever again
    assert [each.record_count for each in world.extents] == [1]
    assert reason(later_ms + 90 * DAY_MS, later_ms) == ""


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_a_dedupe_knows_the_uncompressed_size_and_copies_carry_it(codec: Codec) -> None:
    plain, packed = MergeWorld(), MergeWorld()
    for world, used in ((plain, Codec.NONE), (packed, codec)):
        world.add_partition(1, cleanup_policy="compact")
        for number in range(3):
            pairs = [(f"k{number}-{each}", b"v" * 1_000) for each in range(20)]
            await world.add_leveled({1: [values(*pairs, codec=used), values(("again", b"w" * 5_000), codec=used)]})
    expected = extents_of(await deduped(plain), 1)[0].length
    commit = await deduped(packed)
    (extent,) = extents_of(commit, 1)
    assert extent.length < expected / 4
    assert extent.uncompressed_bytes == expected
    # when the deduped extent is copied: codecs whose frames say no size would lose it
    packed.adopt(commit)
    (again,) = extents_of(await copied(packed), 1)
    assert again.uncompressed_bytes == expected
    # when the copy is cut: the sum is about the same, wherever the cut lies
    packed.partitions[1].info = replace(packed.partitions[1].info, configs={"segment.bytes": "400"})
    cut = extents_of(await copied(packed), 1)
    assert len(cut) > 1
    assert sum(each.uncompressed_bytes or 0 for each in cut) == expected
    assert all((each.uncompressed_bytes or 0) >= each.length for each in cut)


async def test_a_flagged_extent_keeps_what_was_known_of_it() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(3)]}, flagged={1: "an old damage"})
    world.extents = [
        each._replace(uncompressed_bytes=12_345, committed_ms=NOW_MS, erased_through=4) for each in world.extents
    ]
    (extent,) = extents_of(await copied(world), 1)
    assert (extent.uncompressed_bytes, extent.committed_ms, extent.erased_through) == (12_345, NOW_MS, 4)
    assert len(list(iter_headers((await world.inner.get(world.extents[0].key))[: extent.length]))) == 1
