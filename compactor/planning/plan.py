"""The next merges: a pure function from a view of the metadata to a list of merge specs.

The rules, in the order in which they take files (no file or extent goes into two specs):

1. L0 -> L1 (`plan_l0`), with job slots of its own;
2. files with records of erased keys, whose erasure has begun (`plan_erasures`);
3. files whose dead bytes reach the purge deadline (`plan_overdue`);
4. per class the daily merge, L1 -> L2 and L2 -> L2 (`plan_runs`);
5. files that are mostly dead (`plan_mostly_dead`);
6. forced passes over one partition, requested ones first (`plan_forced`).

Correctness never depends on a plan. Whatever inputs a spec has, the merge cuts its outputs where the inputs have gaps,
judges tombstones by `whole_through_offset`, and is committed by compare-and-swap. A plan from an old view is refused
when its job is created or committed, and the planner plans again. The planner writes nothing, so a crash leaves nothing
behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.planning.draft import PlanDraft
from compactor.planning.forced import plan_forced
from compactor.planning.l0 import plan_l0
from compactor.planning.notes import Note
from compactor.planning.purge import plan_erasures, plan_mostly_dead, plan_overdue
from compactor.planning.runs import plan_runs
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from metadata.contract.compactors import CompactionView
from metadata.contract.jobs import NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    specs: Sequence[MergeSpec]
    notes: Sequence[Note]
    """Why jobs that are due were not planned."""

    def notes_of(self, partition_id: int, file_ids: frozenset[int]) -> Sequence[Note]:
        """The notes about a partition whose extents lie in these files."""
        return [each for each in self.notes if each.partition_id == partition_id or file_ids & set(each.file_ids)]


def plan_merges(view: CompactionView, options: PlanOptions) -> list[MergeSpec]:
    """The merges to start now, most urgent first. The order of the view's rows does not matter."""
    return list(explain_plan(view, options).specs)


def explain_plan(view: CompactionView, options: PlanOptions) -> Plan:
    """As `plan_merges`, with a note for each job that is due and not planned."""
    draft = PlanDraft(view, options)
    plan_l0(draft)
    plan_erasures(draft)
    plan_overdue(draft)
    plan_runs(draft)
    plan_mostly_dead(draft)
    plan_forced(draft)
    return Plan(specs=draft.specs, notes=draft.notes)


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
