"""Merges of whole runs, per class: L1 -> L2, L2 -> L2, and once a day L2 runs of unlike sizes. Pure.

A *run* is the set of files that one merge wrote. Rules take runs in order of `lo` (the first L0 file that the run
covers) and ignore gaps between them. A commit may become visible inside a merged range, and the range of one run may
lie inside another's, so a rule that waited for unbroken ranges would wait for ever. Skipping is safe, because a merge
cuts its output extents wherever the inputs have a gap. So L2 -> L2 counts runs of similar size over the whole class,
and also takes smaller runs that lie between them.

A class keeps fewer than 32 runs in L1, and in L2 fewer than 10 of each size. Between "small" (16 MiB) and the cap of
128 GiB there are only 13 steps of a factor of 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from compactor.planning.dirtiness import is_over
from compactor.planning.draft import PlanDraft
from compactor.planning.notes import Blocker
from compactor.planning.spec import MIB, MergeKind, PlanOptions
from compactor.planning.view import FileStatus
from metadata.contract.compactors import FileView
from metadata.contract.leveled import FileClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The files of one class that one merge wrote and that may be merged again."""

    run_id: int
    lo: int
    hi: int
    bytes: int
    """Bytes of live extents."""
    cap_bytes: int
    """The same with records uncompressed, as far as known: the cap counts these."""
    created_ms: int
    files: Sequence[FileView]
    waits: bool
    """A forced pass holds some of its extents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGroup:
    """Runs that a rule wants merged."""

    runs: Sequence[Run]
    waits: bool
    """Some are held by forced passes."""
    urgency: float
    """The number of runs that the rule counts, over the number that makes a merge due."""
    text: str

    @property
    def bytes(self) -> int:
        return _bytes(self.runs)


@dataclass(slots=True)
class RunPool:
    """The runs of one class and level that are neither planned nor waited for."""

    level: int
    file_class: FileClass
    runs: Sequence[Run]

    def next(self, options: PlanOptions) -> MergeGroup | None:
        """A group that can be merged now; else one that waits for forced passes; None when there are too few runs."""
        free = [each for each in self.runs if not each.waits]
        # Free runs first: a group that can start now is better than a larger one that waits for forced passes.
        for found in (free, self.runs):
            group = self._l1(found, options) if self.level == 1 else self._l2(found, options)
            if group is not None:
                return group
        return None

    def _l1(self, found: Sequence[Run], options: PlanOptions) -> MergeGroup | None:
        group = within_cap(found[: options.l1_runs_min], options.merge_bytes_max)
        if len(found) < options.l1_runs_min or not group:
            return None
        return MergeGroup(
            runs=group,
            waits=any(each.waits for each in group),
            urgency=len(self.runs) / options.l1_runs_min,
            text=f"{len(group)} {self.file_class} L1 runs",
        )

    def _l2(self, found: Sequence[Run], options: PlanOptions) -> MergeGroup | None:
        alike = similar(found, options)
        if not alike:
            return None
        group = within_cap(_with_smaller_between(found, alike, options), options.merge_bytes_max)
        return MergeGroup(
            runs=group,
            waits=any(each.waits for each in group),
            urgency=len(alike) / options.l2_runs_min,
            text=f"{len(group)} {self.file_class} L2 runs, most from {min(each.bytes for each in alike) // MIB} MiB up",
        )


def plan_runs(draft: PlanDraft) -> None:
    """The group with the largest backlog first, so that no class and no level can starve another.

    A group that has to wait for forced passes keeps its slot; otherwise other jobs would always be quicker. A group
    that gets no slot is not reserved; otherwise forced passes could go nowhere while all slots are taken. When Spark
    has no slot, the embedded engine goes on with the runs behind that group.
    """
    takes_all = _plan_daily(draft)
    pools = [
        RunPool(level, file_class, _mergeable(draft, level, file_class))
        for file_class in FileClass
        for level in (1, 2)
        if not (takes_all and level == 2 and file_class is FileClass.COMPACTED)
    ]
    without_slot: dict[tuple[Blocker, str], list[Run]] = defaultdict(list)
    while found := [(group, pool) for pool in pools if (group := pool.next(draft.options)) is not None]:
        if not draft.slots.has_merges:
            for group, pool in found:
                without_slot[_no_slot(draft, group)] += pool.runs
            break
        group, pool = max(found, key=lambda each: each[0].urgency)
        # Also when nothing is planned for the group: the loop ends because every round takes runs out of a pool.
        pool.runs = _without(pool.runs, group.runs)
        if not draft.slots.for_size(group.bytes).merges:
            without_slot[_no_slot(draft, group)] += group.runs
        elif group.waits:
            _wait_for_passes(draft, MergeKind.MERGE, group.runs, group.text)
        else:
            draft.add_merge(MergeKind.MERGE, _files(group.runs), level=2, dedupe=True, reason=group.text)
    for (hold, text), found in without_slot.items():
        draft.note(MergeKind.MERGE, text, hold, files=_files(found))


def _mergeable(draft: PlanDraft, level: int, file_class: FileClass) -> Sequence[Run]:
    found = runs(draft, level, file_class)
    if level == 2 and file_class is FileClass.PLAIN:
        return [each for each in found if each.bytes < draft.options.l2_plain_bytes_max]
    return found


def runs(draft: PlanDraft, level: int, file_class: FileClass) -> Sequence[Run]:
    """Runs up to the cap, in order of range, without files that are taken, in trouble or about to expire."""
    files: dict[int, list[FileView]] = defaultdict(list)
    waiting: set[int] = set()
    for file in draft.view.files:
        if file.level == level and file.file_class is file_class and not draft.view.is_expiring(file):
            status = draft.status(file)
            if status in (FileStatus.FREE, FileStatus.PARTLY_BUSY):
                files[file.run_id].append(file)
            if status is FileStatus.PARTLY_BUSY:
                waiting.add(file.run_id)
    found = [_run(run_id, each, run_id in waiting) for run_id, each in files.items()]
    # A run above the cap is never merged again.
    small_enough = [each for each in found if each.cap_bytes <= draft.options.merge_bytes_max]
    return sorted(small_enough, key=lambda each: (each.lo, each.hi, each.run_id))


def _run(run_id: int, files: Sequence[FileView], waits: bool) -> Run:
    return Run(
        run_id=run_id,
        lo=min(each.lo for each in files),
        hi=max(each.hi for each in files),
        bytes=sum(each.live_bytes for each in files),
        cap_bytes=sum(each.cap_bytes for each in files),
        created_ms=min(each.created_ms for each in files),
        files=files,
        waits=waits,
    )


def within_cap(found: Sequence[Run], bytes_max: int) -> Sequence[Run]:
    """At least two of these runs that fit into one merge, the oldest first; empty when no two fit."""
    for first in range(len(found) - 1):
        group: list[Run] = []
        size = 0
        for each in found[first:]:
            if size + each.cap_bytes <= bytes_max:
                group.append(each)
                size += each.cap_bytes
        if len(group) >= 2:
            return group
    return ()


def _files(group: Iterable[Run]) -> Sequence[FileView]:
    return list(chain.from_iterable(each.files for each in group))


def _without(found: Sequence[Run], group: Sequence[Run]) -> Sequence[Run]:
    gone = {each.run_id for each in group}
    return [each for each in found if each.run_id not in gone]


def _wait_for_passes(draft: PlanDraft, kind: MergeKind, group: Sequence[Run], text: str) -> None:
    """Keeps a slot for the group and new forced passes out of its files, until the passes inside have ended."""
    draft.slots.for_size(_bytes(group)).keep_merge()
    draft.reserve(_files(group))
    held = sum(each.waits for each in group)
    draft.note(kind, f"{text}: due, {held} held by forced passes", Blocker.FORCED_PASSES, files=_files(group))


def _no_slot(draft: PlanDraft, group: MergeGroup) -> tuple[Blocker, str]:
    """The blocker and the text of the note about a group that gets no slot."""
    slots = draft.slots.for_size(group.bytes)
    return slots.blocker, f"{group.text}: due, all {slots.jobs_max} jobs{slots.engine_text} are taken"


def _bytes(group: Iterable[Run]) -> int:
    return sum(each.bytes for each in group)


def similar(found: Sequence[Run], options: PlanOptions) -> Sequence[Run]:
    """The smallest runs that are of similar size, enough, and able to be merged, in order; else empty."""

    def size(each: Run) -> int:
        # All small runs count as one size; otherwise a few bytes and a few kilobytes would never be alike.
        return max(each.bytes, options.l2_small_bytes)

    # Both indexes only move up: the window [start, end) is the longest of similar size that begins at `start`.
    by_size = sorted(found, key=lambda each: (size(each), each.lo, each.hi, each.run_id))
    end = 0
    for start, smallest in enumerate(by_size):
        while end < len(by_size) and size(by_size[end]) <= size(smallest) * options.l2_similar_factor:
            end += 1
        if end - start >= options.l2_runs_min:
            alike = sorted(by_size[start:end], key=lambda each: (each.lo, each.hi, each.run_id))
            if within_cap(alike, options.merge_bytes_max):
                return alike
    return ()


def _with_smaller_between(found: Sequence[Run], alike: Sequence[Run], options: PlanOptions) -> Sequence[Run]:
    """Adds the smaller runs that lie between: they cost next to nothing, and a merge without them would cut them off
    from their neighbours."""
    chosen = {each.run_id for each in alike}
    least = min(each.bytes for each in alike)
    first, last = alike[0].lo, alike[-1].lo
    between = [each for each in found if each.run_id not in chosen and each.bytes < least and first <= each.lo <= last]
    size = sum(each.cap_bytes for each in (*alike, *between))
    if size > options.merge_bytes_max:
        return alike
    return sorted((*alike, *between), key=lambda each: (each.lo, each.hi, each.run_id))


# ---- daily


def _plan_daily(draft: PlanDraft) -> bool:
    """Whether the daily merge takes all L2 runs of the compacted class: it is planned, or too much of it is held and
    it waits."""
    options = draft.options
    found = runs(draft, 2, FileClass.COMPACTED)
    if not _is_daily_due(draft, found):
        return False
    free = [each for each in found if not each.waits]
    group = within_cap(free, options.merge_bytes_max)
    is_worth = 2 * sum(each.bytes for each in free) >= sum(each.bytes for each in found)
    text = f"daily: {len(group)} of {len(found)} compacted L2 runs"
    slots = draft.slots.for_size(_bytes(group if group and is_worth else found))
    if not slots.merges:
        text += f": due, all {slots.jobs_max} jobs{slots.engine_text} are taken"
        draft.note(MergeKind.DAILY, text, slots.blocker, files=_files(found))
        return slots.blocker is Blocker.JOBS  # without Spark's cluster, the embedded engine still merges some of them
    if group and is_worth:
        draft.add_merge(MergeKind.DAILY, _files(group), level=2, dedupe=True, reason=text)
    else:
        _wait_for_passes(draft, MergeKind.DAILY, found, text)
    return True


def _is_daily_due(draft: PlanDraft, found: Sequence[Run]) -> bool:
    if not within_cap(found, draft.options.merge_bytes_max):
        return False
    since_ms = draft.view.last_daily_ms
    if since_ms is None:  # the first daily merge is due one interval after the first run
        since_ms = min(each.created_ms for each in found)
    return is_over(since_ms, draft.options.daily_interval_ms, draft.now_ms)
