"""The records of a file's extents, and the offsets that an L0 file's packed index gives them."""

from __future__ import annotations

import uuid

from metadata.rules.packed_index import IndexRow
from siltstone.ops.file_records import NO_OFFSET, extent_records
from storage.format.file_format import ExtentRow
from wire.batch import stamp_offset
from wire.records import NewRecord, build_batch

TOPIC = uuid.UUID(int=1)


def batch(*values: bytes) -> bytes:
    return build_batch([NewRecord(1_000 + at, b"k", value) for at, value in enumerate(values)])


def row(body: bytes, *, base_offset: int = -1, position: int = 100) -> ExtentRow:
    return ExtentRow(TOPIC, 3, position, len(body), base_offset, base_offset, 0, 0, 0, 0)


def test_batches_of_l0_have_the_offsets_that_the_commit_gave_and_refused_ones_have_none() -> None:
    first, refused, second, third = batch(b"a", b"b"), batch(b"x"), batch(b"c"), batch(b"d")
    body = first + refused + second + third
    after = 100 + len(first) + len(refused)
    stretches = [
        IndexRow(7, 40, 41, 100, len(first), 0, 0),
        IndexRow(7, 42, 43, after, len(second) + len(third), 0, 0),
    ]
    found = list(extent_records(body, row(body), "orders", stretches))
    assert [(each.offset, each.value) for each in found] == [
        (40, b"a"),
        (41, b"b"),
        (NO_OFFSET, b"x"),
        (42, b"c"),
        (43, b"d"),
    ]
    assert {(each.topic, each.partition, each.key) for each in found} == {("orders", 3, b"k")}
    assert [each.timestamp_ms for each in found] == [1_000, 1_001, 1_000, 1_000, 1_000]


def test_without_the_index_no_offset_of_l0_is_known() -> None:
    body = batch(b"a", b"b")
    assert [each.offset for each in extent_records(body, row(body), "t", None)] == [NO_OFFSET, NO_OFFSET]


def test_merged_batches_carry_their_offsets() -> None:
    plain = batch(b"a", b"b")
    stamp = stamp_offset(memoryview(plain), 7)
    body = stamp + plain[len(stamp) :]
    assert [each.offset for each in extent_records(body, row(body, base_offset=7), "t", None)] == [7, 8]
