"""What to merge next: a pure function from a view of the metadata to a list of merge specs.

The rules, in the order in which they take files (no file or extent goes into two specs):

1. L0 -> L1 (`plan_l0`), with places for jobs of its own;
2. files with bytes dead for longer than the purge deadline (`plan_purge`);
3. per class L1 -> L2, the daily merge, L2 -> L2 (`plan_runs`);
4. files that are mostly dead (`plan_purge`);
5. forced passes over one partition, what somebody asked for first (`plan_forced`).

Nothing here is a condition of correctness: whatever a spec holds, the merge cuts its outputs where its inputs have
gaps, judges tombstones by `whole_through_offset`, and is committed by compare-and-swap. A plan made from an old view is
refused when a job is created or committed, and made anew. Nothing is written; a crash leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.planning.forced import plan_forced
from compactor.planning.l0 import plan_l0
from compactor.planning.purge import plan_mostly_dead, plan_overdue
from compactor.planning.round import Note, Round
from compactor.planning.runs import plan_runs
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from metadata.contract.compaction import CompactionView, NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    specs: Sequence[MergeSpec]
    notes: Sequence[Note]
    """What is due and not planned, and why."""

    def notes_of(self, partition_id: int, file_ids: frozenset[int]) -> Sequence[Note]:
        """Those that concern a partition whose extents lie in these files."""
        return [each for each in self.notes if each.partition_id == partition_id or file_ids & set(each.file_ids)]


def plan_merges(view: CompactionView, options: PlanOptions) -> list[MergeSpec]:
    """What to start now, most urgent first. The order of the view's rows does not matter."""
    return list(explain_plan(view, options).specs)


def explain_plan(view: CompactionView, options: PlanOptions) -> Plan:
    """As `plan_merges`, with the reasons for what is not planned."""
    state = Round(view, options)
    plan_l0(state)
    plan_overdue(state)
    plan_runs(state)
    plan_mostly_dead(state)
    plan_forced(state)
    return Plan(specs=state.specs, notes=state.notes)


def new_job(spec: MergeSpec) -> NewJob:
    stored: Mapping[str, object] = spec.to_json()
    return NewJob(
        kind=spec.kind.value,
        spec=stored,
        l0_file_ids=spec.l0_file_ids,
        file_ids=spec.file_ids,
        extent_ids=spec.extent_ids,
        limit_ms=spec.limit_ms,
        forced_partition_ids=tuple(spec.partitions) if spec.kind is MergeKind.FORCED else (),
        input_bytes=spec.input_bytes,
    )
