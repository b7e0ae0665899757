from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.merging.ranges import joined_ranges
from compactor.merging.segments import EXTENTS_MAX, ExtentCutter, SegmentRule, ends_file, segment_rule
from compactor.planning.spec import GIB

DAY_MS = 86_400_000


def cuts(cutter: ExtentCutter, *batches: tuple[int, int]) -> list[int]:
    """The segments of batches of (size, timestamp)."""
    sizes, timestamps = np.array(batches, dtype=np.int64).reshape(-1, 2).T
    return cutter.cuts(sizes, timestamps)


def naive_cuts(rule: SegmentRule, batches: list[tuple[int, int]]) -> list[int]:
    """The rules, applied to one batch at a time."""
    found: list[int] = []
    total, first = 0, None
    for number, (size, timestamp_ms) in enumerate(batches):
        late = first is not None and rule.span_ms_max is not None and timestamp_ms - first > rule.span_ms_max
        if total and (total + size > rule.bytes_max or late):
            found.append(number)
            total, first = 0, None
        total += size
        if first is None and timestamp_ms >= 0:
            first = timestamp_ms
    return found


@given(
    batches=st.lists(st.tuples(st.integers(1, 50), st.integers(-1, 300)), max_size=200),
    bytes_max=st.integers(1, 400),
    span_ms_max=st.one_of(st.none(), st.integers(0, 200)),
    windows=st.lists(st.integers(0, 60), max_size=10),
)
def test_cuts_are_those_of_the_rules_however_batches_come_in_windows(
    batches: list[tuple[int, int]], bytes_max: int, span_ms_max: int | None, windows: list[int]
) -> None:
    rule = SegmentRule(bytes_max, span_ms_max)
    cutter = ExtentCutter(rule)
    found: list[int] = []
    done = 0
    for length in [*windows, len(batches)]:
        window = batches[done : done + length]
        found += [done + cut for cut in cuts(cutter, *window)]
        done += len(window)
    assert found == naive_cuts(rule, batches)


def test_a_batch_larger_than_a_segment_is_an_extent_of_its_own() -> None:
    assert cuts(ExtentCutter(SegmentRule(100, None)), (10, 0), (500, 0), (10, 0)) == [1, 2]


def test_an_old_batch_after_a_young_one_cuts_nothing() -> None:
    assert cuts(ExtentCutter(SegmentRule(1000, 10)), (1, 100), (1, 50), (1, 110), (1, 111)) == [3]


def test_batches_without_a_timestamp_are_no_measure() -> None:
    assert cuts(ExtentCutter(SegmentRule(1000, 10)), (1, -1), (1, -1), (1, 500), (1, 505), (1, 511)) == [4]


def test_an_extent_that_begins_for_another_reason_begins_to_count_anew() -> None:
    cutter = ExtentCutter(SegmentRule(10, 10))
    assert cuts(cutter, (9, 0)) == []
    cutter.start()
    assert cuts(cutter, (9, 100), (1, 100), (1, 100)) == [2]


@pytest.mark.parametrize(
    ("configs", "rule"),
    [
        ({}, SegmentRule(GIB, 604_800_000 // 8)),
        ({"segment.bytes": "5000000"}, SegmentRule(5_000_000, 604_800_000 // 8)),
        ({"segment.ms": str(DAY_MS // 2)}, SegmentRule(GIB, DAY_MS // 2)),
        ({"retention.ms": "-1"}, SegmentRule(GIB, 604_800_000)),
        ({"retention.ms": "8000"}, SegmentRule(GIB, 1000)),
        ({"retention.ms": "8000", "cleanup.policy": "compact"}, SegmentRule(GIB, 604_800_000)),
        ({"retention.ms": "8000", "cleanup.policy": "compact,delete"}, SegmentRule(GIB, 1000)),
        ({"segment.bytes": str(2**31 - 1)}, SegmentRule(GIB, 604_800_000 // 8)),
    ],
)
def test_the_rule_follows_the_topics_configs(configs: dict[str, str], rule: SegmentRule) -> None:
    assert segment_rule(configs, output_bytes=GIB) == rule


@pytest.mark.parametrize(
    ("file_bytes", "next_bytes", "ends"),
    [
        (0, 5000, False),
        (400, 500, False),
        (900, 90, False),
        (900, 150, False),  # 1050 is nearer to 1000 than 900
        (900, 250, True),
        (1000, 1, True),
        (10, 5000, True),
    ],
)
def test_a_file_ends_where_its_size_is_nearest_to_what_is_wanted(file_bytes: int, next_bytes: int, ends: bool) -> None:
    extents = 1 if file_bytes else 0
    assert ends_file(file_bytes=file_bytes, file_extents=extents, next_bytes=next_bytes, output_bytes=1000) is ends


def test_a_file_has_a_bounded_number_of_extents() -> None:
    assert ends_file(file_bytes=1, file_extents=EXTENTS_MAX, next_bytes=1, output_bytes=GIB)


def test_ranges_that_touch_are_joined() -> None:
    assert joined_ranges([(0, 4), (5, 5), (7, 9), (10, 12)]) == [(0, 5), (7, 12)]
    assert joined_ranges([]) == []
