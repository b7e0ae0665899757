"""The age at which records can be cleaned, and the age at which retention removes them."""

from __future__ import annotations

import pytest

from metadata.rules.retention import AgedExtent, cleanable_through, expired_extents, expiry_ms, retention_policy

NOW_MS = 1_700_000_000_000
LAG_MS = 60_000


@pytest.mark.parametrize(("age_ms", "through"), [(LAG_MS + 1, 30), (LAG_MS, 30), (LAG_MS - 1, 10)])
def test_records_may_be_cleaned_when_they_are_as_old_as_the_compaction_lag(age_ms: int, through: int) -> None:
    stretches = [(0, NOW_MS - 2 * LAG_MS), (10, NOW_MS - age_ms), (20, NOW_MS - 2 * LAG_MS)]
    assert cleanable_through(stretches, end_offset=30, min_lag_ms=LAG_MS, now_ms=NOW_MS) == through


@pytest.mark.parametrize(("log_start", "taken"), [(0, [1, 2]), (5, [1, 2]), (9, [1, 2]), (10, [2])])
def test_retention_begins_at_the_extent_that_holds_the_log_start(log_start: int, taken: list[int]) -> None:
    # given extents of which those below the log start are dead
    extents = [AgedExtent(number + 1, number * 10, number * 10 + 9, 100, 0) for number in range(2)]
    extents = [each for each in extents if each.last_offset >= log_start]
    policy = retention_policy({"retention.ms": "1"})
    expired = expired_extents(extents, policy, held_bytes=200, log_start_offset=log_start, now_ms=NOW_MS)
    assert [each.extent_id for each in expired] == taken


@pytest.mark.parametrize(("age_ms", "taken"), [(LAG_MS + 1, [1]), (LAG_MS, []), (LAG_MS - 1, [])])
def test_records_as_old_as_the_retention_stay_and_older_ones_go(age_ms: int, taken: list[int]) -> None:
    extents = [AgedExtent(1, 0, 9, 100, NOW_MS - age_ms)]
    policy = retention_policy({"retention.ms": str(LAG_MS)})
    expired = expired_extents(extents, policy, held_bytes=100, log_start_offset=0, now_ms=NOW_MS)
    assert [each.extent_id for each in expired] == taken


def test_no_sum_of_times_leaves_64_bits() -> None:
    assert 2**62 < (expiry_ms([(2**63 - 1, 2**63 - 1)]) or 0) < 2**63
