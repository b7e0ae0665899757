"""The reports of explain and describe about work that is due and not planned, from views as the planner sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compactor.merging.memory_gate import WAITS_FOR_MEMORY
from compactor.planning.plan import explain_plan
from compactor.planning.spec import MIB
from metadata.contract.jobs import JobState, MergeJob
from runtime.text import numbers_text
from siltstone.ops.compaction.causes import Cause
from siltstone.ops.compaction.evidence import Evidence, PartitionState, partition_states
from siltstone.ops.compaction.reasons import Reason, explain
from siltstone.ops.compaction.report import brief_lines, joined, states_json
from tests.fixtures.compaction_views import job
from tests.fixtures.plan_views import view_of


def judged(text: str, jobs: Sequence[MergeJob] = (), **known: Any) -> tuple[Sequence[PartitionState], Sequence[Reason]]:
    view, options = view_of(text)
    plan = explain_plan(view, options)
    evidence = Evidence(
        topic="users", options=options, view=view, plan=plan, jobs=jobs, compactors=[(9, "host")], **known
    )
    states = partition_states(view.partitions, options, view)
    return states, explain(states, evidence)


def only(found: Sequence[Reason], code: str) -> Reason:
    [reason] = [each for each in found if each.cause.code == code] or [None]
    assert reason is not None, [each.cause.code for each in found]
    return reason


def codes(found: Sequence[Reason]) -> set[str]:
    return {each.cause.code for each in found}


ALL_TAKEN = """
    now 10h
    jobs forced=4
    runs 3 L2 compacted first=1 size=1GiB
    partition users-0 id=1 hw=100
      extent 0..99 run=1 size=70MiB
    partition users-1 id=2 hw=100
      extent 0..99 run=2 size=70MiB
    partition users-2 id=3 hw=100
      extent 0..99 run=3 size=90MiB
    """


def test_a_pass_for_spark_without_a_place_names_the_setting_of_those() -> None:
    text = """
    now 10h
    option spark=yes
    jobs merge={merges}*16GiB forced={passes}*16GiB
    jobs forced=3
    run 1 L2 compacted size=16GiB
    partition users-0 id=1 hw=100
      extent 0..99 run=1 size=16GiB
    """
    _, found = judged(text.format(merges=3, passes=1))
    reason = only(found, "no place for heavy jobs")
    assert "all jobs for Spark are taken" in reason.says
    assert "compactor.heavy.jobs.max is 4, of which at most 4 may be passes over one partition." in reason.says
    assert reason.remedy.startswith("`siltstone jobs list")
    # passes that run elsewhere do not limit those that run here, nor the other way round
    _, found = judged(text.format(merges=0, passes=4))
    assert "at most 4 may be passes over one partition" in only(found, "no place for heavy jobs").says


def test_a_pass_without_a_place_names_the_setting_and_does_not_promise_seconds() -> None:
    states, found = judged(ALL_TAKEN)
    reason = next(each for each in found if each.partition == 2)
    assert reason.cause.code == "no place for jobs"
    assert "is not planned: due (dirty ratio 1.00 over 0.50, 90 MiB dirty), all jobs are taken" in reason.says
    # the reason names the setting with its value, and the part of it that has no setting of its own
    assert "all jobs are taken: compactor.jobs.max is 8, of which at most 4 may be passes over one" in reason.says
    assert "start more with `siltstone compactor`; else raise compactor.jobs.max" in reason.remedy
    assert "due" not in codes(found)
    # and describe reports the same, in its line and in JSON
    assert brief_lines(found)[0].startswith("Each of partitions 0-1 is not planned: due (dirty ratio 1.00 over 0.50")
    [first, *_] = states_json(states, found)
    assert first["due"].startswith("dirty ratio 1.00") and first["held"].startswith("is not planned: ")


def test_partitions_that_say_the_same_are_joined_and_others_are_not() -> None:
    _, found = judged(ALL_TAKEN)
    said = [text.partition(" is ")[0] for text, _ in joined(found)]
    assert said == ["Each of partitions 0-1", "Partition 2"]
    whole = Reason(Cause.PLAIN, None, "orders is small", "")
    alike = [Reason(Cause.DUE, each, "is far", "") for each in (0, 2)]
    assert [text for text, _ in joined([alike[0], whole, alike[1]])] == ["Each of partitions 0, 2 is far", whole.says]
    apart = [alike[0], replace(alike[1], remedy="go")]
    assert [text for text, _ in joined(apart)] == ["Partition 0 is far", "Partition 2 is far"]


def test_numbers_are_told_as_ranges_and_counted_beyond_a_dozen() -> None:
    assert numbers_text([3]) == "3"
    assert numbers_text([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
    assert numbers_text(range(5000)) == "0-4999"
    assert numbers_text(range(0, 5000, 2)).endswith("20, 22 and 2,488 more")


def test_describe_tells_what_many_partitions_wait_for_once() -> None:
    small = "hw=100 last_cleaned=599m\nextent 0..99 run=1 size=1MiB"
    few = "\n".join(f"partition users-{each} id={each + 1} {small}" for each in range(12))
    due = "hw=100\nextent 0..99 run=1 size=70MiB"
    _, found = judged(f"now 10h\nrun 1 L2 compacted size=1GiB\n{few}\npartition users-12 id=13 {due}")
    assert brief_lines(found) == [
        "Each of partitions 0-11 is 1.00 dirty, but has only 1.0 MiB of dirty records. A pass of its own needs 64.0 "
        "MiB (forced.dirty.bytes.min), or to be dirty for 1h00m (forced.dirty.wait.ms), which is in 59m00s. Merges "
        "of whole runs dedupe it too.",
        "Partition 12 is due: dirty ratio 1.00 over 0.50, 70 MiB dirty. The planner takes it within seconds.",
    ]


def test_l0_files_that_wait_for_a_place_are_told_to_whoever_has_records_there() -> None:
    _, found = judged(
        """
        now 10h
        jobs level=4
        l0 40 from=500 size=1MiB created=9h
        run 1 L2 compacted size=1GiB
        partition users-0 id=1 hw=120 cleaned=100
          extent 0..99 run=1 size=70MiB
        partition users-1 id=2 hw=100 cleaned=100
          extent 0..99 run=1 size=70MiB
        """
    )
    reason = only(found, "no place for L0 jobs")
    assert reason.partition == 0
    assert "has records in L0, where 40 L0 files wait for one of 4 jobs: compactor.l0.jobs.max is 4" in reason.says
    assert "raise compactor.l0.jobs.max" in reason.remedy
    # and describe does not promise a minute
    assert brief_lines(found) == [reason.says.replace("partition 0", "Partition 0")]


HELD = """
    now 10h
    jobs merge=1
    runs 2 L2 compacted first=1 size=1GiB live=1000MiB
    partition users-0 id=1 hw=200
      extent 0..99 run=1 size=70MiB busy
      extent 100..199 run=2 size=70MiB
    """


def test_what_a_running_job_holds_names_the_job() -> None:
    _, found = judged(HELD, [job(12, JobState.RUNNING, kind="merge", spec={"extent_ids": [1000]})])
    reason = only(found, "held by a merge")
    assert "but its records from offset 0 on are held." in reason.says
    assert "`siltstone jobs list --state running`" in reason.remedy
    assert "in the way" not in codes(found)
    # and the job is a reason of its own
    assert "job 12 (merge)" in only(found, "running").says


def test_what_waits_for_passes_and_what_is_kept_free_for_it() -> None:
    _, found = judged(
        """
        now 30h
        option forced_dirty_bytes_min=1MiB
        jobs forced=1
        run 1 L2 compacted size=10GiB created=1h
        run 2 L2 compacted size=1GiB created=2h
        run 3 L2 compacted size=1GiB created=2h
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=5GiB busy
        partition users-1 id=2 hw=100
          extent 0..99 run=1 size=5GiB
        """,
        [job(31, JobState.RUNNING, spec={"extent_ids": [1000]})],
    )
    by_passes = [each for each in found if each.cause.code == "held by passes"]
    assert [each.partition for each in by_passes] == [0, 1]
    assert (
        "has records in files that wait for a merge: daily: 2 of 3 compacted L2 runs: due, 1 held" in by_passes[0].says
    )
    assert by_passes[0].says.endswith("held by forced passes.")
    assert "held from offset 0" not in only(found, "kept free").says and only(found, "kept free").partition == 1


def test_a_pass_that_is_too_large_names_the_limit() -> None:
    _, found = judged(
        """
        now 10h
        option merge_bytes_max=1GiB
        run 1 L2 compacted size=4GiB
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=3GiB
        """
    )
    reason = only(found, "too large")
    assert "compaction.merge.bytes.max is 1.0 GiB" in reason.says and "raise" in reason.remedy


def test_a_file_in_trouble_in_the_way_of_a_pass_is_told() -> None:
    _, found = judged(
        """
        now 10h
        run 1 L2 compacted size=1GiB trouble=601m
        partition users-0 id=1 hw=100
          extent 0..99 run=1 size=70MiB
        """
    )
    assert "`siltstone fsck` what is damaged" in only(found, "held by trouble").remedy


def test_a_config_that_cannot_be_read_is_an_answer_and_no_crash() -> None:
    _, found = judged(
        """
        now 10h
        run 1 L2 compacted size=1GiB
        partition users-3 id=1 hw=100 config:min.compaction.lag.ms=soon
          extent 0..99 run=1 size=70MiB
        """
    )
    reason = only(found, "bad config")
    assert reason.says.startswith("partition 3 is never deduped: ") and "min.compaction.lag.ms" in reason.says
    assert "siltstone topics alter users" in reason.remedy and "due" not in codes(found)
    [line] = brief_lines(found)
    assert line.startswith("Partition 3 is never deduped: ") and "min.compaction.lag.ms" in line


def test_a_job_that_waits_for_memory_names_the_setting() -> None:
    waiting = job(12, JobState.RUNNING, progress={"fraction": 0.0, "step": WAITS_FOR_MEMORY})
    calm = "now 10h\nrun 1 L2 compacted size=1GiB\npartition users-0 id=1 hw=9 cleaned=9\nextent 0..8 run=1 size=1MiB"
    _, found = judged(calm, [waiting], memory_bytes=768 * MIB)
    reason = only(found, "waiting for memory")
    assert "job 12 (forced)" in reason.says and "compactor.memory.bytes is 768 MiB" in reason.says
    assert "running" not in codes(found)


def test_a_job_that_was_given_back_rests_and_says_why() -> None:
    calm = "now 10h\nrun 1 L2 compacted size=1GiB\npartition users-0 id=1 hw=9 cleaned=9\nextent 0..8 run=1 size=1MiB"
    view, _ = view_of(calm)
    resting = replace(job(12, JobState.READY, error="S3 is away."), not_before_ms=view.now_ms + 32_000)
    _, found = judged(calm, [resting])
    assert "rests for 32s more: S3 is away." in only(found, "resting").says
    _, found = judged(calm, [replace(resting, not_before_ms=view.now_ms)])
    assert codes(found) == {"waiting for a compactor"}
