"""L0 -> L1: L0 files are merged when they are enough or wait long enough, and a backlog is cut into jobs. Pure.

Nothing is deduped here, so the order matters little. The oldest go first, because agents hold an index of every live
L0 file. Files that no object holds (markers of transactions) cost no request, so neither the least number of files nor
a job's limit counts them. They wait no longer than others, and a limit of their own bounds them. `job_ends` needs only
the ages and sizes of the files, in order, because the simulator asks about millions of files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from compactor.planning.draft import PlanDraft
from compactor.planning.notes import Blocker, count_text
from compactor.planning.spec import MergeKind, PlanOptions
from compactor.planning.view import FileStatus


def job_ends(
    created_ms: Sequence[int],
    bytes_before: Sequence[int],
    objects_before: Sequence[int],
    *,
    now_ms: int,
    jobs: int,
    options: PlanOptions,
    at_once: bool = False,
    wait_ms_max: int | None = None,
) -> Sequence[int]:
    """The ends of the jobs over these files: the first job takes [0, ends[0]), the next [ends[0], ends[1]), and so on.

    Args:
        created_ms: creation time of each file, oldest first.
        bytes_before: sum of the sizes of the files before each one, and the sum of all at the end (one longer).
        objects_before: the same of the number of files that an object holds.
        jobs: the most jobs to make.
        at_once: a user waits for compaction.
        wait_ms_max: the oldest waits no longer than this, if that is less than `l0_wait_ms_max`.
    """
    wait_ms_max = min(options.l0_wait_ms_max, options.l0_wait_ms_max if wait_ms_max is None else wait_ms_max)
    ends: list[int] = []
    start, files = 0, len(created_ms)
    while start < files and len(ends) < jobs:
        waits_ms = now_ms - created_ms[start]
        if waits_ms < 0:  # made before the store's clock went back: its age is unknown
            waits_ms = options.l0_wait_ms_max
        is_large = bytes_before[files] - bytes_before[start] >= options.l0_bytes_min
        objects = objects_before[files] - objects_before[start]
        is_enough = objects >= options.l0_files_min and (is_large or waits_ms >= options.l0_wait_ms)
        if not (is_enough or waits_ms >= wait_ms_max or (at_once and waits_ms >= options.l0_now_ms)):
            break
        # A file above the limit of bytes still makes a job of its own.
        by_bytes = bisect_right(bytes_before, bytes_before[start] + options.l0_job_bytes_max) - 1
        by_objects = bisect_right(objects_before, objects_before[start] + options.l0_job_files_max) - 1
        start = max(start + 1, min(by_bytes, by_objects, start + options.l0_job_rows_max, files))
        ends.append(start)
    return ends


def plan_l0(draft: PlanDraft) -> None:
    l0 = [each for each in draft.view.files if each.level == 0]
    status = {each.file_id: draft.status(each) for each in l0}
    free = sorted(
        (each for each in l0 if status[each.file_id] is FileStatus.FREE),
        key=lambda each: (each.created_ms, each.lo, each.file_id),
    )
    # While a job holds other L0 files, or some cannot be read, the request goes on waiting. Leveling the rest at once
    # would then make a run of every new file.
    at_once = len(free) == len(l0) and _is_asked_for(draft)
    lag_wait_ms = _lag_wait_ms(draft) if FileStatus.IN_TROUBLE not in status.values() else None
    slots = draft.slots.l0
    ends = job_ends(
        [each.created_ms for each in free],
        list(accumulate((each.size_bytes for each in free), initial=0)),
        list(accumulate((not each.is_inline for each in free), initial=0)),
        now_ms=draft.now_ms,
        jobs=slots + 1,  # one more than may start, to know whether any has to wait
        options=draft.options,
        at_once=at_once,
        wait_ms_max=lag_wait_ms,
    )
    for start, end in pairwise([0, *ends[:slots]]):
        waits = f"the oldest waits {max(0, draft.now_ms - free[start].created_ms) // 1000} s"
        asked = ", compaction was asked for" if at_once else ""
        draft.add_l0(free[start:end], f"{count_text(end - start, 'L0 file')}, {waits}{asked}")
    if len(ends) > slots:
        left = free[ends[slots - 1] if slots else 0 :]
        wait = "waits" if len(left) == 1 else "wait"
        text = f"{count_text(len(left), 'L0 file')} {wait} for one of {draft.options.l0_jobs_max} jobs"
        draft.note(MergeKind.LEVEL, text, Blocker.L0_JOBS)
    in_trouble = [each for each in l0 if status[each.file_id] is FileStatus.IN_TROUBLE]
    if in_trouble:
        is_one = len(in_trouble) == 1
        text = f"{count_text(len(in_trouble), 'L0 file')} {'is' if is_one else 'are'} left alone: a merge failed"
        draft.note(MergeKind.LEVEL, text, Blocker.TROUBLE, files=in_trouble)


def _is_asked_for(draft: PlanDraft) -> bool:
    """Whether a user asked to compact some partition further than it is leveled."""
    for partition in draft.view.partitions.values():
        if partition.requested_through_offset is not None:
            leveled = draft.view.dirtiness[partition.partition_id].leveled_through_offset
            if min(partition.requested_through_offset, partition.high_watermark) > leveled:
                return True
    return False


def _lag_wait_ms(draft: PlanDraft) -> int | None:
    """How long L0 files may wait so that no record passes its `max.compaction.lag.ms` here; None = no topic with
    records in L0 has one. Half the lag is left for the merge and the way to the pass."""
    lags = [
        dirty.lag_ms_max
        for partition_id, dirty in draft.view.dirtiness.items()
        if dirty.has_lag and dirty.leveled_through_offset < draft.view.partitions[partition_id].high_watermark
    ]
    return max(min(lags) // 2, draft.options.l0_lag_wait_ms_min) if lags else None
