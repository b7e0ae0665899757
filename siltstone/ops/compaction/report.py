"""How far compaction is with a topic, partition by partition. Pure.

`partition_states` puts the figures of `siltstone topics describe` together. What is dirty and what is due is not judged
here a second time: the planner's own functions say it, so that what is shown is what will be done. Why it is not
further says `compaction_reasons.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from compactor.planning.dirtiness import Dirtiness, config_int, due_reason, measure
from compactor.planning.notes import Blocker
from compactor.planning.plan import Plan
from compactor.planning.spec import PlanOptions
from metadata.configs.topic import InvalidConfigError, as_list, resolve
from metadata.contract.compaction import CompactionView, MergeJob, PartitionView
from runtime.text import age_text
from siltstone.ops.compaction.trouble import Troubled, trouble_text
from siltstone.ops.compaction.waits import HELD, numbers_text, waits_for


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a topic. Offsets named `..._through` are exclusive."""

    view: PartitionView
    dirtiness: Dirtiness
    due: str
    """Why the planner would take it now; empty when it would not."""
    waits: str
    """What it waits for when it is not due; empty when there is nothing to do."""
    held: str
    """What keeps the planner from taking it though it is due; empty when nothing does, or that is not known."""
    trouble: str
    """What of it lies in files that merges fail to read; empty when nothing does."""

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
    plan: Plan | None = None,
    troubled: Mapping[int, Sequence[Troubled]] = MappingProxyType({}),
    young_l0_from: Mapping[int, int] = MappingProxyType({}),
) -> Sequence[PartitionState]:
    """By partition number. `view`, where there is one, says which extents are busy, and `plan` what is due and not
    planned; `troubled` and `young_l0_from` as in Evidence.

    Where a config cannot be read, the partition is shown as if the topic had none of its own but its policy: the
    planner leaves it alone.
    """
    held = {note.partition_id: HELD[note.blocker] for note in (plan.notes if plan is not None else ())}
    is_l0_held = plan is not None and any(note.blocker is Blocker.L0_JOBS for note in plan.notes)
    busy = view.busy_extents if view is not None else frozenset[int]()
    states: list[PartitionState] = []
    for stored in sorted(views, key=lambda each: each.partition):
        each, broken = _with_readable_configs(stored, now_ms)
        dirty = measure(each, now_ms=now_ms)
        due = "" if broken else due_reason(each, dirty, options, now_ms=now_ms, busy=busy)
        young_from = young_l0_from.get(each.partition_id)
        trouble = trouble_text(troubled.get(each.partition_id, ()), deletes="delete" in _policy(each.configs))
        is_waiting = not due and not trouble
        waits = (
            waits_for(each, dirty, options, now_ms=now_ms, young_l0_from=young_from, is_l0_held=is_l0_held)
            if is_waiting
            else ""
        )
        waits = f"never deduped: {broken}" if broken else waits
        held_by = held.get(each.partition_id, "")
        states.append(PartitionState(view=each, dirtiness=dirty, due=due, waits=waits, held=held_by, trouble=trouble))
    return states


def _with_readable_configs(view: PartitionView, now_ms: int) -> tuple[PartitionView, str]:
    """The view, and what is wrong with a config of its topic; then without any but the policy."""
    try:
        config_int(view, "delete.retention.ms")
        measure(view, now_ms=now_ms)
    except InvalidConfigError as error:
        policy = {name: value for name, value in view.configs.items() if name == "cleanup.policy"}
        return replace(view, configs=policy), str(error)
    return view, ""


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
            "held": each.held,
            "trouble": each.trouble,
        }
        for each in states
    ]


def waiting_lines(states: Sequence[PartitionState]) -> Sequence[str]:
    """Which partitions are due, what the others wait for, and what is in trouble; those that say the same in one."""
    numbers: dict[tuple[bool, str], list[int]] = {}
    for each in states:
        number = each.view.partition
        if each.trouble:
            says = f"{each.trouble}; `siltstone topics explain` says what to do"
            numbers.setdefault((False, says), []).append(number)
        if each.due:
            held = f"; not planned: {each.held}" if each.held else ""
            numbers.setdefault((True, f"{each.due}{held}"), []).append(number)
        elif each.waits:
            numbers.setdefault((False, each.waits), []).append(number)
    return [_waiting_line(partitions, *said) for said, partitions in numbers.items()]


def trouble_lines(states: Sequence[PartitionState]) -> Sequence[str]:
    """Of a topic that is not compacted: what is in trouble alone."""
    return waiting_lines([replace(each, due="", waits="") for each in states])


def _waiting_line(partitions: Sequence[int], is_due: bool, says: str) -> str:
    one = len(partitions) == 1
    who = f"partition{'' if one else 's'} {numbers_text(partitions)}"
    return f"{who} {'is' if one else 'are'} due: {says}" if is_due else f"{who}: {says}"


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
    """0 to 1, as its compactor last said."""
    value = job.progress.get("fraction", 0.0)
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else 0.0


def _progress(job: MergeJob) -> str:
    if not job.progress:
        return ""
    step = job.progress.get("step")
    return f", {fraction_of(job):.0%}".replace("%", " %") + (f" ({step})" if step else "")
