"""The clean, dirty and uncleanable ranges of a compacted partition, and the time when a pass over it is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compactor.planning.dirtiness import due, due_reason, measure, stretch_end, unbroken_stretch
from compactor.planning.spec import MIB, PlanOptions
from metadata.configs.topic import InvalidConfigError
from metadata.contract.compactors import PartitionView
from tests.fixtures.plan_views import a_partition, an_extent

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
OPTIONS = PlanOptions()


def three(**changes: Any) -> PartitionView:
    """[0, 100), [100, 200), [200, 300), 100 MiB each, an hour apart."""
    extents = [
        an_extent(
            number,
            number * 100,
            number * 100 + 99,
            1,
            length=100 * MIB,
            min_timestamp_ms=NOW_MS - (4 - number) * HOUR_MS,
            max_timestamp_ms=NOW_MS - (3 - number) * HOUR_MS,
        )
        for number in range(3)
    ]
    return a_partition(1, extents, **changes)


def configured(**configs: str) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}


def test_bytes_are_clean_below_cleaned_through_dirty_above_it_and_head_above_the_stable_offset() -> None:
    # given borders inside extents, at a quarter and at a half
    found = measure(three(cleaned_through_offset=125, last_stable_offset=250), now_ms=NOW_MS)
    # then an extent across a border counts by its share of offsets
    assert (found.clean_bytes, found.dirty_bytes, found.head_bytes) == (125 * MIB, 125 * MIB, 50 * MIB)
    assert found.ratio == 0.5
    assert not found.is_over_ratio  # strictly
    assert found.leveled_through_offset == 300


def test_an_empty_log_is_not_dirty() -> None:
    found = measure(a_partition(1, [], configs=configured(min_cleanable_dirty_ratio="0")), now_ms=NOW_MS)
    assert found.ratio == 0.0
    assert not found.is_over_ratio
    assert found.earliest_dirty_ms is None


def test_a_checkpoint_below_the_log_start_counts_as_the_log_start() -> None:
    # given records deleted up to 150
    found = measure(three(log_start_offset=150, cleaned_through_offset=20), now_ms=NOW_MS)
    # then the extent below it is gone, and the rest is dirty from 150 on
    assert found.cleaned_through_offset == 150
    assert (found.clean_bytes, found.dirty_bytes) == (50 * MIB, 150 * MIB)


@pytest.mark.parametrize(
    ("lag_ms", "stable", "expected", "by_lag"),
    [
        (0, 300, 300, False),
        (1, 300, 300, False),
        (HOUR_MS, 300, 300, False),  # the last extent is as old as the lag: old enough
        (HOUR_MS + 1, 300, 200, True),
        (2 * HOUR_MS + 1, 300, 100, True),
        (2 * HOUR_MS + 1, 60, 60, False),
        (4 * HOUR_MS, 300, 40, True),  # never below cleaned-through
    ],
)
def test_the_first_uncleanable_offset_is_the_least_of_its_bounds(
    lag_ms: int, stable: int, expected: int, by_lag: bool
) -> None:
    partition = three(
        cleaned_through_offset=40,
        last_stable_offset=stable,
        configs=configured(min_compaction_lag_ms=str(lag_ms)),
    )
    found = measure(partition, now_ms=NOW_MS)
    assert (found.first_uncleanable_offset, found.held_by_lag) == (expected, by_lag)


def test_a_young_extent_that_is_clean_already_holds_nothing_back() -> None:
    partition = three(cleaned_through_offset=100, configs=configured(min_compaction_lag_ms=str(HOUR_MS)))
    first, *others = partition.extents
    partition = replace(partition, extents=[first._replace(max_timestamp_ms=NOW_MS), *others])
    assert measure(partition, now_ms=NOW_MS).first_uncleanable_offset == 300


def test_the_earliest_dirty_time_is_of_extents_that_are_not_clean_and_know_one() -> None:
    partition = three(cleaned_through_offset=100)
    assert measure(partition, now_ms=NOW_MS).earliest_dirty_ms == NOW_MS - 3 * HOUR_MS
    emptied = [each._replace(min_timestamp_ms=-1, max_timestamp_ms=-1) for each in partition.extents]
    assert measure(replace(partition, extents=emptied), now_ms=NOW_MS).earliest_dirty_ms is None


def test_the_order_of_extents_does_not_matter() -> None:
    partition = three(cleaned_through_offset=125)
    turned = replace(partition, extents=partition.extents[::-1])
    assert measure(turned, now_ms=NOW_MS) == measure(partition, now_ms=NOW_MS)
    assert unbroken_stretch(turned) == unbroken_stretch(partition)


def test_a_stretch_ends_at_a_gap_and_at_what_is_blocked() -> None:
    partition = three()
    ends = [
        stretch_end(partition, unbroken_stretch(partition)),
        stretch_end(partition, unbroken_stretch(partition, blocked={2})),
        stretch_end(partition, unbroken_stretch(partition, blocked_files={1})),
        stretch_end(partition, unbroken_stretch(replace(partition, extents=partition.extents[::2]))),
        stretch_end(partition, unbroken_stretch(replace(partition, extents=partition.extents[1:]))),
    ]
    assert ends == [300, 200, 0, 100, 0]


def test_a_stretch_begins_at_the_extent_that_holds_the_log_start() -> None:
    partition = three(log_start_offset=150)
    assert [each.base_offset for each in unbroken_stretch(partition)] == [100, 200]


def test_a_config_that_cannot_be_read_is_told() -> None:
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms"):
        measure(three(configs=configured(min_compaction_lag_ms="soon")), now_ms=NOW_MS)


# ---- the due time

CLEAN: dict[str, Any] = {"cleaned_through_offset": 300, "last_cleaned_ms": NOW_MS - 1}
HALF: dict[str, Any] = {"cleaned_through_offset": 150, "last_cleaned_ms": NOW_MS - 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "dirty ratio 1.00 over 0.50, 300 MiB dirty"),
        (HALF, ""),
        (HALF | {"configs": configured(min_cleanable_dirty_ratio="0.49")}, "dirty ratio 0.50 over 0.49, 150 MiB dirty"),
        ({"last_forced_ms": NOW_MS - OPTIONS.forced_interval_ms + 1}, ""),
        ({"last_forced_ms": NOW_MS}, ""),
        ({"last_forced_ms": NOW_MS + 1}, "dirty ratio 1.00 over 0.50, 300 MiB dirty"),  # the clock went back
        ({"last_forced_ms": NOW_MS - OPTIONS.forced_interval_ms}, "dirty ratio 1.00 over 0.50, 300 MiB dirty"),
        (HALF | {"passes_needed": 2}, "its keys overflowed the dedupe buffer, 2 passes are needed"),
        (HALF | {"passes_needed": 2, "last_forced_ms": NOW_MS - 1}, ""),
        (CLEAN | {"passes_needed": 2}, ""),
        (HALF | {"configs": configured(max_compaction_lag_ms=str(3 * HOUR_MS - 1))}, "past max.compaction.lag.ms"),
        (HALF | {"configs": configured(max_compaction_lag_ms=str(3 * HOUR_MS))}, ""),
        (HALF | {"configs": configured(max_compaction_lag_ms="1"), "last_stable_offset": 150}, ""),
        (HALF | {"requested_through_offset": 300}, "compaction was asked for"),
        (HALF | {"requested_through_offset": 300, "last_forced_ms": NOW_MS - 1_000}, "compaction was asked for"),
        (HALF | {"requested_through_offset": 300, "last_forced_ms": NOW_MS - 999}, ""),
        (HALF | {"requested_through_offset": 300, "last_forced_ms": NOW_MS + 1}, "compaction was asked for"),
        (HALF | {"requested_through_offset": 300, "last_stable_offset": 150}, ""),
        (HALF | {"requested_through_offset": 400, "high_watermark": 400}, ""),  # from 300 on there is L0
        (CLEAN | {"requested_through_offset": 300}, "compaction was asked for"),
        (CLEAN | {"requested_through_offset": 300, "log_start_offset": 300}, ""),
    ],
)
def test_a_pass_is_due_when_a_rule_says_so_and_it_could_clean_something(changes: dict[str, Any], expected: str) -> None:
    partition = three(**changes)
    assert due_reason(partition, measure(partition, now_ms=NOW_MS), OPTIONS, now_ms=NOW_MS) == expected


def test_few_dirty_bytes_wait_for_an_hour_since_the_last_pass_or_since_they_were_written() -> None:
    options = replace(OPTIONS, forced_dirty_bytes_min=301 * MIB)
    for last_cleaned_ms, expected in [
        (NOW_MS - HOUR_MS, "dirty ratio 1.00 over 0.50 for 3600 s"),
        (NOW_MS - HOUR_MS + 1, ""),
        (NOW_MS + 1, "dirty ratio 1.00 over 0.50 for 3600 s"),
        (None, "dirty ratio 1.00 over 0.50 for 3600 s"),
    ]:
        partition = three(last_cleaned_ms=last_cleaned_ms)
        assert due_reason(partition, measure(partition, now_ms=NOW_MS), options, now_ms=NOW_MS) == expected


def test_bytes_behind_a_busy_extent_are_not_worth_a_pass_now() -> None:
    # given 300 MiB dirty, of which a pass reaches 100
    partition = three(last_cleaned_ms=NOW_MS - 1)
    options = replace(OPTIONS, forced_dirty_bytes_min=101 * MIB)
    found = measure(partition, now_ms=NOW_MS)
    assert due_reason(partition, found, options, now_ms=NOW_MS) != ""
    assert due_reason(partition, found, options, now_ms=NOW_MS, busy=frozenset({1})) == ""


def test_what_is_asked_for_goes_as_far_as_it_gets_but_not_over_and_over() -> None:
    # given a merge that holds [100, 200)
    lately = three(requested_through_offset=300, last_forced_ms=NOW_MS - OPTIONS.forced_interval_ms + 1)
    long_ago = replace(lately, last_forced_ms=NOW_MS - OPTIONS.forced_interval_ms)
    found = measure(lately, now_ms=NOW_MS)
    assert due(lately, found, OPTIONS, now_ms=NOW_MS, reached_offset=100) is None
    partial = due(long_ago, found, OPTIONS, now_ms=NOW_MS, reached_offset=100)
    assert partial is not None
    assert partial.requested
    assert "up to offset 100" in partial.because
