"""The block indexes of long extents, read before a heavy merge is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from compactor.heavy.plan.cut import Blocks
from compactor.heavy.plan.parts import fits
from metadata.contract.leveled import LeveledExtent
from runtime.logging import get_logger
from storage.format.block_index import BlockEntry, decode_block_index
from storage.format.file_format import CorruptFileError
from storage.objects import ObjectStore, ObjectStoreError

_log = get_logger(__name__)

READS_AT_ONCE = 32


async def read_blocks(
    store: ObjectStore, extents: Sequence[LeveledExtent], *, keep_going: Callable[[], None]
) -> Blocks:
    """The blocks of these extents, by extent id, without those whose index cannot be read now or is not theirs.

    `keep_going` is called after every few reads and may raise.
    """
    found: dict[int, Sequence[BlockEntry]] = {}
    for start in range(0, len(extents), READS_AT_ONCE):
        some = extents[start : start + READS_AT_ONCE]
        read = await asyncio.gather(*(_blocks(store, each) for each in some))
        found |= {each.extent_id: blocks for each, blocks in zip(some, read, strict=True) if blocks}
        keep_going()
    return found


async def _blocks(store: ObjectStore, extent: LeveledExtent) -> Sequence[BlockEntry]:
    """() for an extent that has to stay whole."""
    try:
        stored = await store.get_range(extent.key, extent.block_index_position, extent.block_index_length)
        blocks = decode_block_index(stored, extent_length=extent.length)
    except (ObjectStoreError, CorruptFileError) as error:
        # The merge itself finds out whether the extent can be read.
        _log.warning("a block index cannot be read; its extent stays whole", key=extent.key, error=str(error))
        return ()
    if not fits(extent, blocks):
        _log.warning("a block index is not that of its extent, which stays whole", key=extent.key)
        return ()
    return blocks
