"""When an erasure may end, and what its report says."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from compactor.deletion.erasure_end import (
    Listing,
    ListingDigest,
    Watched,
    abort_before_ms,
    holding_uploads,
    is_blocked,
    is_last_stage,
    may_be_older,
    report_of,
    watch,
    why_held,
)
from compactor.deletion.orphans import CLOCK_SLACK_MS
from metadata.contract.files import FileState
from metadata.erasures.contract import Erasure, ErasureStage, PendingFile
from runtime.ids import SystemIds
from storage.keys import file_key
from storage.objects import BegunUpload

NOW_MS = 1_700_000_000_000
IDS = SystemIds()


def erasure(stage: ErasureStage = ErasureStage.ERASING, *, tombstones: int = 0, takes_them: bool = False) -> Erasure:
    return Erasure(
        erasure_id=7,
        topic_id=uuid.UUID(int=1),
        topic_name="visits",
        stage=stage,
        stamp=3,
        erases_tombstones=takes_them,
        partitions={1: 11, 0: 10},
        keys=2,
        tombstones=tombstones,
        created_ms=NOW_MS - 1000,
        next_ms=NOW_MS - 1000,
        begin_ms=NOW_MS - 1000,
        deadline_ms=NOW_MS + 1000,
        done_ms=None,
        secret=b"s" * 32,
    )


def pending(
    file_id: int,
    state: FileState,
    *,
    level: int = 1,
    flagged: str | None = None,
    trouble: str = "",
    pinned: bool = False,
    died_ms: int = NOW_MS,
) -> PendingFile:
    dead_ms = None if state is FileState.LIVE else died_ms
    return PendingFile(file_id, f"l{level}/{file_id}", level, 100, state, dead_ms, 1, flagged, trouble, pinned)


def key_of(begun_ms: int, level: int = 1) -> str:
    return file_key(level=level, writer_id=1, epoch=0, file_uuid=IDS.uuid7(begun_ms), created_ms=begun_ms)


def test_an_erasure_settles_when_its_last_pending_file_is_gone_and_stays_settled() -> None:
    first = watch(None, erasure(), [pending(1, FileState.LIVE)], NOW_MS)
    assert first.settled_ms is None and first.since_ms == NOW_MS
    second = watch(first, erasure(), [], NOW_MS + 5)
    assert watch(second, erasure(), [], NOW_MS + 9).settled_ms == second.settled_ms == NOW_MS + 5
    # and a file that is pending again unsettles it
    assert watch(second, erasure(), [pending(2, FileState.DEAD)], NOW_MS + 9).settled_ms is None


@pytest.mark.parametrize(
    ("known", "is_last"),
    [
        (erasure(), True),
        (erasure(tombstones=1, takes_them=True), True),
        (erasure(tombstones=1), False),
        (erasure(ErasureStage.WAITING), False),
        (erasure(ErasureStage.RESTING, tombstones=1, takes_them=True), False),
    ],
)
def test_an_erasure_settles_in_its_last_stage_alone(known: Erasure, is_last: bool) -> None:
    assert is_last_stage(known) is is_last
    assert (watch(None, known, [], NOW_MS).settled_ms == NOW_MS) is is_last


def test_a_compactor_remembers_how_each_file_ended() -> None:
    # given files that were live, one that was dead before the request, one that died since, and an L0 file
    requested_ms = erasure().created_ms
    files = [
        pending(1, FileState.LIVE),
        pending(2, FileState.DEAD, died_ms=requested_ms - 1),
        pending(3, FileState.LIVE, level=0),
        pending(4, FileState.DEAD, died_ms=requested_ms),
    ]
    seen = watch(None, erasure(), files, NOW_MS)
    # when one of them dies
    seen = watch(seen, erasure(), [pending(1, FileState.DEAD)], NOW_MS + 5)
    seen = watch(seen, erasure(), [], NOW_MS + 9)
    # then
    assert {number: each.ended for number, each in seen.files.items()} == {
        1: "rewritten and deleted",
        2: "deleted",
        3: "merged and deleted",
        4: "rewritten and deleted",
    }
    assert {number: each.last_seen_ms - NOW_MS for number, each in seen.files.items()} == {1: 5, 2: 0, 3: 0, 4: 0}


def test_files_that_need_help_block_an_erasure() -> None:
    assert not is_blocked([pending(1, FileState.LIVE), pending(2, FileState.DEAD)])
    assert is_blocked([pending(1, FileState.LIVE, flagged="its CRC differs")])
    assert is_blocked([pending(1, FileState.LIVE, trouble="corrupt")])
    assert is_blocked([pending(1, FileState.DEAD, pinned=True)])


def test_only_objects_that_may_have_been_begun_before_the_settled_time_hold_an_erasure_back() -> None:
    assert may_be_older(key_of(NOW_MS - 1), NOW_MS)
    assert may_be_older(key_of(NOW_MS + CLOCK_SLACK_MS - 1), NOW_MS), "clocks differ"
    assert not may_be_older(key_of(NOW_MS + CLOCK_SLACK_MS), NOW_MS)
    assert not may_be_older("l1/somebody-else", NOW_MS)


def test_uploads_count_by_the_older_of_two_times_and_those_of_the_backup_not_at_all() -> None:
    late = NOW_MS + CLOCK_SLACK_MS
    by_store = BegunUpload(key=key_of(late), begun_ms=NOW_MS)
    by_key = BegunUpload(key=key_of(NOW_MS), begun_ms=late)
    unnamed = BegunUpload(key="", begun_ms=NOW_MS)
    later = [BegunUpload(key=key_of(late), begun_ms=late), BegunUpload(key="", begun_ms=late)]
    backup = BegunUpload(key="catalog/snapshots/x", begun_ms=NOW_MS - 1)
    assert holding_uploads([by_store, by_key, unnamed, backup, *later], NOW_MS) == [by_store, by_key, unnamed]


def test_no_upload_is_aborted_that_may_belong_to_a_running_merge_or_put() -> None:
    assert abort_before_ms(settled_ms=NOW_MS - 50, now_ms=NOW_MS, at_work_ms=(), age_ms=10) == NOW_MS - 50
    assert abort_before_ms(settled_ms=NOW_MS, now_ms=NOW_MS, at_work_ms=(), age_ms=10) == NOW_MS - 10
    bound_ms = abort_before_ms(settled_ms=NOW_MS, now_ms=NOW_MS, at_work_ms=[5, 500], age_ms=10)
    assert bound_ms == NOW_MS - 500 - CLOCK_SLACK_MS


def test_what_holds_an_erasure_back_is_named() -> None:
    assert why_held([], 0) == ""
    said = why_held(["a", "b", "c", "d"], 2)
    assert said == (
        "4 objects without a row may hold records of its partitions: a, b, c and others;"
        " 2 uploads began before and did not end"
    )


def test_the_report_has_the_files_and_a_digest_of_the_listing_but_no_key_and_no_secret() -> None:
    # given
    digest = ListingDigest()
    digest.add("l1/a", 5)
    digest.add("l2/b", 6)
    listing = Listing(
        began_ms=NOW_MS,
        ended_ms=NOW_MS + 1,
        objects=digest.objects,
        size_bytes=digest.size_bytes,
        sha256=digest.hexdigest(),
        strays=["l2/b"],
    )
    watched = watch(None, erasure(), [pending(4, FileState.LIVE)], NOW_MS - 9)
    watched = watch(watched, erasure(), [], NOW_MS - 5)
    # when
    report = report_of(erasure(), watched, listing, now_ms=NOW_MS + 2)
    # then
    assert report["listing"] == {
        "began_ms": NOW_MS,
        "ended_ms": NOW_MS + 1,
        "objects": 2,
        "size_bytes": 11,
        "sha256": hashlib.sha256(b"l1/a\t5\nl2/b\t6\n").hexdigest(),
        "without_a_row": 1,
    }
    assert report["files"] == [
        {
            "file_id": 4,
            "key": "l1/4",
            "level": 1,
            "size_bytes": 100,
            "was_live": True,
            "first_seen_ms": NOW_MS - 9,
            "last_seen_ms": NOW_MS - 9,
            "ended": "rewritten and deleted",
        }
    ]
    assert report["partitions"] == [0, 1] and report["files_seen_since_ms"] == NOW_MS - 9
    assert (report["settled_ms"], report["finished_ms"]) == (NOW_MS - 5, NOW_MS + 2)
    assert (b"s" * 32).hex() not in str(report)


def test_a_report_lists_no_more_files_than_a_row_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.deletion.erasure_end.FILES_REPORTED_MAX", 1)
    files = [pending(number, FileState.LIVE) for number in (2, 1)]
    watched: Watched = watch(None, erasure(), files, NOW_MS)
    listing = Listing(began_ms=1, ended_ms=2, objects=0, size_bytes=0, sha256="", strays=[])
    report = report_of(erasure(), watched, listing, now_ms=NOW_MS)
    assert report["files_seen"] == 2 and [each["file_id"] for each in report["files"]] == [1]
