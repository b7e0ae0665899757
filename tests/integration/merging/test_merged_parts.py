"""Merges of extents that are given in parts: they equal the merges of the whole extents, and damage is found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from compactor.heavy.plan.parts import parts_of
from compactor.merging.windows import PartCrcs
from compactor.planning.spec import GIB, MIB, MergeKind
from metadata.contract.jobs import ClaimedJob, CommitMerge
from storage.format.flag_reason import written_crc
from storage.objects import ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.extent_parts import blocks_of, crc_of_parts, in_parts
from tests.fixtures.merge_inputs import MergeWorld, a_batch, extents_of, keyed
from tests.property.test_merges import small_windows
from wire.crc import crc32c
from wire.records import build_batch

PLAIN, KEYED = 1, 2


async def a_world(r: random.Random) -> MergeWorld:
    """A plain partition and a compacted one, three extents each."""
    world = MergeWorld()
    world.add_partition(PLAIN)
    world.add_partition(KEYED, partition=1, cleanup_policy="compact")
    for number in range(3):
        batches = {
            id_: [
                build_batch(
                    [keyed(f"k{r.randrange(20)}", b"%d" % number * r.randint(1, 60)) for _ in range(r.randint(1, 5))]
                )
                for _ in range(r.randint(1, 12))
            ]
            for id_ in (PLAIN, KEYED)
        }
        await world.add_leveled(batches)
    return world


def job(world: MergeWorld, *, passes: int = 1, output_bytes: int = 64 * MIB) -> ClaimedJob:
    dedupe = {KEYED: world.dedupe_spec(KEYED, passes=passes)}
    return world.claim(kind=MergeKind.MERGE, level=2, output_bytes=output_bytes, dedupe=dedupe)


def flagged(commit: CommitMerge) -> dict[tuple[int, int], str]:
    return {
        (each.partition_id, each.base_offset): each.flagged_reason
        for output in commit.outputs
        for each in output.extents
        if each.flagged_reason is not None
    }


async def change(world: MergeWorld, key: str, position: int) -> None:
    body = bytearray(await world.inner.get(key))
    body[position] ^= 0x40
    await world.replace_object(key, body)


@pytest.mark.parametrize("window_bytes", [200, 1_000, 16 * MIB])
@pytest.mark.parametrize("kept_bytes_max", [64 * MIB, 0])
@pytest.mark.parametrize("seed", range(5))
async def test_extents_in_parts_are_merged_as_whole_ones_are(seed: int, kept_bytes_max: int, window_bytes: int) -> None:
    r = random.Random(seed)
    world = await a_world(r)
    claimed = job(world, passes=r.choice((1, 2)), output_bytes=r.choice((300, 2_000, GIB)))
    parts = await in_parts(world.inner, claimed.extents, r)
    engine = world.engine(kept_bytes_max=kept_bytes_max, cursor_bytes=r.choice((500, 64 * MIB)))
    crcs: PartCrcs = {}
    with small_windows(window_bytes):
        whole = await engine.run(claimed)
        commit = await engine.run(replace(claimed, extents=tuple(parts)), part_crcs=crcs)
    assert await world.log_of(commit) == await world.log_of(whole)
    assert (commit.covered, commit.cleaned) == (whole.covered, whole.cleaned)
    for name in ("records_in", "records_out", "bytes_in", "bytes_out", "keys", "flagged_extents"):
        assert commit.summary[name] == whole.summary[name], name
    for id_ in (PLAIN, KEYED):
        assert extents_of(commit, id_) == extents_of(whole, id_)
    # and the CRC-32Cs that were read add up to those of the metadata
    divided = [each for each in claimed.extents if each not in parts]
    for extent in divided:
        assert crc_of_parts([part for part in parts if part.extent_id == extent.extent_id], crcs) == extent.crc32c
    assert len(crcs) == len(parts) - (len(claimed.extents) - len(divided))
    assert flagged(commit) == {}


@pytest.mark.parametrize("window_bytes", [150, 16 * MIB])
@pytest.mark.parametrize("partition_id", [PLAIN, KEYED])
@pytest.mark.parametrize("kept_bytes_max", [64 * MIB, 0])
async def test_a_damaged_part_alone_is_flagged_and_has_no_crc(
    partition_id: int, kept_bytes_max: int, window_bytes: int
) -> None:
    # given an extent of four batches in three parts, and a flipped bit in the second part
    world = MergeWorld()
    world.add_partition(PLAIN)
    world.add_partition(KEYED, partition=1, cleanup_policy="compact")
    await world.add_leveled({id_: [a_batch(2) for _ in range(4)] for id_ in (PLAIN, KEYED)})
    claimed = job(world)
    bad = next(each for each in claimed.extents if each.partition_id == partition_id)
    parts = parts_of(bad, await blocks_of(world.inner, bad), [1, 3])
    others = [each for each in claimed.extents if each is not bad]
    await change(world, bad.key, parts[1].position + parts[1].length - 5)
    crcs: PartCrcs = {}
    # when it is merged
    with small_windows(window_bytes):
        engine = world.engine(kept_bytes_max=kept_bytes_max)
        commit = await engine.run(replace(claimed, extents=(*others, *parts)), part_crcs=crcs)
    # then its other parts went on
    ((place, reason),) = flagged(commit).items()
    assert place == (partition_id, 2)
    assert written_crc(reason) is None, "nobody has stored the CRC-32C of a part"
    assert sorted(crcs) == [(partition_id, 0), (partition_id, 6)]
    assert [(each.base_offset, each.last_offset) for each in extents_of(commit, partition_id)] == [
        (0, 1),
        (2, 5),
        (6, 7),
    ]


@pytest.mark.parametrize("window_bytes", [150, 16 * MIB])
@pytest.mark.parametrize("partition_id", [PLAIN, KEYED])
async def test_damage_that_no_batch_crc_covers_shows_in_the_joined_crc(partition_id: int, window_bytes: int) -> None:
    # given a flipped bit in a leader epoch
    world = MergeWorld()
    world.add_partition(PLAIN)
    world.add_partition(KEYED, partition=1, cleanup_policy="compact")
    await world.add_leveled({id_: [a_batch(2) for _ in range(3)] for id_ in (PLAIN, KEYED)})
    claimed = job(world)
    bad = next(each for each in claimed.extents if each.partition_id == partition_id)
    parts = parts_of(bad, await blocks_of(world.inner, bad), [1, 2])
    others = [each for each in claimed.extents if each is not bad]
    await change(world, bad.key, parts[1].position + 15)
    # when the extent is merged in parts
    crcs: PartCrcs = {}
    with small_windows(window_bytes):
        commit = await world.engine().run(replace(claimed, extents=(*others, *parts)), part_crcs=crcs)
    # then the merge ends, and its caller can tell
    assert flagged(commit) == {}
    assert crc_of_parts(parts, crcs) != bad.crc32c
    stored = await world.inner.get_range(bad.key, bad.position, bad.length)
    assert crc_of_parts(parts, crcs) == crc32c(stored)


class Changing(WrappedStore):
    """From the second read of a range on, some byte of it is another one."""

    def __init__(self, inner: ObjectStore, key: str, position: int) -> None:
        super().__init__(inner)
        self._place = (key, position)
        self.reads = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = bytearray(await super().get_range(key, start, length))
        at = self._place[1] - start
        if key == self._place[0] and 0 <= at < length:
            self.reads += 1
            if self.reads > 1:
                data[at] ^= 0x40
        return bytes(data)


@pytest.mark.parametrize("window_bytes", [150, 16 * MIB])
async def test_a_part_that_reads_otherwise_the_second_time_is_flagged(window_bytes: int) -> None:
    world = MergeWorld()
    world.add_partition(KEYED, cleanup_policy="compact")
    (extent,) = await world.add_leveled({KEYED: [a_batch(2) for _ in range(3)]})
    parts = parts_of(extent, await blocks_of(world.inner, extent), [1, 2])
    # given a leader epoch that changes between the scan and the rewrite
    world.store = Changing(world.inner, extent.key, parts[1].position + 15)  # type: ignore[assignment]
    crcs: PartCrcs = {}
    with small_windows(window_bytes):
        engine = world.engine(kept_bytes_max=0)
        commit = await engine.run(replace(job(world), extents=tuple(parts)), part_crcs=crcs)
    ((place, reason),) = flagged(commit).items()
    assert place == (KEYED, 2)
    assert "when read before" in reason
    assert sorted(crcs) == [(KEYED, 0), (KEYED, 4)]
