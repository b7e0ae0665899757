"""What a compacted partition waits for when no pass over it is due, in a few words. Pure.

`siltstone topics describe` and `siltstone compact` print it below the figures; `siltstone topics explain` says it
at length, with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from compactor.planning.dirtiness import Dirtiness
from compactor.planning.notes import Blocker
from compactor.planning.spec import PlanOptions
from metadata.contract.compaction import PartitionView
from runtime.text import age_text, plural, size_text

RANGES_SHOWN_MAX = 12
"""Of partition numbers, in one line."""
HELD: Mapping[Blocker, str] = {
    Blocker.JOBS: "all places for such jobs are taken",
    Blocker.HEAVY_JOBS: "all places for jobs on Spark are taken",
    Blocker.L0_JOBS: "all places for merges of L0 files are taken (compactor.l0.jobs.max)",
    Blocker.FORCED_PASSES: "passes over single partitions hold its files",
    Blocker.MERGE: "a merge holds some of it",
    Blocker.RESERVED: "its files are kept free for a merge that is due",
    Blocker.TROUBLE: "a merge of its files failed",
    Blocker.SIZE: "it is larger than a merge may be (compaction.merge.bytes.max)",
    Blocker.CONFIG: "a config of its topic cannot be read",
}
"""Why a pass that is due is not planned."""


def waits_for(
    view: PartitionView,
    dirty: Dirtiness,
    options: PlanOptions,
    *,
    now_ms: int,
    young_l0_from: int | None = None,
    is_l0_held: bool = False,
) -> str:
    """For a partition that is not due; empty where everything is cleaned (or there is nothing).

    `young_l0_from`: the first offset in L0 that is younger than `min.compaction.lag.ms`. `is_l0_held`: L0 files
    that are due wait for a place.
    """
    if dirty.dirty_bytes:
        return _dirty_waits_for(view, dirty, options, now_ms)
    held_from = dirty.first_uncleanable_offset if dirty.held_by_lag else young_l0_from
    if held_from is not None and held_from <= dirty.cleaned_through_offset:
        return f"{plural(view.high_watermark - held_from, 'offset')} held back by min.compaction.lag.ms"
    in_l0 = view.high_watermark - dirty.leveled_through_offset
    if in_l0:
        waiting = f"{plural(in_l0, 'offset')} in L0, which is not counted as dirty yet"
        if is_l0_held:
            return f"{waiting}: {HELD[Blocker.L0_JOBS]}"
        return f"{waiting}: goes to L1 within {age_text(options.l0_wait_ms_max)}"
    if view.last_stable_offset < view.high_watermark:
        return f"an open transaction from offset {view.last_stable_offset} on"
    return ""


def _dirty_waits_for(view: PartitionView, dirty: Dirtiness, options: PlanOptions, now_ms: int) -> str:
    ratio = f"dirty ratio {dirty.ratio:.2f}"
    if not dirty.is_over_ratio:
        return f"{ratio}: due above {dirty.ratio_min:.2f} (min.cleanable.dirty.ratio)"
    left_ms = _left_ms(view.last_forced_ms, options.forced_interval_ms, now_ms)
    if left_ms > 0:
        return f"{ratio}, but had a pass of its own lately: due in {age_text(left_ms)} (forced.interval.ms)"
    since_ms = view.last_cleaned_ms if view.last_cleaned_ms is not None else dirty.earliest_dirty_ms
    left_ms = _left_ms(since_ms, options.forced_dirty_wait_ms, now_ms)
    if dirty.dirty_bytes < options.forced_dirty_bytes_min and left_ms > 0:
        little = f"{size_text(dirty.dirty_bytes)} dirty, below {size_text(options.forced_dirty_bytes_min)}"
        return f"{little}: due in {age_text(left_ms)}"
    return f"{ratio}, but an L0 file or a running merge is in the way"


def _left_ms(since_ms: int | None, wait_ms: int, now_ms: int) -> int:
    return 0 if since_ms is None else since_ms + wait_ms - now_ms


def numbers_text(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"; what does not fit is counted."""
    ordered = sorted(set(numbers))
    runs = [[each for _, each in run] for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:RANGES_SHOWN_MAX]]
    left = sum(map(len, runs[RANGES_SHOWN_MAX:]))
    return ", ".join(shown) + (f" and {left:,} more" if left else "")
