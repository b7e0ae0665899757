"""Forced passes: a compacted partition alone, from its log start on, because it is too dirty or a user asked. Pure.

Only a forced pass (and a merge that happens to hold everything from the log start) moves cleaned-through and removes
tombstones. A forced pass takes the unbroken stretch of L1 and L2 extents from the log start. The stretch ends at the
first gap, before the first extent that is busy, reserved, in trouble or about to expire, and at the latest at the first
uncleanable offset. A pass costs all bytes of the partition, clean ones too; the dirty ratio and the interval bound that
cost. A partition past its `max.compaction.lag.ms` does not wait for the interval, only for a multiple of the time that
its last pass took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, zip_longest

from compactor.planning.dirtiness import Dirtiness, Due, due, in_offset_order, stretch_end, unbroken_stretch
from compactor.planning.draft import PlanDraft
from compactor.planning.notes import Blocker
from compactor.planning.spec import MergeKind, PlanOptions
from compactor.planning.view import FileStatus
from metadata.contract.compactors import PartitionView
from metadata.contract.leveled import LeveledExtent
from runtime.text import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCandidate:
    """A partition that is due for a pass, with the extents that the pass would take."""

    partition: PartitionView
    dirtiness: Dirtiness
    stretch: Sequence[LeveledExtent]
    due: Due

    @property
    def order(self) -> tuple[bool, float, int, int]:
        """Requested passes first, then the dirtiest partitions."""
        return (
            not self.due.requested,
            -self.dirtiness.ratio,
            -self.dirtiness.dirty_bytes,
            self.partition.partition_id,
        )

    @property
    def late_since_ms(self) -> int:
        """When the earliest dirty record passed `max.compaction.lag.ms`."""
        return (self.dirtiness.earliest_dirty_ms or 0) + self.dirtiness.lag_ms_max


def plan_forced(draft: PlanDraft) -> None:
    """Runs after all other rules, when the files that they wait for are reserved."""
    blocked_files = _blocked_files(draft)
    blocked = draft.unavailable_extents
    due_now: list[PassCandidate] = []
    for partition in draft.view.partitions.values():
        found = _candidate(draft, partition, blocked, blocked_files)
        if found is not None:
            due_now.append(found)
    for candidate in _in_turns(draft, due_now):
        partition_id = candidate.partition.partition_id
        size = sum(each.length for each in candidate.stretch)
        full = sum(each.cap_bytes for each in candidate.stretch)
        cap, name, where = _cap(draft.options)
        if full > cap:
            over = f"{size_text(full)} uncompressed; {name} is {size_text(cap)}"
            text = f"due ({candidate.due.because}), but too large to merge {where} Spark: {over}"
            draft.note(MergeKind.FORCED, text, Blocker.SIZE, partition_id=partition_id)
        elif not (slots := draft.slots.for_size(size)).forced:
            text = f"due ({candidate.due.because}), all jobs{slots.engine_text} are taken"
            draft.note(MergeKind.FORCED, text, slots.blocker, partition_id=partition_id)
        else:
            name = f"{candidate.partition.topic_name}-{candidate.partition.partition}"
            draft.add_forced(candidate.partition, candidate.stretch, f"{name}: {candidate.due.because}")


def _cap(options: PlanOptions) -> tuple[int, str, str]:
    """The most uncompressed bytes of a pass, the setting that says so, and "on" or "without" Spark."""
    if options.spark:
        return max(options.spark_bytes_max, options.merge_bytes_max), "spark.merge.max.bytes", "on"
    return options.merge_bytes_max, "compaction.merge.bytes.max", "without"


def _in_turns(draft: PlanDraft, due_now: Sequence[PassCandidate]) -> Iterator[PassCandidate]:
    """Requested passes first. Then those past `max.compaction.lag.ms` and all others in turns, so that neither kind
    takes every slot. The kind that had the last pass comes second: with a single slot, they alternate. Of the late ones
    the latest goes first, however little of it is dirty: dirtier ones could come due again and again before it."""
    in_order = sorted(due_now, key=lambda each: each.order)
    yield from (each for each in in_order if each.due.requested)
    late = sorted((each for each in in_order if each.due.is_late), key=lambda each: each.late_since_ms)
    others = [each for each in in_order if not each.due.is_late and not each.due.requested]
    passed = [each for each in draft.view.partitions.values() if each.last_forced_ms is not None]
    last = max(passed, key=lambda each: (each.last_forced_ms or 0, each.partition_id), default=None)
    late_had_last = last is not None and draft.view.dirtiness[last.partition_id].has_lag
    pairs = zip_longest(*((others, late) if late_had_last else (late, others)))
    yield from (each for each in chain.from_iterable(pairs) if each is not None)


def _blocked_files(draft: PlanDraft) -> set[int]:
    """Files that a new forced pass must not enter. It may enter partly busy ones: extents are judged one by one."""
    stays = (FileStatus.TAKEN, FileStatus.IN_TROUBLE)
    return draft.reserved_files | {
        each.file_id for each in draft.view.files if draft.view.is_expiring(each) or draft.status(each) in stays
    }


def _candidate(
    draft: PlanDraft, partition: PartitionView, blocked: AbstractSet[int], blocked_files: set[int]
) -> PassCandidate | None:
    """None when no pass is due or there is nothing to take."""
    dirtiness = draft.view.dirtiness[partition.partition_id]
    stretch = [
        each
        for each in unbroken_stretch(partition, blocked=blocked, blocked_files=blocked_files)
        # Extents above the bound would be copied as they are: a pass gains nothing by reading them.
        if each.base_offset < dirtiness.first_uncleanable_offset
    ]
    reached = stretch_end(partition, stretch)
    found = due(partition, dirtiness, draft.options, now_ms=draft.now_ms, reached_offset=reached)
    if found is not None and stretch:
        return PassCandidate(partition=partition, dirtiness=dirtiness, stretch=stretch, due=found)
    leveled = dirtiness.leveled_through_offset
    if found is None and reached < leveled:
        # The pass would be due if nothing were in the way: note what is.
        unhindered = due(partition, dirtiness, draft.options, now_ms=draft.now_ms, reached_offset=leveled)
        if unhindered is not None:
            text = f"due ({unhindered.because}), but its records from offset {reached} on are held"
            blocker = _blocker(draft, partition, reached)
            draft.note(MergeKind.FORCED, text, blocker, partition_id=partition.partition_id, held_from=reached)
    return None


def _blocker(draft: PlanDraft, partition: PartitionView, reached_offset: int) -> Blocker:
    """Why the stretch ended where it did."""
    blocking = next((each for each in in_offset_order(partition) if each.last_offset >= reached_offset), None)
    if blocking is None or blocking.extent_id in draft.unavailable_extents:
        return Blocker.MERGE
    if blocking.file_id in draft.reserved_files:
        return Blocker.RESERVED
    in_trouble = any(
        each.file_id == blocking.file_id and draft.status(each) is FileStatus.IN_TROUBLE for each in draft.view.files
    )
    return Blocker.TROUBLE if in_trouble else Blocker.MERGE
