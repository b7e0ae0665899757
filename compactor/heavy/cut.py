"""The cut of a claimed merge into units, and the check whether a stored plan may be continued. Pure.

Cuts lie between extents, and the extents stay in order of (partition, base offset). So units are disjoint, together
they make up the job, and outputs of two units never overlap. A plain partition may be cut anywhere; small partitions
share a unit. A deduped partition stays whole while it fits one task (`keyed_unit_bytes`), with enough passes that its
buffer is never cleared, so one record per key is left. A larger partition is cut into slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from compactor.heavy.units import HeavyPlan, PlanError, Unit, UnitKind
from compactor.merging.kway_merge import class_of, order_inputs
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MIB, SPARK_LIMIT_MS_MAX, MergeSpec, PartitionSpec
from metadata.contract.jobs import ClaimedJob
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import LeveledExtent

UNIT_BYTES = 256 * MIB
KEYED_UNIT_BYTES = 1024 * MIB
RESUME_FRACTION_MIN = 0.2
"""The share of a plan's time that must be left for the job to continue with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSizes:
    """The sizes of units, and the memory of a task."""

    unit_bytes: int = UNIT_BYTES
    """Units of plain partitions, and slices, have about this size."""
    keyed_unit_bytes: int = KEYED_UNIT_BYTES
    """Deduped partitions up to this size stay whole in one unit; larger ones are cut into slices."""
    memory: MergeMemory = field(default_factory=MergeMemory)
    """The memory of a unit."""


def cut(claimed: ClaimedJob, spec: MergeSpec, *, cluster_id: str, lease: WriterLease, sizes: UnitSizes) -> HeavyPlan:
    """The plan of a claimed merge of L1+ extents; it has no units if none of its inputs is left.

    Raises PlanError for an L0 job, MergeInputError for extents that overlap.
    """
    if claimed.l0_files:
        raise PlanError(f"job {claimed.job.job_id} takes L0 files; only the compactor itself merges these")
    inputs = order_inputs(claimed, spec)
    deduped = {each.partition.partition_id for each in inputs.partitions if each.dedupe}
    ids = {each.partition.partition_id for each in inputs.partitions}
    extents = sorted(
        (each for each in claimed.extents if each.partition_id in ids),
        key=lambda each: (each.partition_id, each.base_offset),
    )
    units: list[Unit] = []
    for first, end, sliced_id in _stretches(extents, deduped, sizes.unit_bytes, sizes.keyed_unit_bytes):
        if sliced_id is None:
            size = _input_bytes(extents[first:end])
            units.append(Unit(number=len(units), kind=UnitKind.MERGE, first=first, end=end, input_bytes=size))
            continue
        slices = list(_pieces(extents, first, end, sizes.unit_bytes))
        # Two units for each slice, over the same extents: `slice_units` pairs them by order.
        for kind in (UnitKind.KEYS, UnitKind.REWRITE):
            for number, (start, stop) in enumerate(slices):
                units.append(
                    Unit(
                        number=len(units),
                        kind=kind,
                        first=start,
                        end=stop,
                        input_bytes=_input_bytes(extents[start:stop]),
                        partition_id=sliced_id,
                        slice_number=number,
                    )
                )
    sliced = {unit.partition_id for unit in units if unit.partition_id is not None}
    partitions = {
        id_: each if id_ in sliced else _never_cleared(each, extents, sizes.memory.keys_max)
        for id_, each in spec.partitions.items()
        if id_ in deduped
    }
    deadline_ms = claimed.job.deadline_ms or claimed.now_ms
    return HeavyPlan(
        cluster_id=cluster_id,
        job_id=claimed.job.job_id,
        epoch=claimed.job.epoch,
        lease=lease,
        claimed_ms=claimed.now_ms,
        commit_by_ms=min(deadline_ms, claimed.now_ms + SPARK_LIMIT_MS_MAX),
        spec=replace(spec, partitions=partitions),
        partitions={id_: each for id_, each in claimed.partitions.items() if id_ in ids},
        extents=tuple(extents),
        units=tuple(units),
        memory=sizes.memory,
    )


def _stretches(
    extents: Sequence[LeveledExtent], deduped: set[int], unit_bytes: int, keyed_unit_bytes: int
) -> Iterator[tuple[int, int, int | None]]:
    """(first, end, None) of MERGE units; (first, end, partition id) of partitions to be sliced."""
    first = open_bytes = at = 0
    for partition_id, group in groupby(extents, key=lambda each: each.partition_id):
        lengths = [each.length for each in group]
        size, end = sum(lengths), at + len(lengths)
        is_deduped = partition_id in deduped
        # A single extent cannot be cut, so a partition of one stays whole, however large it is.
        is_sliced = is_deduped and size > keyed_unit_bytes and len(lengths) > 1
        if is_sliced:
            if at > first:
                yield first, at, None
            yield at, end, partition_id
            first, open_bytes = end, 0
        else:
            for count, length in [(len(lengths), size)] if is_deduped else [(1, each) for each in lengths]:
                if at > first and open_bytes + length > unit_bytes:
                    yield first, at, None
                    first, open_bytes = at, 0
                at, open_bytes = at + count, open_bytes + length
        at = end
    if at > first:
        yield first, at, None


def _pieces(extents: Sequence[LeveledExtent], first: int, end: int, unit_bytes: int) -> Iterator[tuple[int, int]]:
    start = first
    open_bytes = 0
    for at in range(first, end):
        if at > start and open_bytes + extents[at].length > unit_bytes:
            yield start, at
            start, open_bytes = at, 0
        open_bytes += extents[at].length
    yield start, end


def _input_bytes(extents: Iterable[LeveledExtent]) -> int:
    return sum(each.length for each in extents)


def _never_cleared(spec: PartitionSpec, extents: Iterable[LeveledExtent], keys_max: int) -> PartitionSpec:
    """The spec with at least two passes if the records may have more keys than the buffer holds.

    The cleaner splits a part that overflows all the same.
    """
    records = sum(each.record_count for each in extents if each.partition_id == spec.partition_id)
    return replace(spec, passes=1 if records <= keys_max else max(spec.passes, 2))


def may_go_on(plan: HeavyPlan, claimed: ClaimedJob, spec: MergeSpec, *, cluster_id: str) -> bool:
    """Whether `plan`, made at an earlier claim, still fits this claim of the job.

    The plan may have more inputs: the commit trims extents that died since, and the janitor spares the files of a live
    job.
    """
    if (plan.cluster_id, plan.job_id) != (cluster_id, claimed.job.job_id) or plan.epoch > claimed.job.epoch:
        return False
    if replace(plan.spec, partitions={}) != replace(spec, partitions={}):
        return False  # another job with the same id, from before a restore of the metadata
    left_ms = plan.commit_by_ms - claimed.now_ms
    if left_ms < RESUME_FRACTION_MIN * (plan.commit_by_ms - plan.claimed_ms):
        return False
    for id_, partition in claimed.partitions.items():
        planned = plan.partitions.get(id_)
        if planned is not None and class_of(planned) is not class_of(partition):
            return False  # cleanup.policy changed: a deduped partition must be copied now, or a copied one deduped
    held = set(plan.extents)
    return all(each in held for each in claimed.extents if each.partition_id in claimed.partitions)
