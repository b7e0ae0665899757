"""`storage.format.file_writer.FileWriter` over every store: readers get back every file that it wrote, and a failed
write leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from runtime.clock import ManualClock
from runtime.errors import BugError
from runtime.ids import SystemIds
from storage.format.block_index import BLOCK_BYTES, decode_block_index
from storage.format.file_format import EXTENT_FLAGGED, CorruptFileError, ExtentRow, FileIndex, read_file
from storage.format.file_properties import FileProperties, decode_properties, encode_properties
from storage.format.file_writer import FileWriter, WrittenFile
from storage.keys import file_key
from storage.memory import MemoryStore
from storage.objects import (
    Body,
    MultipartUpload,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStore,
    PutInDoubtError,
    StoreUnavailableError,
    SupportsOpen,
)
from storage.urls import open_store
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.retrying import Retrying
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.merge_inputs import a_batch, some_properties, stamped
from tests.fixtures.record_batches import NOW_MS
from wire.crc import crc32c
from wire.kernels.batches import read_batches

MIB = 1 << 20
KEY = file_key(level=1, writer_id=7, epoch=0, file_uuid=SystemIds(1).uuid7(NOW_MS), created_ms=NOW_MS)
TOPIC = UUID(int=7)


@pytest.fixture(params=["memory", "local", "moto"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    match request.param:
        case "memory":
            opened = open_store("memory://")
        case "local":
            opened = open_store((tmp_path / "store").as_uri())
        case _:
            opened = open_store(request.getfixturevalue("s3_url")())
    if isinstance(opened, SupportsOpen):
        await opened.open()
    yield opened
    await opened.close()


def a_writer(store: ObjectStore, *, part_bytes: int = 8 * MIB) -> FileWriter:
    return FileWriter(store, KEY, level=1, created_ms=NOW_MS, part_bytes=part_bytes)


def log_of(*batches: bytes, base_offset: int = 100) -> bytes:
    data = b""
    for batch in batches:
        data += stamped(batch, base_offset)
        base_offset += 10
    return data


async def write_extent(
    writer: FileWriter, windows: Sequence[Body], *, partition: int = 0, base: int = 100, last: int = 999
) -> ExtentRow:
    writer.start_extent(TOPIC, partition)
    for window in windows:
        await writer.write(window, read_batches(window))
    return writer.end_extent(base, last)


async def index_of(store: ObjectStore, written: WrittenFile) -> tuple[bytes, FileIndex]:
    body = await store.get(written.key)
    assert (len(body), crc32c(body)) == (written.size_bytes, written.crc32c)
    index = read_file(body)
    assert index.extents == written.rows
    return body, index


async def keys_of(store: ObjectStore) -> list[str]:
    return [stat.key async for stat in store.list("")]


# Files are read back


@pytest.mark.parametrize("value_bytes", [100, 900_000])
async def test_extents_sections_and_footer_are_read_back(store: ObjectStore, value_bytes: int) -> None:
    # given extents with batches, empty and verbatim, in a small file and in one of several parts
    windows = [log_of(*[a_batch(3, value_bytes=value_bytes)] * 4, base_offset=base) for base in (100, 200)]
    writer = a_writer(store, part_bytes=5 * MIB)
    rows = [
        await write_extent(writer, windows),
        await write_extent(writer, [], partition=1, base=5, last=9),
    ]
    writer.start_extent(TOPIC, 2)
    await writer.write_verbatim(b"not a batch")
    rows.append(writer.end_extent(0, 4, flags=EXTENT_FLAGGED, record_count=5, min_timestamp_ms=1, max_timestamp_ms=2))
    # when the file is finished
    written = await writer.finish(some_properties())
    # then its index rows match the extents and their places
    body, index = await index_of(store, written)
    data = b"".join(windows)
    first, empty, verbatim = index.extents
    assert body[first.position : first.position + first.length] == data
    assert (first.crc32c, first.record_count) == (crc32c(data), 24)
    assert (first.min_timestamp_ms, first.max_timestamp_ms) == (NOW_MS, NOW_MS)
    assert (empty.length, empty.base_offset, empty.last_offset, empty.block_index_length) == (0, 5, 9, 0)
    assert (empty.record_count, empty.max_timestamp_ms, empty.crc32c) == (0, -1, 0)
    assert body[verbatim.position : verbatim.position + verbatim.length] == b"not a batch"
    assert (verbatim.record_count, verbatim.flags, verbatim.block_index_length) == (5, EXTENT_FLAGGED, 0)
    assert [row._replace(block_index_position=0) for row in index.extents] == rows
    # and the block index and the properties lie at the places in the index
    at = first.block_index_position
    blocks = decode_block_index(body[at : at + first.block_index_length], extent_length=first.length)
    assert blocks[0][:1] == (100,)
    assert [(section.kind, section.flags) for section in index.sections] == [(1, 0), (2, 0)]
    for section in index.sections:
        assert crc32c(body[section.position : section.position + section.length]) == section.crc32c
    described = index.sections[1]
    assert decode_properties(body[described.position : described.position + described.length]) == some_properties()


async def test_sums_that_are_known_take_the_place_of_summing(store: ObjectStore) -> None:
    windows = [log_of(*[a_batch(3)] * 4, base_offset=base) for base in (100, 200, 300)]
    writer = a_writer(store)
    writer.start_extent(TOPIC, 0)
    for known, window in zip((True, False, True), windows, strict=True):
        await writer.write(window, read_batches(window), crc32c=crc32c(window) if known else None)
    row = writer.end_extent(100, 999)
    written = await writer.finish(some_properties())
    assert row.crc32c == crc32c(b"".join(windows))
    await index_of(store, written)


async def test_a_file_without_extents_has_properties_alone(store: ObjectStore) -> None:
    written = await a_writer(store).finish(some_properties())
    _, index = await index_of(store, written)
    assert (index.extents, [section.kind for section in index.sections]) == ((), [2])


async def test_a_file_never_replaces_another(store: ObjectStore) -> None:
    await store.put_if_absent(KEY, b"there", crc32c=crc32c(b"there"))
    for value_bytes in (10, 3 * MIB):
        writer = a_writer(store, part_bytes=5 * MIB)
        await write_extent(writer, [log_of(a_batch(2, value_bytes=value_bytes))])
        with pytest.raises(ObjectExistsError):
            await writer.finish(some_properties())
        await writer.abort()
    assert await store.get(KEY) == b"there"


async def test_an_aborted_file_leaves_nothing(store: ObjectStore) -> None:
    writer = a_writer(store, part_bytes=5 * MIB)
    writer.start_extent(TOPIC, 0)
    window = log_of(a_batch(6, value_bytes=MIB))
    for _ in range(4):
        await writer.write(window, read_batches(window))
    await writer.abort()
    await writer.abort()
    assert await keys_of(store) == []
    assert await store.abort_multiparts(older_than_ms=2**42) == 0


# Blocks


@pytest.mark.parametrize("batches_in_window", [1, 3, 40])
async def test_a_block_begins_with_the_first_batch_a_mib_or_more_after_the_last(batches_in_window: int) -> None:
    # given 40 batches of 300,000 bytes with rising timestamps, in windows
    store = MemoryStore()
    batches = [
        stamped(a_batch(1, value_bytes=300_000, timestamp_ms=NOW_MS + number), 10 * number) for number in range(40)
    ]
    windows = [b"".join(batches[at : at + batches_in_window]) for at in range(0, 40, batches_in_window)]
    writer = a_writer(store)
    await write_extent(writer, windows)
    body, index = await index_of(store, await writer.finish(some_properties()))
    row = index.extents[0]
    blocks = decode_block_index(body[row.block_index_position :][: row.block_index_length], extent_length=row.length)
    # then every fourth batch begins a block, for any size of window
    size = len(batches[0])
    assert 4 * size >= BLOCK_BYTES > 3 * size
    assert [tuple(block) for block in blocks] == [
        (10 * first, NOW_MS + min(first + 3, 39), first * size) for first in range(0, 40, 4)
    ]


# Parts


class Uploads(WrappedStore):
    """Records how a file is uploaded: sizes of parts, PUTs, and the number of parts in flight at once."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.parts: list[int] = []
        self.puts = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.puts += 1
        await super().put_if_absent(key, body, crc32c=crc32c)

    async def start_multipart(self, key: str) -> MultipartUpload:
        return _Upload(self, await super().start_multipart(key))


class _Upload:
    def __init__(self, store: Uploads, inner: MultipartUpload) -> None:
        self._store = store
        self._inner = inner

    async def write(self, part: Body) -> None:
        await self._store.gate.wait()
        self._store.parts.append(len(part))
        await self._inner.write(part)

    async def complete(self) -> None:
        await self._inner.complete()

    async def abort(self) -> None:
        await self._inner.abort()


async def test_a_small_file_goes_in_one_put_and_a_large_one_in_parts_of_one_size() -> None:
    uploads = Uploads(MemoryStore())
    writer = a_writer(uploads, part_bytes=10_000)
    await write_extent(writer, [log_of(a_batch(1, value_bytes=5_000))])
    await writer.finish(some_properties())
    assert (uploads.puts, uploads.parts) == (1, [])
    uploads = Uploads(MemoryStore())
    writer = a_writer(uploads, part_bytes=10_000)
    await write_extent(writer, [log_of(a_batch(1, value_bytes=size)) for size in (25_000, 3_000, 5_000)])
    written = await writer.finish(some_properties())
    assert (uploads.puts, uploads.parts[:-1], sum(uploads.parts)) == (0, [10_000] * 3, written.size_bytes)
    assert 0 < uploads.parts[-1] <= 10_000


async def test_parts_leave_while_the_next_is_made_and_at_most_two_wait() -> None:
    # given a store that accepts no part yet
    uploads = Uploads(MemoryStore())
    uploads.gate.clear()
    writer = a_writer(uploads, part_bytes=1_000)
    writer.start_extent(TOPIC, 0)
    # when two parts and a bit are written, then nothing waits
    await asyncio.wait_for(writer.write_verbatim(b"x" * 2_500), 5)
    # when a third is complete, then its writer waits until the first has left
    waiting = asyncio.create_task(writer.write_verbatim(b"x" * 1_000))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    uploads.gate.set()
    await asyncio.wait_for(waiting, 5)
    writer.end_extent(0, 0)
    await index_of(uploads, await writer.finish(some_properties()))


async def test_a_slice_of_a_window_may_be_written_and_does_not_keep_the_window() -> None:
    store = MemoryStore()
    window = bytearray(log_of(*[a_batch(1, value_bytes=1_000)] * 3))
    size = len(window) // 3
    table = read_batches(window)
    writer = a_writer(store)
    writer.start_extent(TOPIC, 0)
    with memoryview(window) as view, view[size : 2 * size] as middle:
        await writer.write(middle, type(table)._make(column[1:2] for column in table))
    expected = bytes(window[size : 2 * size])
    window.clear()  # raises while anybody holds a view of it
    writer.end_extent(110, 119)
    body, index = await index_of(store, await writer.finish(some_properties()))
    assert body[: index.extents[0].length] == expected


# Stores that fail


def faulty(*rules: FaultRule, retrying: bool = False) -> tuple[MemoryStore, ObjectStore]:
    memory, clock = MemoryStore(), ManualClock()
    store = Faulty(memory, FaultPlan(rules), SystemIds(1), clock)
    return memory, Retrying(store, clock, SystemIds(2), deadline_ms=500) if retrying else store


@pytest.mark.parametrize("op", ["multipart_start", "multipart_write"])
async def test_what_an_upload_ran_into_is_told_by_a_later_call(op: str) -> None:
    memory, store = faulty(FaultRule(fault=Fault.UNREACHABLE, op=op, calls=frozenset({1})))
    writer = a_writer(store, part_bytes=1_000)
    writer.start_extent(TOPIC, 0)
    with pytest.raises(StoreUnavailableError):
        for _ in range(10):
            await writer.write_verbatim(b"x" * 1_000)
    await writer.abort()
    assert await memory.abort_multiparts(older_than_ms=2**60) == 0


@pytest.mark.parametrize("value_bytes", [10, 10_000])
async def test_a_lost_answer_to_the_end_of_a_file_is_settled(value_bytes: int) -> None:
    lost = [
        FaultRule(fault=Fault.LOST_ANSWER, op=op, calls=frozenset({1}))
        for op in ("put", "multipart_complete", "multipart_write")
    ]
    memory, store = faulty(*lost, retrying=True)
    writer = a_writer(store, part_bytes=2_000)
    await write_extent(writer, [log_of(a_batch(2, value_bytes=value_bytes))])
    await index_of(memory, await writer.finish(some_properties()))


async def test_an_end_that_stays_in_doubt_is_told_as_such() -> None:
    memory, store = faulty(
        FaultRule(fault=Fault.LOST_ANSWER, op="multipart_complete"),
        FaultRule(fault=Fault.UNREACHABLE, op="head"),
        retrying=True,
    )
    writer = a_writer(store, part_bytes=2_000)
    await write_extent(writer, [log_of(a_batch(2, value_bytes=10_000))])
    with pytest.raises(PutInDoubtError):
        await writer.finish(some_properties())
    # then an abort removes nothing, because the object may have been published
    await writer.abort()
    assert await keys_of(memory) == [KEY]


async def test_doubt_about_a_large_object_is_settled_by_reading_it_in_stretches() -> None:
    class NoChecksum(WrappedStore):
        longest = 0

        async def head(self, key: str) -> ObjectStat:
            stat = await super().head(key)
            return ObjectStat(key=key, size_bytes=stat.size_bytes, last_modified_ms=stat.last_modified_ms)

        async def get(self, key: str) -> bytes:
            raise ObjectNotFoundError(key)

        async def get_range(self, key: str, start: int, length: int) -> bytes:
            data = await super().get_range(key, start, length)
            self.longest = max(self.longest, len(data))
            return data

    memory, clock = MemoryStore(), ManualClock()
    rule = FaultRule(fault=Fault.LOST_ANSWER, op="multipart_complete", calls=frozenset({1}))
    plain = NoChecksum(Faulty(memory, FaultPlan([rule]), SystemIds(1), clock))
    writer = a_writer(Retrying(plain, clock, SystemIds(2)))
    await write_extent(writer, [log_of(a_batch(20, value_bytes=MIB))])
    written = await writer.finish(some_properties())
    assert written.size_bytes > plain.longest == 8 * MIB


async def test_a_part_that_failed_half_way_on_a_disk_is_written_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that takes half of the second part and then fails once
    import os

    local = open_store(tmp_path.as_uri())
    assert isinstance(local, SupportsOpen)
    await local.open()
    pwritev, calls = os.pwritev, 0

    def failing(descriptor: int, views: Sequence[memoryview], position: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            return pwritev(descriptor, [views[0][: len(views[0]) // 2]], position)
        if calls == 3:
            raise OSError(5, "Input/output error")
        return pwritev(descriptor, views, position)

    monkeypatch.setattr(os, "pwritev", failing)
    clock = ManualClock()
    writer = a_writer(Retrying(local, clock, SystemIds(1)), part_bytes=1_000)
    await write_extent(writer, [log_of(a_batch(1, value_bytes=5_000))])
    await index_of(local, await writer.finish(some_properties()))
    assert calls > 6
    await local.close()


# Wrong use


async def test_wrong_use_is_refused() -> None:
    writer = a_writer(MemoryStore())
    window = log_of(a_batch(2))
    with pytest.raises(BugError, match="no open extent"):
        await writer.write(window, read_batches(window))
    writer.start_extent(TOPIC, 0)
    with pytest.raises(BugError, match="inside another"):
        writer.start_extent(TOPIC, 1)
    with pytest.raises(BugError, match="inside an extent"):
        await writer.finish(some_properties())
    with pytest.raises(BugError, match="1 batches"):
        await writer.write(window + b"x", read_batches(window))
    await writer.write(window, read_batches(window))
    with pytest.raises(BugError, match="verbatim"):
        await writer.write_verbatim(b"x")


# Properties


def test_properties_are_json_with_sorted_keys_and_read_back() -> None:
    properties: FileProperties = some_properties()
    encoded = encode_properties(properties)
    assert encoded.startswith(
        b'{"class":"plain","created_ms":1700000000000,"epoch":1,"flagged":{},"inputs":[[1,"l0/a"]'
    )
    assert decode_properties(encoded) == properties


def test_a_field_of_a_later_release_is_ignored() -> None:
    later = encode_properties(some_properties()).replace(b'{"class"', b'{"another":[1],"class"', 1)
    assert decode_properties(later) == some_properties()


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b"\xff", b"1", b'{"job_id":"x"}', b"[" * 100_000])
def test_junk_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_properties(wrong)
