from __future__ import annotations

import uuid

import pytest

from runtime.ids import SystemIds
from storage.format.file_format import CorruptFileError, ExtentSource, build_file
from storage.format.inspect import TAIL_BYTES, inspect_file
from storage.keys import file_key
from storage.memory import MemoryStore
from storage.objects import ObjectNotFoundError
from tests.fixtures.record_batches import NOW_MS, one_batch
from wire.crc import crc32c

KEY = file_key(level=0, writer_id=7, epoch=3, file_uuid=SystemIds(1).uuid7(NOW_MS), created_ms=NOW_MS)
BATCH = one_batch(3)


def source(chunks: list[bytes], partition: int = 0) -> ExtentSource:
    return ExtentSource(
        topic_id=uuid.UUID(int=1),
        partition=partition,
        chunks=chunks,
        record_count=3 * len(chunks),
        min_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS + 2,
    )


async def stored(body: bytes, key: str = KEY) -> MemoryStore:
    store = MemoryStore()
    await store.put_if_absent(key, body, crc32c=crc32c(body))
    return store


def a_file() -> bytes:
    return build_file([source([BATCH]), source([BATCH, BATCH], 1)], level=0, created_ms=NOW_MS).body


async def test_a_sound_file_is_shown_with_its_batches() -> None:
    report = await inspect_file(await stored(a_file()), KEY, walk_batches=True)
    assert report.is_sound
    assert report.file_key is not None
    assert (report.file_key.writer_id, report.level, report.created_ms) == (7, 0, NOW_MS)
    assert [extent.crc_matches for extent in report.extents] == [True, True]
    assert [[batch.position for batch in extent.batches] for extent in report.extents] == [
        [0],
        [len(BATCH), 2 * len(BATCH)],
    ]
    batch = report.extents[0].batches[0]
    assert (batch.records_count, batch.codec, batch.crc_matches, batch.size_bytes) == (3, "none", True, len(BATCH))


async def test_without_verification_no_extent_is_read() -> None:
    report = await inspect_file(await stored(a_file()), KEY, verify=False)
    assert [extent.crc_matches for extent in report.extents] == [None, None]
    assert report.is_sound


async def test_damage_in_an_extent_is_reported_and_the_rest_shown() -> None:
    body = bytearray(a_file())
    body[len(BATCH) + 70] ^= 1
    report = await inspect_file(await stored(bytes(body)), KEY, walk_batches=True)
    assert not report.is_sound
    assert [extent.crc_matches for extent in report.extents] == [True, False]
    assert report.extents[1].damage == "1 of 2 batches fail their CRC-32C"
    assert len(report.extents[1].batches) == 2


async def test_bytes_that_are_no_batches_are_reported() -> None:
    body = build_file([source([b"not a batch"])], level=0, created_ms=NOW_MS).body
    report = await inspect_file(await stored(body), KEY, walk_batches=True)
    assert report.extents[0].crc_matches is True
    assert report.extents[0].damage
    assert not report.is_sound


async def test_an_index_larger_than_the_first_read_is_read_in_a_second() -> None:
    extents = [source([b""], number) for number in range(TAIL_BYTES // 96 + 10)]
    report = await inspect_file(await stored(build_file(extents, level=0, created_ms=0).body), KEY)
    assert len(report.extents) == len(extents)


async def test_a_key_of_another_shape_is_inspected_too() -> None:
    report = await inspect_file(await stored(a_file(), "copy-of-a-file"), "copy-of-a-file")
    assert report.file_key is None
    assert report.is_sound


async def test_what_is_no_file_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="magic"):
        await inspect_file(await stored(b"x" * 100), KEY)
    with pytest.raises(CorruptFileError, match="5 bytes"):
        await inspect_file(await stored(b"short"), KEY)
    with pytest.raises(ObjectNotFoundError):
        await inspect_file(MemoryStore(), KEY)
