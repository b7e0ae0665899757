"""Plans of files with records of erased keys: when they are due, before whom, on which engine, and why they wait."""

from __future__ import annotations

from dataclasses import replace

from compactor.planning.notes import Blocker
from compactor.planning.plan import Plan, explain_plan, plan_merges
from compactor.planning.spec import MIB, MergeKind
from tests.fixtures.plan_views import view_of

HOUR_MS = 3_600_000
NOW_MS = 10 * HOUR_MS


def planned(text: str, erasing: dict[int, int]) -> Plan:
    view, options = view_of("now 10h\n" + text)
    return explain_plan(replace(view, erasing_files=erasing), options)


def files_by_kind(plan: Plan) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(spec.kind.value, spec.level, spec.file_ids) for spec in plan.specs]


def blockers(plan: Plan) -> list[tuple[Blocker, tuple[int, ...]]]:
    return [(note.blocker, note.file_ids) for note in plan.notes if note.rule is MergeKind.ERASE]


def test_files_of_a_level_and_class_are_erased_together_at_their_level_and_only_copied() -> None:
    plan = planned(
        """
        run 1 L1 plain size=1MiB
        run 2 L1 plain size=1MiB
        run 3 L1 compacted size=1MiB
        run 4 L2 plain size=1MiB
        run 5 L2 compacted size=1MiB
        run 6 L2 compacted size=1MiB
        partition users-0 id=1 hw=100
          extent 0..99 run=5 size=1MiB
        """,
        dict.fromkeys((1, 2, 3, 4, 5), 0),
    )
    expected = [("erase", 1, (3,)), ("erase", 1, (1, 2)), ("erase", 2, (5,)), ("erase", 2, (4,))]
    assert sorted(files_by_kind(plan)) == sorted(expected)
    assert not any(spec.dedupe or spec.partitions for spec in plan.specs)
    assert "2 L1 files: records of erased keys" in {spec.reason for spec in plan.specs}


def test_a_file_is_due_when_its_erasure_begins_and_not_before() -> None:
    run = "run 1 L2 plain size=1MiB"
    assert files_by_kind(planned(run, {1: NOW_MS})) == [("erase", 2, (1,))]
    assert files_by_kind(planned(run, {1: NOW_MS + 1})) == []


def test_an_erasure_comes_before_the_purge_deadline_and_before_runs() -> None:
    # given files that three rules want: dead bytes past the deadline, enough runs for a merge, erased keys
    text = """
        option l1_runs_min=2 purge_deadline_ms=30m
        run 1 L1 plain size=2MiB live=1MiB dead=1s
        run 2 L1 plain size=1MiB
        """
    assert [each[0] for each in files_by_kind(planned(text, {}))] == ["purge"]
    assert files_by_kind(planned(text, {1: 0, 2: 0})) == [("erase", 1, (1, 2))]


def test_a_file_about_to_expire_is_erased_all_the_same() -> None:
    assert files_by_kind(planned("run 1 L1 plain size=1MiB expires=10h", {1: 0})) == [("erase", 1, (1,))]


def test_a_merge_takes_no_more_than_an_output_file_unless_one_input_is_larger() -> None:
    text = "option output_bytes=10MiB\n" + "\n".join(f"run {n} L2 plain size={n}MiB" for n in (4, 5, 6, 12))
    found = sorted(spec.file_ids for spec in planned(text, dict.fromkeys((4, 5, 6, 12), 0)).specs)
    assert found == [(4, 5), (6,), (12,)]


def test_spark_runs_no_erasing_merge_and_gives_it_no_time_for_a_cluster() -> None:
    # given large files, and all places for Spark taken
    text = "option spark=yes spark_bytes_min=8MiB heavy_jobs_max=1\njobs merge=1*9MiB\nrun 1 L2 plain size=9MiB"
    (spec,) = planned(text, {1: 0}).specs
    view, options = view_of(text)
    assert (spec.kind, spec.limit_ms) == (MergeKind.ERASE, options.job_limit_base_ms + 9 * options.job_limit_ms_per_mib)
    # when the places of the compactors are taken instead
    full = "option spark=yes spark_bytes_min=8MiB jobs_max=1\njobs erase=1*9MiB\nrun 1 L2 plain size=9MiB"
    plan = planned(full, {1: 0})
    assert (files_by_kind(plan), blockers(plan)) == ([], [(Blocker.JOBS, (1,))])
    # and live erasing merges take no place for Spark, however large
    view, options = view_of("now 10h\noption spark=yes spark_bytes_min=8MiB heavy_jobs_max=1 l2_runs_min=2")
    view = replace(view, live_jobs={"erase": [9 * MIB]})
    runs, _ = view_of("runs 2 L2 plain first=1 size=9MiB")
    assert len(plan_merges(replace(view, files=runs.files), options)) == 1


def test_a_file_that_cannot_be_taken_is_noted_with_its_reason_and_kept_from_new_passes() -> None:
    passes = """
        run 1 L2 compacted size=200MiB
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=100MiB busy
        partition users-1 id=2 hw=100
          extent 0..99 run=1 size=100MiB
        """
    # given a file of which a pass holds one extent, and a dirty partition in it
    assert [spec.kind for spec in planned(passes, {}).specs] == [MergeKind.FORCED]
    plan = planned(passes, {1: 0})
    # then no new pass enters it
    assert (files_by_kind(plan), blockers(plan)) == ([], [(Blocker.FORCED_PASSES, (1,))])
    # and a file whose merge failed, or that a merge holds whole, waits too
    assert blockers(planned("run 1 L2 plain size=1MiB trouble=11h", {1: 0})) == [(Blocker.TROUBLE, (1,))]
    assert blockers(planned("run 1 L2 plain size=1MiB busy", {1: 0})) == [(Blocker.MERGE, (1,))]


def test_after_a_failed_merge_of_its_file_an_erasure_lets_others_go_first() -> None:
    # given a file that two rules want, and a merge of it failed
    def kinds(trouble: str) -> list[str]:
        text = "option l1_runs_min=2 erase_pause_ms=60s\nrun 2 L1 plain size=1MiB\nrun 1 L1 plain size=1MiB trouble="
        return [each[0] for each in files_by_kind(planned(text + trouble, {1: 0}))]

    # when its rest is just over, then the other rule has it; later it is the erasure's turn again
    assert (kinds("36001s"), kinds("36000s"), kinds("35941s"), kinds("35940s")) == ([], ["merge"], ["merge"], ["erase"])
    # and if no other rule wants it, a note tells the reason
    plan = planned("run 1 L1 plain size=1MiB trouble=36000s", {1: 0})
    assert (plan.specs, blockers(plan)) == ([], [(Blocker.TROUBLE, (1,))])
