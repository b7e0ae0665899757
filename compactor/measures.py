"""What a compactor tells about the state of compaction: gauges from the planner's view, counters from a merge. Pure but
for the metrics that are set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from compactor.dirtiness import Dirtiness, measure
from metadata.compaction import (
    ClaimedJob,
    CommitMerge,
    CompactionView,
    FileView,
    JobState,
    LeveledExtent,
    MergeCommitted,
    MergeJob,
    PartitionView,
)
from metadata.topic_configs import InvalidConfigError
from siltstone.metrics import Metrics

LEVELS = (0, 1, 2)


def waiting_ms(partition: PartitionView, created_ms: Mapping[int, int], now_ms: int) -> int:
    """Since the last pass; never passed: since the oldest file of its extents was written (`created_ms` by file id)."""
    if partition.last_cleaned_ms is not None:
        return now_ms - partition.last_cleaned_ms
    oldest_ms = min((created_ms.get(each.file_id, now_ms) for each in partition.extents), default=now_ms)
    return now_ms - oldest_ms


def uncleanable(partitions: Iterable[PartitionView]) -> tuple[int, int]:
    """Partitions with flagged extents, and the bytes of these."""
    flagged: Sequence[Sequence[LeveledExtent]] = [
        [extent for extent in partition.extents if extent.flagged_reason is not None] for partition in partitions
    ]
    return sum(1 for each in flagged if each), sum(extent.length for each in flagged for extent in each)


def _dirtiness(view: CompactionView) -> Iterator[tuple[PartitionView, Dirtiness]]:
    for partition in view.partitions:
        with suppress(InvalidConfigError):  # the planner says so; the others are shown
            yield partition, measure(partition, now_ms=view.now_ms)


def show_view(metrics: Metrics, view: CompactionView) -> None:
    """Set the gauges of the compactor that plans."""
    for level in LEVELS:
        files: Sequence[FileView] = [file for file in view.files if file.level == level]
        metrics.level_files.labels(level=str(level)).set(len(files))
        metrics.level_bytes.labels(level=str(level)).set(sum(file.size_bytes for file in files))
    l0_created_ms = [file.created_ms for file in view.files if file.level == 0]
    metrics.l0_oldest_seconds.set((view.now_ms - min(l0_created_ms, default=view.now_ms)) / 1000)
    metrics.dead_bytes.set(sum(file.size_bytes - file.live_bytes for file in view.files if file.level > 0))
    created_ms = {file.file_id: file.created_ms for file in view.files}
    dirt = list(_dirtiness(view))
    metrics.dirty_ratio_max.set(max((each.ratio for _, each in dirt), default=0.0))
    metrics.dirty_bytes.set(sum(each.dirty_bytes for _, each in dirt))
    metrics.seconds_since_clean_max.set(
        max((waiting_ms(one, created_ms, view.now_ms) for one, each in dirt if each.dirty_bytes), default=0) / 1000
    )
    partitions, flagged_bytes = uncleanable(view.partitions)
    metrics.uncleanable_partitions.set(partitions)
    metrics.uncleanable_bytes.set(flagged_bytes)


def show_jobs(metrics: Metrics, jobs: Sequence[MergeJob]) -> None:
    """`jobs`: those that are ready or running."""
    for state in (JobState.READY, JobState.RUNNING):
        metrics.merge_jobs.labels(state=state.value).set(sum(1 for job in jobs if job.state is state))


def count_merge(
    metrics: Metrics,
    claimed: ClaimedJob,
    commit: CommitMerge,
    committed: MergeCommitted,
    *,
    seconds: float,
    keys_max: int,
) -> None:
    """Count a merge that was committed."""
    kind, summary = claimed.job.kind, commit.summary
    metrics.merges_total.labels(kind=kind, outcome="done").inc()
    metrics.merge_seconds.labels(kind=kind).observe(seconds)
    input_bytes = sum(file.size_bytes for file in claimed.l0_files) + sum(each.length for each in claimed.extents)
    metrics.merge_input_bytes_total.labels(kind=kind).inc(input_bytes)
    metrics.merge_output_bytes_total.labels(kind=kind).inc(sum(file.size_bytes for file in commit.outputs))
    metrics.merge_trimmed_extents_total.inc(committed.trimmed_extents)
    if not commit.cleaned:
        return
    bytes_in, bytes_out = _number(summary, "bytes_in"), _number(summary, "bytes_out")
    metrics.cleaned_bytes_total.inc(max(bytes_in - bytes_out, 0))
    metrics.cleaned_records_total.inc(max(_number(summary, "records_in") - _number(summary, "records_out"), 0))
    metrics.recopy_percent.set(100 * bytes_out / max(bytes_in, 1))
    metrics.dedupe_seconds.set(seconds)
    overflows = sum(1 for each in commit.cleaned if each.passes_needed > 1)
    metrics.dedupe_overflows_total.inc(overflows)
    fullest = keys_max if overflows else min(_number(summary, "partition_keys_max"), keys_max)
    metrics.dedupe_buffer_percent.set(100 * fullest / keys_max)


def _number(summary: Mapping[str, Any], name: str) -> int:
    value = summary.get(name, 0)
    return value if isinstance(value, int) else 0


def show_nothing(metrics: Metrics) -> None:
    """Somebody else plans: what was seen last is old."""
    for level in LEVELS:
        metrics.level_files.labels(level=str(level)).set(0)
        metrics.level_bytes.labels(level=str(level)).set(0)
    show_jobs(metrics, ())
    for gauge in (
        metrics.l0_oldest_seconds,
        metrics.dead_bytes,
        metrics.dirty_ratio_max,
        metrics.dirty_bytes,
        metrics.seconds_since_clean_max,
        metrics.uncleanable_partitions,
        metrics.uncleanable_bytes,
    ):
        gauge.set(0)
