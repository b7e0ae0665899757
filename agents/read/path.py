"""The read path of one agent: pools, look-ups, the reader of fetches, and the search by timestamp.

Bytes of deleted files leave the caches: those of an L0 file when the agent learns that a merge replaced it, and all
bytes `gc.grace.ms` after their file was last known to exist, whatever the agent learns. See docs/design.md, 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import TypeAlias

from agents.read.ahead import ReadAhead
from agents.read.blocks import BlockReader
from agents.read.budget import ByteBudget
from agents.read.cache import BlockCache
from agents.read.leveled import BlockIndexes, LeveledExtents, ttl_ms
from agents.read.locate import CatchUp, Locator
from agents.read.pools import Pools
from agents.read.reader import Reader
from agents.read.source import BlockSource, StoreSource
from agents.read.surveys import Surveys
from agents.read.timestamps.search import TimestampSearch
from agents.tail.log_index import LogIndex
from metadata.contract.readers import ReaderMetadata
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.objects import ObjectStore

READS_AT_ONCE = 16
"""Reads from the object store under way in each of the two pools. This bounds the sockets and buffers that a burst of
fetches takes; a fetch without a free slot waits."""


SWEEP_MS = 10_000.0
"""Time between two looks for bytes that are in memory for too long; a look at 10,000 bodies takes a millisecond."""

Around: TypeAlias = Callable[[BlockSource, str], BlockSource]
"""Puts something before the object store, for the pool `hot` or `cold`."""


def the_store_itself(store: BlockSource, pool: str) -> BlockSource:
    return store


class ReadPath:
    def __init__(
        self,
        *,
        settings: Settings,
        index: LogIndex,
        store: ObjectStore,
        metadata: ReaderMetadata,
        catch_up: CatchUp,
        runtime: Runtime,
        around: Around = the_store_itself,
    ) -> None:
        self._settings = settings
        self._clock = runtime.clock
        store_source = StoreSource(store, runtime.clock)
        self._metrics = runtime.metrics
        self.hot_cache = BlockCache(settings.cache_hot_bytes, runtime.metrics.cache_bytes.labels(pool="hot").set)
        cold_cache = BlockCache(settings.cache_cold_bytes, runtime.metrics.cache_bytes.labels(pool="cold").set)
        self._cold_cache = cold_cache
        self.hot = self._block_reader(around(store_source, "hot"), self.hot_cache, "hot")
        self.cold = self._block_reader(around(store_source, "cold"), cold_cache, "cold")
        self._sweeps: asyncio.Task[None] | None = None
        self._kept_ms = settings.gc_grace_ms
        self._leveled = LeveledExtents(metadata, runtime.clock, ttl_ms=ttl_ms(settings.gc_grace_ms))
        blocks = BlockIndexes(self.cold)
        self._surveys = Surveys(self.cold)
        pools = Pools(index=index, hot=self.hot, cold=self.cold, metrics=runtime.metrics)
        self._ahead = ReadAhead(self.cold, runtime.clock, cache_bytes=settings.cache_cold_bytes)
        self.reader = Reader(
            locator=Locator(
                index=index, leveled=self._leveled, blocks=blocks, surveys=self._surveys, catch_up=catch_up
            ),
            pools=pools,
            ahead=self._ahead,
            budget=ByteBudget(settings.fetch_buffer_bytes_max),
        )
        self.timestamps = TimestampSearch(index=index, metadata=metadata, blocks=blocks, pools=pools, catch_up=catch_up)

    def start(self) -> None:
        self._sweeps = asyncio.create_task(self._sweep_for_ever(), name="cache sweep")

    def drop_files(self, keys: Container[str]) -> None:
        """These files were merged: nobody plans to read them any more."""
        for cache in (self.hot_cache, self._cold_cache):
            cache.drop_files(keys)

    def forget(self, partition_ids: Iterable[int]) -> None:
        """Merges replaced extents of these partitions: look them up again. Reads of the old ones go on."""
        for partition_id in partition_ids:
            self._leveled.forget(partition_id)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(min(SWEEP_MS, self._kept_ms))
            for cache in (self.hot_cache, self._cold_cache):
                cache.drop_known_before(self._clock.monotonic_ms() - self._kept_ms)

    async def close(self) -> None:
        if self._sweeps is not None:
            self._sweeps.cancel()
            await asyncio.gather(self._sweeps, return_exceptions=True)
        await self.reader.close()
        await self._leveled.close()
        await self._surveys.close()
        for reader in (self.hot, self.cold):
            await reader.close()

    def _block_reader(self, source: BlockSource, cache: BlockCache, pool: str) -> BlockReader:
        return BlockReader(
            source=source,
            cache=cache,
            pool=pool,
            concurrency=READS_AT_ONCE,
            metrics=self._metrics,
        )
