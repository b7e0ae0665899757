"""Watermarks straight from the store, for the answers that may never come from memory.

"Latest", "out of range" and a delete below an offset are promises about the present. An agent that answered them from
its own, late view would send a consumer back, or past records. One read is under way at a time; calls that come
meanwhile share the next one, which begins after they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import Watermarks

WAIT_MS_MAX = 5_000.0
"""Longest wait for the store. A silent store is waited for up to its own time-outs, possibly one read after another; a
client that waited as long would take this agent for dead."""


class FreshWatermarks:
    def __init__(self, metadata: AgentMetadata) -> None:
        self._metadata = metadata
        self._wanted: set[int] = set()
        self._next: asyncio.Task[Mapping[int, Watermarks]] | None = None
        self._running: asyncio.Task[Mapping[int, Watermarks]] | None = None

    async def get(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        """Read after this call began; partitions that do not exist are absent.

        Raises MetadataUnavailableError, also if the store does not answer in WAIT_MS_MAX.
        """
        if not partition_ids:
            return {}
        self._wanted.update(partition_ids)
        # A read under way began before this call. It is not shared: its answer may be older than the question.
        if self._next is None:
            self._next = asyncio.create_task(self._read(self._running), name="watermarks")
        try:
            async with asyncio.timeout(WAIT_MS_MAX / 1000):
                # Shielded: others wait for the same read.
                return await asyncio.shield(self._next)
        except TimeoutError:
            raise MetadataUnavailableError("watermarks were not read in time") from None

    async def _read(self, before: asyncio.Task[Mapping[int, Watermarks]] | None) -> Mapping[int, Watermarks]:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        # Taken only now: calls that came during the read before are served by this one.
        wanted, self._wanted = sorted(self._wanted), set()
        self._running, self._next = self._next, None
        return await self._metadata.watermarks(wanted)
