"""The reader for committed records: the last stable offset inside a stretch, and markers, which have no object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from agents.handlers.fetch import _news
from agents.read.path import ReadPath
from agents.read.plan import whole_l0
from agents.read.pools import HOT_MS
from agents.read.reader import Reading, Want
from agents.read.sessions import FetchPart
from agents.read.timestamps.budget import LookUpBudget
from agents.tail.log_index import FileRef, LogIndex
from agents.tail.waiters import ParkedReaders
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import IndexRow
from metadata.transactions.contract import MARKER_BYTES
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.memory import MemoryStore
from storage.parts import Parts
from wire.batch import ProducerStamp, iter_headers
from wire.markers import build_marker, read_marker
from wire.messages.fetch import FetchPartition
from wire.records import NewRecord, build_batch

ONE, TWO = 1, 2
STAMP_MS, MARKED_MS = 1_000, 2_000


class CountingStore(MemoryStore):
    gets = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets += 1
        return await super().get_range(key, start, length)


class World:
    """Two partitions. One file of records, of which the writer has the bytes, and two files of markers."""

    def __init__(self) -> None:
        self.index, self.store, self.runtime = LogIndex(), CountingStore(), Runtime()
        self.reads = ReadPath(
            settings=Settings(),
            index=self.index,
            store=self.store,
            metadata=MemoryMetadata().readers,
            catch_up=self._catch_up,
            runtime=self.runtime,
        )
        for partition_id in (ONE, TWO):
            self.index.open_partition(partition_id, start=0, end=0)
        # given: batches of two records, the second of transaction 7 and the third of transaction 8
        records = [NewRecord(STAMP_MS, None, b"v")] * 2
        batches = [build_batch(records)] + [
            build_batch(records, producer=ProducerStamp(each, 0, 0), transactional=True) for each in (7, 8)
        ]
        body, size = b"".join(batches) * 2, sum(map(len, batches))
        rows = [IndexRow(each, 0, 5, place * size, size, STAMP_MS, STAMP_MS) for place, each in enumerate((ONE, TWO))]
        begun = [
            TxnRow(TxnRowKind.BEGIN, partition, producer, first, first)
            for partition in (ONE, TWO)
            for producer, first in ((7, 2), (8, 4))
        ]
        self.index.add_file(1, FileRef("records", len(body), 1_000), rows, txn_rows=encode_txn_rows(begun))
        self.reads.hot_cache.put_file("records", Parts([memoryview(body)]))

    async def _catch_up(self) -> None:
        raise AssertionError

    def end(self, file_id: int, producer_id: int, first: int, marker: int, *, created_ms: int = 1_000) -> None:
        """Abort the transaction on both partitions."""
        inline = build_marker(producer_id, 1, commit=False, coordinator_epoch=3, timestamp_ms=MARKED_MS)
        places = (ONE, TWO)
        rows = [IndexRow(each, marker, marker, 0, MARKER_BYTES, MARKED_MS, MARKED_MS) for each in places]
        ended = [TxnRow(TxnRowKind.ABORT, each, producer_id, first, marker) for each in places]
        ref = FileRef(f"markers-{file_id}", len(inline), created_ms, inline=inline)
        self.index.add_file(file_id, ref, rows, txn_rows=encode_txn_rows(ended))

    async def read(self, *wants: tuple[int, int], committed_only: bool = True, bytes_max: int = 1 << 20) -> Reading:
        asked = [Want(partition, offset, bytes_max, committed_only) for partition, offset in wants]
        reading = await self.reads.reader.read(asked, bytes_max=bytes_max)
        reading.release()
        return reading


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    assert world.store.gets == 0, "everything is in memory"
    await world.reads.close()


def bases(reading: Reading, number: int = 0) -> list[int]:
    data = b"".join(bytes(each) for each in reading.taken[number].buffers)
    return [header.base_offset for _, header in iter_headers(data)]


def named(reading: Reading, number: int = 0) -> list[tuple[int, int]]:
    return [each[:2] for each in reading.taken[number].aborted]


async def test_a_stretch_is_read_up_to_the_last_stable_offset_in_it(world: World) -> None:
    assert bases(await world.read((ONE, 0))) == [0]
    assert bases(await world.read((ONE, 0), committed_only=False)) == [0, 2, 4]
    world.end(2, 7, 2, 6)
    reading = await world.read((ONE, 0))
    assert (bases(reading), named(reading)) == ([0, 2], [(7, 2)])
    # and the one that goes on from there gets nothing, not even the marker behind the open transaction
    assert bases(await world.read((ONE, 4))) == []
    world.end(3, 8, 4, 7)
    reading = await world.read((ONE, 0))
    assert (bases(reading), named(reading)) == ([0, 2, 4, 6, 7], [(7, 2), (8, 4)])
    reading = await world.read((ONE, 4))
    assert (bases(reading), named(reading)) == ([4, 6, 7], [(7, 2), (8, 4)])
    reading = await world.read((ONE, 7))
    assert (bases(reading), named(reading)) == ([7], [(8, 4)])


async def test_the_list_ends_where_the_answer_ends(world: World) -> None:
    world.end(2, 7, 2, 6)
    world.end(3, 8, 4, 7)
    size = (await world.read((ONE, 0))).taken[0].size_bytes
    for bytes_max, found, expected in (
        (1, [0], []),
        (200, [0, 2], [(7, 2)]),
        (size, [0, 2, 4, 6, 7], [(7, 2), (8, 4)]),
    ):
        reading = await world.read((ONE, 0), bytes_max=bytes_max)
        assert (bases(reading), named(reading)) == (found, expected)
    assert named(await world.read((ONE, 0), committed_only=False)) == []


async def test_markers_come_from_memory_however_old_they_are_and_carry_their_own_offsets(world: World) -> None:
    world.end(2, 7, 2, 6)
    world.end(3, 8, 4, 7)
    world.index.newest_file_ms += 2 * HOT_MS  # the files belong to history by now
    # when two partitions read the same bytes in one answer, again and again, as a replay does
    for offset in (6, 7, 6, 7):
        reading = await world.read((ONE, offset), (TWO, 6))
        assert (bases(reading), bases(reading, 1)) == (list(range(offset, 8)), [6, 7])
    # and when a consumer reads on towards them, which is read ahead for
    for offset in (2, 4, 6, 7):
        assert bases(await world.read((ONE, offset), bytes_max=1)) == [offset]
    data = memoryview(b"".join(bytes(each) for each in reading.taken[0].buffers))
    marker = read_marker(data)
    assert marker is not None and (marker.producer_id, marker.commit) == (8, False)


async def test_a_limit_that_ends_inside_a_marker_does_not_send_anybody_to_the_store(world: World) -> None:
    world.end(2, 7, 2, 6)
    world.end(3, 8, 4, 7)
    for bytes_max in range(1, 3 * MARKER_BYTES, 7):
        reading = await world.read((ONE, 6), bytes_max=bytes_max)
        assert bases(reading)[:1] == [6], "the first batch comes whatever the limit"
    where = whole_l0(next(iter(world.index.extents_from(ONE, 6))), world.index.file(2))
    cut = await world.reads.reader._pools.stored(where)
    assert len(cut) == MARKER_BYTES


async def test_look_ups_by_timestamp_see_markers(world: World) -> None:
    world.end(2, 7, 2, 6)
    for asked, expected in ((STAMP_MS, (0, STAMP_MS)), (STAMP_MS + 1, (6, MARKED_MS)), (MARKED_MS + 1, None)):
        found = await world.reads.timestamps.first_at(ONE, asked, LookUpBudget())
        assert (None if found is None else (found.offset, found.timestamp_ms)) == expected
    largest = await world.reads.timestamps.largest(TWO, LookUpBudget())
    assert largest is not None and (largest.offset, largest.timestamp_ms) == (6, MARKED_MS)


async def test_records_of_open_transactions_are_no_news_to_readers_of_committed_ones(world: World) -> None:
    parked = ParkedReaders()
    broker = SimpleNamespace(index=world.index, parked_readers=parked)
    part = FetchPart("t", FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1))
    part.partition_id = ONE
    told = {each: asyncio.create_task(_news(broker, [part], committed_only=each)) for each in (True, False)}  # type: ignore[arg-type]
    await asyncio.sleep(0)
    world.end(2, 8, 4, 6)
    parked.wake([ONE])
    await asyncio.sleep(0.01)
    assert [told[each].done() for each in (True, False)] == [False, True]
    world.end(3, 7, 2, 7)
    parked.wake([ONE])
    assert await told[True]
