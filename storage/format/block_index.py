"""The sparse index of one extent of a merged file: about one entry a MiB. Byte for byte in docs/file-format.md.

An extent is divided into *blocks*: whole batches, one after another, a new block from the first batch that begins
`BLOCK_BYTES` or more after the block did. An entry says where a block begins, the base offset of its first batch and
its largest timestamp, so that one small read (this index) and one large one (a block) find an offset or a timestamp.
The place of an extent's block index is in its row, in the file and in the metadata; an extent that is empty, or whose
bytes cannot be read as batches, has none.

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
    """Of its first batch."""
    max_timestamp_ms: int
    """Largest of its batches."""
    position: int
    """Of its first byte, from the start of the extent."""


def encode_block_index(entries: Sequence[BlockEntry]) -> bytes:
    """24 bytes an entry, then the CRC-32C of them; b"" for none. Raises ValueError for a value out of its field."""
    if not entries:
        return b""
    try:
        packed = b"".join([_ENTRY.pack(*entry) for entry in entries])
    except struct.error as error:
        raise ValueError(f"a value does not fit a block index: {error}") from error
    return packed + _CRC.pack(crc32c(packed))


def decode_block_index(data: Body, *, extent_length: int | None = None) -> list[BlockEntry]:
    """The entries, from exactly the bytes that the extent's row points at; [] for none.

    Checked: whole entries, their CRC-32C, that the first begins at 0, that offsets and positions rise and, when
    `extent_length` (bytes) is given, that positions lie in the extent. Raises CorruptFileError.
    """
    if not len(data):
        return []
    if len(data) % ENTRY_BYTES != CRC_BYTES or len(data) < ENTRY_BYTES + CRC_BYTES:
        raise CorruptFileError(f"a block index of {len(data)} bytes; {ENTRY_BYTES} an entry and {CRC_BYTES} make one")
    view = memoryview(data)
    packed = view[:-CRC_BYTES]
    (stored,) = _CRC.unpack(view[-CRC_BYTES:])
    actual = crc32c(packed)
    if actual != stored:
        raise CorruptFileError(f"a block index says CRC-32C {stored:08x}, its bytes have {actual:08x}")
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
    """Which block to read first for the batch that holds `offset` or, where dedupe took it, the next one kept.

    The last block that begins at or below `offset`, else the first. Where nothing in it reaches `offset`, the next
    block's first batch is the answer. Raises ValueError for no entries.
    """
    if not entries:
        raise ValueError("an extent without a block index has no blocks to choose from")
    return max(0, bisect_right(entries, offset, key=_base_offset) - 1)


def block_end(entries: Sequence[BlockEntry], block: int, extent_length: int) -> int:
    """Where a block ends, in bytes from the start of its extent of `extent_length` bytes."""
    return entries[block + 1].position if block + 1 < len(entries) else extent_length


def _base_offset(entry: BlockEntry) -> int:
    return entry.base_offset
