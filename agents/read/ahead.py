"""Reads history ahead of consumers that replay it: whole GETs of 8 MiB into the cold pool, before they are asked for.

A consumer that has read twice in a row will read on, and so will one that begins at the log's start. The bytes that it
needs next are cut into GETs that are whole or end where the file's bytes of the partition end, so a replay costs a GET
for each file and one for each 8 MiB. After each answer to the consumer, if less than half a window is here or on its
way, one more window is fetched. Bytes that it asks for and that no GET covers yet become the head of such a GET. A
single look at old records reads only what it needs; if it turns out to be a replay, it has cost one extra GET.

Bounded: GETs that are not yet read to their end take at most three quarters of the cold cache, shared evenly by the
active streams, and seven eighths with those that a reader waits for. A GET counts whole until its last block is read,
because its blocks are views of one buffer. What answers on their way hold beside that leaves less room. A GET that does
not fit into the rest is not cut short. It waits until others have read on, or until its stream has nothing left and
asks. So the promise holds for as many streams as have room for a window each. Blocks stay in the cache until their
stream has read them, and are then the first to leave. Blocks that no consumer comes for no longer count after IDLE_MS.
No I/O here: `BlockReader` does that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from agents.read.blocks import GET_BLOCKS_MAX, BlockReader, blocks_of
from agents.read.cache import BLOCK_BYTES
from agents.read.plan import ReadRange
from runtime.clock import Clock

AHEAD_BYTES = (GET_BLOCKS_MAX // 2 + GET_BLOCKS_MAX + 2) * BLOCK_BYTES
"""How far ahead the plan looks: the part of the last window that may still be here, the next window, and whether the
file continues after it."""
AHEAD_RANGES_MAX = 64
"""Ranges of one look ahead: a partition of very small extents must not make the plan long."""
IDLE_MS = 30_000.0
AHEAD_EIGHTHS, WAITED_FOR_EIGHTHS = 6, 7
"""Parts of the cache that unread GETs may take: those for later, and together with them those that a reader waits for.
A GET may be a block longer than a window, so that streams with a window each need a little more than their share."""


@dataclass(frozen=True, slots=True)
class NextGet:
    """Neighbouring blocks of one object that are neither here nor on their way."""

    key: str
    file_size_bytes: int
    blocks: range


@dataclass(slots=True, eq=False)
class _Get:
    size: int
    unread: int
    """Blocks of it that no reader has passed yet."""


class ReadAhead:
    def __init__(self, blocks: BlockReader, clock: Clock, *, cache_bytes: int) -> None:
        self._blocks = blocks
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._blocks_max = cache_bytes * AHEAD_EIGHTHS // 8 // BLOCK_BYTES
        self._unread: OrderedDict[tuple[str, int], tuple[_Get, float]] = OrderedDict()
        """Blocks fetched ahead that no reader has passed yet: by which GET, and when."""
        self._held = 0
        """Blocks of the GETs that have unread blocks."""
        self._streams: OrderedDict[int, float] = OrderedDict()
        """The streams that read on, and when each last did."""

    @property
    def held_bytes(self) -> int:
        """Bytes of all GETs ahead that are not yet read to their end."""
        return self._held * BLOCK_BYTES

    def passed(self, where: ReadRange, position: int) -> None:
        """A stream has read the bytes of its range up to `position` of the object."""
        if not self._unread:
            return
        for block in blocks_of(where.position, max(position - where.position, 1)):
            start, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
            # The reader is inside this block and needs the rest of it next.
            if end > position and position < where.extent_end:
                continue
            # The block at either end of the extent holds another partition's records too.
            is_whole = start >= where.extent_start and end <= where.extent_end
            self._forget(where.key, block, first_to_go=is_whole)

    def is_coming(self, ranges: Iterable[ReadRange]) -> bool:
        """All bytes of the ranges are here or on their way."""
        return all(
            self._blocks.is_coming(where.key, block)
            for where in ranges
            for block in blocks_of(where.position, where.length)
        )

    def go_on(self, stream: int, ranges: Iterable[ReadRange], *, asked: Iterable[ReadRange] = ()) -> None:
        """`stream` will read these ranges next, in this order, and waits for the first of them, those in `asked`.

        The caller reads the parts of `asked` that no GET has begun here.
        """
        waited_for = {(where.key, block) for where in asked for block in blocks_of(where.position, where.length)}
        window = self._window(stream)
        ready, gets = self._to_come(ranges, window, len(waited_for))
        if ready * 2 >= window and not waited_for:
            return
        fetched = 0
        for get in gets:
            size = len(get.blocks)
            # A reader waits for these anyway; the GET is worth beginning here only if it is longer than what was asked.
            if asked_blocks := sum((get.key, block) in waited_for for block in get.blocks):
                size = min(size, self._free_blocks(WAITED_FOR_EIGHTHS))
                if size > asked_blocks:
                    self._fetch(get, size, waited_for=True)
            # No shorter GET instead: it costs as much as a whole one, and the next begins in the middle.
            elif (fetched and fetched + size > window) or size > self._free_blocks(AHEAD_EIGHTHS):
                return
            else:
                self._fetch(get, size)
            fetched += size

    def _to_come(self, ranges: Iterable[ReadRange], window: int, asked: int) -> tuple[int, Iterator[NextGet]]:
        """How many blocks are ready before the first missing one, and the GETs for the missing ones."""
        sizes: dict[str, int] = {}
        upcoming: dict[tuple[str, int], bool] = {}
        for where in ranges:
            sizes[where.key] = where.file_size_bytes
            for block in blocks_of(where.position, where.length):
                upcoming[where.key, block] = self._blocks.is_coming(where.key, block)
        ready = next((count for count, is_here in enumerate(upcoming.values()) if not is_here), len(upcoming))
        missing = [place for place, is_here in upcoming.items() if not is_here]
        # Do not cut within the asked bytes: the reader would fetch the other part by itself.
        size = min(GET_BLOCKS_MAX, max(window, asked)) if window else 0
        return ready, (NextGet(key, sizes[key], blocks) for key, blocks in gets_of(missing, size))

    def _fetch(self, get: NextGet, size: int, *, waited_for: bool = False) -> None:
        now_ms = self._clock.monotonic_ms()
        run = get.blocks[:size]
        begun = _Get(size, size)
        self._held += size
        for block in run:
            # It may have been fetched before and evicted unread.
            self._forget(get.key, block, first_to_go=True)
            self._unread[get.key, block] = begun, now_ms
        self._blocks.start(get.key, get.file_size_bytes, run, waited_for=waited_for)

    def _window(self, stream: int) -> int:
        """In blocks: this stream's share of the bytes that may be here unread."""
        now_ms = self._clock.monotonic_ms()
        self._streams[stream] = now_ms
        self._streams.move_to_end(stream)
        # Never empty: this stream was just put at the end.
        while next(iter(self._streams.values())) < now_ms - IDLE_MS:
            self._streams.popitem(last=False)
        return min(GET_BLOCKS_MAX, self._blocks_max // len(self._streams))

    def _free_blocks(self, eighths: int) -> int:
        now_ms = self._clock.monotonic_ms()
        while self._unread:
            (key, block), (_, since_ms) = next(iter(self._unread.items()))
            if since_ms >= now_ms - IDLE_MS:
                break
            self._forget(key, block, first_to_go=True)
        room = min(self._cache_bytes * eighths // 8, self._cache_bytes - self._blocks.only_pinned_bytes)
        return max(0, room // BLOCK_BYTES - self._held)

    def _forget(self, key: str, block: int, *, first_to_go: bool) -> None:
        """The block no longer counts as unread, if it did."""
        get, _ = self._unread.pop((key, block), (None, 0.0))
        if get is not None:
            get.unread -= 1
            if not get.unread:
                self._held -= get.size
            self._blocks.release(key, block, first_to_go=first_to_go)


def gets_of(missing: Collection[tuple[str, int]], window: int) -> Iterator[tuple[str, range]]:
    """Cut blocks, in reading order, into GETs of `window` neighbours of one object.

    The last GET of a run of neighbours may have one more: n windows of bytes touch n windows of blocks and a seam.
    """
    if window == 0:
        return
    for key, run in _neighbours(missing):
        while run:
            size = len(run) if len(run) <= window + 1 else window
            yield key, run[:size]
            run = run[size:]


def _neighbours(places: Iterable[tuple[str, int]]) -> Iterator[tuple[str, range]]:
    before: tuple[str, range] | None = None
    for key, block in places:
        if before is not None and before[0] == key and before[1].stop == block:
            before = key, range(before[1].start, block + 1)
            continue
        if before is not None:
            yield before
        before = key, range(block, block + 1)
    if before is not None:
        yield before
