"""Object bytes through the cache: joined, in flight once, bounded."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from agents.read.blocks import BlockReader
from agents.read.cache import BLOCK_BYTES, BlockCache, Body
from agents.read.pieces import Pins
from agents.read.source import Fetched
from runtime.metrics import Metrics
from storage.memory import MemoryStore
from storage.objects import ObjectNotFoundError, ObjectStoreError
from storage.parts import Parts
from tests.fixtures.sources import source_of
from wire.crc import crc32c

KEY = "l0/aa/2026010100/1-1-x.silt"
BODY = bytes(range(256)) * (BLOCK_BYTES // 256) * 5 + b"the end"


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.running_max = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((start, length))
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        await self.gate.wait()
        try:
            return await super().get_range(key, start, length)
        finally:
            self.running -= 1


@pytest.fixture
async def store() -> CountingStore:
    store = CountingStore()
    await store.put_if_absent(KEY, BODY, crc32c=crc32c(BODY))
    return store


def reader(store: MemoryStore, *, bytes_max: int = 64 * BLOCK_BYTES, concurrency: int = 4) -> BlockReader:
    cache = BlockCache(bytes_max)
    return BlockReader(source=source_of(store), cache=cache, pool="hot", concurrency=concurrency, metrics=Metrics())


async def test_any_range_reads_as_the_object_is(store: CountingStore) -> None:
    blocks = reader(store)
    for start, length in (
        (0, 10),
        (BLOCK_BYTES - 3, 6),
        (0, len(BODY)),
        (len(BODY) - 7, 7),
        (3 * BLOCK_BYTES, BLOCK_BYTES),
    ):
        assert await blocks.read(KEY, len(BODY), start, length) == BODY[start : start + length]


async def test_neighbouring_blocks_are_one_get_and_then_none(store: CountingStore) -> None:
    blocks = reader(store)
    await blocks.read(KEY, len(BODY), BLOCK_BYTES + 5, 2 * BLOCK_BYTES)
    assert store.gets == [(BLOCK_BYTES, 3 * BLOCK_BYTES)]
    found = blocks.cached(KEY, BLOCK_BYTES, 10)
    assert found is not None
    assert found.joined() == BODY[BLOCK_BYTES : BLOCK_BYTES + 10]
    await blocks.read(KEY, len(BODY), 0, len(BODY))
    assert store.gets[1:] == [(0, BLOCK_BYTES), (4 * BLOCK_BYTES, BLOCK_BYTES + 7)], "only what was missing"


async def test_a_block_in_flight_is_waited_for_not_fetched_again(store: CountingStore) -> None:
    blocks = reader(store)
    store.gate.clear()
    waiting = [asyncio.create_task(blocks.read(KEY, len(BODY), 0, 100)) for _ in range(10)]
    await asyncio.sleep(0.01)
    # a reader that goes away takes nothing from the others
    waiting.pop(0).cancel()
    store.gate.set()
    assert {bytes(view) for view in await asyncio.gather(*waiting)} == {BODY[:100]}
    assert len(store.gets) == 1


async def test_gets_at_a_time_are_bounded(store: CountingStore) -> None:
    blocks = reader(store, concurrency=2)
    store.gate.clear()
    waiting = [asyncio.create_task(blocks.read(KEY, len(BODY), block * BLOCK_BYTES, 10)) for block in (0, 2, 4)]
    await asyncio.sleep(0.01)
    assert store.running == 2
    store.gate.set()
    await asyncio.gather(*waiting)
    assert store.running_max == 2


async def test_errors_reach_all_who_wait_and_are_not_remembered(store: CountingStore) -> None:
    blocks = reader(store)
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            await blocks.read("l0/aa/2026010100/none.silt", 100, 0, 10)
    with pytest.raises(ObjectStoreError, match="ends early"):
        await blocks.read(KEY, len(BODY) + 1000, len(BODY) - 2, 100)


def parts(*chunks: bytes) -> Parts:
    return Parts(map(memoryview, chunks))


def data_of(body: Body | None) -> bytes | None:
    return bytes(body.data) if body is not None else None


async def test_the_cache_keeps_to_its_bound_and_drops_the_least_recently_used() -> None:
    sizes: list[int] = []
    cache = BlockCache(30, sizes.append)
    for name in "abc":
        cache.put_file(name, parts(name.encode() * 10))
    assert data_of(cache.file("a")) == b"a" * 10
    cache.put_blocks("d", range(1), b"d" * 15)
    assert (cache.file("b"), cache.file("c")) == (None, None)
    assert data_of(cache.file("a")) == b"a" * 10
    assert max(sizes) <= 30
    cache.put_file("huge", parts(b"x" * 31))
    assert cache.file("huge") is None
    cache.put_file("a", parts(b"again"))
    assert cache.bytes == 20


async def test_a_whole_file_serves_any_range_without_a_get(store: CountingStore) -> None:
    cache = BlockCache(64 * BLOCK_BYTES)
    blocks = BlockReader(source=source_of(store), cache=cache, pool="hot", concurrency=1, metrics=Metrics())
    cache.put_file(KEY, parts(BODY[:100], BODY[100 : 2 * BLOCK_BYTES], BODY[2 * BLOCK_BYTES :]))
    assert await blocks.read(KEY, len(BODY), 7, 3 * BLOCK_BYTES) == BODY[7 : 7 + 3 * BLOCK_BYTES]
    assert store.gets == []


async def test_a_range_across_two_gets_is_two_views_and_one_inside_a_get_is_one(store: CountingStore) -> None:
    blocks = reader(store)
    await blocks.read(KEY, len(BODY), 0, 2 * BLOCK_BYTES)
    await blocks.read(KEY, len(BODY), 2 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    inside = await blocks.pieces(KEY, len(BODY), 5, 2 * BLOCK_BYTES - 5)
    across = await blocks.pieces(KEY, len(BODY), 2 * BLOCK_BYTES - 3, 10)
    assert [len(view) for view in inside.cut(0, len(inside))] == [2 * BLOCK_BYTES - 5]
    assert [bytes(view) for view in across.cut(0, 10)] == [
        BODY[2 * BLOCK_BYTES - 3 : 2 * BLOCK_BYTES],
        BODY[2 * BLOCK_BYTES : 2 * BLOCK_BYTES + 7],
    ]
    view, at = across.contiguous(1, 5)
    assert view[at : at + 5] == BODY[2 * BLOCK_BYTES - 2 : 2 * BLOCK_BYTES + 3]


async def test_ranges_of_one_request_that_nearly_touch_are_one_get(store: CountingStore) -> None:
    blocks = reader(store)
    blocks.start_missing(KEY, len(BODY), [5, 4, 0, 1])
    assert await blocks.read(KEY, len(BODY), 0, len(BODY)) == BODY
    assert store.gets == [(0, len(BODY))], "the gap of two blocks comes along"


async def test_slow_clients_hold_no_more_memory_than_the_cache_and_their_own_bytes() -> None:
    """Answers of 64 KiB, each of another GET of 1 MiB, that wait to be sent. Measured, not reckoned."""
    # given: an object of 64 MiB, a cache of 8 MiB
    body = bytes(64 * BLOCK_BYTES)
    store = MemoryStore()
    await store.put_if_absent(KEY, body, crc32c=crc32c(body))
    cache = BlockCache(8 * BLOCK_BYTES)
    blocks = BlockReader(source=source_of(store), cache=cache, pool="cold", concurrency=4, metrics=Metrics())
    pins: Pins = []
    tracemalloc.start()
    try:
        # when
        answers = [
            (await blocks.pieces(KEY, len(body), block * BLOCK_BYTES, 64 << 10)).kept(pins) for block in range(64)
        ]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # then: what could not be pinned was copied
    assert held <= cache.bytes_max + sum(map(len, answers)) + (1 << 20)
    assert cache.pinned_bytes <= cache.bytes <= cache.bytes_max
    assert all(answer.joined() == bytes(64 << 10) for answer in answers)
    # and when the answers have left, nothing is pinned
    while pins:
        home, pinned = pins.pop()
        home.unpin(pinned)
    assert cache.pinned_bytes == cache.only_pinned_bytes == 0


def test_a_pinned_body_stays_and_counts_until_its_last_answer_has_left() -> None:
    cache = BlockCache(100)
    pinned = cache.put_blocks("a", range(1), b"a" * 60)
    assert cache.pin(pinned)
    assert cache.pin(pinned)
    # no room beside it: the newcomer is not kept, and its reader copies
    late = cache.put_blocks("b", range(1), b"b" * 50)
    assert (cache.holds("a", range(1)), cache.holds("b", range(1)), cache.pin(late)) == (True, False, False)
    # a third quarter of the cache is the most that answers may pin
    small = cache.put_blocks("c", range(1), b"c" * 20)
    assert not cache.pin(small)
    # replaced, it still counts
    cache.put_blocks("a", range(1), b"A" * 20)
    assert (cache.bytes, cache.pinned_bytes) == (100, 60)
    cache.unpin(pinned)
    assert cache.bytes == 100
    cache.unpin(pinned)
    assert (cache.bytes, cache.pinned_bytes, data_of(cache.block("a", 0))) == (40, 0, b"A" * 20)


class SilentNeighbour:
    """A source whose neighbour never answers; only the store does."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = source_of(store)

    async def ask(self, key: str, size_bytes: int, start: int, length: int) -> Fetched | None:
        await asyncio.Event().wait()
        return None

    async def get_range(self, key: str, start: int, length: int) -> Fetched:
        return await self._store.get_range(key, start, length)


async def test_readers_that_wait_for_neighbours_leave_the_slots_to_those_that_serve_them(store: CountingStore) -> None:
    """Else agents whose every slot waits for the others would serve nobody."""
    cache = BlockCache(64 * BLOCK_BYTES)
    blocks = BlockReader(source=SilentNeighbour(store), cache=cache, pool="hot", concurrency=1, metrics=Metrics())
    waiting = [asyncio.create_task(blocks.read(KEY, len(BODY), block * BLOCK_BYTES, 9)) for block in (0, 2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        found = await blocks.pieces(KEY, len(BODY), 4 * BLOCK_BYTES, 9, direct=True)
    assert found.joined() == BODY[4 * BLOCK_BYTES : 4 * BLOCK_BYTES + 9]
    await blocks.close()
    await asyncio.gather(*waiting, return_exceptions=True)
