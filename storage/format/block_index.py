"""The sparse index of one extent of a merged file: about one entry per MiB. Byte for byte in docs/file-format.md.

An extent is divided into *blocks* of whole batches in order. A new block starts at the first batch that begins
`BLOCK_BYTES` or more after the block's start. An entry holds the block's position, the base offset of its first batch
and its largest timestamp. So one small read (this index) and one large one (a block) find an offset or a timestamp. The
extent's row, in the file and in the metadata, tells where its block index lies. An extent that is empty, or whose bytes
cannot be read as batches, has none.

Pure; writes nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from storage.format.file_format import CorruptFileError
from wire.crc import Body, crc32c

BLOCK_BYTES = 1 << 20
ENTRY_BYTES = 24
CRC_BYTES = 4

_ENTRY = struct.Struct(">qqQ")
_CRC = struct.Struct(">I")

assert _ENTRY.size == ENTRY_BYTES
assert _CRC.size == CRC_BYTES


class BlockEntry(NamedTuple):
    """One block of an extent; it ends where the next one begins, the last one with the extent."""

    base_offset: int
    """The base offset of its first batch."""
    max_timestamp_ms: int
    """The largest timestamp of its batches."""
    position: int
    """Its first byte, from the start of the extent."""


def encode_block_index(entries: Sequence[BlockEntry]) -> bytes:
    """24 bytes per entry, then their CRC-32C; b"" for no entries. Raises ValueError for a value out of its field."""
    if not entries:
        return b""
    try:
        packed = b"".join([_ENTRY.pack(*entry) for entry in entries])
    except struct.error as error:
        raise ValueError(f"a value does not fit a block index: {error}") from error
    return packed + _CRC.pack(crc32c(packed))


def decode_block_index(data: Body, *, extent_length: int | None = None) -> list[BlockEntry]:
    """The entries, from exactly the bytes that the extent's row points at; [] for b"".

    It checks that entries are whole and match their CRC-32C, that the first begins at 0, that offsets and positions
    rise, and, if `extent_length` (bytes) is given, that positions lie in the extent. Raises CorruptFileError.
    """
    if not len(data):
        return []
    # Whole entries and one CRC, at least one entry: an index without entries is no bytes at all.
    if len(data) % ENTRY_BYTES != CRC_BYTES or len(data) < ENTRY_BYTES + CRC_BYTES:
        raise CorruptFileError(
            f"a block index has {len(data)} bytes; it should have {ENTRY_BYTES} per entry and {CRC_BYTES} more"
        )
    view = memoryview(data)
    packed = view[:-CRC_BYTES]
    (stored,) = _CRC.unpack(view[-CRC_BYTES:])
    actual = crc32c(packed)
    if actual != stored:
        raise CorruptFileError(f"a block index says CRC-32C {stored:08x}, but its bytes have {actual:08x}")
    entries = [BlockEntry._make(fields) for fields in _ENTRY.iter_unpack(packed)]
    if entries[0].position != 0:
        raise CorruptFileError(f"the first block of an extent begins at {entries[0].position}, not at 0")
    for before, after in pairwise(entries):
        if after.position <= before.position or after.base_offset <= before.base_offset:
            raise CorruptFileError(
                f"the block at {after.position} (offset {after.base_offset}) does not follow the one at"
                f" {before.position} (offset {before.base_offset})"
            )
    if extent_length is not None and entries[-1].position >= extent_length:
        raise CorruptFileError(f"a block begins at {entries[-1].position} in an extent of {extent_length} bytes")
    return entries


def block_of_offset(entries: Sequence[BlockEntry], offset: int) -> int:
    """The number of the block to read first for the batch that holds `offset` or, if dedupe removed it, for the next
    one kept.

    This is the last block that begins at or below `offset`, else the first. If nothing in it reaches `offset`, the
    first batch of the next block is the answer. Raises ValueError for no entries.
    """
    if not entries:
        raise ValueError("an extent without a block index has no blocks to choose from")
    return max(0, bisect_right(entries, offset, key=_base_offset) - 1)


def block_end(entries: Sequence[BlockEntry], block: int, extent_length: int) -> int:
    """The end of a block, in bytes from the start of its extent of `extent_length` bytes."""
    return entries[block + 1].position if block + 1 < len(entries) else extent_length


def _base_offset(entry: BlockEntry) -> int:
    return entry.base_offset
