"""The codec of `files.results`: the answer of a commit, per batch in arrival order, so that a repeat gives the same.

19-byte big-endian rows: error i16 (0 = stored or duplicate), duplicate u8, base offset i64, log append time i64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from metadata.contract.l0_commit import BatchResult
from runtime.errors import SiltstoneError

ROW_BYTES = 19
_ROW = struct.Struct(">h?qq")


class ResultsError(SiltstoneError):
    """The bytes are not stored commit results."""


def encode_results(results: Iterable[BatchResult]) -> bytes:
    return b"".join(_ROW.pack(*result) for result in results)


def decode_results(packed: bytes) -> list[BatchResult]:
    """Raises ResultsError when the length is no multiple of ROW_BYTES or a flag is neither 0 nor 1."""
    if len(packed) % ROW_BYTES:
        raise ResultsError(f"stored commit results have {len(packed)} bytes, no multiple of {ROW_BYTES}-byte rows")
    # The flag is the third byte of a row; `?` would read any byte above 0 as true.
    greatest_flag = max(packed[2::ROW_BYTES], default=0)
    if greatest_flag > 1:
        raise ResultsError(f"stored commit results hold a duplicate flag {greatest_flag}, which is neither 0 nor 1")
    return list(map(BatchResult._make, _ROW.iter_unpack(packed)))
