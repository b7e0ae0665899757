"""Producer ids for InitProducerId, from small blocks of the store.

A block is used for BLOCK_MS at most. The store takes a producer id's age from its block, and an id that looks older
than it is could begin in the middle of its sequence. The unused rest of a block is lost; there are 2^63 ids.
"""

from __future__ import annotations

import asyncio

from metadata.contract.agents import AgentMetadata
from runtime.clock import Clock

BLOCK_IDS = 100
BLOCK_MS = 1_000.0


class ProducerIds:
    def __init__(self, metadata: AgentMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._block = range(0)
        self._until_ms = 0.0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """A producer id that was never given before. Raises MetadataUnavailableError."""
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            if not self._block or now_ms >= self._until_ms:
                self._block = await self._metadata.allocate_producer_ids(BLOCK_IDS)
                # Counted from before the call: the store dates the block at some moment after that. Set only now: if
                # the call fails, the old block stays expired.
                self._until_ms = now_ms + BLOCK_MS
            taken, self._block = self._block[0], self._block[1:]
            return taken
