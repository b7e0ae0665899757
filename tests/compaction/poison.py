"""Unreadable batches: header and CRC are right, the records cannot be read, and no merge may change or lose them.

In the model each of their offsets is a record without a key, whose value is the batch's bytes after its offsets.
"""

from __future__ import annotations

import random

from tests.compaction.model import UNREADABLE, Rec
from tests.fixtures.record_batches import with_header, with_payload
from wire.batch import read_header
from wire.codecs import Codec

STAMPED_BYTES = 16
"""Offsets and leader epoch, which a merge may rewrite."""


def poisoned(batch: bytes, r: random.Random) -> bytes:
    """A batch with this number of records, none of which can be read."""
    match r.randrange(3):
        case 0:
            return with_payload(batch, b"\xff" * 40)
        case 1:
            return with_payload(batch, b"\xff" * 40, Codec.LZ4)
        case _:
            return with_header(with_payload(batch, b"\xff" * 40), attributes=Codec.ZSTD)


def opaque_records(batch: bytes, base_offset: int) -> list[Rec]:
    """The records of such a batch in the model."""
    header = read_header(batch)
    tail = batch[STAMPED_BYTES:]
    return [
        Rec(base_offset + number, None, tail, header.max_timestamp_ms, UNREADABLE)
        for number in range(header.last_offset_delta + 1)
    ]
