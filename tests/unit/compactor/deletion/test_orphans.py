"""The objects that the janitor may treat as orphans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compactor.deletion.orphans import (
    ATTEMPT_OUTLIVES_JOB_MS,
    CLOCK_SLACK_MS,
    OrphanCandidate,
    Skipped,
    candidate,
    clocks_agree,
    is_done_again,
    judge,
    orphans_allowed,
    writers_patience_ms,
)
from metadata.contract.jobs import JobState, MergeJob
from runtime.ids import SystemIds
from storage.keys import file_key
from storage.objects import ObjectStat

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
IDS = SystemIds(seed=1)


def stat(*, key_age_ms: int, object_age_ms: int, writer_id: int = 7) -> ObjectStat:
    begun_ms = NOW_MS - key_age_ms
    key = file_key(level=1, writer_id=writer_id, epoch=0, file_uuid=IDS.uuid7(begun_ms), created_ms=begun_ms)
    return ObjectStat(key=key, size_bytes=10, last_modified_ms=NOW_MS - object_age_ms)


def judged_one(one: ObjectStat, **clocks: int) -> OrphanCandidate | Skipped:
    return candidate(one, **{"store_now_ms": NOW_MS, "now_ms": NOW_MS, "age_ms_min": HOUR_MS, **clocks})


def test_an_object_is_old_by_the_store_s_clock_and_by_its_key() -> None:
    old = judged_one(stat(key_age_ms=HOUR_MS, object_age_ms=HOUR_MS))
    assert isinstance(old, OrphanCandidate) and (old.age_ms, old.writer_id, old.size_bytes) == (HOUR_MS, 7, 10)
    assert judged_one(stat(key_age_ms=HOUR_MS, object_age_ms=HOUR_MS - 1)) is Skipped.TOO_YOUNG
    assert judged_one(stat(key_age_ms=HOUR_MS - 1, object_age_ms=HOUR_MS)) is Skipped.TOO_YOUNG


def test_its_age_is_told_by_the_store_s_own_clock_not_by_ours() -> None:
    one = stat(key_age_ms=2 * HOUR_MS, object_age_ms=HOUR_MS)
    assert judged_one(one, store_now_ms=NOW_MS - 60_000) is Skipped.TOO_YOUNG
    assert judged_one(one, now_ms=NOW_MS + 60_000) is not Skipped.TOO_YOUNG


def test_an_object_without_a_time_counts_as_young() -> None:
    one = stat(key_age_ms=HOUR_MS, object_age_ms=HOUR_MS)
    assert judged_one(ObjectStat(key=one.key, size_bytes=1, last_modified_ms=0)) is Skipped.TOO_YOUNG


@pytest.mark.parametrize("key", ["l1/somebody-elses", "l0/ab/2023111422/notes.txt", "cluster.json"])
def test_what_has_no_key_of_ours_is_never_taken_for_an_orphan(key: str) -> None:
    assert judged_one(ObjectStat(key=key, size_bytes=1, last_modified_ms=1)) is Skipped.FOREIGN


def test_what_a_writer_at_work_may_yet_commit_is_spared() -> None:
    one, other = OrphanCandidate("a", 1, HOUR_MS, writer_id=7), OrphanCandidate("b", 1, HOUR_MS, writer_id=8)
    judged = judge([one, other], patience_ms={7: HOUR_MS + 1})
    assert (judged.orphans, judged.spared) == ([other], [one])
    assert judge([one, other], patience_ms={7: HOUR_MS}).orphans == [one, other]


def test_a_compactor_commits_nothing_older_than_its_oldest_running_merge_and_an_agent_nothing_beyond_a_bound() -> None:
    agents, compactors = [1], {2: HOUR_MS, 3: 50 * HOUR_MS}
    patience_ms = writers_patience_ms(agents, compactors)
    assert patience_ms == {1: 24 * HOUR_MS, 2: HOUR_MS + CLOCK_SLACK_MS, 3: 24 * HOUR_MS}
    assert writers_patience_ms(agents, compactors, bound_ms=1) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("objects", "allowed"), [(0, 20), (1_999, 20), (2_100, 21), (50_000, 500), (100_000, 1_000), (10**9, 1_000)]
)
def test_one_percent_may_be_orphans_but_never_more_than_a_thousand(objects: int, allowed: int) -> None:
    assert orphans_allowed(objects) == allowed
    assert orphans_allowed(objects, setting=7) == 7


def test_clocks_a_few_minutes_apart_agree_and_further_apart_do_not() -> None:
    assert clocks_agree(NOW_MS, NOW_MS + 300_000) and clocks_agree(NOW_MS + 300_000, NOW_MS)
    assert not clocks_agree(NOW_MS, NOW_MS + 300_001) and not clocks_agree(NOW_MS + 300_001, NOW_MS)


# ---- left-overs of merges that were done again


def a_job(state: JobState = JobState.DONE, **fields: Any) -> MergeJob:
    """A job that was created two hours ago and done an hour ago by its second attempt."""
    values: dict[str, Any] = {
        "job_id": 5,
        "kind": "merge",
        "state": state,
        "epoch": 2,
        "spec": {},
        "holder": 1,
        "attempts": 2,
        "created_ms": NOW_MS - 2 * HOUR_MS,
        "started_ms": NOW_MS - HOUR_MS - 1_000,
        "deadline_ms": NOW_MS,
        "finished_ms": NOW_MS - HOUR_MS,
        "lease_until_ms": None,
        "input_files": 1,
        "input_bytes": 1,
        "progress": {},
        "result": {},
        "error": "",
    }
    return MergeJob(**values | fields)


def left(*, put_ms: int = NOW_MS - 2 * HOUR_MS + 60_000) -> OrphanCandidate:
    return OrphanCandidate("l1/a", 1, HOUR_MS, writer_id=7, put_ms=put_ms, is_merged=True)


def test_a_candidate_knows_when_it_was_put_by_the_metadata_s_clock_and_whether_a_merge_wrote_it() -> None:
    one = stat(key_age_ms=2 * HOUR_MS, object_age_ms=HOUR_MS)
    found = judged_one(one, store_now_ms=NOW_MS + 60_000, now_ms=NOW_MS)
    assert isinstance(found, OrphanCandidate) and (found.put_ms, found.is_merged) == (NOW_MS - HOUR_MS - 60_000, True)
    begun_ms = NOW_MS - 2 * HOUR_MS
    key = file_key(level=0, writer_id=7, epoch=0, file_uuid=IDS.uuid7(begun_ms), created_ms=begun_ms)
    assert not judged_one(replace(one, key=key)).is_merged  # type: ignore[union-attr]


def test_a_file_of_an_attempt_before_the_one_that_ended_its_job_need_not_be_counted() -> None:
    assert is_done_again(left(), epoch=1, job=a_job())
    # nor an output of the attempt that did end it, which started again and left its first outputs
    assert is_done_again(left(), epoch=2, job=a_job())


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.FAILED])
def test_a_file_of_a_job_that_is_not_done_may_be_the_last_copy_of_what_it_holds(state: JobState) -> None:
    """The database may be an older copy, so that the attempt committed, its inputs were deleted, and the job cannot be
    done."""
    assert not is_done_again(left(), epoch=1, job=a_job(state))
    assert not is_done_again(left(), epoch=2, job=a_job(state))


def test_a_file_of_an_attempt_or_a_job_that_nobody_knows_is_counted() -> None:
    assert not is_done_again(left(), epoch=3, job=a_job())
    assert not is_done_again(left(), epoch=1, job=None)


def test_a_file_from_before_its_job_or_from_long_after_it_is_another_job_s_of_the_same_number() -> None:
    """A restored database assigns job ids a second time."""
    job = a_job()
    ended_ms = job.finished_ms or 0
    for put_ms, is_ours in (
        (job.created_ms - CLOCK_SLACK_MS - 1, False),
        (job.created_ms - CLOCK_SLACK_MS, True),
        (ended_ms + ATTEMPT_OUTLIVES_JOB_MS, True),
        (ended_ms + ATTEMPT_OUTLIVES_JOB_MS + 1, False),
    ):
        assert is_done_again(left(put_ms=put_ms), epoch=1, job=job) is is_ours
