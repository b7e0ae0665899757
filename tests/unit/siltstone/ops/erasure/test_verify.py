"""Keys in the bytes of an extent, however they are cut; records with and without offsets."""

from __future__ import annotations

import uuid

import pytest

from metadata.erasures.contract import KeyMark
from siltstone.ops.erasure.request import hash_of
from siltstone.ops.erasure.verify import NO_OFFSET, ExtentKeys, KeySearch, MarkSearch
from storage.format.file_format import ExtentRow
from wire.batch import CorruptBatchError, stamp_offset
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

TOPIC = uuid.UUID(int=1)


def batch(*keys: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    return build_batch([NewRecord(1_000, key, None if key == b"gone" else b"v") for key in keys], codec=codec)


def stamped(batch: bytes, offset: int) -> bytes:
    stamp = stamp_offset(memoryview(batch), offset)
    return stamp + batch[len(stamp) :]


def row(body: bytes, base_offset: int) -> ExtentRow:
    return ExtentRow(TOPIC, 3, 100, len(body), base_offset, base_offset, 0, 0, 0, 0)


def test_the_keys_of_an_extent_are_found_however_its_bytes_arrive() -> None:
    body = stamped(batch(b"a", None, b"gone"), 7) + stamped(batch(b"b", codec=Codec.ZSTD), 20)
    expected = [(7, b"a", False), (9, b"gone", True), (20, b"b", False)]
    for size in (1, 60, 61, 100, len(body)):
        keys = ExtentKeys(row(body, 7), {})
        found = [each for at in range(0, len(body), size) for each in keys.feed(body[at : at + size])]
        keys.finish()
        assert found == expected, size


def test_records_of_l0_have_the_offsets_of_the_commit_and_refused_batches_none() -> None:
    first, refused, second = batch(b"a", b"b"), batch(b"x"), batch(b"c")
    body = first + refused + second + second
    after = 100 + len(first) + len(refused)
    starts = {100: (100 + len(first), 40), after: (after + 2 * len(second), 42)}
    keys = ExtentKeys(row(body, NO_OFFSET), starts)
    assert [each[:2] for each in keys.feed(body)] == [
        (40, b"a"),
        (41, b"b"),
        (NO_OFFSET, b"x"),
        (42, b"c"),
        (43, b"c"),
    ]


def test_a_cut_or_changed_batch_is_an_error_and_not_an_absent_key() -> None:
    body = stamped(batch(b"a"), 7)
    cut = ExtentKeys(row(body, 7), {})
    assert list(cut.feed(body[:-1])) == []
    with pytest.raises(CorruptBatchError, match="ends inside"):
        cut.finish()
    changed = ExtentKeys(row(body, 7), {})
    with pytest.raises(CorruptBatchError, match="CRC-32C"):
        list(changed.feed(body[:-1] + b"\xff"))
    other = ExtentKeys(row(body, 7), {})
    with pytest.raises(CorruptBatchError):
        list(other.feed(bytes(len(body))))


def test_a_search_by_marks_counts_records_below_the_mark_and_the_tombstone_at_it() -> None:
    search = MarkSearch({3: [KeyMark(hash_of(b"plain"), 5), KeyMark(hash_of(b"deleted"), 5, tombstone=True)]})
    assert [search.holds(3, offset, b"plain") for offset in (4, 5)] == [True, False]
    assert [search.holds(3, offset, b"deleted") for offset in (5, 6)] == [True, False]
    assert not search.holds(2, 0, b"plain") and not search.holds(3, 0, b"other")
    # an extent that begins behind all marks needs no reading
    assert [search.may_be_in(3, base) for base in (NO_OFFSET, 0, 5, 6)] == [True, True, True, False]
    assert not search.may_be_in(2, NO_OFFSET)
    # a record whose offset is not known may be one of them
    assert search.holds(3, NO_OFFSET, b"plain")


def test_a_search_by_keys_counts_every_record() -> None:
    search = KeySearch([b"a"])
    assert search.holds(9, 1 << 40, b"a") and not search.holds(9, 0, b"b")
    assert search.may_be_in(9, 1 << 40)
