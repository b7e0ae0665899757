"""The file format: written files read back, damaged files are refused, and version 1 never changes."""

from __future__ import annotations

import re
import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.block_index import BlockEntry, decode_block_index
from storage.format.file_format import (
    EXTENT_FLAGGED,
    EXTENT_MAY_HAVE_TOMBSTONES,
    INDEX_HEADER_BYTES,
    MAGIC,
    ROW_BYTES,
    SECTION_ENTRY_BYTES,
    SECTION_REQUIRED,
    TRAILER_BYTES,
    CorruptFileError,
    ExtentRow,
    ExtentSource,
    Section,
    build_file,
    encode_footer,
    read_file,
    read_index,
    read_trailer,
)
from storage.format.file_properties import FileProperties, TopicProperty, decode_properties
from storage.format.file_writer import FileWriter
from storage.memory import MemoryStore
from tests.fixtures.merge_inputs import stamped
from tests.fixtures.record_batches import NOW_MS, one_batch
from wire.crc import crc32c
from wire.kernels.batches import read_batches

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/file-format-v1.silt"
GOLDEN_MERGED = ROOT / "tests/golden/file-format-v1-merged.silt"
PAGE = ROOT / "docs/file-format.md"

i64 = st.integers(-(2**63), 2**63 - 1)
kinds_of_bytes = st.sampled_from([bytes, bytearray, memoryview])


def with_known_crcs(source: ExtentSource) -> st.SearchStrategy[ExtentSource]:
    """The same file with the CRCs of some chunks passed in."""
    crcs = st.tuples(*(st.sampled_from([None, crc32c(chunk)]) for chunk in source.chunks))
    return crcs.map(lambda known: source._replace(chunk_crcs=known))


extents = st.builds(
    ExtentSource,
    topic_id=st.uuids(),
    partition=st.integers(-(2**31), 2**31 - 1),
    chunks=st.lists(st.builds(lambda kind, body: kind(body), kinds_of_bytes, st.binary(max_size=50)), max_size=4),
    record_count=st.integers(0, 2**64 - 1),
    min_timestamp_ms=i64,
    max_timestamp_ms=i64,
    base_offset=i64,
    last_offset=i64,
    chunk_crcs=st.just(()),
).flatmap(lambda source: st.just(source) | with_known_crcs(source))


def an_extent(body: bytes = b"extent", *, number: int = 0) -> ExtentSource:
    return ExtentSource(
        topic_id=uuid.UUID(int=number + 1),
        partition=number,
        chunks=[body],
        record_count=1,
        min_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
    )


def with_trailer(data: bytes, index: bytes, *, version: int = 1, flags: int = 0) -> bytes:
    """A file with any index, sealed as if the index were correct."""
    start = struct.pack(">QQIHH4x", len(data), len(index), crc32c(index), version, flags)
    return data + index + start + struct.pack(">I8s", crc32c(start), MAGIC)


@given(sources=st.lists(extents, max_size=6), level=st.integers(0, 255), created_ms=i64)
def test_what_was_built_is_read_back(sources: list[ExtentSource], level: int, created_ms: int) -> None:
    file = build_file(sources, level=level, created_ms=created_ms)
    index = read_file(file.body)
    extents_bytes = b"".join(chunk for source in sources for chunk in source.chunks)
    footer = encode_footer(
        index.extents, level=level, created_ms=created_ms, index_position=len(extents_bytes), sections=()
    )
    assert file.body == extents_bytes + footer
    assert (index.level, index.created_ms, index.sections) == (level, created_ms, ())
    assert file.crc32c == crc32c(file.body)
    assert file.positions == tuple(row.position for row in index.extents)
    for source, row in zip(sources, index.extents, strict=True):
        body = b"".join(source.chunks)
        assert file.body[row.position : row.position + row.length] == body
        assert row == ExtentRow(
            source.topic_id,
            source.partition,
            row.position,
            len(body),
            source.base_offset,
            source.last_offset,
            source.record_count,
            source.min_timestamp_ms,
            source.max_timestamp_ms,
            crc32c(body),
        )


@given(sources=st.lists(extents, max_size=3), data=st.data())
def test_one_changed_bit_of_index_or_trailer_is_refused(sources: list[ExtentSource], data: st.DataObject) -> None:
    body = bytearray(build_file(sources, level=0, created_ms=NOW_MS).body)
    start = read_trailer(body, len(body)).index_position
    bit = data.draw(st.integers(start * 8, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFileError):
        read_file(body)


@given(cut=st.integers(0, 400), more=st.binary(max_size=60))
def test_a_file_that_was_cut_or_grew_is_refused(cut: int, more: bytes) -> None:
    body = build_file([an_extent(), an_extent(number=1)], level=0, created_ms=NOW_MS).body
    changed = body[: min(cut, len(body) - 1)] + more
    with pytest.raises(CorruptFileError):
        read_file(changed if changed != body else changed + b"x")


@given(junk=st.binary(max_size=300))
def test_junk_with_a_valid_seal_raises_nothing_but_corrupt_file(junk: bytes) -> None:
    try:
        read_file(with_trailer(b"data", junk))
    except CorruptFileError as error:
        assert str(error)


def test_sections_are_read_and_unknown_ones_skipped() -> None:
    sections = [Section(1, 0, crc32c(b"abc"), 6, 3), Section(999, 0, crc32c(b""), 9, 0)]
    row = ExtentRow(uuid.UUID(int=1), 0, 0, 6, 5, 9, 5, 1, 2, crc32c(b"extent"), 3, 6)
    footer = encode_footer([row], level=1, created_ms=NOW_MS, index_position=9, sections=sections)
    index = read_file(b"extentabc" + footer)
    assert index.sections == tuple(sections)
    assert index.extents == (row,)


def test_an_unknown_section_that_is_required_is_refused() -> None:
    footer = encode_footer(
        [], level=1, created_ms=NOW_MS, index_position=3, sections=[Section(999, SECTION_REQUIRED, 0, 0, 3)]
    )
    with pytest.raises(CorruptFileError, match="kind 999"):
        read_file(b"abc" + footer)


def test_fields_that_a_later_release_added_are_stepped_over() -> None:
    # given: a header, section entries and rows longer than this release knows them
    row = struct.pack(">16siIQQqqQqqIIQ", uuid.UUID(int=7).bytes, 3, 0, 0, 4, 10, 11, 2, 5, 6, crc32c(b"data"), 0, 0)
    section = struct.pack(">HHIQQ8x", 12, 0, 0, 0, 4)
    header = struct.pack(
        ">HHHBxIIq8x", INDEX_HEADER_BYTES + 8, SECTION_ENTRY_BYTES + 16, ROW_BYTES + 8, 2, 1, 1, NOW_MS
    )
    file = with_trailer(b"data", header + b"8 later " + section + b"s" * 16 + row + b"r" * 8)
    # when
    index = read_file(file)
    # then
    assert index.level == 2
    assert index.sections == (Section(12, 0, 0, 0, 4),)
    assert index.extents == (ExtentRow(uuid.UUID(int=7), 3, 0, 4, 10, 11, 2, 5, 6, crc32c(b"data")),)


@pytest.mark.parametrize(
    ("position", "length", "said"), [(0, 5, "extent 0"), (2**63, 2**63, "extent 0"), (5, 0, "extent 0")]
)
def test_an_extent_outside_the_data_is_refused(position: int, length: int, said: str) -> None:
    row = ExtentRow(uuid.UUID(int=1), 0, position, length, -1, -1, 1, 0, 0, 0)
    footer = encode_footer([row], level=0, created_ms=0, index_position=4)
    with pytest.raises(CorruptFileError, match=said):
        read_file(b"data" + footer)


def test_extents_that_overlap_are_refused() -> None:
    rows = [ExtentRow(uuid.UUID(int=1), n, n * 2, 3, -1, -1, 1, 0, 0, 0) for n in range(2)]
    with pytest.raises(CorruptFileError, match="extent 1"):
        read_file(b"abcdef" + encode_footer(rows, level=0, created_ms=0, index_position=6))


@pytest.mark.parametrize(("version", "flags"), [(0, 0), (2, 0), (1, 1)])
def test_another_version_and_unknown_flags_are_refused_with_a_remedy(version: int, flags: int) -> None:
    index = struct.pack(">HHHBxIIq8x", INDEX_HEADER_BYTES, SECTION_ENTRY_BYTES, ROW_BYTES, 0, 0, 0, 0)
    with pytest.raises(CorruptFileError, match="release") as caught:
        read_file(with_trailer(b"", index, version=version, flags=flags))
    assert caught.value.remedy


def test_what_is_wrong_is_named() -> None:
    body = build_file([an_extent()], level=0, created_ms=NOW_MS).body
    trailer = read_trailer(body, len(body))
    index = body[trailer.index_position : -TRAILER_BYTES]
    with pytest.raises(CorruptFileError, match="trailer"):
        read_trailer(b"short", 5)
    with pytest.raises(CorruptFileError, match="magic"):
        read_trailer(body[:-1] + b"?", len(body))
    with pytest.raises(CorruptFileError, match=f"this one has {len(body) + 1}"):
        read_trailer(body, len(body) + 1)
    with pytest.raises(CorruptFileError, match="at hand"):
        read_index(index[:-1], trailer)
    with pytest.raises(CorruptFileError, match="CRC-32C"):
        read_index(bytes([index[0] ^ 1]) + index[1:], trailer)


@pytest.mark.parametrize("field", ["partition", "record_count", "min_timestamp_ms"])
def test_a_value_that_fits_no_field_is_a_value_error(field: str) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        build_file([an_extent()._replace(**{field: 2**64})], level=0, created_ms=0)


def golden_file() -> bytes:
    topic = uuid.UUID("0194f1a2-7c3d-4e5f-8a9b-0c1d2e3f4a5b")
    batch = one_batch(1)
    sources = [
        ExtentSource(
            topic_id=topic,
            partition=partition,
            chunks=chunks,
            record_count=len(chunks),
            min_timestamp_ms=NOW_MS,
            max_timestamp_ms=NOW_MS,
        )
        for partition, chunks in ((0, [batch]), (7, [batch, batch]))
    ]
    return build_file(sources, level=0, created_ms=NOW_MS + 250).body


def test_the_golden_file_of_version_1_is_written_and_read_as_ever() -> None:
    stored = GOLDEN.read_bytes()
    assert golden_file() == stored
    index = read_file(stored)
    assert [(row.partition, row.record_count) for row in index.extents] == [(0, 1), (7, 2)]
    assert index.created_ms == NOW_MS + 250


async def merged_golden_file() -> bytes:
    """An L1 file with two batches, one extent without batches for its offsets, and one flagged extent."""
    topic = uuid.UUID("0194f1a2-7c3d-4e5f-8a9b-0c1d2e3f4a5b")
    store = MemoryStore()
    writer = FileWriter(store, "l1/golden", level=1, created_ms=NOW_MS + 250)
    data = stamped(one_batch(1), 100) + stamped(one_batch(1), 101)
    writer.start_extent(topic, 0)
    await writer.write(data, read_batches(data))
    writer.end_extent(100, 104, flags=EXTENT_MAY_HAVE_TOMBSTONES)
    writer.start_extent(topic, 0)
    writer.end_extent(105, 109)
    writer.start_extent(topic, 7)
    await writer.write_verbatim(b"what cannot be read")
    flags = EXTENT_FLAGGED | EXTENT_MAY_HAVE_TOMBSTONES
    writer.end_extent(0, 2, flags=flags, record_count=3, min_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS)
    properties = FileProperties(
        job_id=42,
        kind="merge",
        epoch=1,
        level=1,
        file_class="compacted",
        inputs=((17, "l1/46/2023111422/7-3-018bcfe5-68fa-7abc-8def-0123456789ab.silt"),),
        topics={topic: TopicProperty(name="orders", config_version=3)},
        created_ms=NOW_MS + 250,
        flagged={2: "its bytes have CRC-32C 00000001, the metadata says 00000002"},
    )
    written = await writer.finish(properties)
    return await store.get(written.key)


async def test_the_golden_merged_file_of_version_1_is_written_and_read_as_ever() -> None:
    stored = GOLDEN_MERGED.read_bytes()
    assert await merged_golden_file() == stored
    index = read_file(stored)
    assert [(row.base_offset, row.last_offset, row.flags) for row in index.extents] == [
        (100, 104, 1),
        (105, 109, 0),
        (0, 2, 3),
    ]
    row = index.extents[0]
    block_index = stored[row.block_index_position : row.block_index_position + row.block_index_length]
    assert decode_block_index(block_index, extent_length=row.length) == [BlockEntry(100, NOW_MS, 0)]
    blocks, properties = index.sections
    assert (blocks.kind, blocks.position, blocks.length) == (1, row.block_index_position, row.block_index_length)
    decoded = decode_properties(stored[properties.position : properties.position + properties.length])
    assert (properties.kind, decoded.job_id, list(decoded.flagged)) == (2, 42, [2])


def test_the_hex_dumps_in_the_specification_are_the_golden_files() -> None:
    dumps = [
        bytes.fromhex("".join(re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?){1,16})", block, re.MULTILINE)))
        for block in PAGE.read_text().split("```")[1::2]
    ]
    assert [dump for dump in dumps if dump] == [GOLDEN.read_bytes(), GOLDEN_MERGED.read_bytes()]
