"""The read path of one agent: pools, look-ups, the reader of fetches, and the search by timestamp."""

from __future__ import annotations

from collections.abc import Iterable

from agents.read.ahead import ReadAhead
from agents.read.blocks import BlockReader
from agents.read.budget import ByteBudget
from agents.read.cache import BlockCache
from agents.read.leveled import BlockIndexes, LeveledExtents, ttl_ms
from agents.read.locate import CatchUp, Locator
from agents.read.pools import Pools
from agents.read.reader import Reader
from agents.read.surveys import Surveys
from agents.read.timestamps import TimestampSearch
from agents.tail.log_index import LogIndex
from metadata.contract.readers import ReaderMetadata
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.objects import ObjectStore

READS_AT_ONCE = 16
"""Reads from the object store under way in each of the two pools. This bounds the sockets and buffers that a burst of
fetches takes; a fetch without a free slot waits."""


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
    ) -> None:
        self._settings = settings
        self._store = store
        self._metrics = runtime.metrics
        self.hot_cache = BlockCache(settings.cache_hot_bytes, runtime.metrics.cache_bytes.labels(pool="hot").set)
        cold_cache = BlockCache(settings.cache_cold_bytes, runtime.metrics.cache_bytes.labels(pool="cold").set)
        self._hot = self._block_reader(self.hot_cache, "hot")
        self._cold = self._block_reader(cold_cache, "cold")
        self._leveled = LeveledExtents(metadata, runtime.clock, ttl_ms=ttl_ms(settings.gc_grace_ms))
        blocks = BlockIndexes(self._cold)
        self._surveys = Surveys(self._cold)
        pools = Pools(index=index, hot=self._hot, cold=self._cold, metrics=runtime.metrics)
        self._ahead = ReadAhead(self._cold, runtime.clock, cache_bytes=settings.cache_cold_bytes)
        self.reader = Reader(
            locator=Locator(
                index=index, leveled=self._leveled, blocks=blocks, surveys=self._surveys, catch_up=catch_up
            ),
            pools=pools,
            ahead=self._ahead,
            budget=ByteBudget(settings.fetch_buffer_bytes_max),
        )
        self.timestamps = TimestampSearch(index=index, metadata=metadata, blocks=blocks, pools=pools, catch_up=catch_up)

    def forget(self, partition_ids: Iterable[int]) -> None:
        """Merges replaced extents of these partitions: look them up again. Reads of the old ones go on."""
        for partition_id in partition_ids:
            self._leveled.forget(partition_id)

    async def close(self) -> None:
        await self.reader.close()
        await self._leveled.close()
        await self._surveys.close()
        for reader in (self._hot, self._cold):
            await reader.close()

    def _block_reader(self, cache: BlockCache, pool: str) -> BlockReader:
        return BlockReader(
            store=self._store,
            cache=cache,
            pool=pool,
            concurrency=READS_AT_ONCE,
            metrics=self._metrics,
        )
