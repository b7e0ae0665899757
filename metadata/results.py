"""`files.results`: what the commit answered, per batch in arrival order, so that a repeat answers the same.

19-byte big-endian rows: error i16 (0 = stored or duplicate), duplicate u8, base offset i64, log append time i64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from metadata.service import BatchResult
from siltstone.errors import SiltstoneError

ROW_BYTES = 19
_ROW = struct.Struct(">hBqq")


class ResultsError(SiltstoneError):
    """The bytes are not stored commit results."""


def encode_results(results: Iterable[BatchResult]) -> bytes:
    return b"".join(
        _ROW.pack(result.error, int(result.duplicate), result.base_offset, result.log_append_time_ms)
        for result in results
    )


def decode_results(packed: bytes) -> list[BatchResult]:
    """Raises ResultsError when the length is no multiple of a row or a flag is neither 0 nor 1."""
    if len(packed) % ROW_BYTES:
        raise ResultsError(f"{len(packed)} bytes are no whole number of {ROW_BYTES}-byte result rows")
    results: list[BatchResult] = []
    for error, duplicate, base_offset, log_append_time_ms in _ROW.iter_unpack(packed):
        if duplicate > 1:
            raise ResultsError(f"duplicate flag {duplicate} is neither 0 nor 1")
        results.append(
            BatchResult(
                error=error,
                duplicate=duplicate == 1,
                base_offset=base_offset,
                log_append_time_ms=log_append_time_ms,
            )
        )
    return results
