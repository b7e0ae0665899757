"""Reading history ahead of those who replay it: whole GETs of 8 MiB into the cold pool, before they are asked for.

Who has read twice in a row will read on. After each answer to him the blocks that come next are looked at: when less
than half a window of them is here or on its way, a window more is fetched. So a replay costs a GET per file and one per
8 MiB, and waits for none of them, while a single look at old records reads what it needs and no more.

Bounded: what is fetched and not yet read takes at most three quarters of the cold cache, shared evenly by the streams
that are at work. A block whose bytes the stream has all had is the first to leave the cache; it would otherwise drive
out those that others have yet to read. What nobody comes for counts no longer after IDLE_MS. No I/O here: `BlockReader`
does that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from agents.read.blocks import GET_BLOCKS_MAX, BlockReader, blocks_of, runs_of
from agents.read.cache import BLOCK_BYTES
from agents.read.plan import ReadRange
from siltstone.clock import Clock

AHEAD_BYTES = (GET_BLOCKS_MAX + GET_BLOCKS_MAX // 2) * BLOCK_BYTES
"""How far ahead is looked: what may still be here when the next window is fetched, and that window."""
AHEAD_RANGES_MAX = 64
IDLE_MS = 30_000.0


class ReadAhead:
    def __init__(self, blocks: BlockReader, clock: Clock, *, cache_bytes: int) -> None:
        self._blocks = blocks
        self._clock = clock
        self._blocks_max = cache_bytes * 3 // 4 // BLOCK_BYTES
        self._unread: OrderedDict[tuple[str, int], float] = OrderedDict()
        """Blocks fetched ahead that nobody has passed yet, and when."""
        self._streams: OrderedDict[int, float] = OrderedDict()
        """Who reads on, and when last."""

    @property
    def unread_bytes(self) -> int:
        return len(self._unread) * BLOCK_BYTES

    def passed(self, where: ReadRange, position: int) -> None:
        """A stream has had the bytes of its range up to `position` of the object."""
        for block in blocks_of(where.position, max(position - where.position, 1)):
            start, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
            if end > position and position < where.extent_end:
                continue
            if self._unread.pop((where.key, block), None) is None:
                continue
            # The block at either end of the extent holds another partition's records too.
            if start >= where.extent_start and end <= where.extent_end:
                self._blocks.demote(where.key, block)

    def go_on(self, stream: int, ranges: Iterable[ReadRange]) -> None:
        """`stream` will read these ranges next, in this order."""
        window = self._window(stream)
        ready = 0
        missing: list[tuple[ReadRange, int]] = []
        seen: set[tuple[str, int]] = set()
        for where in ranges:
            for block in blocks_of(where.position, where.length):
                if (where.key, block) in seen:
                    continue
                seen.add((where.key, block))
                if not self._blocks.is_coming(where.key, block):
                    missing.append((where, block))
                elif not missing:
                    ready += 1
        if ready * 2 < window:
            self._fetch(missing[: min(window, self._free_blocks())])

    def _fetch(self, wanted: Sequence[tuple[ReadRange, int]]) -> None:
        by_file: dict[str, tuple[int, list[int]]] = {}
        now_ms = self._clock.monotonic_ms()
        for where, block in wanted:
            by_file.setdefault(where.key, (where.file_size_bytes, []))[1].append(block)
            self._unread[where.key, block] = now_ms
        for key, (size_bytes, blocks) in by_file.items():
            for run in runs_of(sorted(blocks)):
                self._blocks.start(key, size_bytes, run)

    def _window(self, stream: int) -> int:
        """Blocks: this stream's share of what may be here unread."""
        now_ms = self._clock.monotonic_ms()
        self._streams[stream] = now_ms
        self._streams.move_to_end(stream)
        while next(iter(self._streams.values())) < now_ms - IDLE_MS:
            self._streams.popitem(last=False)
        return min(GET_BLOCKS_MAX, self._blocks_max // len(self._streams))

    def _free_blocks(self) -> int:
        now_ms = self._clock.monotonic_ms()
        while self._unread and next(iter(self._unread.values())) < now_ms - IDLE_MS:
            (key, block), _ = self._unread.popitem(last=False)
            self._blocks.demote(key, block)
        return max(0, self._blocks_max - len(self._unread))
