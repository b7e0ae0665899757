"""From settings to the planner's numbers."""

from __future__ import annotations

import pytest

from compactor.planning.options import job_memory_bytes, l0_job_bytes_max, merge_memory_bytes, plan_options
from compactor.planning.spec import GIB, MIB, PlanOptions
from runtime.settings.table import Settings

KEYS = Settings().dedupe_keys_max


def test_default_settings_are_the_planner_s_own_numbers_but_for_the_size_of_an_l0_job() -> None:
    options, defaults = plan_options(Settings()), PlanOptions()
    differing = {name for name in PlanOptions.__slots__ if getattr(options, name) != getattr(defaults, name)}
    assert differing == {"l0_job_bytes_max", "l0_bytes_min"}


def test_every_number_of_the_planner_that_is_a_setting_follows_it() -> None:
    settings = Settings(
        compaction_l0_files_min=2,
        compaction_l0_bytes_min=1,
        compaction_l0_wait_ms=3,
        compaction_l0_wait_max_ms=4,
        compaction_l1_runs_min=5,
        compaction_l2_runs_min=6,
        forced_interval_ms=7,
        forced_dirty_bytes_min=8,
        forced_dirty_wait_ms=9,
        compaction_dead_percent=10,
        compaction_dead_bytes_min=11,
        compaction_expiry_margin_ms=12,
        retention_check_interval_ms=19,
        job_limit_base_ms=13,
        job_limit_ms_per_mib=14,
        compactor_jobs_max=15,
        compactor_l0_jobs_max=16,
        compactor_heavy_jobs_max=20,
        compaction_daily_interval_ms=17,
        compaction_output_bytes=65_536,
        gc_grace_ms=500_000,
        purge_deadline_ms=600_000,
    )
    options = plan_options(settings)
    assert (options.l0_files_min, options.l0_bytes_min, options.l0_wait_ms, options.l0_wait_ms_max) == (2, 1, 3, 4)
    assert (options.l1_runs_min, options.l2_runs_min, options.forced_interval_ms) == (5, 6, 7)
    assert (options.forced_dirty_bytes_min, options.forced_dirty_wait_ms) == (8, 9)
    assert (options.mostly_dead_fraction, options.mostly_dead_bytes_min) == (0.1, 11)
    assert (options.expiry_margin_ms, options.retention_late_ms) == (12, 3 * 19)
    assert (options.job_limit_base_ms, options.job_limit_ms_per_mib) == (13, 14)
    assert (options.jobs_max, options.l0_jobs_max, options.daily_interval_ms) == (15, 16, 17)
    assert options.heavy_jobs_max == 20
    assert (options.output_bytes, options.grace_ms, options.purge_deadline_ms) == (65_536, 500_000, 600_000)


@pytest.mark.parametrize("memory_bytes", [640 * MIB, 768 * MIB, 4 * GIB])
@pytest.mark.parametrize("keys_max", [1_000, KEYS])
def test_the_largest_l0_job_fits_beside_the_largest_other_merge(memory_bytes: int, keys_max: int) -> None:
    settings = Settings(compactor_memory_bytes=memory_bytes, dedupe_keys_max=keys_max)
    largest = l0_job_bytes_max(settings)
    both = job_memory_bytes("level", largest, keys_max) + job_memory_bytes("merge", 100 * GIB, keys_max)
    assert both <= memory_bytes
    assert job_memory_bytes("merge", 100 * GIB, keys_max) == merge_memory_bytes(keys_max)
    assert largest <= settings.compaction_l0_job_bytes_max


def test_a_small_merge_takes_little_memory() -> None:
    assert job_memory_bytes("merge", 1 * MIB, 1_000) < 4 * MIB
