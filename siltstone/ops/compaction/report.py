"""How far compaction is with a topic, partition by partition: the figures of `siltstone topics describe`. Pure.

The planner's own functions decide here too which records are dirty and which pass is due, so that the figures agree
with the next plan. `reasons.py` explains why it is not further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compactor.planning.dirtiness import Dirtiness, config_int, due_reason, measure
from compactor.planning.spec import PlanOptions
from metadata.configs.topic import InvalidConfigError, as_list, resolve
from metadata.contract.compactors import CompactionView, PartitionView
from metadata.contract.jobs import MergeJob
from runtime.text import age_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a topic. Offsets named `..._through` are exclusive."""

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


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether `cleanup.policy` (overrides alone, or resolved) holds `compact`."""
    return "compact" in _policy(configs)


def _policy(configs: Mapping[str, str]) -> Sequence[str]:
    return as_list(resolve(configs), "cleanup.policy")


def partition_states(
    views: Sequence[PartitionView],
    *,
    now_ms: int,
    options: PlanOptions,
    view: CompactionView | None = None,
) -> Sequence[PartitionState]:
    """By partition number. `view`, if given, tells which extents are busy.

    If a config of the topic cannot be read, the planner leaves the partition alone; it is shown with the defaults of
    all configs but the policy.
    """
    busy = view.busy_extents if view is not None else frozenset[int]()
    states: list[PartitionState] = []
    for stored in sorted(views, key=lambda each: each.partition):
        each, broken = _with_readable_configs(stored, now_ms)
        dirty = measure(each, now_ms=now_ms)
        due = "" if broken else due_reason(each, dirty, options, now_ms=now_ms, busy=busy)
        states.append(PartitionState(view=each, dirtiness=dirty, due=due))
    return states


def _with_readable_configs(view: PartitionView, now_ms: int) -> tuple[PartitionView, str]:
    """The view and "", or the view without configs but the policy, and the error in one of them."""
    try:
        config_int(view, "delete.retention.ms")
        measure(view, now_ms=now_ms)
    except InvalidConfigError as error:
        policy = {name: value for name, value in view.configs.items() if name == "cleanup.policy"}
        return replace(view, configs=policy), str(error)
    return view, ""


# ---- jobs


def deduped_partitions(job: MergeJob) -> frozenset[int]:
    """Ids of the partitions that the job's spec, as `MergeSpec.to_json` wrote it, dedupes."""
    return frozenset(row[0] for row in job.spec.get("partitions", ()) if row)


def job_text(job: MergeJob, now_ms: int) -> str:
    """ "job 12 (forced), 40 % (rewrite), for 3s" """
    progress = _progress(job)
    running = f", for {age_text(now_ms - job.started_ms)}" if job.started_ms is not None else ""
    return f"job {job.job_id} ({job.kind}){progress}{running}"


def fraction_of(job: MergeJob) -> float:
    """0 to 1, by the last report of its compactor."""
    value = job.progress.get("fraction", 0.0)
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else 0.0


def _progress(job: MergeJob) -> str:
    if not job.progress:
        return ""
    step = job.progress.get("step")
    return f", {fraction_of(job):.0%}".replace("%", " %") + (f" ({step})" if step else "")
