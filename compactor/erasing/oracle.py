"""The erasing of keys from batches in plain Python: for readers, and as the oracle of the compiled eraser.

A record goes if its key has a mark and the record lies below the mark's offset, or at it where the mark takes the
tombstone as well. Nothing else goes: keyless records stay, and control batches are not looked at. No batch goes either.
A batch that loses records keeps its offsets, its producer's fields, its delete horizon and the bytes of every record
that stays; a batch that loses all of them stays as an empty batch, as Kafka's cleaner leaves one. So offsets, sequence
numbers and transactions look as before, in plain topics and in compacted ones.

`compactor/erasing/partition_eraser.py` gives the same bytes for every input, over compiled kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from compactor.cleaning.oracle import emptied, entries_of, rebuilt
from metadata.erasures.contract import KeyMark
from wire.batch import read_header
from wire.records import DECOMPRESSED_BYTES_MAX


def ends_of(marks: Iterable[KeyMark]) -> Mapping[bytes, int]:
    """The exclusive end of the offsets that go, by key hash. Of several marks for a key, the farthest one counts."""
    ends: dict[bytes, int] = {}
    for mark in marks:
        end = mark.before_offset + (1 if mark.tombstone else 0)
        ends[mark.key_hash] = max(end, ends.get(mark.key_hash, 0))
    return ends


def erase(
    batches: Sequence[bytes], marks: Iterable[KeyMark], *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[bytes]:
    """The batches without the marked records. `batches` are whole, offset-stamped, in offset order.

    Raises CorruptBatchError, CorruptRecordError, CodecError.
    """
    ends = ends_of(marks)
    farthest = max(ends.values(), default=0)
    return [_erased(batch, ends, farthest, decompressed_bytes_max) for batch in batches]


def _erased(whole: bytes, ends: Mapping[bytes, int], farthest: int, decompressed_bytes_max: int) -> bytes:
    header = read_header(whole)
    # Batches above every mark are not read: their records may be unreadable, and that is no concern of the erasure.
    if header.base_offset >= farthest:
        return whole
    entries = list(entries_of(whole, header, decompressed_bytes_max))
    if header.is_control:
        return whole
    kept = [
        entry
        for entry in entries
        if entry.record.key is None or entry.offset >= ends.get(hashlib.new("sha512_256", entry.record.key).digest(), 0)
    ]
    if len(kept) == len(entries):
        return whole
    return rebuilt(header, kept, None) if kept else emptied(header)
