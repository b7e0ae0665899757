"""The memory that the deduped partitions of one merge share.

A partition gets all of its room at once, and partitions get theirs in merge order: the next one enters only when the
one before has its room. So a partition that waits for its turn to write never holds what an earlier one needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.merging.key_memory import KeyMemory
from compactor.merging.kway_merge import PartitionInputs
from compactor.merging.memory_gate import MemoryGate
from compactor.planning.options import DECOMPRESSED_KEPT_RATIO


class Room(NamedTuple):
    """The room of one partition."""

    buffer: DedupeBuffer
    decompressed_bytes: int
    """The most bytes of decompressed records that it may keep between its passes."""


class DedupeRoom:
    """One for each merge."""

    def __init__(self, keys: KeyMemory, *, kept_bytes: int, decompressed_bytes: int) -> None:
        """`kept_bytes`: for the inputs of partitions that stay in memory between their passes."""
        self._keys = keys
        self._door = asyncio.Lock()
        self._kept = MemoryGate(kept_bytes)
        self._decompressed_bytes = decompressed_bytes

    @asynccontextmanager
    async def held(self, inputs: PartitionInputs, *, kept_bytes: int) -> AsyncGenerator[Room]:
        """`kept_bytes`: of the inputs, while the block runs."""
        records = sum(extent.record_count for extent in inputs.extents)
        async with AsyncExitStack() as room:
            async with self._door:
                await room.enter_async_context(self._kept.held(kept_bytes))
                buffer = await room.enter_async_context(self._keys.buffer(records))
            # Whatever is left at this moment: without it, records are only decompressed again.
            decompressed_bytes = min(self._decompressed_bytes, inputs.input_bytes * DECOMPRESSED_KEPT_RATIO)
            self._decompressed_bytes -= decompressed_bytes
            try:
                yield Room(buffer, decompressed_bytes)
            finally:
                self._decompressed_bytes += decompressed_bytes
