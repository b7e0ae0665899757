"""The facts from which a topic's compaction is explained. Pure.

The planner's own functions measure here which records are dirty and which pass is due, so that figures and reasons
agree with the next plan.

After a merge failed on a file, the file rests (`metadata/rules/jobs.py`), then the planner tries it again. An L0 file
stays in trouble until a merge of it succeeds, because only that ends its life. An L1 or L2 file may live on for other
reasons, so it is in trouble only while it rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from compactor.planning.dirtiness import NO_LIMIT_MS, Dirtiness, config_int, due_reason, measure
from compactor.planning.plan import Plan
from compactor.planning.spec import PlanOptions
from metadata.configs.topic import InvalidConfigError, as_int, as_list, resolve
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.files import L0File
from metadata.contract.jobs import MergeJob
from metadata.contract.operators import HeldBytes
from metadata.erasures.contract import Erasure
from metadata.rules.jobs import rests
from metadata.rules.packed_index import iter_index
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a topic."""

    view: PartitionView
    dirtiness: Dirtiness
    due: str
    """Why the planner would take it now; empty when it would not."""

    @property
    def head_offsets(self) -> int:
        """Offsets that no pass from the log start has seen yet."""
        return self.view.high_watermark - self.dirtiness.cleaned_through_offset

    @property
    def head_bytes(self) -> int:
        """The bytes of these in L1 and L2."""
        return self.dirtiness.dirty_bytes + self.dirtiness.head_bytes

    @property
    def l0_offsets(self) -> int:
        """Offsets above the unbroken stretch of L1 and L2 extents."""
        return self.view.high_watermark - self.dirtiness.leveled_through_offset


class Troubled(NamedTuple):
    """Records of one partition in one file that merges fail to read. Offsets are inclusive."""

    file: FileView
    key: str
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The state of the system beside the topic's partitions."""

    topic: str
    options: PlanOptions
    view: CompactionView
    plan: Plan
    """The planner's answer to `view` and `options`."""
    jobs: Sequence[MergeJob] = ()
    """Live and recently failed jobs, newest first."""
    unreadable_jobs: Sequence[MergeJob] = ()
    """Done jobs whose result has `UNREADABLE`, newest first; the store keeps them as long as their output lives."""
    troubled: Mapping[int, Sequence[Troubled]] = field(default_factory=dict[int, Sequence[Troubled]])
    """By partition id, in offset order."""
    compactors: Sequence[tuple[int, str]] = ()
    stall_files: int = 0
    """Live L0 files above which producers are slowed down (`l0.stall.files`); 0 = never."""
    memory_bytes: int = 0
    """Memory of the merges of one compactor (`compactor.memory.bytes`)."""
    young_l0_from: Mapping[int, int] = field(default_factory=dict[int, int])
    """Partition id -> the first offset in L0 that is younger than `min.compaction.lag.ms`, if there is one."""
    l0_since_ms: Mapping[int, int] = field(default_factory=dict[int, int])
    """Partition id -> when the first of its records in L0 was committed, for topics with `max.compaction.lag.ms`."""
    held: Mapping[int, Sequence[HeldBytes]] = field(default_factory=dict[int, Sequence[HeldBytes]])
    """By partition id: its bytes in all files whose objects may exist."""
    strays: Mapping[int, Sequence[str]] | None = None
    """By partition id: objects that no file row names and that may hold records of it. None: nobody looked."""
    erasures: Sequence[Erasure] = ()
    """Open ones of the topic, by id."""
    hints: HintOptions = NO_HINT_OPTIONS

    def jobs_of(self, view: PartitionView) -> Sequence[MergeJob]:
        """The jobs that dedupe the partition, or merge some of it."""
        held = {"extent_ids": {each.extent_id for each in view.extents}}
        held["file_ids"] = {each.file_id for each in view.extents}
        held["l0_file_ids"] = {each.file.file_id for each in self.troubled.get(view.partition_id, ())}
        return [
            job
            for job in self.jobs
            if view.partition_id in deduped_partitions(job)
            or any(not ids.isdisjoint(job.spec.get(name, ())) for name, ids in held.items())
        ]

    def ago_ms(self, at_ms: int | None) -> int:
        """0 if the time is not known."""
        return 0 if at_ms is None else self.view.now_ms - at_ms


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether `cleanup.policy` (overrides alone, or resolved) holds `compact`."""
    return "compact" in as_list(resolve(configs), "cleanup.policy")


def has_max_lag(view: PartitionView) -> bool:
    """Whether passes over it have a deadline: it is compacted and has `max.compaction.lag.ms`."""
    return is_compacted(view.configs) and max_lag_ms(view.configs) < NO_LIMIT_MS


def max_lag_ms(configs: Mapping[str, str]) -> int:
    """`max.compaction.lag.ms`; NO_LIMIT_MS if it is not set or cannot be read."""
    try:
        return as_int(resolve(configs), "max.compaction.lag.ms")
    except InvalidConfigError:
        return NO_LIMIT_MS


def has_old_tombstones(view: PartitionView) -> bool:
    """Whether it may hold tombstones that a pass from the log start has kept."""
    return any(each.has_tombstones and each.base_offset < view.cleaned_through_offset for each in view.extents)


def partition_states(
    views: Sequence[PartitionView], options: PlanOptions, system: CompactionView
) -> Sequence[PartitionState]:
    """By partition number. The planner leaves a topic with an unreadable config alone; such a topic is shown with the
    defaults of all configs but the policy."""
    now_ms, states = system.now_ms, list[PartitionState]()
    for each in sorted(views, key=lambda each: each.partition):
        try:
            config_int(each, "delete.retention.ms")  # `measure` reads the others
            dirty = measure(each, now_ms=now_ms)
            due = due_reason(each, dirty, options, now_ms=now_ms, busy=system.busy_extents)
        except InvalidConfigError:
            each = replace(
                each, configs={name: each.configs[name] for name in each.configs if name == "cleanup.policy"}
            )
            dirty, due = measure(each, now_ms=now_ms), ""
        states.append(PartitionState(view=each, dirtiness=dirty, due=due))
    return states


def files_in_trouble(view: CompactionView) -> Mapping[int, FileView]:
    """By file id."""
    return {
        file.file_id: file
        for file in view.files
        if rests(file.trouble_until_ms, view.now_ms) or (file.level == 0 and file.trouble_until_ms)
    }


def troubled_by_partition(
    view: CompactionView, partitions: Sequence[PartitionView], l0_files: Iterable[L0File]
) -> Mapping[int, Sequence[Troubled]]:
    """`l0_files` must hold the L0 files in trouble, and may hold others."""
    files = files_in_trouble(view)
    starts = {each.partition_id: each.log_start_offset for each in partitions}
    found: dict[int, list[Troubled]] = {each: [] for each in starts}
    for l0 in l0_files:
        for row in iter_index(l0.index) if l0.file_id in files else ():
            # only the topic's own partitions, and nothing that is deleted already
            if row.partition_id in starts and row.last_offset >= starts[row.partition_id]:
                found[row.partition_id].append(Troubled(files[l0.file_id], l0.key, row.base_offset, row.last_offset))
    for each in partitions:
        found[each.partition_id] += [
            Troubled(files[extent.file_id], extent.key, extent.base_offset, extent.last_offset)
            for extent in each.extents
            if extent.file_id in files
        ]
    return {key: sorted(each, key=lambda one: one.base_offset) for key, each in found.items()}


def deduped_partitions(job: MergeJob) -> frozenset[int]:
    """Ids of the partitions that the job's spec, as `MergeSpec.to_json` wrote it, dedupes."""
    return frozenset(row[0] for row in job.spec.get("partitions", ()) if row)


def fraction_of(job: MergeJob) -> float:
    """0 to 1, by the last report of its compactor."""
    value = job.progress.get("fraction", 0.0)
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else 0.0
