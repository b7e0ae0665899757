"""The reports of `topics explain` and `topics describe` about inputs that merges cannot read: lost objects, unreadable
batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactor.merging.cursors import Cursors
from compactor.merging.kway_merge import InputExtent, InputFile, MergeInputError
from compactor.planning.plan import explain_plan
from compactor.planning.spec import MIB, PlanOptions
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.files import L0File
from metadata.contract.jobs import JobState, MergeJob
from metadata.rules.jobs import UNREADABLE
from metadata.rules.packed_index import IndexRow, encode_index
from siltstone.ops.compaction.evidence import Evidence, PartitionState, partition_states, troubled_by_partition
from siltstone.ops.compaction.reasons import Reason, explain
from siltstone.ops.compaction.report import brief_lines, states_json, troubles_json
from siltstone.ops.hint_options import HintOptions
from storage.memory import MemoryStore
from tests.fixtures.compaction_views import COMPACT, NOW_MS, extent, file, job, partition, view

OPTIONS = PlanOptions()
KEY = "l0/3f/2027011500/4-0-0190.silt"
GONE = f"{KEY!r}, which holds partition 1, offset 50, is not in the object store (`siltstone fsck` lists missing files)"


def l0(file_id: int, *rows: tuple[int, int, int]) -> L0File:
    """Rows: partition id, base offset, last offset."""
    index = encode_index([IndexRow(*row, 0, 1, NOW_MS, NOW_MS) for row in rows])
    return L0File(
        file_id=file_id, key=KEY, writer_id=4, epoch=0, seq=file_id, size_bytes=9, created_ms=0, index=index, live=True
    )


def lost(*, until_ms: int = NOW_MS + 60_000, trouble: str = GONE) -> FileView:
    return replace(file(5, 0, trouble_until_ms=until_ms), trouble=trouble)


def judged(
    views: Sequence[PartitionView], seen: CompactionView, l0_files: Sequence[L0File] = (), **known: Any
) -> tuple[Sequence[PartitionState], Sequence[Reason]]:
    seen = replace(seen, partitions=views)
    plan = explain_plan(seen, OPTIONS)
    troubled = troubled_by_partition(seen, views, l0_files)
    evidence = Evidence(
        topic="users",
        options=OPTIONS,
        view=seen,
        plan=plan,
        troubled=troubled,
        compactors=[(9, "host")],
        **known,
    )
    states = partition_states(views, OPTIONS, seen)
    return states, explain(states, evidence)


def only(found: Sequence[Reason], code: str) -> Reason:
    [reason] = [each for each in found if each.cause.code == code] or [None]
    assert reason is not None, [each.cause.code for each in found]
    return reason


HOLED = partition(
    *(extent(0, 49), extent(60, 99)),
    end=100,
    cleaned_through=50,
    last_cleaned_ms=NOW_MS,
    configs={"cleanup.policy": "compact,delete"},
)
"""Offsets 50 to 59 lie in L0."""


def test_a_lost_l0_object_names_file_offsets_job_and_remedy() -> None:
    hints = HintOptions(places=" --data X", agents=" --data X")
    failed = job(14, JobState.FAILED, error=GONE, kind="level", spec={"l0_file_ids": [4, 5]})
    states, found = judged([HOLED], view(lost()), [l0(5, (1, 50, 59), (9, 0, 4))], jobs=[failed], hints=hints)
    reason = only(found, "object lost")
    assert f"has offsets 50 to 59 in L0 file 5, whose object is lost ({KEY}): job 14 (level) failed on it: " in (
        reason.says
    )
    assert "is not in the object store" in reason.says and "tried again in 1m00s" in reason.says
    assert "retention stops there (the log start is 0)" in reason.says
    assert "`siltstone fsck --data X` shows what is missing (FILE-1)" in reason.remedy
    assert "below offset 60" in reason.remedy and "those of all other partitions in that file" in reason.remedy
    # and no line promises that lost records go to L1 in a minute, or reports the failure twice
    assert {each.cause.code for each in found}.isdisjoint({"in L0", "failed", "clean"})
    # describe reports it in one line
    assert brief_lines(found) == [reason.says.replace("partition 0", "Partition 0")]
    [shown] = states_json(states, found)
    assert shown["trouble"].startswith("offsets 50 to 59 in L0 file 5") and shown["waits"] == ""


def test_retention_is_named_where_there_is_some_and_cleaning_where_it_is_done() -> None:
    def says(policy: str) -> str:
        _, found = judged([replace(HOLED, configs={"cleanup.policy": policy})], view(lost()), [l0(5, (1, 50, 59))])
        return only(found, "object lost").says

    assert "retention" not in says("compact") and "nothing from there on is cleaned" in says("compact")
    assert "retention stops" in says("delete") and "cleaned" not in says("delete")


def test_a_lost_l0_object_stays_told_while_it_is_tried_again() -> None:
    _, found = judged([HOLED], view(lost(until_ms=NOW_MS - 1)), [l0(5, (1, 50, 59))])
    assert "It is tried again now; until" in only(found, "object lost").says


def test_what_else_lies_in_l0_is_still_told() -> None:
    _, found = judged([replace(HOLED, high_watermark=107)], view(lost()), [l0(5, (1, 50, 59))])
    assert only(found, "in L0")


def test_a_plain_topic_hears_of_it_too() -> None:
    plain = replace(HOLED, configs={})
    _, found = judged([plain], view(lost()), [l0(5, (1, 50, 59))])
    assert [each.cause.code for each in found] == ["plain", "object lost"]
    assert len(brief_lines(found)) == 1
    _, found = judged([plain], view(file(5, 0)), [l0(5, (1, 50, 59))])
    assert [each.cause.code for each in found] == ["plain"] and brief_lines(found) == []


def test_what_is_deleted_of_a_lost_object_is_no_trouble() -> None:
    gone = partition(extent(60, 99), end=100, log_start=60, cleaned_through=100)
    _, found = judged([gone], view(lost()), [l0(5, (1, 50, 59))])
    assert [each.cause.code for each in found] == ["clean"] and troubles_json(found) == []


async def test_the_error_of_a_merge_without_its_object_is_known_as_a_lost_object() -> None:
    asked = InputExtent(1, 50, 59, 5, KEY, 0, 9, True, 10, 0, 0, 0, False, None)
    files = {5: InputFile(file_id=5, key=KEY, size_bytes=9, is_l0=True)}
    with pytest.raises(MergeInputError) as raised:
        await anext(Cursors(MemoryStore(), [asked], files, budget_bytes=MIB).chunks(asked))
    _, found = judged([HOLED], view(lost(trouble=str(raised.value))), [l0(5, (1, 50, 59))])
    assert only(found, "object lost") and str(raised.value) == GONE


def test_trouble_of_another_kind_is_not_called_lost() -> None:
    cut = lost(trouble=f"{KEY!r}, which holds partition 1, offset 50, ends at byte 7, but should have at least 9 bytes")
    _, found = judged([HOLED], view(cut), [l0(5, (1, 50, 59))])
    reason = only(found, "file in trouble")
    assert "which merges fail to read" in reason.says and "ends at byte 7" in reason.says
    assert "siltstone fsck" in reason.remedy and "lost" not in reason.says


def test_many_files_in_trouble_are_counted() -> None:
    files = [replace(lost(), file_id=each) for each in range(15, 22)]
    rows = [l0(each, (1, each * 10 - 100, each * 10 - 91)) for each in range(15, 22)]
    _, found = judged([partition(extent(0, 49), end=120)], view(*files), rows)
    assert len([each for each in found if each.cause.code == "object lost"]) == 5
    assert "has records in 2 more places that merges fail to read" in only(found, "file in trouble").says
    assert "file 15, whose object is lost" in troubles_json(found)[0]["says"]
    assert [line.split()[2] for line in brief_lines(found)] == ["has", "is"], "its trouble, and a pass that is due"


# ---- unreadable batches


def told(job_id: int, *, batches: int = 2, first: int = 4, partition_id: int = 1) -> MergeJob:
    row = {"partition_id": partition_id, "batches": batches, "first_offset": first, "reason": "offset deltas"}
    return replace(job(job_id, JobState.DONE), result={UNREADABLE: [row]})


WRITTEN = partition(extent(0, 99), end=100, cleaned_through=100)
BY_12 = view(file(7, 2, run_id=12))


def test_unreadable_batches_name_the_job_that_met_them_and_what_they_mean() -> None:
    _, found = judged([WRITTEN], BY_12, unreadable_jobs=[told(12), told(11, first=2)])
    reason = only(found, "unreadable batches")
    assert (
        "partition 0 has 2 batches whose records cannot be read, the first at offset 4: offset deltas." in reason.says
    )
    assert "Known from job 12 (forced), 2m00s ago" in reason.says and "consumers get" in reason.says
    assert "siltstone file inspect l2/" in reason.remedy and "seek past" in reason.remedy


@pytest.mark.parametrize("job_told", [told(11), told(12, partition_id=2)], ids=["merged since", "of another partition"])
def test_what_no_present_file_of_the_partition_has_is_not_told(job_told: MergeJob) -> None:
    _, found = judged([WRITTEN], BY_12, unreadable_jobs=[job_told])
    assert [each.cause.code for each in found] == ["clean"]


def test_unreadable_batches_below_the_log_start_are_gone() -> None:
    moved = partition(extent(0, 99), end=100, log_start=50, cleaned_through=100, configs=COMPACT)
    _, found = judged([moved], BY_12, unreadable_jobs=[told(12, batches=1)])
    assert [each.cause.code for each in found] == ["clean"]
    _, found = judged([moved], BY_12, unreadable_jobs=[told(12)])
    assert "Those below the log start (50) are deleted since" in only(found, "unreadable batches").says
