"""The rows of some partitions, read from a packed index of many."""

from __future__ import annotations

import pytest

from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import L0FileRow, partition_snapshots
from metadata.contract.topics import Watermarks
from metadata.rules.packed_index import IndexRow, PackedIndexError, decode_index, encode_index, rows_of

NUMBERS = (0, 1, 255, 256, 65_536, 2**31 - 1)
ROWS = [IndexRow(id_, id_, id_ + n, n, n + 1, -1, 2**40) for n in range(3) for id_ in NUMBERS]


@pytest.mark.parametrize("wanted", [(), (2,), (0,), (256, 1), (2**31 - 1, 3), NUMBERS])
def test_rows_of_the_partitions_alone_in_their_order(wanted: tuple[int, ...]) -> None:
    found = rows_of(encode_index(ROWS), frozenset(wanted))

    expected = [row for row in ROWS if row.partition_id in wanted]
    assert (decode_index(found) if found else []) == expected
    assert bool(found) == bool(expected)


def test_an_index_without_rows_holds_nothing_and_bytes_that_are_none_are_refused() -> None:
    assert rows_of(encode_index([]), frozenset({1})) == b""
    for wrong in (b"", encode_index(ROWS)[:-1], b"\x02" + encode_index(ROWS)[1:]):
        with pytest.raises(PackedIndexError):
            rows_of(wrong, frozenset({1}))


def test_a_snapshot_decodes_no_row_of_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    # given files of a thousand rows each, one file in ten with a row of the partition
    decoded: list[int] = []
    real = IndexRow._make
    monkeypatch.setattr(IndexRow, "_make", lambda values: decoded.append(1) or real(values))
    other = encode_index([IndexRow(id_, 0, 9, 0, 1, 0, 0) for id_ in range(10, 1_010)])
    files = [
        L0FileRow(n, f"k{n}", 9, 0, encode_index([IndexRow(7, n, n, 0, 1, 0, 0)]) + other[1:] if n % 10 == 0 else other)
        for n in range(100)
    ]
    none: list[LeveledExtent] = []
    marks = Watermarks(partition_id=7, log_start_offset=20, last_stable_offset=100, high_watermark=100)

    (part,) = partition_snapshots([marks], files, none)

    assert [each.base_offset for each in part.l0] == [20, 30, 40, 50, 60, 70, 80, 90]
    assert len(decoded) == 10
