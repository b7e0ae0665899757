"""The cuts inside extents: they tile the extent, bound the units, and take no more units than needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.heavy.blocks import read_blocks
from compactor.heavy.plan.codec import decode_plan
from compactor.heavy.plan.cut import UnitSizes, cut, long_extents, may_go_on
from compactor.heavy.plan.parts import block_cuts, fits, is_part, parts_of
from compactor.heavy.plan.units import HeavyPlan, UnitKind
from compactor.planning.spec import MergeSpec
from metadata.contract.jobs import ClaimedJob
from metadata.contract.leveled import LeveledExtent
from runtime.clock import ManualClock
from storage.format.block_index import BlockEntry, encode_block_index
from storage.memory import MemoryStore
from tests.unit.compactor.heavy.test_heavy_cut import LEASE, claimed_job
from wire.crc import crc32c

BLOCK_BYTES = 40
SIZES = st.lists(st.integers(1, BLOCK_BYTES), min_size=1, max_size=30)


def an_extent(sizes: list[int], *, base: int = 100, uncompressed: int | None = None) -> LeveledExtent:
    return LeveledExtent(
        *(3, 7, base, base + 10 * len(sizes) + 4, 5, "l1/x", 1, 1 << 20, 1_000, sum(sizes), 9_000, 99, 1_000),
        *(12345, 1, 2, True, None, uncompressed, 77, None, 2),
    )


def blocks(sizes: list[int], *, base: int = 103) -> list[BlockEntry]:
    """A dedupe took the first three offsets."""
    return [BlockEntry(base + 10 * n, 0, start) for n, start in enumerate([0, *accumulate(sizes)][:-1])]


def naive_cuts(sizes: list[int], open_bytes: int | None, unit_bytes: int) -> list[int]:
    """Block after block into the open unit, as long as the rest of the extent does not fit into it."""
    cuts: list[int] = []
    held = open_bytes
    for number, size in enumerate(sizes):
        if held is not None and held + size > unit_bytes:
            cuts.append(number)
            held = None
        held = (held or 0) + size
    return cuts


@given(sizes=SIZES, open_bytes=st.one_of(st.none(), st.integers(0, 300)), unit_bytes=st.integers(1, 300))
def test_units_end_where_the_next_block_would_not_fit(
    sizes: list[int], open_bytes: int | None, unit_bytes: int
) -> None:
    starts = [each.position for each in blocks(sizes)]
    cuts = block_cuts(starts, sum(sizes), open_bytes=open_bytes, unit_bytes=unit_bytes)
    assert cuts == naive_cuts(sizes, open_bytes, unit_bytes)
    edges = [0, *(cut for cut in cuts if cut), len(sizes)]
    units = [sum(sizes[first:end]) for first, end in pairwise(edges)]
    if 0 not in cuts:
        units[0] += open_bytes or 0
    assert all(size <= max(unit_bytes, BLOCK_BYTES) for size in units)


@pytest.mark.parametrize(("open_bytes", "cuts"), [(None, []), (0, [0]), (10, [0])])
def test_an_extent_without_blocks_stays_whole_and_begins_a_unit_where_it_does_not_fit(
    open_bytes: int | None, cuts: list[int]
) -> None:
    assert block_cuts((0,), 500, open_bytes=open_bytes, unit_bytes=100) == cuts
    assert block_cuts((0,), 90, open_bytes=open_bytes, unit_bytes=100) == []


@given(data=st.data(), sizes=SIZES, uncompressed=st.one_of(st.none(), st.integers(0, 10_000)))
def test_parts_tile_bytes_and_offsets_of_their_extent(
    data: st.DataObject, sizes: list[int], uncompressed: int | None
) -> None:
    extent = an_extent(sizes, uncompressed=uncompressed)
    assert fits(extent, blocks(sizes))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1)))) if len(sizes) > 1 else []
    parts = parts_of(extent, blocks(sizes), cuts)
    assert len(parts) == len(cuts) + 1
    assert (parts[0].base_offset, parts[-1].last_offset) == (extent.base_offset, extent.last_offset)
    assert (parts[0].position, sum(part.length for part in parts)) == (extent.position, extent.length)
    for before, after in pairwise(parts):
        assert before.position + before.length == after.position
        assert before.last_offset + 1 == after.base_offset
    assert [part.base_offset for part in parts[1:]] == [blocks(sizes)[cut].base_offset for cut in cuts]
    assert [is_part(part) for part in parts] == [bool(cuts)] * len(parts)
    assert all(part.record_count >= 1 and part.base_offset <= part.last_offset for part in parts)
    assert sum(part.record_count for part in parts) == extent.record_count
    assert sum(part.uncompressed_bytes or 0 for part in parts) == (uncompressed or 0)
    own = (
        "base_offset",
        "last_offset",
        "position",
        "length",
        "record_count",
        "crc32c",
        "uncompressed_bytes",
        "block_index_position",
        "block_index_length",
    )
    same = [name for name in LeveledExtent._fields if name not in own]
    assert {tuple(getattr(part, name) for name in same) for part in parts} == {
        tuple(getattr(extent, name) for name in same)
    }


def test_an_index_that_contradicts_its_extent_cuts_nothing() -> None:
    sizes = [10, 10, 10]
    extent, index = an_extent(sizes), blocks(sizes)
    assert fits(extent, index)
    assert not fits(extent, [])
    assert not fits(extent._replace(base_offset=104), index)
    assert not fits(extent._replace(last_offset=122), index)
    assert not fits(extent._replace(length=20), index)
    assert not fits(extent, index[1:])
    assert not fits(extent, [index[0], index[2], index[1]])


# ---- a whole plan


def divisible(
    sizes: list[tuple[bool, list[list[int]]]],
) -> tuple[ClaimedJob, dict[int, list[BlockEntry]]]:
    """A job over extents of blocks of these sizes, and the block indexes of all of them. Extents cover ten offsets."""
    claimed = claimed_job([(deduped, [sum(each) for each in extents]) for deduped, extents in sizes])
    by_place = sorted(claimed.extents, key=lambda each: (each.partition_id, each.base_offset))
    held = [each for _, extents in sizes for each in extents]
    extents = tuple(each._replace(block_index_length=28) for each in by_place)
    indexes = {
        extent.extent_id: [
            BlockEntry(extent.base_offset + n, 0, start) for n, start in enumerate([0, *accumulate(some)][:-1])
        ]
        for extent, some in zip(extents, held, strict=True)
    }
    return replace(claimed, extents=extents), indexes


def cut_of(claimed: ClaimedJob, indexes: Mapping[int, Sequence[BlockEntry]], *, chosen: bool = True) -> HeavyPlan:
    """`chosen`: of the indexes, those that the cut asks for."""
    spec, sizes = MergeSpec.from_json(claimed.job.spec), UnitSizes(unit_bytes=100, keyed_unit_bytes=300)
    long = {each.extent_id for each in long_extents(claimed, spec, sizes)}
    some = {id_: each for id_, each in indexes.items() if id_ in long or not chosen}
    return cut(claimed, spec, cluster_id="c1", lease=LEASE, sizes=sizes, blocks=some)


MANY = st.lists(
    st.tuples(st.booleans(), st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=9), min_size=1, max_size=5)),
    min_size=1,
    max_size=5,
)


@given(sizes=MANY, unread=st.sets(st.integers(1, 25), max_size=3), chosen=st.booleans())
def test_units_are_bounded_and_hold_every_byte_once_and_in_order(
    sizes: list[tuple[bool, list[list[int]]]], unread: set[int], chosen: bool
) -> None:
    claimed, indexes = divisible(sizes)
    indexes = {id_: each for id_, each in indexes.items() if id_ not in unread}
    plan = cut_of(claimed, indexes, chosen=chosen)
    whole = {each.extent_id: each for each in claimed.extents}
    # the parts stand for the extents that they divide, in place of these
    assert list(plan.parts) == [each.extent_id for each in plan.divided]
    assert all(len(parts) > 1 for parts in plan.parts.values())
    assert sorted({*plan.extents, *plan.divided} - {part for parts in plan.parts.values() for part in parts}) == sorted(
        claimed.extents
    )
    seen: dict[int, tuple[int, int]] = {}
    for each in plan.extents:
        position, base = seen.get(each.extent_id, (whole[each.extent_id].position, whole[each.extent_id].base_offset))
        assert (each.position, each.base_offset) == (position, base)
        seen[each.extent_id] = (each.position + each.length, each.last_offset + 1)
    assert seen == {id_: (each.position + each.length, each.last_offset + 1) for id_, each in whole.items()}
    assert list(plan.extents) == sorted(plan.extents, key=lambda each: (each.partition_id, each.base_offset))
    # and no unit is larger than it has to be
    for unit in plan.units:
        extents = plan.extents_of(unit)
        ids = {each.partition_id for each in extents}
        stays_whole = unit.kind is UnitKind.MERGE and ids <= plan.partition_specs.keys() and len(ids) == 1
        is_alone = len(extents) == 1 and not (is_part(extents[0]) or extents[0].extent_id in indexes)
        assert unit.input_bytes <= 100 or stays_whole or is_alone
    for partition_id, (deduped, extents) in enumerate(sizes, start=1):
        size = sum(map(sum, extents))
        parts = [each for each in plan.extents if each.partition_id == partition_id and is_part(each)]
        if deduped and partition_id not in plan.sliced:
            assert not parts
            at_hand = [n for n in whole if whole[n].partition_id == partition_id and n in indexes]
            can_be_cut = len(extents) > 1 or any(len(indexes[n]) > 1 for n in at_hand)
            assert size <= 300 or not can_be_cut
    # and the plan is read as it was stored
    assert decode_plan(plan.body, fingerprint=plan.fingerprint) == replace(plan, body=b"")
    spec = MergeSpec.from_json(claimed.job.spec)
    later = replace(claimed, now_ms=claimed.now_ms + 1_000)
    assert may_go_on(plan, later, spec, cluster_id="c1")
    changed = (claimed.extents[0]._replace(crc32c=9), *claimed.extents[1:])
    assert not may_go_on(plan, replace(later, extents=changed), spec, cluster_id="c1")


def test_a_partition_of_one_extent_is_sliced_and_a_plain_unit_ends_inside_an_extent() -> None:
    claimed, indexes = divisible([(False, [[30, 30], [40, 40, 40, 40]]), (True, [[50] * 8]), (True, [[50] * 5])])
    plan = cut_of(claimed, indexes)
    assert [(unit.kind.value, unit.input_bytes) for unit in plan.units] == [
        ("merge", 100),
        ("merge", 80),
        ("merge", 40),
        *[("keys", 100)] * 4,
        *[("rewrite", 100)] * 4,
        ("merge", 250),
    ]
    assert plan.sliced == [2]
    assert [unit.slice_number for unit in plan.units_of(UnitKind.KEYS)] == [0, 1, 2, 3]
    assert [(each.extent_id, each.length) for each in plan.divided] == [(2, 160), (3, 400)]


def test_indexes_are_asked_of_those_extents_alone_that_units_may_divide() -> None:
    claimed, _ = divisible([(False, [[100], [101], [150]]), (True, [[290]]), (True, [[290], [20]])])
    spec, sizes = MergeSpec.from_json(claimed.job.spec), UnitSizes(unit_bytes=100, keyed_unit_bytes=300)
    assert [each.extent_id for each in long_extents(claimed, spec, sizes)] == [2, 3, 5]
    changed = [claimed.extents[0], claimed.extents[1]._replace(flagged_reason="damaged")]
    changed += [claimed.extents[2]._replace(block_index_length=0), *claimed.extents[3:]]
    assert [each.extent_id for each in long_extents(replace(claimed, extents=tuple(changed)), spec, sizes)] == [5]
    # a topic that is compacted no more is copied, and one that went with its extents takes no part
    plain = replace(claimed.partitions[2], configs={"cleanup.policy": "delete"})
    other = replace(claimed, partitions={2: plain})
    assert [each.extent_id for each in long_extents(other, spec, sizes)] == [4]


async def test_an_index_that_cannot_be_read_leaves_its_extent_whole() -> None:
    store = MemoryStore(ManualClock(0))
    index = blocks([10, 20, 30])
    good = encode_block_index(index)
    damaged = bytearray(good)
    damaged[5] ^= 1
    body = good + bytes(damaged) + encode_block_index(blocks([10, 20, 30], base=90))
    await store.put_if_absent("l1/x", body, crc32c=crc32c(body))
    extent = an_extent([10, 20, 30])._replace(block_index_length=len(good))
    extents = [extent._replace(extent_id=n, block_index_position=n * len(good)) for n in range(5)]
    extents[3] = extents[3]._replace(key="l1/gone")
    found = await read_blocks(store, extents, keep_going=lambda: None)
    assert found == {0: index}, "the others are damaged, of another extent, gone, or cut off"
