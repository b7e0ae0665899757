"""Bytes of objects through the cache: ranged GETs of whole blocks, joined where they touch, each in flight only once.

`read` answers at once if the bytes are in memory. Otherwise the missing blocks are fetched, neighbours in one GET. If
another reader is already fetching a block, this one waits for it instead of fetching it again (single flight). A waiter
that goes away does not cancel the fetch. At most `concurrency` GETs run at a time, so that a big replay cannot take
every connection; reads ahead take at most half of these.

Errors are those of the object store. A short answer is an ObjectStoreError, because an object never shrinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from agents.read.cache import BLOCK_BYTES, BlockCache
from runtime.metrics import Metrics
from storage.objects import ObjectStore, ObjectStoreError

GET_BLOCKS_MAX = 8
"""Longest joined GET: 8 MiB; for a read ahead, plus the seam at the end of a file's bytes of a partition."""


class BlockReader:
    def __init__(self, *, store: ObjectStore, cache: BlockCache, pool: str, concurrency: int, metrics: Metrics) -> None:
        self._store = store
        self._cache = cache
        self._hits = metrics.cache_requests_total.labels(pool=pool, outcome="hit")
        self._misses = metrics.cache_requests_total.labels(pool=pool, outcome="miss")
        self._slots = asyncio.Semaphore(concurrency)
        self._slots_ahead = asyncio.Semaphore(max(1, concurrency // 2))
        self._flying: dict[tuple[str, int], asyncio.Future[bytes]] = {}
        self._gets: set[asyncio.Task[None]] = set()

    def cached(self, key: str, start: int, length: int) -> memoryview | None:
        """The bytes, if that needs no waiting and copies no more than one seam; else None."""
        whole = self._cache.file(key)
        if whole is not None:
            self._hits.inc()
            return whole[start : start + length]
        blocks = blocks_of(start, length)
        found = [self._cache.block(key, block) for block in blocks]
        present = [body for body in found if body is not None]
        # Not counted as a miss here: the caller goes on to `read`, which counts it.
        if len(present) != len(found):
            return None
        self._hits.inc()
        view = _cut(present, start - blocks[0] * BLOCK_BYTES, length)
        # Shorter only if the object ends before its recorded size; `read` will report that.
        return view if len(view) == length else None

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

    def release(self, key: str, block: int, *, first_to_go: bool) -> None:
        self._cache.release(key, block, first_to_go=first_to_go)

    async def read(self, key: str, size_bytes: int, start: int, length: int) -> memoryview:
        """Exactly `length` bytes of the object from `start`. Raises ObjectStoreError."""
        here = self.cached(key, start, length)
        if here is not None:
            return here
        self._misses.inc()
        blocks = blocks_of(start, length)
        bodies = await self._load(key, size_bytes, blocks)
        view = _cut([memoryview(bodies[block]) for block in blocks], start - blocks[0] * BLOCK_BYTES, length)
        if len(view) != length:
            raise ObjectStoreError(f"object {key!r} ends early: {len(view)} of {length} bytes at {start}")
        return view

    async def _load(self, key: str, size_bytes: int, blocks: range) -> dict[int, bytes]:
        bodies: dict[int, bytes] = {}
        awaited: dict[int, asyncio.Future[bytes]] = {}
        missing: list[int] = []
        for block in blocks:
            cached = self._cache.block(key, block)
            if cached is not None:
                bodies[block] = bytes(cached)
            elif (flying := self._flying.get((key, block))) is not None:
                awaited[block] = flying
            else:
                missing.append(block)
        for run in runs_of(missing):
            awaited |= self._start_get(key, size_bytes, run)
        for block, future in awaited.items():
            # Shielded: the fetch belongs to all its waiters.
            bodies[block] = await asyncio.shield(future)
        return bodies

    def _start_get(
        self, key: str, size_bytes: int, run: Sequence[int], *, ahead: bool = False
    ) -> dict[int, asyncio.Future[bytes]]:
        futures = {block: asyncio.get_running_loop().create_future() for block in run}
        for block, future in futures.items():
            self._flying[key, block] = future
            future.add_done_callback(_mark_seen)
        task = asyncio.create_task(self._get(key, size_bytes, futures, ahead=ahead), name=f"get {key}")
        self._gets.add(task)
        task.add_done_callback(self._gets.discard)
        return futures

    async def _get(self, key: str, size_bytes: int, futures: dict[int, asyncio.Future[bytes]], *, ahead: bool) -> None:
        first, last = min(futures), max(futures)
        start = first * BLOCK_BYTES
        try:
            # In this order: reads ahead wait for their half first, and hold no slot that a waiting reader could use.
            async with self._slots_ahead if ahead else nullcontext(), self._slots:
                body = await self._store.get_range(key, start, min((last + 1) * BLOCK_BYTES, size_bytes) - start)
            for block, future in futures.items():
                cut = body[(block - first) * BLOCK_BYTES : (block - first + 1) * BLOCK_BYTES]
                self._cache.put_block(key, block, cut)
                future.set_result(cut)
        except BaseException as error:
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)
            # A cancellation goes on; a store's error has reached all waiters, and nobody awaits this task.
            if not isinstance(error, Exception):
                raise
        finally:
            for block in futures:
                self._flying.pop((key, block), None)

    async def close(self) -> None:
        for task in list(self._gets):
            task.cancel()
        await asyncio.gather(*self._gets, return_exceptions=True)


def _mark_seen(future: asyncio.Future[bytes]) -> None:
    """Marks the error of a fetch as seen, because all its waiters may have gone."""
    if not future.cancelled():
        future.exception()


def blocks_of(start: int, length: int) -> range:
    """The aligned blocks that hold `length` bytes from `start`."""
    return range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)


def runs_of(blocks: Iterable[int]) -> Iterator[list[int]]:
    """Runs of neighbouring blocks, at most GET_BLOCKS_MAX each."""
    run: list[int] = []
    for block in blocks:
        if run and (block != run[-1] + 1 or len(run) == GET_BLOCKS_MAX):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _cut(blocks: Sequence[memoryview], skip: int, length: int) -> memoryview:
    """`length` bytes after `skip`. One block is sliced; several are joined (the only copy on the read path)."""
    if len(blocks) == 1:
        return blocks[0][skip : skip + length]
    return memoryview(b"".join(blocks))[skip : skip + length]
