"""The effects of a merge's commit on the partitions that it cleaned."""

from __future__ import annotations

import pytest

from metadata.contract.jobs import CleanedPartition, CommitMerge
from metadata.rules.merge_commit import DEDUPED_TOLD_MAX, CleanedState, cleaned, merged_detail

NOW_MS = 1_700_000_000_000


def commit(cleaned_partitions: int) -> CommitMerge:
    passes = [
        CleanedPartition(partition_id=number, cleaned_through_offset=1, passes_needed=1)
        for number in reversed(range(cleaned_partitions))
    ]
    return CommitMerge(job_id=7, epoch=1, outputs=(), covered={}, cleaned=passes, summary={})


def test_a_change_tells_of_deduped_partitions_while_they_are_not_too_many() -> None:
    most, too_many = merged_detail(commit(DEDUPED_TOLD_MAX), [3]), merged_detail(commit(DEDUPED_TOLD_MAX + 1), [3])
    assert most == {"job_id": 7, "l0_files": [3], "deduped": list(range(DEDUPED_TOLD_MAX))}
    assert too_many == {"job_id": 7, "l0_files": [3], "deduped": []}


def test_nothing_is_told_when_there_is_nothing_to_tell() -> None:
    assert merged_detail(commit(0), []) is None
    assert merged_detail(commit(DEDUPED_TOLD_MAX + 1), []) is None
    assert merged_detail(commit(1), []) == {"job_id": 7, "l0_files": [], "deduped": [0]}


@pytest.mark.parametrize(
    ("before", "found", "through", "after"),
    [(4, 1, None, 4), (1, 4, None, 4), (4, 1, 10, 1), (1, 4, 10, 4)],
    ids=["part finds fewer", "part finds more", "whole finds fewer", "whole finds more"],
)
def test_only_a_pass_from_the_log_start_can_find_that_the_keys_fit_again(
    before: int, found: int, through: int | None, after: int
) -> None:
    state = CleanedState(passes_needed=before)
    pass_ = CleanedPartition(partition_id=1, cleaned_through_offset=through, passes_needed=found)
    assert cleaned(state, pass_, now_ms=NOW_MS).passes_needed == after
