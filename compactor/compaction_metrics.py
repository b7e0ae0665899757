"""Metrics of compaction: gauges from the planner's view and counters of merges. Pure, except that it sets metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import Gauge

from compactor.planning.dirtiness import Dirtiness, measure
from metadata.configs.topic import InvalidConfigError
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobState, MergeCommitted, MergeJob
from metadata.contract.leveled import LeveledExtent
from metadata.erasures.contract import Erasure
from runtime.metrics import Metrics

LEVELS = (0, 1, 2)
OUTCOMES = ("done", "failed", "lost", "given_back")
"""The ways in which a merge ends (`compactor/worker.py`)."""


def waiting_ms(partition: PartitionView, created_ms: Mapping[int, int], now_ms: int) -> int:
    """The time since the last pass; without a pass, since the oldest file of its extents was written (`created_ms`: by
    file id)."""
    if partition.last_cleaned_ms is not None:
        return now_ms - partition.last_cleaned_ms
    oldest_ms = min((created_ms.get(each.file_id, now_ms) for each in partition.extents), default=now_ms)
    return now_ms - oldest_ms


def uncleanable(partitions: Iterable[PartitionView]) -> tuple[int, int]:
    """The number of partitions with flagged extents, and the bytes of these extents."""
    flagged: Sequence[Sequence[LeveledExtent]] = [
        [extent for extent in partition.extents if extent.flagged_reason is not None] for partition in partitions
    ]
    return sum(1 for each in flagged if each), sum(extent.length for each in flagged for extent in each)


def _dirtiness(view: CompactionView) -> Iterator[tuple[PartitionView, Dirtiness]]:
    for partition in view.partitions:
        with suppress(InvalidConfigError):  # the planner reports it; the other partitions are shown
            yield partition, measure(partition, now_ms=view.now_ms)


def begin_counts(metrics: Metrics, kinds: Iterable[str], *, heavy: bool) -> None:
    """Exports zeros before any merge has ended: a counter that first appears at 1 seems never to have risen."""
    for outcome in OUTCOMES:
        for kind in kinds:
            metrics.merges_total.labels(kind=kind, outcome=outcome)
        if heavy:
            metrics.heavy_merges_total.labels(outcome=outcome)


def show_series(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Makes these the only series of `gauge`: label values in the order of its labels -> value.

    New values are set before old series are removed, so a scrape in between never misses a series that stays.
    """
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
    shown = {tuple(sample.labels.values()) for family in gauge.collect() for sample in family.samples}
    for gone in shown - values.keys():
        gauge.remove(*gone)


def largest_topics(partitions: Iterable[PartitionView], topics_max: int) -> tuple[Mapping[str, int], int]:
    """Live bytes of the largest topics by name (ties in order of name), and of all other topics together."""
    sizes: dict[str, int] = {}
    for partition in partitions:
        size_bytes = sum(extent.length for extent in partition.extents)
        sizes[partition.topic_name] = sizes.get(partition.topic_name, 0) + size_bytes
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return {name: sizes[name] for name in names[:topics_max]}, sum(sizes[name] for name in names[topics_max:])


def shown_partitions(
    dirt: Iterable[tuple[PartitionView, Dirtiness]], partitions_max: int
) -> Sequence[tuple[PartitionView, Dirtiness]]:
    """The partitions of topics that ask for series of each, the dirtiest first."""
    asked = [each for each in dirt if each[0].configs.get("siltstone.metrics.partitions", "").strip().lower() == "true"]
    asked.sort(key=lambda each: (-each[1].ratio, each[0].topic_name, each[0].partition))
    return asked[:partitions_max]


def _show_partitions(
    metrics: Metrics, shown: Sequence[tuple[PartitionView, Dirtiness]], created_ms: Mapping[int, int], now_ms: int
) -> None:
    ratios: dict[tuple[str, ...], float] = {}
    extents: dict[tuple[str, ...], float] = {}
    ages: dict[tuple[str, ...], float] = {}
    for partition, dirtiness in shown:
        labels = partition.topic_name, str(partition.partition)
        ratios[labels], extents[labels] = dirtiness.ratio, len(partition.extents)
        ages[labels] = waiting_ms(partition, created_ms, now_ms) / 1000
    show_series(metrics.partition_dirty_ratio, ratios)
    show_series(metrics.partition_extents, extents)
    show_series(metrics.partition_seconds_since_clean, ages)


def show_view(metrics: Metrics, view: CompactionView, *, topics_max: int = 50, partitions_max: int = 1_000) -> None:
    """Sets the gauges of the compactor that plans. The largest topics get a series each, up to `topics_max`; so do the
    partitions of topics that ask for it, up to `partitions_max`."""
    # Markers of transactions wait for their merge as records do, but no object holds them.
    stored = [file for file in view.files if not file.is_inline]
    for level in LEVELS:
        files: Sequence[FileView] = [file for file in stored if file.level == level]
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
    _show_partitions(metrics, shown_partitions(dirt, partitions_max), created_ms, view.now_ms)
    partitions, flagged_bytes = uncleanable(view.partitions)
    metrics.uncleanable_partitions.set(partitions)
    metrics.uncleanable_bytes.set(flagged_bytes)
    topics, rest_bytes = largest_topics(view.partitions, topics_max)
    show_series(metrics.compacted_topic_bytes, {(name,): size for name, size in topics.items()})
    metrics.compacted_topics_rest_bytes.set(rest_bytes)


def show_jobs(metrics: Metrics, jobs: Sequence[MergeJob]) -> None:
    """`jobs`: all jobs that are ready or running."""
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
    """Counts a committed merge."""
    kind, summary = claimed.job.kind, commit.summary
    metrics.merges_total.labels(kind=kind, outcome="done").inc()
    metrics.merge_seconds.labels(kind=kind).observe(seconds)
    input_bytes = sum(file.size_bytes for file in claimed.l0_files) + sum(each.length for each in claimed.extents)
    metrics.merge_input_bytes_total.labels(kind=kind).inc(input_bytes)
    metrics.merge_output_bytes_total.labels(kind=kind).inc(sum(file.size_bytes for file in commit.outputs))
    metrics.merge_trimmed_extents_total.inc(committed.trimmed_extents)
    metrics.erased_records_total.inc(_number(summary, "records_erased"))
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
    """Clears the planner's gauges: another compactor plans, and the last values here are out of date."""
    for level in LEVELS:
        metrics.level_files.labels(level=str(level)).set(0)
        metrics.level_bytes.labels(level=str(level)).set(0)
    show_jobs(metrics, ())
    show_series(metrics.compacted_topic_bytes, {})
    _show_partitions(metrics, (), {}, 0)
    for gauge in (
        metrics.compacted_topics_rest_bytes,
        metrics.l0_oldest_seconds,
        metrics.dead_bytes,
        metrics.dirty_ratio_max,
        metrics.dirty_bytes,
        metrics.seconds_since_clean_max,
        metrics.uncleanable_partitions,
        metrics.uncleanable_bytes,
    ):
        gauge.set(0)


def show_erasures(
    metrics: Metrics,
    open_now: Sequence[Erasure],
    *,
    now_ms: int,
    blocked: int,
    pending_files: int,
    pending_bytes: int,
) -> None:
    metrics.erasures_open.set(len(open_now))
    metrics.erasures_overdue.set(sum(each.is_overdue(now_ms) for each in open_now))
    metrics.erasures_blocked.set(blocked)
    late_ms = max((now_ms - each.deadline_ms for each in open_now), default=0)
    metrics.erasure_overdue_seconds.set(max(late_ms, 0) / 1000)
    metrics.erasure_pending_files.set(pending_files)
    metrics.erasure_pending_bytes.set(pending_bytes)


def show_no_erasures(metrics: Metrics) -> None:
    """None is open, or another compactor shows them."""
    show_erasures(metrics, (), now_ms=0, blocked=0, pending_files=0, pending_bytes=0)


def show_no_sweep(metrics: Metrics) -> None:
    """Clears the janitor's gauges: another compactor sweeps, and the last values here are out of date."""
    for gauge in (
        metrics.janitor_halted,
        metrics.dead_files_waiting,
        metrics.dead_bytes_waiting,
        metrics.orphans,
        metrics.orphans_spared,
        metrics.orphans_refused,
        metrics.foreign_objects,
    ):
        gauge.set(0)
