"""Parts of extents: whole blocks of one extent as an input of their own, so that a unit may end inside an extent. Pure.

A part has its own stretch of bytes and of offsets, and the parts of an extent tile both. All else it takes from its
extent, except for the values that nobody knows before its bytes are read: its CRC-32C is unknown, and its records are
estimated by its share of the bytes. Blocks come from the extent's block index (`storage/format/block_index.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from compactor.merging.kway_merge import PART_CRC32C
from metadata.contract.leveled import LeveledExtent
from storage.format.block_index import BlockEntry, block_end


def is_part(extent: LeveledExtent) -> bool:
    return extent.crc32c == PART_CRC32C


def block_cuts(starts: Sequence[int], length: int, *, open_bytes: int | None, unit_bytes: int) -> list[int]:
    """The numbers of the blocks, rising, before which a new unit begins; 0 = the extent begins one.

    `starts`: the first byte of each block, from the start of the extent; (0,) for an extent that stays whole. `length`:
    the bytes of the extent. `open_bytes`: the bytes that the open unit holds before it; None = no unit is open. No unit
    exceeds `unit_bytes`, except one that ends with its first block.
    """
    cuts: list[int] = []
    # A unit takes at least one block.
    begun, taken = (0, 0) if open_bytes is None else (-open_bytes, -1)
    while length - begun > unit_bytes:
        cut = max(bisect_right(starts, begun + unit_bytes) - 1, taken + 1)
        if cut >= len(starts):
            break
        cuts.append(cut)
        begun, taken = starts[cut], cut
    return cuts


def parts_of(extent: LeveledExtent, blocks: Sequence[BlockEntry], cuts: Sequence[int]) -> list[LeveledExtent]:
    """The parts of an extent that is cut before the blocks with these numbers, rising, each above 0; the extent itself
    for no cuts."""
    if not cuts:
        return [extent]
    edges = [0, *cuts, len(blocks)]
    return [_part(extent, blocks, first, end) for first, end in pairwise(edges)]


def _part(extent: LeveledExtent, blocks: Sequence[BlockEntry], first: int, end: int) -> LeveledExtent:
    start, stop = blocks[first].position, block_end(blocks, end - 1, extent.length)
    uncompressed = extent.uncompressed_bytes
    return extent._replace(
        # Offsets that a dedupe left without a record belong to the part before them, and to the first part.
        base_offset=blocks[first].base_offset if first else extent.base_offset,
        last_offset=blocks[end].base_offset - 1 if end < len(blocks) else extent.last_offset,
        position=extent.position + start,
        length=stop - start,
        block_index_position=0,
        block_index_length=0,
        record_count=max(_share(extent.record_count, start, stop, extent.length), 1),
        crc32c=PART_CRC32C,
        uncompressed_bytes=None if uncompressed is None else _share(uncompressed, start, stop, extent.length),
    )


def _share(total: int, start: int, stop: int, length: int) -> int:
    """The share of the bytes from `start` to `stop` in `total`; the shares of all parts together are `total`."""
    return total * stop // length - total * start // length


def fits(extent: LeveledExtent, blocks: Sequence[BlockEntry]) -> bool:
    """Whether a block index contradicts the row of its extent in nothing that parts depend on."""
    return (
        bool(blocks)
        and blocks[0].position == 0
        and blocks[0].base_offset >= extent.base_offset
        and blocks[-1].base_offset <= extent.last_offset
        and blocks[-1].position < extent.length
        and all(a.position < b.position and a.base_offset < b.base_offset for a, b in pairwise(blocks))
    )
