"""Surveys flagged extents, once each, and remembers which of their batches are sound.

The bytes pass in reads of up to 8 MiB through the cold pool, one extent at a time; the walk over them
(`storage/format/survey.py`) yields to the event loop. Requests for an extent that is being surveyed share that survey.
No request waits longer than WAIT_MS_MAX: the survey of a long extent ends later, and a later fetch finds it. Without
flagged extents nothing of this runs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from agents.read.blocks import GET_BLOCKS_MAX, BlockReader
from agents.read.cache import BLOCK_BYTES
from agents.read.pools import STORE_WAIT_MS_MAX
from metadata.contract.leveled import LeveledExtent
from runtime.logging import get_logger
from storage.format.survey import ExtentSurvey, SoundParts
from storage.objects import ObjectStoreError

_log = get_logger(__name__)

READ_BYTES = GET_BLOCKS_MAX * BLOCK_BYTES
STEP_BYTES = 256 << 10
"""Bytes per step; the event loop turns between two steps. A step over the smallest batches takes some milliseconds."""
BLOCK_ENTRIES_MAX = 50_000
"""Sound parts remembered over all extents; some 0.2 KB each."""
WAIT_MS_MAX = 5_000.0


class Surveys:
    def __init__(self, reader: BlockReader, *, entries_max: int = BLOCK_ENTRIES_MAX) -> None:
        self._reader = reader
        self._entries_max = entries_max
        self._known: OrderedDict[tuple[str, int], SoundParts] = OrderedDict()
        self._flying: dict[tuple[str, int], asyncio.Task[SoundParts]] = {}
        self._slot = asyncio.Semaphore(1)
        self.entries = 0

    def get(self, extent: LeveledExtent) -> SoundParts | None:
        found = self._known.get((extent.key, extent.position))
        if found is not None:
            self._known.move_to_end((extent.key, extent.position))
        return found

    async def read(self, extent: LeveledExtent) -> SoundParts:
        """Raises ObjectStoreError, also if it takes longer than WAIT_MS_MAX."""
        known = self.get(extent)
        if known is not None:
            return known
        place = (extent.key, extent.position)
        flying = self._flying.get(place)
        if flying is None:
            # A task of its own: it goes on when its requests have stopped waiting, and serves the next fetch.
            flying = asyncio.create_task(self._survey(extent), name=f"survey {extent.key}")
            self._flying[place] = flying
            flying.add_done_callback(lambda done: self._landed(place, done))
        try:
            async with asyncio.timeout(WAIT_MS_MAX / 1000):
                return await asyncio.shield(flying)
        except TimeoutError:
            raise ObjectStoreError(f"a flagged extent of {extent.key!r} is still being surveyed") from None

    async def close(self) -> None:
        tasks = list(self._flying.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _survey(self, extent: LeveledExtent) -> SoundParts:
        survey = ExtentSurvey(extent)
        end = extent.position + extent.length
        start = extent.position
        async with self._slot:
            while survey.goes_on and start < end:
                # Whole blocks of the cache except at the ends: none is read twice.
                stop = min(end, (start // READ_BYTES + 1) * READ_BYTES)
                data = await self._read(extent, start, stop - start)
                for at in range(0, len(data), STEP_BYTES):
                    survey.feed(data[at : at + STEP_BYTES])
                    await asyncio.sleep(0)
                start = stop
        parts = survey.parts()
        _log.warning(
            "flagged extent surveyed",
            key=extent.key,
            partition_id=extent.partition_id,
            base_offset=extent.base_offset,
            last_offset=extent.last_offset,
            served=[(each.base_offset, each.end_offset - 1) for each in parts.stretches[:10]],
            reason=extent.flagged_reason,
        )
        return parts

    async def _read(self, extent: LeveledExtent, start: int, length: int) -> memoryview:
        try:
            async with asyncio.timeout(STORE_WAIT_MS_MAX / 1000):
                return await self._reader.read(extent.key, extent.file_size_bytes, start, length)
        except TimeoutError:
            # A silent store must not keep other extents waiting for ever.
            raise ObjectStoreError(f"{extent.key!r} was not read in {STORE_WAIT_MS_MAX:.0f} ms") from None

    def _landed(self, place: tuple[str, int], done: asyncio.Task[SoundParts]) -> None:
        del self._flying[place]
        if done.cancelled() or done.exception() is not None:  # marks the error as seen: no other waiter may remain
            return
        self._known[place] = parts = done.result()
        self.entries += _size(parts)
        while self.entries > self._entries_max and len(self._known) > 1:
            _, evicted = self._known.popitem(last=False)
            self.entries -= _size(evicted)


def _size(parts: SoundParts) -> int:
    return 1 + sum(1 + len(each.blocks) for each in parts.stretches)
