"""L0 -> L1: when there are enough L0 files, or they wait for long enough, and how a backlog is cut into jobs. Pure.

Nothing is deduped here, so the order matters little; the oldest go first, because agents hold an index of every live
L0 file. `job_ends` needs no files, only their ages and sizes in order: the simulator asks it about millions of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from compactor.planning.round import FileStatus, Hold, Round, count_text
from compactor.planning.spec import MergeKind, PlanOptions


def job_ends(
    created_ms: Sequence[int],
    bytes_before: Sequence[int],
    *,
    now_ms: int,
    jobs: int,
    options: PlanOptions,
    at_once: bool = False,
) -> Sequence[int]:
    """Where jobs over these files end: the first takes [0, ends[0]), the next [ends[0], ends[1]), and so on.

    Args:
        created_ms: of each file, oldest first.
        bytes_before: sum of the sizes of the files before each one, with the sum of all at the end (one longer).
        jobs: how many at most.
        at_once: somebody waits for compaction.
    """
    ends: list[int] = []
    start, files = 0, len(created_ms)
    while start < files and len(ends) < jobs:
        waits_ms = now_ms - created_ms[start]
        if waits_ms < 0:  # made before the store's clock went back
            waits_ms = options.l0_wait_ms_max
        is_large = bytes_before[files] - bytes_before[start] >= options.l0_bytes_min
        is_enough = files - start >= options.l0_files_min and (is_large or waits_ms >= options.l0_wait_ms)
        if not (is_enough or waits_ms >= options.l0_wait_ms_max or (at_once and waits_ms >= options.l0_now_ms)):
            break
        by_bytes = bisect_right(bytes_before, bytes_before[start] + options.l0_job_bytes_max) - 1
        start = max(start + 1, min(by_bytes, start + options.l0_job_files_max, files))
        ends.append(start)
    return ends


def plan_l0(state: Round) -> None:
    l0 = [each for each in state.files if each.level == 0]
    status = {each.file_id: state.status(each) for each in l0}
    free = sorted(
        (each for each in l0 if status[each.file_id] is FileStatus.FREE),
        key=lambda each: (each.created_ms, each.lo, each.file_id),
    )
    # While other L0 files are on their way, or cannot be read, leveling the rest at once would make a run of every
    # new file for as long as the request waits.
    at_once = len(free) == len(l0) and _is_asked_for(state)
    places = state.l0_places
    ends = job_ends(
        [each.created_ms for each in free],
        list(accumulate((each.size_bytes for each in free), initial=0)),
        now_ms=state.now_ms,
        jobs=places + 1,  # the last is due, and has to wait
        options=state.options,
        at_once=at_once,
    )
    for start, end in pairwise([0, *ends[:places]]):
        waits = f"the oldest waits {max(0, state.now_ms - free[start].created_ms) // 1000} s"
        asked = ", compaction was asked for" if at_once else ""
        state.add_l0(free[start:end], f"{count_text(end - start, 'L0 file')}, {waits}{asked}")
    if len(ends) > places:
        left = free[ends[places - 1] if places else 0 :]
        wait = "waits" if len(left) == 1 else "wait"
        text = f"{count_text(len(left), 'L0 file')} {wait} for one of {state.options.l0_jobs_max} jobs"
        state.note(MergeKind.LEVEL, text, Hold.L0_JOBS)
    in_trouble = [each for each in l0 if status[each.file_id] is FileStatus.IN_TROUBLE]
    if in_trouble:
        is_one = len(in_trouble) == 1
        text = f"{count_text(len(in_trouble), 'L0 file')} {'is' if is_one else 'are'} left alone: a merge failed"
        state.note(MergeKind.LEVEL, text, Hold.TROUBLE, files=in_trouble)


def _is_asked_for(state: Round) -> bool:
    """Some partition was asked to be compacted further than it is leveled."""
    for partition in state.partitions.values():
        if partition.requested_through_offset is not None:
            leveled = state.dirtiness[partition.partition_id].leveled_through_offset
            if min(partition.requested_through_offset, partition.high_watermark) > leveled:
                return True
    return False
