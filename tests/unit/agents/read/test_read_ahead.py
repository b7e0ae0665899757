"""Read-ahead: whole GETs, shared room, and blocks that are kept until they were read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.read.ahead import AHEAD_BYTES, ReadAhead, gets_of
from agents.read.blocks import GET_BLOCKS_MAX, BlockReader
from agents.read.cache import BLOCK_BYTES, BlockCache
from agents.read.plan import ReadRange
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from storage.memory import MemoryStore
from tests.fixtures.chance import examples
from tests.fixtures.sources import source_of
from wire.crc import crc32c

MIB = 1 << 20
GET_BYTES = GET_BLOCKS_MAX * BLOCK_BYTES
FILE_BYTES = 40 * MIB
BODY = bytes(FILE_BYTES)
BODY_CRC = crc32c(BODY)
FETCH_BYTES = 2 * MIB


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((key, start, length))
        return await super().get_range(key, start, length)


@dataclass(frozen=True)
class Extent:
    key: str
    start: int
    length: int

    def range(self, position: int, length: int) -> ReadRange:
        end = self.start + self.length
        return ReadRange(1, self.key, FILE_BYTES, None, position, length, 0, 0, 1 << 40, self.start, end)


class Stream:
    """Reads its extents to their end, some bytes per fetch, as the reader does for a partition."""

    def __init__(self, number: int, extents: Sequence[Extent], ahead: ReadAhead, blocks: BlockReader) -> None:
        self.number, self.extents, self._ahead, self._blocks = number, extents, ahead, blocks
        self._at = 0

    @property
    def has_ended(self) -> bool:
        return self._at == sum(each.length for each in self.extents)

    def _ranges(self, length: int) -> Iterator[ReadRange]:
        skip = self._at
        for each in self.extents:
            take = min(each.length - skip, length)
            if take > 0:
                yield each.range(each.start + skip, take)
                length -= take
            skip = max(0, skip - each.length)

    async def fetch(self) -> None:
        asked = list(self._ranges(FETCH_BYTES))
        if not self._ahead.is_coming(asked):
            self._ahead.go_on(self.number, self._ranges(AHEAD_BYTES), asked=asked)
        for where in asked:
            await self._blocks.read(where.key, FILE_BYTES, where.position, where.length)
            self._ahead.passed(where, where.position + where.length)
            self._at += where.length
        self._ahead.go_on(self.number, self._ranges(AHEAD_BYTES))


async def parts(cache_bytes: int) -> tuple[CountingStore, ReadAhead, BlockReader]:
    store = CountingStore()
    for key in "abc":
        await store.put_if_absent(key, BODY, crc32c=BODY_CRC)
    blocks = BlockReader(
        source=source_of(store),
        cache=BlockCache(cache_bytes),
        pool="cold",
        concurrency=16,
        metrics=Metrics(),
    )
    return store, ReadAhead(blocks, SystemClock(), cache_bytes=cache_bytes), blocks


def test_gets_are_whole_or_end_with_their_neighbours() -> None:
    wanted = [("a", block) for block in range(3, 20)] + [("a", 30)] + [("b", block) for block in range(20, 36)]
    assert list(gets_of(wanted, 8)) == [
        ("a", range(3, 11)),
        ("a", range(11, 20)),  # eight, and the one at the seam
        ("a", range(30, 31)),
        ("b", range(20, 28)),
        ("b", range(28, 36)),
    ]
    assert list(gets_of(wanted, 0)) == []


extents_of_a_file = st.lists(st.integers(1, 19 * MIB), min_size=1, max_size=3)


@settings(max_examples=examples(25), deadline=None)
@given(lengths=st.lists(extents_of_a_file, min_size=1, max_size=3), seed=st.integers(0, 1 << 16))
def test_whoever_reads_on_costs_a_get_per_file_and_one_per_8_mib(lengths: list[list[int]], seed: int) -> None:
    """As many streams as have room for their read-ahead, in any order. Extents do not begin at round positions."""
    streams: list[list[Extent]] = [[] for _ in range(3)]
    for key, of_file in zip("abc", lengths, strict=False):
        at = Random(seed).randrange(MIB)
        for stream, length in zip(streams, of_file, strict=False):
            length = min(length, FILE_BYTES - at)
            stream += [Extent(key, at, length)] if length else []
            at += length

    async def run() -> None:
        store, ahead, blocks = await parts(128 * MIB)
        readers = [Stream(number, extents, ahead, blocks) for number, extents in enumerate(streams) if extents]
        order = Random(seed)
        while readers:
            reader = order.choice(readers)
            await reader.fetch()
            if reader.has_ended:
                readers.remove(reader)
        all_extents = [each for extents in streams for each in extents]
        assert len(store.gets) <= sum(1 + each.length / GET_BYTES for each in all_extents), store.gets
        assert ahead.held_bytes == 0
        await blocks.close()

    asyncio.run(run())


async def test_streams_that_have_no_room_wait_for_it_and_whole_gets_stay_whole() -> None:
    # given: room for three windows, and three streams that read by turns
    store, ahead, blocks = await parts(32 * MIB)
    readers = [Stream(number, [Extent(key, 0, FILE_BYTES)], ahead, blocks) for number, key in enumerate("abc")]
    # when: all read to the end
    while not all(reader.has_ended for reader in readers):
        for reader in readers:
            if not reader.has_ended:
                await reader.fetch()
                # then: at most seven eighths of the cache are held for them
                assert ahead.held_bytes <= 28 * MIB
    assert len(store.gets) <= 3 + 3 * FILE_BYTES / GET_BYTES, store.gets
    assert sum(length for _, _, length in store.gets) == 3 * FILE_BYTES


async def test_more_streams_than_there_is_room_for_still_end_within_the_bound_of_memory() -> None:
    _, ahead, blocks = await parts(12 * MIB)
    readers = [
        Stream(number, [Extent("abc"[number % 3], number // 3 * 4 * MIB, 4 * MIB)], ahead, blocks)
        for number in range(30)
    ]
    order = Random(1)
    while left := [reader for reader in readers if not reader.has_ended]:
        await order.choice(left).fetch()
        assert ahead.held_bytes <= 10.5 * MIB


def test_expected_blocks_stay_until_they_are_released_and_then_leave_first() -> None:
    cache = BlockCache(30)
    cache.expect("a", 1)
    for block in range(3):
        cache.put_blocks("a", range(block, block + 1), b"a" * 10)
    cache.block("a", 0)
    for block in range(5):
        cache.put_blocks("b", range(block, block + 1), b"b" * 10)
    assert (cache.holds("a", range(1)), cache.holds("a", range(1, 2))) == (False, True)
    assert cache.bytes == 30
    cache.release("a", 1, first_to_go=True)
    cache.put_blocks("c", range(1), b"c" * 10)
    assert (cache.holds("a", range(1, 2)), cache.holds("b", range(3, 5))) == (False, True)
    # and the bound holds though all of it is expected
    for block in range(4):
        cache.expect("d", block)
        cache.put_blocks("d", range(block, block + 1), b"d" * 10)
    assert cache.bytes == 30
    assert cache.holds("d", range(1, 4))
