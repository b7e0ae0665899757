"""Why an erasure is not done, for every reason."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from metadata.contract.files import FileState
from metadata.erasures.contract import Erasure, ErasureStage, HoldingTransaction, PendingFile
from siltstone.ops.erasure.status import Reason, State, deadline_text, state_json, state_pairs, waits_of

NOW_MS = 1_800_000_000_000
ERASING = Erasure(
    erasure_id=7,
    topic_id=uuid.UUID(int=1),
    topic_name="users",
    stage=ErasureStage.ERASING,
    stamp=3,
    erases_tombstones=False,
    partitions={0: 10, 1: 11},
    keys=4,
    tombstones=1,
    created_ms=NOW_MS - 60_000,
    next_ms=NOW_MS - 60_000,
    begin_ms=NOW_MS - 1,
    deadline_ms=NOW_MS + 3_600_000,
    done_ms=None,
    secret=b"s" * 32,
)
LIVE = PendingFile(
    file_id=1,
    key="l1/x",
    level=1,
    size_bytes=2_048,
    state=FileState.LIVE,
    dead_ms=None,
    live_extents=1,
    flagged_reason=None,
    trouble="",
    is_pinned=False,
)
DEAD = LIVE._replace(state=FileState.DEAD, dead_ms=NOW_MS - 1_000, live_extents=0)


def texts(erasure: Erasure, *pending: PendingFile, strays: int = 0, refused: int = 0, compactors: int = 1) -> list[str]:
    found = waits_of(
        erasure, pending, now_ms=NOW_MS, grace_ms=5_000, strays=strays, refused=refused, compactors=compactors
    )
    return [each.text for each in found]


def test_a_waiting_erasure_waits_on_the_lag_alone() -> None:
    waiting = replace(ERASING, stage=ErasureStage.WAITING, next_ms=NOW_MS + 1_000)
    assert texts(waiting, LIVE, LIVE._replace(level=0)) == ["min.compaction.lag.ms until 2027-01-15T08:00:01.000Z"]


def test_a_resting_erasure_names_the_rest_and_the_files_that_go_meanwhile() -> None:
    resting = replace(ERASING, stage=ErasureStage.RESTING, next_ms=NOW_MS + 2_000)
    assert texts(resting, LIVE, DEAD) == [
        "delete.retention.ms until 2027-01-15T08:00:02.000Z",
        "1 dead file in gc.grace.ms until 2027-01-15T08:00:04.000Z (2.0 KiB)",
    ]


def test_files_are_counted_by_what_has_to_happen_to_them() -> None:
    assert texts(
        ERASING,
        LIVE._replace(level=0),
        LIVE,
        LIVE,
        LIVE._replace(trouble="boom"),
        LIVE._replace(flagged_reason="its CRC-32C does not match"),
        DEAD._replace(dead_ms=NOW_MS - 4_000),
        DEAD,
        DEAD._replace(is_pinned=True),
    ) == [
        "1 L0 file to be merged (2.0 KiB)",
        "2 files to be rewritten (4.0 KiB)",
        "1 file whose merge failed (2.0 KiB): boom",
        "1 file with records that cannot be read (2.0 KiB): its CRC-32C does not match",
        "2 dead files in gc.grace.ms until 2027-01-15T08:00:04.000Z (4.0 KiB)",
        "1 dead file pinned by a reader (2.0 KiB)",
    ]


def test_an_erasure_that_begins_later_says_when() -> None:
    later = replace(ERASING, begin_ms=NOW_MS + 1_000)
    assert texts(later, LIVE)[0] == (
        "merges for its sake alone begin at 2027-01-15T08:00:01.000Z; until then files go with other merges"
    )
    # a dead file needs no merge
    assert texts(later, DEAD) == ["1 dead file in gc.grace.ms until 2027-01-15T08:00:04.000Z (2.0 KiB)"]


@pytest.mark.parametrize("stage", [ErasureStage.ERASING, ErasureStage.RESTING])
def test_an_l0_file_whose_merge_fails_is_told_with_the_error(stage: ErasureStage) -> None:
    failing = LIVE._replace(level=0, trouble="l0/x is gone")
    said = texts(replace(ERASING, stage=stage), LIVE._replace(level=0), failing)
    assert "1 L0 file to be merged (2.0 KiB)" in said
    assert "1 file whose merge failed (2.0 KiB): l0/x is gone" in said


def test_without_pending_files_it_waits_on_objects_without_a_row_or_the_last_check() -> None:
    assert texts(ERASING, strays=2) == ["2 objects without a row that may hold records of it"]
    stray, refused = texts(ERASING, strays=1, refused=1)
    assert "without a row" in stray and refused.startswith("1 L0 file with a batch that was sent again or refused")
    assert texts(ERASING) == ["the last check of a compactor"]


def test_each_open_transaction_is_named_once_and_there_is_no_last_check_before_its_end() -> None:
    holding = [
        HoldingTransaction(0, 7, 12, "pay-1"),
        HoldingTransaction(1, 7, 3, "pay-1"),
        HoldingTransaction(1, 8, 9, ""),
    ]
    waits = waits_of(ERASING, [], now_ms=NOW_MS, grace_ms=5_000, holding=holding)
    further = "readers of committed records get no further before it ends"
    assert [each.text for each in waits] == [
        f"transaction 'pay-1' of producer 7, open since offset 12 of partition 0: {further}",
        f"transaction '' of producer 8, open since offset 9 of partition 1: {further}",
    ]
    done = replace(ERASING, stage=ErasureStage.DONE, done_ms=NOW_MS)
    assert waits_of(done, [], now_ms=NOW_MS, grace_ms=5_000, holding=holding) == ()


def test_a_missing_compactor_comes_first_and_a_done_erasure_waits_on_nothing() -> None:
    assert texts(ERASING, compactors=0) == ["no compactor runs", "the last check of a compactor"]
    assert texts(replace(ERASING, stage=ErasureStage.DONE, done_ms=NOW_MS), compactors=0) == []


def test_the_deadline_says_how_long_it_is_and_whether_it_was_kept() -> None:
    assert deadline_text(ERASING, NOW_MS).endswith("Z, in 1h00m")
    assert deadline_text(ERASING, NOW_MS + 3_660_000).endswith("Z, overdue for 1m00s")
    assert deadline_text(replace(ERASING, done_ms=NOW_MS), NOW_MS).endswith("Z, kept")
    assert deadline_text(replace(ERASING, done_ms=NOW_MS + 3_605_000), NOW_MS).endswith("Z, missed by 5s")


def test_a_state_has_its_numbers_in_words_and_as_json() -> None:
    waits = waits_of(ERASING, [LIVE], now_ms=NOW_MS, grace_ms=0)
    state = State(erasure=ERASING, pending=[LIVE], waits=waits, now_ms=NOW_MS)
    assert state_pairs(state)["keys"] == "4 marks in 2 partitions, 1 tombstone"
    assert state_pairs(state)["left"] == "1 file (2.0 KiB)"
    said = state_json(state)
    assert (said["erasure"], said["pending_bytes"], said["is_overdue"]) == (7, 2_048, False)
    assert said["waits_on"][0]["reason"] == Reason.REWRITE.value
