"""The simulator, and the planner in it: runs stay bounded, and nothing starves, however slow the workers are."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from compactor.planning.l0 import job_ends
from compactor.planning.spec import GIB, MIB, PlanOptions
from compactor.simulation.cluster import Load, Spaced
from compactor.simulation.run import Simulated, Workers, simulate
from siltstone.cli.compactor.simulate import axis, plot, simulate_command
from siltstone.terminal import output

MINUTE_MS = 60_000
OPTIONS = PlanOptions()


def most(simulated: Simulated, figure: str) -> float:
    return max(getattr(each, figure) for each in simulated.samples)


@pytest.fixture(scope="module")
def half_a_day() -> Simulated:
    return simulate(Load(agents=4), hours=12, samples=48)


def test_the_counts_of_a_small_cluster_stay_within_what_the_rules_allow(half_a_day: Simulated) -> None:
    # 16 files a second: leveled when the oldest has waited 10 s, plus a second for the job
    assert most(half_a_day, "l0_files") <= 16 * 12
    # a group, and the files that arrive while it is merged
    assert most(half_a_day, "l1_plain") < OPTIONS.l1_runs_min + 8
    assert most(half_a_day, "l1_compacted") < 2 * OPTIONS.l1_runs_min
    assert most(half_a_day, "l2_compacted") < 3 * OPTIONS.l2_runs_min
    assert most(half_a_day, "jobs_ready") <= OPTIONS.jobs_max
    assert 2 < half_a_day.samples[-1].write_amplification < 6


def test_a_simulation_gives_the_same_twice() -> None:
    assert simulate(Load(agents=4), hours=2, samples=8) == simulate(Load(agents=4), hours=2, samples=8)


def test_dedupe_keeps_compacted_topics_near_a_record_for_each_key(half_a_day: Simulated) -> None:
    # half of the bytes may be dirty, and records written since come on top
    assert (
        half_a_day.compacted_bytes_least < half_a_day.samples[-1].compacted_bytes < 3 * half_a_day.compacted_bytes_least
    )
    assert most(half_a_day, "dedupe_lag_ms") < 180 * MINUTE_MS


def test_forced_passes_that_are_always_due_do_not_starve_leveling() -> None:
    # given partitions that are due for a pass whenever anything is dirty, without an interval between passes
    options = PlanOptions(forced_interval_ms=0, forced_dirty_bytes_min=1)
    load = Load(agents=8, dirty_ratio_min=0.0, compacted_share=0.5)
    # when every place for them is always taken
    simulated = simulate(load, hours=8, workers=Workers(count=8, overhead_ms=5_000), options=options, samples=48)
    assert simulated.jobs["forced"] > 1_000
    # then L1 is merged all the same
    assert most(simulated, "l1_compacted") < 2 * options.l1_runs_min + 8
    assert most(simulated, "l2_compacted") < 4 * options.l2_runs_min


@pytest.mark.parametrize("l2_runs_min", [2, 10])
def test_merges_that_are_always_due_starve_neither_a_class_nor_forced_passes(l2_runs_min: int) -> None:
    # given groups of two in L1 and few places, so that merges of whole runs are due all the time and want every place
    options = PlanOptions(l1_runs_min=2, l2_runs_min=l2_runs_min, jobs_max=3)
    simulated = simulate(Load(agents=4), hours=1.5, options=options, samples=24)
    assert simulated.jobs["merge"] > 250
    # then both classes are merged at the same rate, and partitions are cleaned
    last = simulated.samples[-1]
    assert abs(last.l1_plain - last.l1_compacted) < 10
    assert simulated.jobs["forced"] > 5
    assert most(simulated, "dedupe_lag_ms") < 65 * MINUTE_MS


def test_plain_data_that_expires_leaves_few_runs() -> None:
    load = Load(agents=2, compacted_share=0.0, retention_ms=4 * 3_600_000)
    simulated = simulate(load, hours=16, samples=32)
    assert most(simulated, "l2_plain") < 30
    assert simulated.samples[-1].dedupe_lag_ms == 0
    # and merging ends before data expires, so it writes less than for data that is kept
    assert simulated.samples[-1].write_amplification < 4.5


def test_keys_that_overflow_the_buffer_make_deep_passes() -> None:
    # given 100,000 keys and a buffer for 30,000
    options = PlanOptions(dedupe_keys_max=30_000)
    simulated = simulate(Load(agents=8), hours=6, options=options, samples=24)
    roomy = simulate(Load(agents=8), hours=6, samples=24)
    # then more passes are made, and partitions are cleaned
    assert simulated.jobs["forced"] > roomy.jobs["forced"]
    assert most(simulated, "dedupe_lag_ms") < 120 * MINUTE_MS


def test_evenly_spaced_numbers_are_cut_into_the_jobs_that_listed_ones_are() -> None:
    created, before = Spaced(0, 2.6, 4_000), Spaced(0, 100_000.5, 4_001)
    listed = job_ends(list(created), list(before), range(4_001), now_ms=11_000, jobs=9, options=OPTIONS)
    assert job_ends(created, before, range(4_001), now_ms=11_000, jobs=9, options=OPTIONS) == listed
    assert listed == [1024]
    assert created[3:5] == [7, 10]
    with pytest.raises(IndexError):
        created[4_000]


def test_a_plot_shows_the_largest_of_each_column() -> None:
    assert plot([0, 1, 2, 4], width=4, height=1) == [" ▂▄█"]
    assert plot([0, 8, 0, 2], width=2, height=2) == ["█ ", "█▄"]
    assert plot([0, 0], height=1) == ["  "]


def test_the_command_prints_json_and_plots() -> None:
    arguments = ["--agents", "1", "--hours", "1", "--workers", "2"]
    printed = CliRunner().invoke(simulate_command, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(printed.stdout)
    assert found["load"]["agents"] == 1
    assert found["samples"][-1]["at_ms"] == 60 * MINUTE_MS
    shown = CliRunner().invoke(simulate_command, arguments, catch_exceptions=False)
    for name in ("live L0 files", "write amplification", "dedupe lag", "workers busy", "█"):
        assert name in shown.stdout
    # the assumptions, the meaning of the words, and a time axis below each plot
    assert "agents       1, each 1.0 MiB/s" in shown.stdout and "planner" in shown.stdout
    assert "the age of the oldest record that no pass" in shown.stdout
    assert shown.stdout.count(axis(1.0)) == 10
    assert axis(48.0, width=20).split() == ["0", "1d00h", "2d00h"] and len(axis(48.0, width=20)) == 20


def test_the_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PIPED_WIDTH", 80)
    shown = CliRunner().invoke(simulate_command, ["--agents", "12", "--hours", "2"], catch_exceptions=False).stdout
    assert max(map(len, shown.splitlines())) <= 80


def test_no_compacted_topic_is_a_cluster_too() -> None:
    simulated = simulate(Load(compacted_share=0.0), hours=2, samples=4)
    assert simulated.compacted_bytes_least == 0
    assert "forced" not in simulated.jobs
    everything = simulate(Load(compacted_share=1.0, bytes_per_second=float(GIB // 64)), hours=1, samples=4)
    assert most(everything, "l1_plain") == 0
    assert everything.samples[-1].compacted_bytes > MIB
