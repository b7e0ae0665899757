"""The earliest deadline of an erasure, and when its merges begin."""

from __future__ import annotations

from compactor.planning.erasure_times import begin_after_ms, earliest_ms, time_parts
from compactor.planning.spec import MIB, PlanOptions

OPTIONS = PlanOptions(job_limit_base_ms=1_000, job_limit_ms_per_mib=10, output_bytes=100 * MIB, grace_ms=5_000)
LIMIT_MS = 2_000


def test_without_tombstones_files_are_merged_rewritten_once_and_deleted() -> None:
    parts = time_parts(OPTIONS, wait_ms=0, rest_ms=None)
    assert earliest_ms(parts) == OPTIONS.l0_wait_ms_max + 2 * LIMIT_MS + 5_000 + 60_000 + 10_000
    assert "min.compaction.lag.ms" not in [each.what for each in parts]


def test_with_tombstones_files_are_rewritten_twice_with_a_rest_between() -> None:
    without = earliest_ms(time_parts(OPTIONS, wait_ms=7_000, rest_ms=None))
    assert earliest_ms(time_parts(OPTIONS, wait_ms=7_000, rest_ms=86_400_000)) == without + LIMIT_MS + 86_400_000
    # a rest of nothing is still a second stage
    assert earliest_ms(time_parts(OPTIONS, wait_ms=7_000, rest_ms=0)) == without + LIMIT_MS


def test_merges_begin_after_half_of_the_time_to_spare() -> None:
    parts = time_parts(OPTIONS, wait_ms=0, rest_ms=None)
    assert begin_after_ms(earliest_ms(parts) + 1_000, parts) == 500
    assert begin_after_ms(earliest_ms(parts) - 1, parts) == 0
