"""Where merged files hold records, as this agent has looked it up: extents and block indexes, cached and bounded.

Extents come from the metadata store, a window of them per look-up, and are believed for `ttl_ms`, a quarter of the
grace at most. A merge may replace them the next moment, but their files stay for the grace. A cached extent is believed
about the offsets it holds, never about offsets it lacks: those are looked up again. So an old window costs a reader at
worst a 404, which drops the window. Block indexes lie in the objects and never change.

With the extents come the aborted transactions that may have records in them, read at the same instant. They are true of
these extents alone (`agents/tail/transactions.py`), and all of them only from the offset on that was asked for.

One look-up of a place, and one read of a block index, is under way at a time; requests that come meanwhile share it.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from agents.read.blocks import BlockReader
from agents.read.plan import KnownExtent
from agents.tail.transactions import Aborted, by_marker
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import ReaderMetadata
from runtime.clock import Clock
from runtime.tracing import SpanKind, child_span
from storage.format.block_index import BlockEntry, decode_block_index
from storage.format.file_format import CorruptFileError

EXTENTS_PER_LOOK_UP = 32
EXTENTS_MAX = 20_000
"""Extents cached over all partitions, and aborted transactions with them; at most some 0.7 KB each."""
WINDOWS_MAX = 8
"""Windows of one partition: readers at that many places do not evict each other's."""
BLOCK_ENTRIES_MAX = 50_000
"""Entries cached over all block indexes; some 0.2 KB each."""
TTL_MS_MAX = 60_000.0
LOOK_UPS_AT_ONCE = 8
WAIT_MS_MAX = 5_000.0
"""How long to wait for a store that is silent but not gone."""


def ttl_ms(gc_grace_ms: float) -> float:
    """How long an extent that was looked up is believed."""
    return min(TTL_MS_MAX, gc_grace_ms / 4)


@dataclass(frozen=True, slots=True)
class Window:
    """Extents of one partition in offset order, live at `read_ms`, and the aborted transactions of that instant."""

    read_ms: float
    from_offset: int
    """It was asked for from here on: of transactions that ended below it says nothing."""
    extents: Sequence[LeveledExtent]
    aborted: Sequence[Aborted]
    """By marker."""
    aborted_to: int
    """The end of the log that was known when it was asked for: of transactions that ended there or later, it may say
    nothing."""

    @property
    def size(self) -> int:
        return len(self.extents) + len(self.aborted)

    def extent_at(self, offset: int, aborted_from: int | None) -> KnownExtent | None:
        """As `KnownLog.extent_at`."""
        if aborted_from is not None and (offset < self.from_offset or aborted_from > self.aborted_to):
            return None
        at = bisect_left(self.extents, offset, key=_last_offset)
        if at == len(self.extents) or self.extents[at].base_offset > offset:
            return None
        return KnownExtent(self.extents[at], self.aborted, self.aborted_to)


class LeveledExtents:
    def __init__(
        self, metadata: ReaderMetadata, clock: Clock, *, ttl_ms: float, extents_max: int = EXTENTS_MAX
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._extents_max = extents_max
        self._windows: OrderedDict[int, list[Window]] = OrderedDict()
        self._flying: dict[tuple[int, int], asyncio.Task[Window]] = {}
        self._tasks: set[asyncio.Task[Window]] = set()
        self._slots = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        self.size = 0
        """Extents and aborted transactions in the windows."""

    def extent_at(self, partition_id: int, offset: int, aborted_from: int | None) -> KnownExtent | None:
        """As `KnownLog.extent_at`, of what was looked up recently."""
        windows = self._windows.get(partition_id)
        if windows is None:
            return None
        oldest_ms = self._clock.monotonic_ms() - self._ttl_ms
        for window in windows:
            if window.read_ms >= oldest_ms and (known := window.extent_at(offset, aborted_from)) is not None:
                self._windows.move_to_end(partition_id)
                return known
        return None

    async def look_up(self, partition_id: int, offset: int, end: int) -> Window:
        """The extents from `offset` on, from a new look-up or from one that is still under way. `end`: the known end of
        the log.

        Raises MetadataUnavailableError, also if the store does not answer in WAIT_MS_MAX.
        """
        flying = self._flying.get((partition_id, offset))
        if flying is None:
            flying = asyncio.create_task(self._look_up(partition_id, offset, end), name="leveled extents")
            self._flying[partition_id, offset] = flying
            self._tasks.add(flying)
            flying.add_done_callback(lambda done: self._landed(partition_id, offset, done))
        # Shielded: all waiters share the answer, and it fills the cache even when no waiter is left.
        return await asyncio.shield(flying)

    def forget(self, partition_id: int) -> None:
        """A file of the partition is gone, so earlier look-ups are out of date."""
        for window in self._windows.pop(partition_id, ()):
            self.size -= window.size
        for place in [place for place in self._flying if place[0] == partition_id]:
            del self._flying[place]  # it may have been read before the file went: no other waiter remains

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_up(self, partition_id: int, offset: int, end: int) -> Window:
        try:
            # Waiting for a slot counts too: with a silent store all slots are taken.
            async with asyncio.timeout(WAIT_MS_MAX / 1000), self._slots:
                # Taken before the question, because the answer may be older than its arrival.
                read_ms = self._clock.monotonic_ms()
                with child_span("look up extents", kind=SpanKind.CLIENT, attributes={"db.system.name": "postgresql"}):
                    found = await self._metadata.leveled_window(partition_id, offset, limit=EXTENTS_PER_LOOK_UP)
        except TimeoutError:
            raise MetadataUnavailableError("merged files were not looked up in time") from None
        # Many extents lie in the same file: its key is kept once.
        extents = [extent._replace(key=sys.intern(extent.key)) for extent in found.extents]
        return Window(read_ms, offset, extents, by_marker(found.aborted), end)

    def _landed(self, partition_id: int, offset: int, done: asyncio.Task[Window]) -> None:
        self._tasks.discard(done)
        failed = done.cancelled() or done.exception() is not None  # marks the error as seen: no other waiter may remain
        # Not if `forget` came meanwhile: the answer may name the file that is gone.
        if self._flying.get((partition_id, offset)) is done:
            del self._flying[partition_id, offset]
            if not failed:
                self._keep(partition_id, done.result())

    def _keep(self, partition_id: int, window: Window) -> None:
        # An empty answer is not kept: the next look-up may find what a merge has just made.
        if not window.extents:
            return
        windows = self._windows.setdefault(partition_id, [])
        windows.insert(0, window)
        self.size += window.size
        # An older window of the same place is of no more use, unless it was asked for from further below.
        first, from_offset = window.extents[0].base_offset, window.from_offset
        gone = [
            each for each in windows[1:] if each.extents[0].base_offset == first and each.from_offset >= from_offset
        ]
        for old in gone + windows[WINDOWS_MAX:]:
            if old in windows:
                windows.remove(old)
                self.size -= old.size
        self._windows.move_to_end(partition_id)
        while self.size > self._extents_max and len(self._windows) > 1:
            _, evicted = self._windows.popitem(last=False)
            self.size -= sum(each.size for each in evicted)


class BlockIndexes:
    """Block indexes of extents, read by one small ranged read each."""

    def __init__(self, reader: BlockReader, *, entries_max: int = BLOCK_ENTRIES_MAX) -> None:
        self._reader = reader
        self._entries_max = entries_max
        self._known: OrderedDict[tuple[str, int], Sequence[BlockEntry]] = OrderedDict()
        self.entries = 0

    def get(self, extent: LeveledExtent) -> Sequence[BlockEntry] | None:
        found = self._known.get((extent.key, extent.block_index_position))
        if found is not None:
            self._known.move_to_end((extent.key, extent.block_index_position))
        return found

    async def read(self, extent: LeveledExtent) -> Sequence[BlockEntry]:
        """Raises ObjectStoreError, CorruptFileError."""
        known = self.get(extent)
        if known is not None:
            return known
        position, length = extent.block_index_position, extent.block_index_length
        if length == 0:
            raise CorruptFileError(
                f"an extent of {extent.length} bytes at {extent.position} of {extent.key} has no index"
            )
        data = await self._reader.read(extent.key, extent.file_size_bytes, position, length)
        entries = decode_block_index(data, extent_length=extent.length)
        # Another request may have read the same index meanwhile; it must not be counted twice.
        if (extent.key, position) not in self._known:
            self._known[extent.key, position] = entries
            self.entries += len(entries)
            while self.entries > self._entries_max and len(self._known) > 1:
                _, evicted = self._known.popitem(last=False)
                self.entries -= len(evicted)
        return entries


def _last_offset(extent: LeveledExtent) -> int:
    return extent.last_offset
