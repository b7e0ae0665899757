"""Bytes of objects through the cache: ranged GETs of whole blocks, joined where they touch, each in flight only once.

`pieces` answers at once if the bytes are in memory. Otherwise the missing blocks are fetched, neighbours in one GET. If
another reader is already fetching a block, this one waits for it instead of fetching it again (single flight). A waiter
that goes away does not cancel the fetch. At most `concurrency` GETs run at a time, so that a big replay cannot take
every connection; reads ahead take at most half of these.

The bytes of a GET stay where the store put them: what readers get are views.

The bytes come from a `BlockSource`: the object store, or a neighbour of the zone. Errors are those of the store. A
short answer is an ObjectStoreError, because an object never shrinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext

from agents.read.cache import BLOCK_BYTES, BlockCache, Body
from agents.read.pieces import Pieces
from agents.read.source import BlockSource
from runtime.metrics import Metrics
from storage.keys import L0_PREFIX
from storage.objects import ObjectStoreError

GET_BLOCKS_MAX = 8
"""Longest joined GET: 8 MiB; for a read ahead, plus the seam at the end of a file's bytes of a partition."""

GAP_BLOCKS_MAX = 2
"""Blocks that nobody asked for, between two that are read at once, which a GET takes along: a second GET costs more CPU
and a round trip. As a rule they hold the next records of a partition in an L0 file."""


class BlockReader:
    def __init__(
        self, *, source: BlockSource, cache: BlockCache, pool: str, concurrency: int, metrics: Metrics
    ) -> None:
        self._source = source
        self._cache = cache
        self._hits = metrics.cache_requests_total.labels(pool=pool, outcome="hit")
        self._misses = metrics.cache_requests_total.labels(pool=pool, outcome="miss")
        self._slots = asyncio.Semaphore(concurrency)
        self._slots_ahead = asyncio.Semaphore(max(1, concurrency // 2))
        self._flying: dict[tuple[str, int], asyncio.Future[Body]] = {}
        self._gets: set[asyncio.Task[None]] = set()

    def cached(self, key: str, start: int, length: int) -> Pieces | None:
        """The bytes, if that needs no waiting; else None."""
        whole = self._cache.file(key)
        if whole is not None:
            self._hits.inc()
            views = whole.data.cut(start, length)
            return Pieces(views, [whole] * len(views))
        bodies: dict[int, Body] = {}
        for block in blocks_of(start, length):
            body = self._cache.block(key, block)
            # Not counted as a miss here: the caller goes on to `pieces`, which counts it.
            if body is None:
                return None
            bodies[block] = body
        self._hits.inc()
        found = _cut(bodies, start, length)
        # Shorter only if the object ends before its recorded size; `pieces` will report that.
        return found if len(found) == length else None

    def holds(self, key: str, start: int, length: int) -> bool:
        """`cached` would find the bytes."""
        return self._cache.holds(key, blocks_of(start, length))

    def is_coming(self, key: str, block: int) -> bool:
        """A block is here or on its way."""
        return (key, block) in self._flying or self._cache.holds(key, range(block, block + 1))

    def start(self, key: str, size_bytes: int, run: range, *, waited_for: bool) -> None:
        """Read neighbouring blocks, none of which `is_coming`, in one GET, and keep them until they are released.

        `waited_for`: a reader will ask for the first of them at once; otherwise no reader needs them yet.
        """
        for block in run:
            self._cache.expect(key, block)
        self._start_get(key, size_bytes, run, ahead=not waited_for)

    def start_missing(self, key: str, size_bytes: int, blocks: Iterable[int], *, direct: bool = False) -> None:
        """Begin the GETs of all these blocks that are not here or on their way. The caller reads them at once."""
        missing = [block for block in sorted(set(blocks)) if not self.is_coming(key, block)]
        for run in runs_of(self._bridged(key, missing)):
            self._start_get(key, size_bytes, run, direct=direct)

    def _bridged(self, key: str, missing: Sequence[int]) -> Iterator[int]:
        """The missing blocks and those in short gaps between them, unless one of the gap is here or on its way."""
        before: int | None = None
        for block in missing:
            if before is not None and block - before <= GAP_BLOCKS_MAX + 1:
                gap = range(before + 1, block)
                if not any(self.is_coming(key, each) for each in gap):
                    yield from gap
            yield block
            before = block

    @property
    def only_pinned_bytes(self) -> int:
        """Bytes that answers on their way hold in the cache, of which no more is expected to be read."""
        return self._cache.only_pinned_bytes

    def release(self, key: str, block: int, *, first_to_go: bool) -> None:
        self._cache.release(key, block, first_to_go=first_to_go)

    async def pieces(self, key: str, size_bytes: int, start: int, length: int, *, direct: bool = False) -> Pieces:
        """Exactly `length` bytes of the object from `start`. Raises ObjectStoreError.

        `direct`: no GET that begins here goes through a neighbour.
        """
        here = self.cached(key, start, length)
        if here is not None:
            return here
        self._misses.inc()
        bodies = await self._load(key, size_bytes, blocks_of(start, length), direct=direct)
        found = _cut(bodies, start, length)
        if len(found) != length:
            raise ObjectStoreError(f"object {key!r} ends early: {len(found)} of {length} bytes at {start}")
        return found

    async def read(self, key: str, size_bytes: int, start: int, length: int) -> memoryview:
        """As `pieces`, in one buffer."""
        return (await self.pieces(key, size_bytes, start, length)).joined()

    async def _load(self, key: str, size_bytes: int, blocks: range, *, direct: bool) -> dict[int, Body]:
        bodies: dict[int, Body] = {}
        self.start_missing(key, size_bytes, blocks, direct=direct)
        awaited: dict[int, asyncio.Future[Body]] = {}
        for block in blocks:
            flying = self._flying.get((key, block))
            body = self._cache.block(key, block) if flying is None else None
            if body is not None:
                bodies[block] = body
            elif flying is not None:
                awaited[block] = flying
        for block, future in awaited.items():
            # Shielded: the fetch belongs to all its waiters.
            bodies[block] = await asyncio.shield(future)
        return bodies

    def _start_get(self, key: str, size_bytes: int, run: range, *, ahead: bool = False, direct: bool = False) -> None:
        # Reads ahead of a merged file are one partition's bytes, which one agent of the zone reads.
        shared = not direct and (not ahead or key.startswith(L0_PREFIX))
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_mark_seen)
        for block in run:
            self._flying[key, block] = future
        get = self._get(key, size_bytes, run, future, ahead=ahead, shared=shared)
        task = asyncio.create_task(get, name=f"get {key}")
        self._gets.add(task)
        task.add_done_callback(self._gets.discard)

    async def _get(
        self, key: str, size_bytes: int, run: range, future: asyncio.Future[Body], *, ahead: bool, shared: bool
    ) -> None:
        start = run.start * BLOCK_BYTES
        length = min(run.stop * BLOCK_BYTES, size_bytes) - start
        try:
            # Without a slot: neighbours whose every slot waits for the other could serve nobody.
            found = await self._source.ask(key, size_bytes, start, length) if shared else None
            # In this order: reads ahead wait for their half first, and hold no slot that a waiting reader could use.
            if found is None:
                async with self._slots_ahead if ahead else nullcontext(), self._slots:
                    found = await self._source.get_range(key, start, length)
            future.set_result(self._cache.put_blocks(key, run, found.data, found.known_ms))
        except BaseException as error:
            future.set_exception(error)
            # A cancellation goes on; a store's error has reached all waiters, and nobody awaits this task.
            if not isinstance(error, Exception):
                raise
        finally:
            for block in run:
                self._flying.pop((key, block), None)

    async def close(self) -> None:
        for task in list(self._gets):
            task.cancel()
        await asyncio.gather(*self._gets, return_exceptions=True)


def _mark_seen(future: asyncio.Future[Body]) -> None:
    """Marks the error of a fetch as seen, because all its waiters may have gone."""
    if not future.cancelled():
        future.exception()


def blocks_of(start: int, length: int) -> range:
    """The aligned blocks that hold `length` bytes from `start`."""
    return range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)


def runs_of(blocks: Iterable[int]) -> Iterator[range]:
    """Runs of neighbouring blocks of ascending numbers, at most GET_BLOCKS_MAX each."""
    run: range | None = None
    for block in blocks:
        if run is not None and (block != run.stop or len(run) == GET_BLOCKS_MAX):
            yield run
            run = None
        run = range(run.start if run is not None else block, block + 1)
    if run is not None:
        yield run


def _cut(bodies: Mapping[int, Body], start: int, length: int) -> Pieces:
    """`length` bytes from `start` of an object, as views of the bodies that hold its blocks."""
    views: list[memoryview] = []
    found: list[Body] = []
    position, end = start, start + length
    while position < end:
        body = bodies[position // BLOCK_BYTES]
        skip = position - body.start
        cuts = body.data.cut(skip, end - position)
        # The object ends before its recorded size.
        if not cuts:
            break
        views += cuts
        found += [body] * len(cuts)
        position += sum(map(len, cuts))
    return Pieces(views, found)
