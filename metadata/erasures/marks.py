"""The packed marks of an erasure: one row of 41 bytes for each key of one partition.

Big-endian, by rising hash: the key's SHA-512/256 (32 bytes), the offset below which its records go i64, and 1 if the
record at that offset is a tombstone that goes too, else 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from metadata.erasures.contract import ERASURE_KEYS_MAX, ErasureKeysError, KeyMark
from runtime.errors import SiltstoneError

MARK_BYTES = 41
_MARK = struct.Struct(">32sqB")


class PackedMarksError(SiltstoneError):
    """The bytes are no packed marks that this version can read."""


def encode_marks(marks: Iterable[KeyMark]) -> bytes:
    return b"".join(_MARK.pack(*mark) for mark in sorted(marks))


def decode_marks(packed: bytes) -> list[KeyMark]:
    """By rising hash. Raises PackedMarksError."""
    if len(packed) % MARK_BYTES:
        raise PackedMarksError(f"marks of an erasure have {len(packed)} bytes, no multiple of {MARK_BYTES}")
    rows = list(_MARK.iter_unpack(packed))
    if any(row[2] > 1 for row in rows):
        raise PackedMarksError("a mark of an erasure has a flag that is neither 0 nor 1")
    return [KeyMark(row[0], row[1], bool(row[2])) for row in rows]


def end_offset(marks: Sequence[KeyMark]) -> int:
    """The exclusive end of the offsets that the marks may touch, tombstones included."""
    return max((mark.before_offset + mark.tombstone for mark in marks), default=0)


def check_marks(marks: Mapping[int, Sequence[KeyMark]], high_watermarks: Sequence[int]) -> None:
    """`high_watermarks`: of all partitions of the topic, by number. Raises ErasureKeysError."""
    count = sum(len(each) for each in marks.values())
    if not count:
        raise ErasureKeysError("an erasure needs at least one key")
    if count > ERASURE_KEYS_MAX:
        raise ErasureKeysError(
            f"{count} keys are more than one erasure takes ({ERASURE_KEYS_MAX})",
            remedy="request several erasures; merges carry them out together",
        )
    for number, each in marks.items():
        if not 0 <= number < len(high_watermarks):
            raise ErasureKeysError(f"the topic has no partition {number}")
        if len({mark.key_hash for mark in each}) < len(each):
            raise ErasureKeysError(f"a key comes twice in partition {number}")
        if any(len(mark.key_hash) != 32 for mark in each):
            raise ErasureKeysError(f"a hash of partition {number} does not have 32 bytes")
        least, end = min((mark.before_offset for mark in each), default=0), end_offset(each)
        if least < 0 or end > high_watermarks[number]:
            raise ErasureKeysError(
                f"a mark of partition {number} is at offset {least if least < 0 else end - 1}; the partition ends at "
                f"{high_watermarks[number]}"
            )
