"""The records of one batch in memory, within the bounds of `budget.py`: small ones at once, large ones on a thread.

How far a batch unfolds is not known before. So a batch is tried with a small bound first and with larger ones after
that: memory is taken by what a batch needs, and small batches do not wait for large ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agents.read.budget import Release
from agents.read.timestamps.budget import MIB, LookUpBudget, LookUpShares
from wire.batch import BATCH_HEADER_BYTES, BatchHeader
from wire.codecs import Codec, CodecError, DecompressedTooLargeError, decompress
from wire.crc import Body

BOUNDS = (MIB, 16 * MIB, 64 * MIB)
"""The bytes that a batch may unfold to at the first, second and last try. The last bound is the one of produce too: 64
times the default `max.message.bytes`."""
PAYLOAD_ON_LOOP_MAX = 64 << 10
"""A larger payload may take long, however little it unfolds to; it begins with the second try."""


@asynccontextmanager
async def unfolded(
    batch: memoryview, header: BatchHeader, *, budget: LookUpBudget, shares: LookUpShares
) -> AsyncGenerator[Body, None]:
    """The decompressed payload of a whole batch. Raises CodecError and CorruptBatchError."""
    packed = batch[BATCH_HEADER_BYTES : header.size_bytes]
    if header.codec is Codec.NONE:
        yield packed
        return
    # It is damaged, or honest and unusually well compressed: each try costs its bound.
    for bound in BOUNDS[len(packed) > PAYLOAD_ON_LOOP_MAX :]:
        on_loop = bound == BOUNDS[0]
        release = await (shares.small if on_loop else shares.unfolded).take(bound)
        payload = (
            _unfold(header.codec, packed, bound) if on_loop else await _on_thread(header.codec, packed, bound, release)
        )
        if isinstance(payload, CodecError):
            release()
            budget.took_unfolded(bound, on_loop=on_loop)
            if bound == BOUNDS[-1] or not isinstance(payload, DecompressedTooLargeError):
                raise CodecError(payload.message)
            continue
        budget.took_unfolded(len(payload), on_loop=on_loop)
        try:
            yield payload
        finally:
            release()
        return


def _unfold(codec: Codec, packed: memoryview, bound: int) -> bytes | CodecError:
    """The error is returned, without the frames that it came through: they hold what was unfolded until then."""
    try:
        return decompress(codec, packed, bytes_max=bound)
    except CodecError as error:
        return error.with_traceback(None)


async def _on_thread(codec: Codec, packed: memoryview, bound: int, release: Release) -> bytes | CodecError:
    """The caller calls `release`, unless this is cancelled."""
    # The future of a thread refers to itself, so its result would stay until the next garbage collection.
    results: list[bytes | CodecError] = []

    def work() -> None:
        results.append(_unfold(codec, packed, bound))

    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        # Nobody waits for it any more, but it cannot be stopped, and holds the memory until it ends.
        working.add_done_callback(lambda _: (results.clear(), release()))
        raise
    return results.pop()
