"""Slices of a scan: their bounds, their stored form, and the refused ones."""

from __future__ import annotations

import pickle
import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import L0Extent, PartitionSnapshot, TopicSnapshot
from metadata.contract.topics import Topic
from spark_jobs.scan.contract import (
    COLUMNS,
    EARLIEST,
    LATEST,
    SCHEMA,
    BadScanError,
    DataLossError,
    OffsetOutOfRangeError,
    ScanOptions,
    Slice,
    SliceError,
    UnknownPartitionError,
    schema_of,
)
from spark_jobs.scan.plan import plan_slices

MIB = 1 << 20


def merged(base: int, last: int, length: int) -> LeveledExtent:
    return LeveledExtent(
        1, 7, base, last, 3, "l1/aa/x.silt", 1, length, 0, length, 0, 0, last - base + 1, 9, 1, 2, False, None
    )


def l0(base: int, last: int, length: int) -> L0Extent:
    return L0Extent(7, base, last, 4, "l0/aa/y.silt", length, 0, 0, length, 1, 2)


def topic(*parts: PartitionSnapshot) -> TopicSnapshot:
    made = Topic(topic_id=uuid.UUID(int=1), name="flights", partition_ids=(7,) * len(parts), configs={}, created_ms=0)
    return TopicSnapshot(topic=made, taken_ms=0, partitions=parts)


def partition(*, start: int = 0, end: int = 300, stable: int | None = None, number: int = 0) -> PartitionSnapshot:
    """L1 with 0 to 99 and 100 to 199 (10 MiB each), L0 with 200 to 299 (2 MiB)."""
    return PartitionSnapshot(
        partition=number,
        partition_id=7,
        log_start_offset=start,
        last_stable_offset=end if stable is None else stable,
        high_watermark=end,
        extents=[merged(0, 99, 10 * MIB), merged(100, 199, 10 * MIB)],
        l0=[l0(200, 299, 2 * MIB)],
        aborted=[(5, 10, 20), (5, 150, 160)],
    )


def options(**more: Any) -> ScanOptions:
    return ScanOptions(topic="flights", **more)


def spans(slices: tuple[Slice, ...]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in slices]


@pytest.mark.parametrize(
    ("slice_bytes", "expected"),
    [
        (100 * MIB, [(0, 300)]),
        (10 * MIB, [(0, 100), (100, 200), (200, 300)]),
        (5 * MIB, [(0, 50), (50, 100), (100, 150), (150, 200), (200, 300)]),
        (12 * MIB, [(0, 100), (100, 300)]),
    ],
)
def test_slices_join_small_extents_and_cut_large_ones_but_never_l0(
    slice_bytes: int, expected: list[tuple[int, int]]
) -> None:
    assert spans(plan_slices(topic(partition()), options(), slice_bytes=slice_bytes)) == expected


def test_a_partition_of_a_hundred_thousand_extents_is_cut_into_ten_thousand_slices() -> None:
    extents = [merged(10 * number, 10 * number + 9, MIB) for number in range(100_000)]
    large = replace(partition(end=1_000_000), extents=extents, l0=[])

    slices = plan_slices(topic(large), options(), slice_bytes=10 * MIB)

    assert spans(slices) == [(at, at + 100) for at in range(0, 1_000_000, 100)]
    for number in (0, 1, 4_321, 9_999):
        assert [piece.base_offset for piece in slices[number].pieces] == list(
            range(100 * number, 100 * number + 100, 10)
        )


def test_a_part_of_a_slice_has_the_pieces_that_reach_into_it() -> None:
    extents = [merged(0, 9, MIB), merged(20, 29, MIB), merged(30, 49, 0)]
    (whole,) = plan_slices(topic(replace(partition(end=60), extents=extents, l0=[l0(50, 59, 9)])), options())
    for start in range(60):
        for end in range(start + 1, 61):
            expected = [each for each in whole.pieces if each.base_offset < end and each.last_offset >= start]
            assert list(whole.of(start, end).pieces) == expected


def test_a_slice_names_its_extents_and_the_aborted_transactions_that_reach_into_it() -> None:
    first, second = plan_slices(topic(partition()), options(starting={0: 30}, ending={0: 200}), slice_bytes=10 * MIB)

    assert [(piece.base_offset, piece.last_offset) for piece in first.pieces] == [(0, 99)]
    assert (first.start, first.end, second.end) == (30, 100, 200)
    assert (first.aborted, second.aborted) == ((), ((5, 150, 160),))
    (dirty,) = plan_slices(topic(partition()), options(isolation="read_uncommitted"))
    assert dirty.aborted == ()


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (15, 300, {(5, 10, 20), (5, 150, 160)}),
        (20, 155, {(5, 150, 160)}),
        (155, 157, {(5, 150, 160)}),
        (10, 11, {(5, 10, 20)}),
        (9, 10, set()),
        (160, 161, set()),
    ],
)
def test_an_aborted_transaction_that_only_reaches_into_a_slice_is_named(
    start: int, end: int, expected: set[tuple[int, int, int]]
) -> None:
    (part,) = plan_slices(topic(partition()), options(starting={0: start}, ending={0: end}), slice_bytes=100 * MIB)

    assert set(part.aborted) == expected


def test_slices_name_the_aborted_transactions_that_reach_into_them_and_no_others() -> None:
    # given transactions that overlap, in no order, some as long as many slices
    chance = random.Random(11)
    aborted: list[tuple[int, int, int]] = []
    for number in range(60):
        first = chance.randrange(190)
        aborted.append((number, first, first + 1 + min(chance.choice((3, 30, 150)), 298 - first)))
    whole = replace(partition(), aborted=aborted)
    for slice_bytes in (MIB // 2, 3 * MIB, 100 * MIB):
        slices = plan_slices(topic(whole), options(), slice_bytes=slice_bytes)
        for cut in slices:
            wanted = {one for one in aborted if one[1] < cut.end and one[2] > cut.start}
            assert set(cut.aborted) == wanted and len(cut.aborted) == len(wanted)
        assert len(slices) == 1 or sum(len(cut.aborted) for cut in slices) < len(slices) * len(aborted) / 2


def test_slices_travel_as_json_and_as_pickles() -> None:
    (part,) = plan_slices(topic(partition()), options())

    assert Slice.from_json(part.to_json()) == part == pickle.loads(pickle.dumps(part))
    for wrong in ("{}", "7", "", part.to_json().replace('"format":1', '"format":2')):
        with pytest.raises(SliceError):
            Slice.from_json(wrong)


def test_bounds_are_those_of_the_snapshot() -> None:
    one = topic(partition(start=40, stable=250), partition(number=1))

    assert spans(plan_slices(one, options())) == [(40, 250), (0, 300)]
    assert spans(plan_slices(one, options(isolation="read_uncommitted", partitions=(0,)))) == [(40, 300)]
    assert spans(plan_slices(one, options(starting=LATEST))) == []
    assert spans(plan_slices(one, options(ending=EARLIEST))) == []
    assert spans(plan_slices(one, options(starting={0: 260}, partitions=(0,)))) == []  # behind the stable offset
    assert spans(plan_slices(one, options(starting={1: 250}, ending={1: 260}))) == [(40, 250), (250, 260)]
    assert spans(plan_slices(one, options(view="latest"), slice_bytes=1)) == [(40, 250), (0, 300)]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"partitions": (0, 2)}, UnknownPartitionError, "no partition 2.*0 to 0"),
        ({"starting": {3: 1}}, UnknownPartitionError, "no partition 3"),
        ({"starting": {0: 301}}, OffsetOutOfRangeError, "301 lies above the end of partition 0.*which is 300"),
        ({"ending": {0: 251}}, OffsetOutOfRangeError, "251 lies above the end of partition 0.*which is 250"),
        ({"starting": {0: -1}}, OffsetOutOfRangeError, "negative"),
        ({"starting": {0: 39}}, DataLossError, "offset 39 of partition 0.*its log starts at 40"),
        ({"ending": {0: 39}}, DataLossError, "its log starts at 40"),
        ({"starting": {0: 90}, "ending": {0: 80}}, BadScanError, "from 90 up to 80"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(asked: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        plan_slices(topic(partition(start=40, stable=250)), options(**asked))


def test_what_is_gone_is_skipped_where_that_is_asked_for() -> None:
    one = topic(partition(start=40))

    assert spans(plan_slices(one, options(starting={0: 3}, fail_on_data_loss=False))) == [(40, 300)]
    assert spans(plan_slices(one, options(ending={0: 3}, fail_on_data_loss=False))) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"columns": ("key", "valeu")},
        {"columns": ()},
        {"columns": ("key", "key")},
        {"isolation": "dirty"},
        {"view": "first"},
        {"topic": ""},
        {"starting": LATEST, "ending": EARLIEST},
    ],
)
def test_options_that_mean_nothing_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(BadScanError):
        ScanOptions(**{"topic": "flights", **asked})


def test_the_schema_is_that_of_the_columns_in_their_order() -> None:
    assert schema_of(("value", "offset")).names == ["value", "offset"]
    assert schema_of() == SCHEMA
    assert tuple(SCHEMA.names) == COLUMNS
