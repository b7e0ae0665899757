"""Merges of whole runs, per class: L1 -> L2, L2 -> L2, and once a day L2 runs of unlike sizes. Pure.

A *run* is what one merge wrote. Runs are taken in order of `lo`, the least L0 file they stand for, whatever lies
between: a commit may become visible inside a merged range, and a run may lie inside another's, so a rule that waited
for unbroken ranges would wait for ever. Skipping is safe, because an output extent is cut wherever its inputs have a
gap. So L2 -> L2 counts runs of similar size over the whole class, and takes smaller ones that lie between along.

How many runs a class can keep: fewer than 32 in L1, and in L2 fewer than 10 of each size. Sizes differ by more than a
factor of 2 only 13 times between "small" (16 MiB) and the cap of 128 GiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from compactor.planning.dirtiness import is_over
from compactor.planning.round import FileStatus, Hold, Round
from compactor.planning.spec import MIB, MergeKind, PlanOptions
from metadata.contract.compaction import FileClass, FileView


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The files of one merge that may be merged again, those of one class."""

    run_id: int
    lo: int
    hi: int
    bytes: int
    """Of live extents."""
    created_ms: int
    files: Sequence[FileView]
    waits: bool
    """A forced pass holds some of its extents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that a rule wants merged."""

    runs: Sequence[Run]
    waits: bool
    """Some are held by forced passes."""
    urgency: float
    """How many there are, over how many it takes."""
    text: str

    @property
    def bytes(self) -> int:
        return _bytes(self.runs)


@dataclass(slots=True)
class Pool:
    """The runs of a class on a level, as long as none is planned or waited for."""

    level: int
    file_class: FileClass
    runs: Sequence[Run]

    def next(self, options: PlanOptions) -> Group | None:
        """What can be merged now; else what could be, were it free; None when there is too little."""
        free = [each for each in self.runs if not each.waits]
        for found in (free, self.runs):
            group = self._l1(found, options) if self.level == 1 else self._l2(found, options)
            if group is not None:
                return group
        return None

    def _l1(self, found: Sequence[Run], options: PlanOptions) -> Group | None:
        group = within_cap(found[: options.l1_runs_min], options.merge_bytes_max)
        if len(found) < options.l1_runs_min or not group:
            return None
        return Group(
            runs=group,
            waits=any(each.waits for each in group),
            urgency=len(self.runs) / options.l1_runs_min,
            text=f"{len(group)} {self.file_class} L1 runs",
        )

    def _l2(self, found: Sequence[Run], options: PlanOptions) -> Group | None:
        alike = similar(found, options)
        if not alike:
            return None
        group = within_cap(_with_smaller_between(found, alike, options), options.merge_bytes_max)
        return Group(
            runs=group,
            waits=any(each.waits for each in group),
            urgency=len(alike) / options.l2_runs_min,
            text=f"{len(group)} {self.file_class} L2 runs, most from {min(each.bytes for each in alike) // MIB} MiB up",
        )


def plan_runs(state: Round) -> None:
    """The group with the largest backlog first, so that no class and no level can starve another.

    A group that has to wait for forced passes keeps its place among the jobs, or others would always be quicker. One
    that gets no place is not reserved either: else forced passes could go nowhere while all places are taken. Where
    Spark has none, what is run here goes on with the runs behind it.
    """
    takes_all = _plan_daily(state)
    pools = [
        Pool(level, file_class, _mergeable(state, level, file_class))
        for file_class in FileClass
        for level in (1, 2)
        if not (takes_all and level == 2 and file_class is FileClass.COMPACTED)
    ]
    without_place: dict[tuple[Hold, str], list[Run]] = defaultdict(list)
    while found := [(group, pool) for pool in pools if (group := pool.next(state.options)) is not None]:
        if not state.has_places:
            for group, pool in found:
                without_place[_no_place(state, group)] += pool.runs
            break
        group, pool = max(found, key=lambda each: each[0].urgency)
        pool.runs = _without(pool.runs, group.runs)
        if not state.places(group.bytes).merges:
            without_place[_no_place(state, group)] += group.runs
        elif group.waits:
            _hold(state, MergeKind.MERGE, group.runs, group.text)
        else:
            state.add_merge(MergeKind.MERGE, _files(group.runs), level=2, dedupe=True, reason=group.text)
    for (hold, text), found in without_place.items():
        state.note(MergeKind.MERGE, text, hold, files=_files(found))


def _mergeable(state: Round, level: int, file_class: FileClass) -> Sequence[Run]:
    found = runs(state, level, file_class)
    if level == 2 and file_class is FileClass.PLAIN:
        return [each for each in found if each.bytes < state.options.l2_plain_bytes_max]
    return found


def runs(state: Round, level: int, file_class: FileClass) -> Sequence[Run]:
    """In order of range, up to the cap; without files that are taken, in trouble or about to expire."""
    files: dict[int, list[FileView]] = defaultdict(list)
    waiting: set[int] = set()
    for file in state.files:
        if file.level == level and file.file_class is file_class and not state.is_expiring(file):
            status = state.status(file)
            if status in (FileStatus.FREE, FileStatus.PARTLY_BUSY):
                files[file.run_id].append(file)
            if status is FileStatus.PARTLY_BUSY:
                waiting.add(file.run_id)
    found = [_run(run_id, each, run_id in waiting) for run_id, each in files.items()]
    small_enough = [each for each in found if each.bytes <= state.options.merge_bytes_max]
    return sorted(small_enough, key=lambda each: (each.lo, each.hi, each.run_id))


def _run(run_id: int, files: Sequence[FileView], waits: bool) -> Run:
    return Run(
        run_id=run_id,
        lo=min(each.lo for each in files),
        hi=max(each.hi for each in files),
        bytes=sum(each.live_bytes for each in files),
        created_ms=min(each.created_ms for each in files),
        files=files,
        waits=waits,
    )


def within_cap(found: Sequence[Run], bytes_max: int) -> Sequence[Run]:
    """At least two of them that fit into one merge, the oldest first; empty when no two do."""
    for first in range(len(found) - 1):
        group: list[Run] = []
        size = 0
        for each in found[first:]:
            if size + each.bytes <= bytes_max:
                group.append(each)
                size += each.bytes
        if len(group) >= 2:
            return group
    return ()


def _files(group: Iterable[Run]) -> Sequence[FileView]:
    return list(chain.from_iterable(each.files for each in group))


def _without(found: Sequence[Run], group: Sequence[Run]) -> Sequence[Run]:
    gone = {each.run_id for each in group}
    return [each for each in found if each.run_id not in gone]


def _hold(state: Round, kind: MergeKind, group: Sequence[Run], text: str) -> None:
    """Keep a place for it, and new forced passes out, until those that are in it have ended."""
    state.places(_bytes(group)).keep_merge()
    state.reserve(_files(group))
    held = sum(each.waits for each in group)
    state.note(kind, f"{text}: due, {held} held by forced passes", Hold.FORCED_PASSES, files=_files(group))


def _no_place(state: Round, group: Group) -> tuple[Hold, str]:
    """What is told of a group for which there is none."""
    places = state.places(group.bytes)
    return places.hold, f"{group.text}: due, all {places.jobs_max} jobs{places.of} are taken"


def _bytes(group: Iterable[Run]) -> int:
    return sum(each.bytes for each in group)


def similar(found: Sequence[Run], options: PlanOptions) -> Sequence[Run]:
    """The smallest runs of which enough are of similar size and can be merged, in order; empty if there are none."""

    def size(each: Run) -> int:
        return max(each.bytes, options.l2_small_bytes)

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
    """They are worth next to nothing by size, and would be cut off from their neighbours."""
    chosen = {each.run_id for each in alike}
    least = min(each.bytes for each in alike)
    first, last = alike[0].lo, alike[-1].lo
    between = [each for each in found if each.run_id not in chosen and each.bytes < least and first <= each.lo <= last]
    size = sum(each.bytes for each in (*alike, *between))
    if size > options.merge_bytes_max:
        return alike
    return sorted((*alike, *between), key=lambda each: (each.lo, each.hi, each.run_id))


# ---- daily


def _plan_daily(state: Round) -> bool:
    """Whether a daily merge of the compacted class has all its L2 runs: it is due, and planned or, when too much of it
    is held, waited for."""
    options = state.options
    found = runs(state, 2, FileClass.COMPACTED)
    if not _is_daily_due(state, found):
        return False
    free = [each for each in found if not each.waits]
    group = within_cap(free, options.merge_bytes_max)
    is_worth = 2 * sum(each.bytes for each in free) >= sum(each.bytes for each in found)
    text = f"daily: {len(group)} of {len(found)} compacted L2 runs"
    places = state.places(_bytes(group if group and is_worth else found))
    if not places.merges:
        text += f": due, all {places.jobs_max} jobs{places.of} are taken"
        state.note(MergeKind.DAILY, text, places.hold, files=_files(found))
        return places.hold is Hold.JOBS  # a cluster that is away must not keep some of them from being merged here
    if group and is_worth:
        state.add_merge(MergeKind.DAILY, _files(group), level=2, dedupe=True, reason=text)
    else:
        _hold(state, MergeKind.DAILY, found, text)
    return True


def _is_daily_due(state: Round, found: Sequence[Run]) -> bool:
    if not within_cap(found, state.options.merge_bytes_max):
        return False
    since_ms = state.view.last_daily_ms
    if since_ms is None:  # the first ever: a day after the first run
        since_ms = min(each.created_ms for each in found)
    return is_over(since_ms, state.options.daily_interval_ms, state.now_ms)
