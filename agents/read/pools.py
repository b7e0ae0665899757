"""The bytes of ranges from the pool they belong to: the hot tail, or history.

Files committed in the last HOT_MS before the newest one are the hot tail. Older files and merged files have their own
cache, GET slots and share of the budget. So a replay of old data, or a store that is down, does not evict the tail,
take its connections or hold it up.

Files of markers have no object. Their bytes are in the index, and come with the range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agents.read.blocks import BlockReader, blocks_of
from agents.read.budget import Source
from agents.read.pieces import Pieces
from agents.read.plan import ReadRange
from agents.tail.log_index import LogIndex
from runtime.logging import get_logger
from runtime.metrics import Metrics
from storage.objects import ObjectNotFoundError, ObjectStoreError

_log = get_logger(__name__)

HOT_MS = 60_000
STORE_WAIT_MS_MAX = 15_000.0
"""Longest wait for the store: below clients' `request.timeout.ms`, or they would take this agent for dead."""


class Pools:
    def __init__(self, *, index: LogIndex, hot: BlockReader, cold: BlockReader, metrics: Metrics) -> None:
        self._index = index
        self._hot = hot
        self.cold = cold
        self._metrics = metrics

    def is_hot(self, where: ReadRange) -> bool:
        return where.created_ms is not None and where.created_ms >= self._index.newest_file_ms - HOT_MS

    def is_history(self, where: ReadRange) -> bool:
        """Its bytes come from the pool of history."""
        return not where.inline and not self.is_hot(where)

    def source(self, ranges: Iterable[ReadRange]) -> Source:
        """Where the bytes are; the farthest place counts."""
        farthest = Source.MEMORY
        for where in ranges:
            place = (where.key, where.position, where.length)
            if not where.inline and not self._hot.holds(*place):
                if self.is_hot(where):
                    farthest = max(farthest, Source.TAIL)
                elif not self.cold.holds(*place):
                    return Source.HISTORY
        return farthest

    def holds(self, where: ReadRange) -> bool:
        return self.source([where]) is Source.MEMORY

    def cached(self, where: ReadRange) -> Pieces | None:
        """The bytes if they are in memory."""
        if where.inline:
            return _inline(where)
        found = self._hot.cached(where.key, where.position, where.length)
        # A hot file is never in the cold pool; a cold one may still be in the hot pool, from when it was new.
        if found is None and not self.is_hot(where):
            found = self.cold.cached(where.key, where.position, where.length)
        if found is not None:
            self._metrics.fetch_bytes_total.labels(source="memory").inc(where.length)
        return found

    def start(self, ranges: Iterable[ReadRange]) -> None:
        """Begin the GETs of ranges that are read at once: neighbours come in one, whatever partitions they are of."""
        blocks: dict[tuple[BlockReader, str, int], list[int]] = {}
        for where in ranges:
            reader = self._hot if self.is_hot(where) else self.cold
            blocks.setdefault((reader, where.key, where.file_size_bytes), []).extend(
                blocks_of(where.position, where.length)
            )
        for (reader, key, size_bytes), wanted in blocks.items():
            reader.start_missing(key, size_bytes, wanted)

    async def stored(self, where: ReadRange) -> Pieces:
        """The bytes, from memory if they are there by now, else from the store. Raises ObjectStoreError."""
        if where.inline:
            return _inline(where)
        reader = self._hot if self.is_hot(where) else self.cold
        try:
            async with asyncio.timeout(STORE_WAIT_MS_MAX / 1000):
                found = await reader.pieces(where.key, where.file_size_bytes, where.position, where.length)
        # No error yet: as a rule the file was merged, and the caller plans again.
        except ObjectNotFoundError:
            raise
        except ObjectStoreError as error:
            _log.error("object not readable", key=where.key, error=str(error))
            raise
        except TimeoutError:
            _log.error("object not read in time", key=where.key, waited_ms=STORE_WAIT_MS_MAX)
            raise ObjectStoreError(f"{where.key!r} was not read in {STORE_WAIT_MS_MAX:.0f} ms") from None
        self._metrics.fetch_bytes_total.labels(source="store").inc(where.length)
        return found

    async def bytes_of(self, where: ReadRange) -> memoryview:
        """The bytes in one buffer. Raises ObjectStoreError."""
        found = self.cached(where)
        return (found if found is not None else await self.stored(where)).joined()


def _inline(where: ReadRange) -> Pieces:
    return Pieces([memoryview(where.inline)[where.position : where.position + where.length]])
