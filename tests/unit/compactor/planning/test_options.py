"""From settings to the planner's numbers."""

from __future__ import annotations

import pytest

from compactor.planning.options import MergeMemory, job_memory_bytes, l0_job_bytes_max, merge_memory_bytes, plan_options
from compactor.planning.spec import GIB, MIB, PlanOptions
from runtime.settings.table import Settings

KEYS = Settings().dedupe_keys_max
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def test_default_settings_are_the_planner_s_own_numbers_but_for_the_size_of_an_l0_job() -> None:
    options, defaults = plan_options(Settings()), PlanOptions()
    differing = {name for name in PlanOptions.__slots__ if getattr(options, name) != getattr(defaults, name)}
    assert differing == {"l0_job_bytes_max", "l0_bytes_min"}


def test_every_number_of_the_planner_that_is_a_setting_follows_it() -> None:
    settings = Settings(
        compaction_l0_wait_max_ms=4,
        forced_interval_ms=7,
        forced_dirty_bytes_min=8,
        forced_dirty_wait_ms=9,
        retention_check_interval_ms=19,
        job_limit_base_ms=13,
        job_limit_ms_per_mib=14,
        compactor_jobs_max=15,
        compactor_l0_jobs_max=16,
        compactor_heavy_jobs_max=20,
        compaction_merge_bytes_max=65_536,
        gc_grace_ms=500_000,
        purge_deadline_ms=600_000,
    )
    options = plan_options(settings)
    assert (options.forced_interval_ms, options.l0_wait_ms_max) == (7, 4)
    assert (options.forced_dirty_bytes_min, options.forced_dirty_wait_ms) == (8, 9)
    assert options.retention_check_ms == 19
    assert (options.job_limit_base_ms, options.job_limit_ms_per_mib) == (13, 14)
    assert (options.jobs_max, options.l0_jobs_max) == (15, 16)
    assert options.heavy_jobs_max == 20
    assert (options.merge_bytes_max, options.grace_ms, options.purge_deadline_ms) == (65_536, 500_000, 600_000)


def test_a_setting_below_a_constant_bounds_it() -> None:
    options = plan_options(Settings(compaction_merge_bytes_max=65_536, compaction_l0_wait_max_ms=4))
    assert (options.output_bytes, options.l2_plain_bytes_max, options.l0_wait_ms) == (65_536, 65_536, 4)


@pytest.mark.parametrize(
    ("deadline_ms", "wait_ms", "expected_ms"),
    [
        (7 * DAY_MS, 60_000, 60_000),
        # what the deadline leaves beside the limit of a rewrite (5m16s) and the grace (15m)
        (2 * HOUR_MS, 10 * HOUR_MS, 2 * HOUR_MS - 316_000 - 900_000),
        (900_001, 60_000, 10_000),
    ],
)
def test_an_l0_file_is_leveled_in_time_for_the_purge_deadline(deadline_ms: int, wait_ms: int, expected_ms: int) -> None:
    settings = Settings(purge_deadline_ms=deadline_ms, compaction_l0_wait_max_ms=wait_ms)
    assert plan_options(settings).l0_wait_ms_max == expected_ms


def test_numbers_that_are_no_settings_come_from_the_base() -> None:
    options = plan_options(Settings(), PlanOptions(l1_runs_min=5, mostly_dead_fraction=0.1, forced_interval_ms=7))
    assert (options.l1_runs_min, options.mostly_dead_fraction) == (5, 0.1)
    assert options.forced_interval_ms == Settings().forced_interval_ms


@pytest.mark.parametrize("memory_bytes", [640 * MIB, 768 * MIB, 4 * GIB])
@pytest.mark.parametrize("keys_max", [1_000, KEYS])
def test_the_largest_l0_job_fits_beside_the_largest_other_merge(memory_bytes: int, keys_max: int) -> None:
    settings = Settings(compactor_memory_bytes=memory_bytes, dedupe_keys_max=keys_max)
    largest = l0_job_bytes_max(settings)
    both = job_memory_bytes("level", largest, keys_max) + job_memory_bytes("merge", 100 * GIB, keys_max)
    assert both <= memory_bytes
    assert job_memory_bytes("merge", 100 * GIB, keys_max) == merge_memory_bytes(keys_max)
    assert largest <= PlanOptions().l0_job_bytes_max


def test_a_small_merge_takes_little_memory() -> None:
    assert job_memory_bytes("merge", 1 * MIB, 1_000) < 8 * MIB


@pytest.mark.parametrize(("input_bytes", "reads_twice"), [(1 * MIB, False), (63 * MIB, False), (100 * GIB, True)])
def test_cursors_and_decompressed_records_stay_within_the_memory_of_the_merge(
    input_bytes: int, reads_twice: bool
) -> None:
    memory = MergeMemory(keys_max=0)
    shares = memory.shares(input_bytes, dedupes=True, reads_twice=reads_twice)
    passes = 2 if reads_twice else 1
    held = passes * shares.pass_bytes + shares.extra_bytes + shares.decompressed_bytes
    assert held <= memory.cursor_bytes
    held = passes * min(shares.pass_bytes, input_bytes) + shares.decompressed_bytes
    assert held + min(input_bytes, 64 * MIB) <= job_memory_bytes("merge", input_bytes, 0)


def test_a_merge_that_only_copies_gives_its_cursors_everything() -> None:
    memory = MergeMemory()
    assert memory.shares(GIB, dedupes=False, reads_twice=False).pass_bytes == memory.cursor_bytes
