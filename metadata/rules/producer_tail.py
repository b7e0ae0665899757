"""The codec of the columns `tail` and `append_times` of `producer_states`: the last batches of a producer.

`tail`, per batch, oldest first, 16 bytes big-endian: base offset i64, first sequence i32, records i32. `append_times`,
per batch of `tail`: i64, or None for -1 everywhere. The commit functions write the same in SQL.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from metadata.rules.producer_state import SEQUENCES, StoredBatch, last_sequence
from runtime.errors import SiltstoneError

_BATCH = struct.Struct(">qii")
_TIME = struct.Struct(">q")


class ProducerTailError(SiltstoneError):
    """The bytes are no tail that this version can read."""


def encode_tail(batches: Sequence[StoredBatch]) -> tuple[bytes, bytes | None]:
    """(`tail`, `append_times`)."""
    tail = b"".join(
        _BATCH.pack(
            batch.base_offset, batch.first_sequence, (batch.last_sequence - batch.first_sequence) % SEQUENCES + 1
        )
        for batch in batches
    )
    times_ms = [batch.log_append_time_ms for batch in batches]
    return tail, b"".join(map(_TIME.pack, times_ms)) if any(time_ms != -1 for time_ms in times_ms) else None


def unpack_tail(tail: bytes, append_times: bytes | None) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Per batch its base offset, first sequence and records; and its append time. Raises ProducerTailError."""
    count, rest = divmod(len(tail), _BATCH.size)
    if rest or (append_times is not None and len(append_times) != count * _TIME.size):
        times = 0 if append_times is None else len(append_times)
        raise ProducerTailError(f"{len(tail)} bytes and {times} bytes of append times are no tail of a producer")
    times_ms = [-1] * count if append_times is None else [time_ms for (time_ms,) in _TIME.iter_unpack(append_times)]
    return [*_BATCH.iter_unpack(tail)], times_ms


def decode_tail(tail: bytes, append_times: bytes | None) -> tuple[StoredBatch, ...]:
    """Raises ProducerTailError."""
    return tuple(
        StoredBatch(
            first_sequence=first,
            last_sequence=last_sequence(first, records),
            base_offset=base,
            log_append_time_ms=time_ms,
        )
        for (base, first, records), time_ms in zip(*unpack_tail(tail, append_times), strict=True)
    )
