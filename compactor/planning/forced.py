"""Forced passes: one compacted partition alone, from its log start on, because it is too dirty or somebody asks. Pure.

Only such a pass (and a merge that happens to hold everything from the log start) moves cleaned-through and removes
tombstones. It takes the unbroken stretch of L1 and L2 extents from the log start up to the first gap, the first extent
that is busy, reserved, in trouble or about to expire, and not beyond the first uncleanable offset, where nothing may be
cleaned. Its cost is the partition's own bytes, clean ones too, hence the dirty ratio and the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.planning.dirtiness import Dirtiness, Due, due, in_offset_order, stretch_end, unbroken_stretch
from compactor.planning.round import FileStatus, Hold, Round
from compactor.planning.spec import GIB, MergeKind
from metadata.contract.compaction import LeveledExtent, PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    partition: PartitionView
    dirtiness: Dirtiness
    stretch: Sequence[LeveledExtent]
    due: Due

    @property
    def order(self) -> tuple[bool, float, int, int]:
        """What somebody asked for, then the dirtiest."""
        return (
            not self.due.requested,
            -self.dirtiness.ratio,
            -self.dirtiness.dirty_bytes,
            self.partition.partition_id,
        )


def plan_forced(state: Round) -> None:
    """After all other rules: their files are reserved then."""
    blocked_files = _blocked_files(state)
    blocked = state.view.busy_extents | state.taken_extents
    due_now: list[Candidate] = []
    for partition in state.partitions.values():
        found = _candidate(state, partition, blocked, blocked_files)
        if found is not None:
            due_now.append(found)
    for candidate in sorted(due_now, key=lambda each: each.order):
        partition_id = candidate.partition.partition_id
        size = sum(each.length for each in candidate.stretch)
        if size > state.options.merge_bytes_max and not state.options.spark:
            cap = f"{size / GIB:.1f} GiB, above {state.options.merge_bytes_max / GIB:.1f} GiB"
            text = f"due ({candidate.due.because}), but too large to merge without Spark: {cap}"
            state.note(MergeKind.FORCED, text, Hold.SIZE, partition_id=partition_id)
        elif not (places := state.places(size)).forced:
            text = f"due ({candidate.due.because}), all jobs{places.of} are taken"
            state.note(MergeKind.FORCED, text, places.hold, partition_id=partition_id)
        else:
            name = f"{candidate.partition.topic_name}-{candidate.partition.partition}"
            state.add_forced(candidate.partition, candidate.stretch, f"{name}: {candidate.due.because}")


def _blocked_files(state: Round) -> set[int]:
    """Those that a new forced pass must not go into. Partly busy ones may be: extents are judged one by one."""
    stays = (FileStatus.TAKEN, FileStatus.IN_TROUBLE)
    return state.reserved_files | {
        each.file_id for each in state.files if state.is_expiring(each) or state.status(each) in stays
    }


def _candidate(
    state: Round, partition: PartitionView, blocked: set[int] | frozenset[int], blocked_files: set[int]
) -> Candidate | None:
    """None: not due, or nothing to take."""
    dirtiness = state.dirtiness[partition.partition_id]
    stretch = [
        each
        for each in unbroken_stretch(partition, blocked=blocked, blocked_files=blocked_files)
        if each.base_offset < dirtiness.first_uncleanable_offset
    ]
    reached = stretch_end(partition, stretch)
    found = due(partition, dirtiness, state.options, now_ms=state.now_ms, reached_offset=reached)
    if found is not None and stretch:
        return Candidate(partition=partition, dirtiness=dirtiness, stretch=stretch, due=found)
    leveled = dirtiness.leveled_through_offset
    if found is None and reached < leveled:
        # Would it be due if nothing lay in the way?
        unhindered = due(partition, dirtiness, state.options, now_ms=state.now_ms, reached_offset=leveled)
        if unhindered is not None:
            text = f"due ({unhindered.because}), but its records from offset {reached} on are held"
            hold = _hold(state, partition, reached)
            state.note(MergeKind.FORCED, text, hold, partition_id=partition.partition_id, held_from=reached)
    return None


def _hold(state: Round, partition: PartitionView, reached_offset: int) -> Hold:
    """What holds the extent at which the stretch ended."""
    blocking = next((each for each in in_offset_order(partition) if each.last_offset >= reached_offset), None)
    if blocking is None or blocking.extent_id in state.view.busy_extents | state.taken_extents:
        return Hold.MERGE
    if blocking.file_id in state.reserved_files:
        return Hold.RESERVED
    in_trouble = any(
        each.file_id == blocking.file_id and state.status(each) is FileStatus.IN_TROUBLE for each in state.files
    )
    return Hold.TROUBLE if in_trouble else Hold.MERGE
