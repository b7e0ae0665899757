"""The cuts inside extents: they tile the extent, bound the units, and take no more units than needed."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.heavy.plan.parts import block_cuts, fits, is_part, parts_of
from metadata.contract.leveled import LeveledExtent
from storage.format.block_index import BlockEntry

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


def naive_cuts(sizes: list[int], open_bytes: int, unit_bytes: int) -> list[int]:
    """Block after block into the open unit, as long as the rest of the extent does not fit into it."""
    cuts: list[int] = []
    held = open_bytes
    for number, size in enumerate(sizes):
        if held and held + size > unit_bytes:
            cuts.append(number)
            held = 0
        held += size
    return cuts


@given(sizes=SIZES, open_bytes=st.integers(0, 300), unit_bytes=st.integers(1, 300))
def test_units_end_where_the_next_block_would_not_fit(sizes: list[int], open_bytes: int, unit_bytes: int) -> None:
    starts = [each.position for each in blocks(sizes)]
    cuts = block_cuts(starts, sum(sizes), open_bytes=open_bytes, unit_bytes=unit_bytes)
    assert cuts == naive_cuts(sizes, open_bytes, unit_bytes)
    edges = [0, *(cut for cut in cuts if cut), len(sizes)]
    units = [sum(sizes[first:end]) for first, end in pairwise(edges)]
    if 0 not in cuts:
        units[0] += open_bytes
    assert all(
        size <= max(unit_bytes, BLOCK_BYTES) or (not number and size == open_bytes + sizes[0])
        for number, size in enumerate(units)
    )


@pytest.mark.parametrize(("open_bytes", "cuts"), [(0, []), (10, [0])])
def test_an_extent_without_blocks_stays_whole_and_begins_a_unit_where_it_does_not_fit(
    open_bytes: int, cuts: list[int]
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
