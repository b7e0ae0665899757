"""The planner's guarantees beside its rules (the rules are tables: test_plan_golden.py)."""

from __future__ import annotations

from dataclasses import replace

from compactor.deletion.orphans import HARD_BOUND_MS
from compactor.planning.l0 import job_ends
from compactor.planning.plan import explain_plan, new_job, plan_merges
from compactor.planning.spec import GIB, MIB, SPARK_LIMIT_MS_MAX, MergeKind, MergeSpec, PlanOptions
from metadata.contract.leveled import FileClass
from metadata.rules.jobs import REST_MS_MAX
from metadata.rules.retention import TIMESTAMP_MS_MAX
from tests.fixtures.plan_views import a_file, a_partition, a_view, an_extent, view_of

HOUR_MS = 3_600_000


def test_an_empty_view_has_nothing_to_plan() -> None:
    plan = explain_plan(a_view(), PlanOptions())
    assert (plan.specs, plan.notes) == ([], [])


def test_a_spec_becomes_a_job_that_can_be_read_back() -> None:
    # given a partition that is due
    extent = an_extent(5, 0, 99, 1, length=100 * MIB)
    view = a_view([a_file(1, 2, FileClass.COMPACTED)], [a_partition(1, [extent])], now_ms=HOUR_MS)
    [spec] = plan_merges(view, PlanOptions())
    # when a job is made of it
    job = new_job(spec)
    # then it has the fields that the store needs, and the whole spec
    assert (job.kind, job.extent_ids, job.file_ids, job.l0_file_ids) == ("forced", (5,), (), ())
    assert job.forced_partition_ids == (1,)
    assert (job.limit_ms, job.input_bytes) == (spec.limit_ms, 100 * MIB)
    assert MergeSpec.from_json(job.spec) == spec


def test_what_spark_runs_has_time_for_a_cluster_to_start_and_never_more_than_its_files_are_spared() -> None:
    def limit_ms(size: int, **options: bool) -> int:
        extent = an_extent(5, 0, 10_000_000, 1, length=size)
        view = a_view([a_file(1, 2, FileClass.COMPACTED)], [a_partition(1, [extent], passes_needed=4)], now_ms=HOUR_MS)
        [spec] = plan_merges(view, PlanOptions(**options))
        [of_partition] = spec.partitions.values()
        assert of_partition.delete_horizon_ms >= HOUR_MS + spec.limit_ms
        return spec.limit_ms

    options = PlanOptions()
    base_ms, per_gib_ms = options.job_limit_base_ms, 1024 * options.job_limit_ms_per_mib
    # given a merge below the size for Spark, then it has the time of all its passes here
    assert limit_ms(7 * GIB, spark=True) == limit_ms(7 * GIB) == base_ms + 4 * 7 * per_gib_ms
    # given one above that size: it is not deep, and waits for a cluster
    assert limit_ms(9 * GIB) == base_ms + 4 * 9 * per_gib_ms
    assert limit_ms(9 * GIB, spark=True) == base_ms + options.spark_limit_base_ms + 9 * per_gib_ms
    # given one above the cap: it goes to Spark alone, and a day must be enough
    assert limit_ms(1024 * GIB, spark=True) == SPARK_LIMIT_MS_MAX < HARD_BOUND_MS


def test_a_merge_of_whole_files_forces_no_partition() -> None:
    files = [a_file(number, 1, FileClass.COMPACTED) for number in range(32)]
    extents = [an_extent(number, number, number, number, level=1) for number in range(32)]
    [spec] = plan_merges(a_view(files, [a_partition(1, extents)]), PlanOptions())
    assert spec.partitions[1].whole_through_offset == 32
    assert new_job(spec).forced_partition_ids == ()


def test_a_merge_is_deep_only_when_it_could_overflow_the_buffer() -> None:
    # given a partition whose last dedupe overflowed, and a merge of few of its records
    files = [a_file(number, 1, FileClass.COMPACTED) for number in range(32)]
    extents = [an_extent(number, number * 10, number * 10 + 9, number, level=1) for number in range(32)]
    view = a_view(files, [a_partition(1, extents, passes_needed=4)])
    enough, too_small = PlanOptions(dedupe_keys_max=320), PlanOptions(dedupe_keys_max=319)
    [one_pass], [deep] = plan_merges(view, enough), plan_merges(view, too_small)
    assert (one_pass.partitions[1].passes, deep.partitions[1].passes) == (1, 4)
    # and each pass has its time
    assert deep.limit_ms - one_pass.limit_ms == 3 * 32 * PlanOptions().job_limit_ms_per_mib


def test_a_config_that_cannot_be_read_stops_nobody_else() -> None:
    # given two partitions that are due, of which one has an unreadable lag
    extents = [an_extent(number, 0, 99, 1, length=100 * MIB, partition_id=number) for number in (1, 2)]
    broken = a_partition(1, extents[:1], configs={"cleanup.policy": "compact", "min.compaction.lag.ms": "soon"})
    view = a_view([a_file(1, 2, FileClass.COMPACTED)], [broken, a_partition(2, extents[1:])], now_ms=HOUR_MS)
    plan = explain_plan(view, PlanOptions())
    # then the other is planned, and the reason why this one is not planned is reported
    assert [list(spec.partitions) for spec in plan.specs] == [[2]]
    [note] = plan.notes_of(1, frozenset({1}))
    assert "min.compaction.lag.ms" in note.text


def test_no_delete_retention_is_so_long_that_its_horizon_lies_in_the_past() -> None:
    extent = an_extent(5, 0, 99, 1, length=100 * MIB)
    for retention_ms in (2**62, 2**63 - 1):
        keyed = a_partition(1, [extent], configs={"delete.retention.ms": str(retention_ms)})
        [spec] = plan_merges(a_view([a_file(1, 2, FileClass.COMPACTED)], [keyed], now_ms=HOUR_MS), PlanOptions())
        assert spec.partitions[1].delete_horizon_ms == TIMESTAMP_MS_MAX


def test_other_times_may_be_as_long_as_a_config_can_say() -> None:
    # given lags and retention of 292 million years, and records from the ends of time
    longest = str(2**63 - 1)
    times = ("max.compaction.lag.ms", "retention.ms", "segment.ms", "delete.retention.ms")
    configs = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"} | dict.fromkeys(times, longest)
    for least_ms, most_ms in ((-(2**63), 2**63 - 1), (-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)):
        extent = an_extent(5, 0, 99, 1, length=100 * MIB, min_timestamp_ms=least_ms, max_timestamp_ms=most_ms)
        log = a_partition(1, [extent], configs=configs)
        view = a_view([a_file(1, 2, FileClass.COMPACTED)], [log], now_ms=HOUR_MS)
        [spec] = plan_merges(view, PlanOptions())
        assert (spec.kind, spec.partitions[1].first_uncleanable_offset) == (MergeKind.FORCED, 100)
        held = a_partition(1, [extent], configs=configs | {"min.compaction.lag.ms": longest})
        planned = plan_merges(replace(view, partitions=[held]), PlanOptions())
        assert bool(planned) is (most_ms == -(2**63)), "younger than the lag allows"


def test_what_expires_soon_is_left_alone_but_for_the_compacted_class() -> None:
    # given topics with both policies and a retention shorter than the margin: all of it always expires soon
    options = PlanOptions(l1_runs_min=2)
    for file_class, planned in ((FileClass.PLAIN, []), (FileClass.COMPACTED, [MergeKind.MERGE])):
        files = [a_file(number, 1, file_class, expires_ms=HOUR_MS + 60_000) for number in (1, 2)]
        view = a_view(files, now_ms=HOUR_MS)
        assert [spec.kind for spec in plan_merges(view, options)] == planned
    dirty = a_partition(1, [an_extent(5, 0, 99, 1, length=100 * MIB)])
    expiring = a_file(1, 2, FileClass.COMPACTED, expires_ms=HOUR_MS + 60_000)
    [spec] = plan_merges(a_view([expiring], [dirty], now_ms=HOUR_MS), options)
    assert (spec.kind, spec.extent_ids) == (MergeKind.FORCED, (5,))


def test_expired_data_that_three_rounds_of_retention_left_is_merged() -> None:
    # given two plain runs that expired a minute ago; rounds of retention come every 30 s, or as the cluster says
    options = PlanOptions(l1_runs_min=2, retention_check_ms=30_000)
    files = [a_file(number, 1, FileClass.PLAIN, created_ms=0, expires_ms=HOUR_MS - 60_000) for number in (1, 2)]
    view = a_view(files, now_ms=HOUR_MS)
    for check_ms, planned in ((None, []), (10_000, [MergeKind.MERGE]), (20_001, [])):
        specs = plan_merges(replace(view, retention_check_ms=check_ms), options)
        assert [spec.kind for spec in specs] == planned


def test_what_happened_in_the_future_happened_before_the_clock_went_back() -> None:
    later_ms = 30 * HOUR_MS
    # given runs for a daily merge
    runs = [a_file(number, 2, FileClass.COMPACTED, created_ms=0) for number in (1, 2)]
    view = a_view(runs, now_ms=HOUR_MS)
    assert plan_merges(replace(view, last_daily_ms=0), PlanOptions()) == []
    [daily] = plan_merges(replace(view, last_daily_ms=later_ms), PlanOptions())
    assert daily.kind is MergeKind.DAILY
    [daily] = plan_merges(replace(view, files=[replace(each, created_ms=later_ms) for each in runs]), PlanOptions())
    assert daily.kind is MergeKind.DAILY
    # and an L0 file: its trouble and its age
    waits_ms = PlanOptions().l0_wait_ms_max
    for created_ms, trouble_until_ms, is_planned in (
        (HOUR_MS - waits_ms, 0, True),
        (HOUR_MS - waits_ms, HOUR_MS + 1, False),
        (HOUR_MS - waits_ms, HOUR_MS + REST_MS_MAX, False),
        (HOUR_MS - waits_ms, HOUR_MS + REST_MS_MAX + 1, True),
        (HOUR_MS, 0, False),
        (later_ms, 0, True),
    ):
        file = a_file(1, 0, None, created_ms=created_ms, trouble_until_ms=trouble_until_ms)
        planned = plan_merges(a_view([file], now_ms=HOUR_MS), PlanOptions())
        assert bool(planned) is is_planned, (created_ms, trouble_until_ms)


def test_notes_are_found_by_partition_and_by_file() -> None:
    view, options = view_of(
        """
        now 10h
        option l1_runs_min=2
        jobs merge=8
        run 1 L1 compacted size=1MiB
        run 2 L1 compacted size=1MiB
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=1MiB
        """
    )
    plan = explain_plan(view, options)
    assert [note.rule for note in plan.notes_of(9, frozenset({2}))] == [MergeKind.MERGE]
    assert plan.notes_of(9, frozenset({3})) == []


def test_live_jobs_count_against_every_limit() -> None:
    view, options = view_of("now 10h\nruns 96 L1 plain first=1 size=1MiB\nl0 96 from=500 size=1MiB created=9h")
    options = replace(options, jobs_max=4, l0_jobs_max=2, l0_job_files_max=32)
    small = [0, 0]
    for live, merges, l0 in [
        ({}, 3, 2),
        ({"merge": small}, 2, 2),
        ({"purge": small, "forced": small, "level": [0]}, 0, 1),
    ]:
        kinds = [spec.kind for spec in plan_merges(replace(view, live_jobs=live), options)]
        assert (kinds.count(MergeKind.MERGE), kinds.count(MergeKind.LEVEL)) == (merges, l0)


def test_the_pass_that_somebody_asked_for_is_planned_before_dirtier_partitions() -> None:
    view, options = view_of(
        """
        now 10h
        run 1 L2 compacted size=200MiB
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=100MiB
        partition users-1 id=2 hw=100 cleaned=90 requested=100
          extent 0..99 run=1 size=100MiB
        """
    )
    [spec] = plan_merges(view, replace(options, forced_jobs_max=1))
    assert new_job(spec).forced_partition_ids == (2,)


def test_merges_that_wait_for_spark_keep_others_from_nothing() -> None:
    # given the maximum of live jobs, all for a cluster that is away, and much to be leveled
    view, options = view_of(
        """
        now 10h
        option spark=yes
        jobs merge=7*16GiB forced=4*9GiB
        runs 64 L1 plain first=1 size=512MiB
        runs 400 L1 compacted first=101 size=1MiB
        run 600 L2 compacted size=200MiB
        partition users-0 id=1 hw=100
          extent 0..99 run=600 size=200MiB
        """
    )
    # then merges and passes of the embedded engine are planned up to their own limit
    specs = plan_merges(view, options)
    assert [spec.kind for spec in specs] == [MergeKind.MERGE] * (options.jobs_max - 1) + [MergeKind.FORCED]
    assert all(spec.input_bytes < options.spark_bytes_min for spec in specs)
    # and without Spark they count like all others, because they run here
    assert plan_merges(view, replace(options, spark=False)) == []


def test_merges_here_take_no_place_of_those_for_spark() -> None:
    view, options = view_of("now 10h\noption spark=yes\njobs merge=8\nruns 320 L1 plain first=1 size=512MiB")
    assert [spec.input_bytes for spec in plan_merges(view, options)] == [16 * GIB] * 4


def test_an_l0_file_larger_than_a_job_goes_alone() -> None:
    options = PlanOptions(l0_job_bytes_max=10, l0_files_min=1, l0_bytes_min=1)
    assert job_ends([0, 0, 0], [0, 50, 55, 60], range(4), now_ms=0, jobs=9, options=options) == [1, 3]
