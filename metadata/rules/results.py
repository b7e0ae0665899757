"""The codec of `files.results`: the answer of a commit, so that a repeat gives the same.

- Of a usual file (`metadata/rules/usual_commit.py`) it is empty: the answer follows from the packed index. When the row
  gives its index back, the column takes the base offset of each partition out of it: byte 0x03, then i64 big-endian.
- Of any other file: per batch in arrival order, 19-byte big-endian rows: error i16 (0 = stored or duplicate), duplicate
  u8, base offset i64, log append time i64. An error code is below 0x0300, so no such row begins with the byte 0x03.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from metadata.contract.l0_commit import BatchResult, L0Batch
from metadata.rules.packed_index import iter_index
from metadata.rules.usual_commit import usual_results
from runtime.errors import SiltstoneError

ROW_BYTES = 19
BASES = 3
_ROW = struct.Struct(">h?qq")
_BASE = struct.Struct(">q")


class ResultsError(SiltstoneError):
    """The bytes are not stored commit results, or those of other batches."""


def encode_results(results: Iterable[BatchResult]) -> bytes:
    return b"".join(_ROW.pack(*result) for result in results)


def answers(packed: bytes, index: bytes, batches: Sequence[L0Batch]) -> Sequence[BatchResult]:
    """The answer to the commit of `batches`, from its row. Raises ResultsError, and PackedIndexError."""
    if packed and packed[0] != BASES:
        found = decode_results(packed)
    elif packed:
        if len(packed) % _BASE.size != 1:
            raise ResultsError(f"stored base offsets have {len(packed)} bytes, not 1 and a multiple of {_BASE.size}")
        found = usual_results(batches, [base for (base,) in _BASE.iter_unpack(memoryview(packed)[1:])])
    else:
        found = usual_results(batches, [row.base_offset for row in iter_index(index)])
    if found is None or len(found) != len(batches):
        raise ResultsError(f"the stored answer to a commit is not one to its {len(batches)} batches")
    return found


def decode_results(packed: bytes) -> list[BatchResult]:
    """Raises ResultsError when the length is no multiple of ROW_BYTES or a flag is neither 0 nor 1."""
    if len(packed) % ROW_BYTES:
        raise ResultsError(f"stored commit results have {len(packed)} bytes, no multiple of {ROW_BYTES}-byte rows")
    # The flag is the third byte of a row; `?` would read any byte above 0 as true.
    greatest_flag = max(packed[2::ROW_BYTES], default=0)
    if greatest_flag > 1:
        raise ResultsError(f"stored commit results hold a duplicate flag {greatest_flag}, which is neither 0 nor 1")
    return list(map(BatchResult._make, _ROW.iter_unpack(packed)))
