"""How far compaction is with a topic, partition by partition, and why it is not further. Pure.

`partition_states` puts the figures of `siltstone topics describe` together, `explain` the sentences of
`siltstone topics explain`. What is dirty and what is due is not judged here a second time: the planner's own functions
say it, so that what is shown is what will be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from compactor.dirtiness import Dirtiness, due_reason, measure
from compactor.spec import PlanOptions
from metadata.compaction import CompactionView, JobState, MergeJob, PartitionView
from metadata.job_rules import rests
from metadata.topic_configs import as_int, as_list, resolve
from siltstone.cli.output import age_text, plural, size_text
from siltstone.command_words import NO_WORDS, CommandWords
from siltstone.compaction_waits import waits_for

NO_LIMIT_MS = 2**62
"""Lags above this mean "never" (Kafka's default of max.compaction.lag.ms is the largest long)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a topic. Offsets named `..._through` are exclusive."""

    view: PartitionView
    dirtiness: Dirtiness
    due: str
    """Why the planner would take it now; empty when it would not."""
    waits: str
    """What it waits for when it is not due; empty when there is nothing to do."""

    @property
    def head_offsets(self) -> int:
        """Offsets that no pass from the log start has seen yet."""
        return self.view.high_watermark - self.dirtiness.cleaned_through_offset

    @property
    def head_bytes(self) -> int:
        """Of these, what lies in L1 and L2."""
        return self.dirtiness.dirty_bytes + self.dirtiness.head_bytes

    @property
    def l0_offsets(self) -> int:
        """Offsets above the unbroken stretch of L1 and L2 extents."""
        return self.view.high_watermark - self.dirtiness.leveled_through_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What else is known of the system when a topic is explained."""

    now_ms: int
    options: PlanOptions
    view: CompactionView | None = None
    jobs: Sequence[MergeJob] = ()
    """Live and lately failed ones, newest first."""
    compactors: Sequence[tuple[int, str]] = ()
    stall_files: int = 0
    """Live L0 files above which producers are slowed down (`l0.stall.files`); 0 = never."""
    young_l0_from: Mapping[int, int] = field(default_factory=dict[int, int])
    """Partition id -> the first offset in L0 that is younger than `min.compaction.lag.ms`, where there is one."""
    words: CommandWords = NO_WORDS
    """What remedies repeat of the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One sentence of an explanation, and what to do about it (empty: nothing has to be done)."""

    code: str
    partition: int | None
    """None: the whole topic."""
    says: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "partition": self.partition, "says": self.says, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class _Partition:
    """What the rules below look at."""

    state: PartitionState
    evidence: Evidence
    configs: Mapping[str, str]
    topic: str
    jobs: Sequence[MergeJob]

    @property
    def held_from(self) -> int | None:
        """The first offset that `min.compaction.lag.ms` keeps from being cleaned; None where there is none."""
        view, dirty = self.state.view, self.state.dirtiness
        if dirty.held_by_lag:
            return dirty.first_uncleanable_offset
        return self.evidence.young_l0_from.get(view.partition_id)

    @property
    def is_all_held(self) -> bool:
        """Nothing that no pass has seen may be cleaned yet."""
        held_from = self.held_from
        return held_from is not None and held_from <= self.state.dirtiness.cleaned_through_offset

    @property
    def places(self) -> str:
        return self.evidence.words.places

    @property
    def now_command(self) -> str:
        return f"`siltstone compact {self.topic} --now{self.places}`"


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether `cleanup.policy` (overrides alone, or resolved) holds `compact`."""
    return "compact" in as_list(resolve(configs), "cleanup.policy")


def partition_states(
    views: Sequence[PartitionView],
    *,
    now_ms: int,
    options: PlanOptions,
    view: CompactionView | None = None,
    young_l0_from: Mapping[int, int] = MappingProxyType({}),
) -> Sequence[PartitionState]:
    """By partition number. `view`, where there is one, says which extents are busy; `young_l0_from` as in Evidence."""
    busy = view.busy_extents if view is not None else frozenset[int]()
    states: list[PartitionState] = []
    for each in sorted(views, key=lambda each: each.partition):
        dirty = measure(each, now_ms=now_ms)
        due = due_reason(each, dirty, options, now_ms=now_ms, busy=busy)
        young_from = young_l0_from.get(each.partition_id)
        waits = "" if due else waits_for(each, dirty, options, now_ms=now_ms, young_l0_from=young_from)
        states.append(PartitionState(view=each, dirtiness=dirty, due=due, waits=waits))
    return states


def states_json(states: Sequence[PartitionState]) -> list[dict[str, Any]]:
    return [
        {
            "partition": each.view.partition,
            "log_start_offset": each.view.log_start_offset,
            "cleaned_through_offset": each.view.cleaned_through_offset,
            "leveled_through_offset": each.dirtiness.leveled_through_offset,
            "high_watermark": each.view.high_watermark,
            "dirty_ratio": round(each.dirtiness.ratio, 4),
            "clean_bytes": each.dirtiness.clean_bytes,
            "dirty_bytes": each.dirtiness.dirty_bytes,
            "head_offsets": each.head_offsets,
            "head_bytes": each.head_bytes,
            "l0_offsets": each.l0_offsets,
            "last_cleaned_ms": each.view.last_cleaned_ms,
            "passes_needed": each.view.passes_needed,
            "requested_through_offset": each.view.requested_through_offset,
            "due": each.due,
            "waits": each.waits,
        }
        for each in states
    ]


# ---- why it is not further -----------------------------------------------------------------------------------------


def explain(topic: str, states: Sequence[PartitionState], evidence: Evidence) -> Sequence[Reason]:
    """What keeps each partition from being compacted to its end, most telling first, the whole topic before its parts.

    A partition of which nothing is to be said (everything cleaned) gets one reason, `clean`.
    """
    if not states:
        return [Reason(code="no partitions", partition=None, says=f"{topic} has no partitions.")]
    if not is_compacted(states[0].view.configs):
        return [_plain(topic, states[0].view, evidence.words)]
    reasons = list(_of_the_system(topic, evidence))
    for state in states:
        jobs = _jobs_of(state.view, evidence)
        partition = _Partition(state, evidence, resolve(state.view.configs), topic, jobs)
        found = [reason for rule in _RULES for reason in rule(partition)]
        reasons += found or [_clean(partition)]
    return reasons


def _plain(topic: str, view: PartitionView, words: CommandWords) -> Reason:
    policy = resolve(view.configs)["cleanup.policy"] or "empty"
    return Reason(
        code="plain",
        partition=None,
        says=f"{topic} is not compacted: its cleanup.policy is {policy}. Every record stays until retention takes it.",
        remedy=f"siltstone topics alter {topic} --config cleanup.policy=compact{words.agents}",
    )


def _of_the_system(topic: str, evidence: Evidence) -> Iterator[Reason]:
    if not evidence.compactors:
        yield Reason(
            code="no compactor",
            partition=None,
            says="No compactor is running: nothing is merged, deduped or deleted.",
            remedy=f"start one with `{evidence.words.compactor}`; "
            f"`siltstone compact {topic} --now{evidence.words.places}` runs one for its own time",
        )
    l0_files = sum(file.level == 0 for file in evidence.view.files) if evidence.view is not None else 0
    if evidence.stall_files and l0_files > evidence.stall_files:
        yield Reason(
            code="write stall",
            partition=None,
            says=f"{l0_files:,} L0 files are live, above l0.stall.files ({evidence.stall_files:,}): the compactors are "
            "behind with leveling, and producers are being slowed down for it.",
            remedy=f"start more compactors with `{evidence.words.compactor}`",
        )


def _jobs_of(view: PartitionView, evidence: Evidence) -> Sequence[MergeJob]:
    """Those whose stored spec names the partition, and those that hold one of its extents."""
    extents = {extent.extent_id for extent in view.extents}
    files = {extent.file_id for extent in view.extents}
    return [
        job
        for job in evidence.jobs
        if view.partition_id in deduped_partitions(job)
        or not extents.isdisjoint(job.spec.get("extent_ids", ()))
        or not files.isdisjoint(job.spec.get("file_ids", ()))
    ]


def deduped_partitions(job: MergeJob) -> frozenset[int]:
    """Ids of the partitions that the job's spec, as `MergeSpec.to_json` wrote it, dedupes."""
    return frozenset(row[0] for row in job.spec.get("partitions", ()) if row)


# Each rule looks at one partition and says nothing, or what it found.


def _empty(partition: _Partition) -> Iterator[Reason]:
    view = partition.state.view
    if view.high_watermark == view.log_start_offset:
        yield _reason(partition, "empty", "holds no records.")


def _running(partition: _Partition) -> Iterator[Reason]:
    for job in partition.jobs:
        if job.state is JobState.RUNNING:
            yield _reason(partition, "running", f"is being merged: {job_text(job, partition.evidence.now_ms)}.")
        elif job.state is JobState.READY:
            tried = f" after {plural(job.attempts, 'attempt')}" if job.attempts else ""
            yield _reason(
                partition,
                "waiting for a compactor",
                f"is planned: job {job.job_id} ({job.kind}) waits for a compactor{tried}.",
                "" if partition.evidence.compactors else f"start one with `{partition.evidence.words.compactor}`",
            )


def _failed(partition: _Partition) -> Iterator[Reason]:
    now_ms = partition.evidence.now_ms
    for job in partition.jobs:
        if job.state is JobState.FAILED:
            ago = f" {age_text(now_ms - job.finished_ms)} ago" if job.finished_ms is not None else ""
            yield _reason(
                partition,
                "failed",
                f"was in job {job.job_id} ({job.kind}), which failed{ago}: {job.error.rstrip('.')}.",
                f"`siltstone jobs show {job.job_id}{partition.places}` tells more; it is planned anew by itself",
            )
            break  # the newest says it


def _in_trouble(partition: _Partition) -> Iterator[Reason]:
    view, now_ms = partition.evidence.view, partition.evidence.now_ms
    files = {extent.file_id for extent in partition.state.view.extents}
    for file in view.files if view is not None else ():
        if file.file_id in files and rests(file.trouble_until_ms, now_ms):
            yield _reason(
                partition,
                "file in trouble",
                f"has records in file {file.file_id}, which a merge could not read; it is left alone for "
                f"{age_text(file.trouble_until_ms - now_ms)} more.",
                f"look at `siltstone jobs list --state failed{partition.places}`, and check the object with "
                f"`siltstone fsck{partition.places}`",
            )


def _flagged(partition: _Partition) -> Iterator[Reason]:
    flagged = [extent for extent in partition.state.view.extents if extent.flagged_reason is not None]
    if flagged:
        first = flagged[0]
        yield _reason(
            partition,
            "flagged",
            f"has {plural(len(flagged), 'extent')} with bytes that are no sound batches; merges copy them as they are, "
            f"nothing in them is deduped. The first: offsets {first.base_offset} to {first.last_offset} of file "
            f"{first.file_id}: {first.flagged_reason}.",
            f"look at it with `siltstone file inspect {first.key} --batches{partition.places}`, and write "
            "anew what you need of it",
        )


def _asked_for(partition: _Partition) -> Iterator[Reason]:
    view = partition.state.view
    target = view.requested_through_offset
    if target is not None and view.cleaned_through_offset < target:
        then = "the rest is too young yet" if partition.is_all_held else "the planner takes it next"
        yield _reason(
            partition,
            "asked for",
            f"is asked to be compacted up to offset {target}, and is cleaned through {view.cleaned_through_offset}; "
            f"{then}.",
        )


def _in_l0(partition: _Partition) -> Iterator[Reason]:
    state, options = partition.state, partition.evidence.options
    if state.l0_offsets:
        yield _reason(
            partition,
            "in L0",
            f"has {plural(state.l0_offsets, 'offset')} from {state.dirtiness.leveled_through_offset} on in L0 files, "
            f"where nothing is deduped. They go to L1 with {options.l0_files_min} files of which the oldest has waited "
            f"{age_text(options.l0_wait_ms)}, or when the oldest has waited {age_text(options.l0_wait_ms_max)}.",
            "wait; what is too young (below) is merged, and not deduped yet"
            if partition.is_all_held
            else f"wait, or {partition.now_command}",
        )


def _held_back(partition: _Partition) -> Iterator[Reason]:
    """By the minimum lag, or by an open transaction."""
    view = partition.state.view
    through = partition.held_from
    if through is not None:
        lag_ms = as_int(partition.configs, "min.compaction.lag.ms")
        yield _reason(
            partition,
            "too young",
            f"keeps its last {plural(view.high_watermark - through, 'offset')}, from offset {through} on, as they are: "
            f"there are some among them that are younger than min.compaction.lag.ms ({age_text(lag_ms)}).",
            f"wait, or lower it: `siltstone topics alter {partition.topic} --config min.compaction.lag.ms=0"
            f"{partition.evidence.words.agents}`",
        )
    elif view.last_stable_offset < view.high_watermark:
        yield _reason(
            partition,
            "open transaction",
            f"has an open transaction from offset {view.last_stable_offset} on; nothing at or above it is cleaned.",
            "find its producer: it must commit or abort, or its transaction.timeout.ms ends it",
        )


def _due(partition: _Partition) -> Iterator[Reason]:
    state, now_ms = partition.state, partition.evidence.now_ms
    if state.due:
        yield _reason(partition, "due", f"is due: {state.due}. The planner takes it within seconds.")
        return
    dirty = state.dirtiness
    if not dirty.dirty_bytes:
        return
    force = partition.now_command
    if not dirty.is_over_ratio:
        yield _reason(
            partition,
            "below the dirty ratio",
            f"is {dirty.ratio:.2f} dirty ({size_text(dirty.dirty_bytes)}), not above min.cleanable.dirty.ratio "
            f"({dirty.ratio_min:.2f}): superseded records stay until more is written, or until the daily merge.",
            f"lower min.cleanable.dirty.ratio of {partition.topic}, or {force}",
        )
        return
    options, forced_ms = partition.evidence.options, state.view.last_forced_ms
    if forced_ms is not None and now_ms - forced_ms < options.forced_interval_ms:
        yield _reason(
            partition,
            "forced lately",
            f"is {dirty.ratio:.2f} dirty and was taken out of turn {age_text(now_ms - forced_ms)} ago; that happens "
            f"once in {age_text(options.forced_interval_ms)} at most (forced.interval.ms).",
            f"wait, or {force}, which does not wait for it",
        )
    elif dirty.dirty_bytes < options.forced_dirty_bytes_min:
        last_ms = state.view.last_cleaned_ms
        last = "has had no pass yet" if last_ms is None else f"had its last pass {age_text(now_ms - last_ms)} ago"
        yield _reason(
            partition,
            "few dirty bytes",
            f"is {dirty.ratio:.2f} dirty, but {size_text(dirty.dirty_bytes)} are few (a pass of its own is for "
            f"{size_text(options.forced_dirty_bytes_min)}, or for less after "
            f"{age_text(options.forced_dirty_wait_ms)}), and it {last}. Merges of whole runs dedupe it too.",
            f"wait, or {force}",
        )
    else:
        yield _reason(
            partition,
            "in the way",
            f"is {dirty.ratio:.2f} dirty, but a pass from the log start cannot reach it: an L0 file, or an extent of a "
            "merge that is running, lies before it.",
            f"wait, or {force}",
        )


def _max_lag(partition: _Partition) -> Iterator[Reason]:
    dirty = partition.state.dirtiness
    if dirty.lag_ms_max < NO_LIMIT_MS and dirty.earliest_dirty_ms is not None and not partition.state.due:
        left_ms = dirty.earliest_dirty_ms + dirty.lag_ms_max - partition.evidence.now_ms
        if left_ms > 0:
            yield _reason(
                partition,
                "max lag",
                f"is compacted in {age_text(left_ms)} at the latest: then its oldest dirty records are "
                f"{age_text(dirty.lag_ms_max)} old (max.compaction.lag.ms).",
            )


def _deep(partition: _Partition) -> Iterator[Reason]:
    passes = partition.state.view.passes_needed
    if passes > 1:
        yield _reason(
            partition,
            "buffer overflow",
            f"had more keys than the dedupe buffer holds, so its last pass left a record per key for each filling. The "
            f"next pass is deep: it reads the partition {passes + 1} times and leaves one record per key.",
            f"wait, or {partition.now_command}",
        )


def _tombstones(partition: _Partition) -> Iterator[Reason]:
    state = partition.state
    kept = [
        extent
        for extent in state.view.extents
        if extent.has_tombstones and extent.base_offset < state.view.cleaned_through_offset
    ]
    if kept:
        wait_ms = as_int(partition.configs, "delete.retention.ms")
        yield _reason(
            partition,
            "tombstones",
            f"still holds tombstones below offset {state.view.cleaned_through_offset}. A tombstone stays for "
            f"delete.retention.ms ({age_text(wait_ms)}) after the pass that first kept it, then goes with the next "
            "pass from the log start; the values it deleted are gone already.",
            f"wait, or lower delete.retention.ms of {partition.topic} if its readers are never away that long",
        )


_RULES = (
    _empty,
    _running,
    _failed,
    _in_trouble,
    _flagged,
    _asked_for,
    _in_l0,
    _held_back,
    _due,
    _max_lag,
    _deep,
    _tombstones,
)


def _clean(partition: _Partition) -> Reason:
    view = partition.state.view
    return _reason(
        partition, "clean", f"is compacted through offset {view.cleaned_through_offset}; there is nothing to do."
    )


def _reason(partition: _Partition, code: str, says: str, remedy: str = "") -> Reason:
    number = partition.state.view.partition
    return Reason(code=code, partition=number, says=f"partition {number} {says}", remedy=remedy)


def job_text(job: MergeJob, now_ms: int) -> str:
    """ "job 12 (forced), 40 % (rewrite), for 3s" """
    progress = _progress(job)
    running = f", for {age_text(now_ms - job.started_ms)}" if job.started_ms is not None else ""
    return f"job {job.job_id} ({job.kind}){progress}{running}"


def fraction_of(job: MergeJob) -> float:
    """0 to 1, as its compactor last said."""
    value = job.progress.get("fraction", 0.0)
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else 0.0


def _progress(job: MergeJob) -> str:
    if not job.progress:
        return ""
    step = job.progress.get("step")
    return f", {fraction_of(job):.0%}".replace("%", " %") + (f" ({step})" if step else "")
