"""The cut of a claimed merge into units, and the check whether a stored plan may be continued. Pure.

Cuts lie between extents, or between blocks of an extent that is longer than a unit and whose block index is at hand
(`compactor/heavy/plan/parts.py`). The extents stay in order of (partition, base offset). So units are disjoint,
together they make up the job, and outputs of two units never overlap. A plain partition may be cut anywhere; small
partitions share a unit. A deduped partition stays whole while it fits one task (`keyed_unit_bytes`), with enough passes
that its buffer is never cleared, so one record per key is left. A larger partition is cut into slices.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from compactor.heavy.plan.codec import sealed
from compactor.heavy.plan.parts import block_cuts, is_part, parts_of
from compactor.heavy.plan.units import HeavyPlan, PlanError, Stretch, Unit, UnitKind, digest_of
from compactor.merging.kway_merge import class_of, order_inputs, whole_through
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MIB, SPARK_LIMIT_MS_MAX, MergeSpec, PartitionSpec
from metadata.contract.jobs import ClaimedJob
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass, LeveledExtent
from storage.format.block_index import BlockEntry

Blocks: TypeAlias = Mapping[int, Sequence[BlockEntry]]
"""Block indexes by extent id, each of at least one block."""

UNIT_BYTES = 256 * MIB
KEYED_UNIT_BYTES = 1024 * MIB
RESUME_FRACTION_MIN = 0.2
"""The share of a plan's time that must be left for the job to continue with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSizes:
    """The sizes of units, and the memory of a task."""

    unit_bytes: int = UNIT_BYTES
    """Units of plain partitions, and slices, are at most that large, or one block, or one extent without blocks."""
    keyed_unit_bytes: int = KEYED_UNIT_BYTES
    """Deduped partitions up to this size stay whole in one unit; larger ones are cut into slices."""
    memory: MergeMemory = field(default_factory=MergeMemory)
    """The memory of a unit."""


def cut(
    claimed: ClaimedJob,
    spec: MergeSpec,
    *,
    cluster_id: str,
    lease: WriterLease,
    sizes: UnitSizes,
    blocks: Blocks = MappingProxyType({}),
) -> HeavyPlan:
    """The plan of a claimed merge of L1+ extents; it has no units if none of its inputs is left.

    `blocks`: block indexes of some of the extents that `long_extents` tells; the others stay whole.

    Raises PlanError for an L0 job, MergeInputError for extents that overlap.
    """
    if claimed.l0_files:
        raise PlanError(f"job {claimed.job.job_id} takes L0 files; only the compactor itself merges these")
    inputs = order_inputs(claimed, spec)
    deduped = {each.partition.partition_id for each in inputs.partitions if each.dedupe}
    by_partition: dict[int, list[LeveledExtent]] = {each.partition.partition_id: [] for each in inputs.partitions}
    for extent in claimed.extents:
        if extent.partition_id in by_partition:
            by_partition[extent.partition_id].append(extent)
    for extents in by_partition.values():
        extents.sort(key=lambda each: each.base_offset)
    units: list[Unit] = []
    stretches: list[Stretch] = []
    for slices, is_sliced in _stretches(by_partition, deduped, sizes, blocks):
        if not is_sliced:
            for extents in slices:
                units.append(_unit(UnitKind.MERGE, len(units), len(stretches), extents))
                stretches.append(_merge_inputs(extents, claimed, spec, deduped, sizes.memory.keys_max))
            continue
        units += _slice_units(slices, len(units), len(stretches))
        stretches += _slice_inputs(slices, claimed, spec)
    sliced = {unit.partition_id for unit in units}
    deadline_ms = claimed.job.deadline_ms or claimed.now_ms
    plan = HeavyPlan(
        cluster_id=cluster_id,
        job_id=claimed.job.job_id,
        epoch=claimed.job.epoch,
        lease=lease,
        claimed_ms=claimed.now_ms,
        commit_by_ms=min(deadline_ms, claimed.now_ms + SPARK_LIMIT_MS_MAX),
        spec=replace(spec, partitions={}, file_ids=(), extent_ids=()),
        asked=digest_of(spec),
        units=tuple(units),
        whole_through={
            each.partition.partition_id: min(
                spec.partitions[each.partition.partition_id].whole_through_offset, whole_through(each)
            )
            for each in inputs.partitions
            if each.partition.partition_id in sliced
        },
        memory=sizes.memory,
        stretches=dict(enumerate(_with_divided(stretches, claimed) if blocks else stretches)),
    )
    return sealed(plan)


def long_extents(claimed: ClaimedJob, spec: MergeSpec, sizes: UnitSizes) -> Sequence[LeveledExtent]:
    """The extents that units divide if their block indexes can be read: those longer than a unit, but for those of
    deduped partitions that fit one task."""
    size_bytes: Counter[int] = Counter()
    for each in claimed.extents:
        size_bytes[each.partition_id] += each.length
    return [
        each
        for each in claimed.extents
        if each.length > sizes.unit_bytes
        and each.block_index_length
        and each.flagged_reason is None
        and each.partition_id in claimed.partitions
        and not (
            size_bytes[each.partition_id] <= sizes.keyed_unit_bytes
            and spec.dedupe
            and each.partition_id in spec.partitions
            and class_of(claimed.partitions[each.partition_id]) is FileClass.COMPACTED
        )
    ]


def _stretches(
    by_partition: Mapping[int, Sequence[LeveledExtent]], deduped: set[int], sizes: UnitSizes, blocks: Blocks
) -> Iterator[tuple[Sequence[Sequence[LeveledExtent]], bool]]:
    """(the inputs of MERGE units, False), and (all slices of a partition, True), in order of partition."""
    waiting: list[_Item] = []
    for partition_id, extents in by_partition.items():
        apart = [_Item([each], blocks.get(each.extent_id, ())) for each in extents]
        if partition_id not in deduped:
            waiting += apart
        elif _input_bytes(extents) > sizes.keyed_unit_bytes and sum(max(len(each.blocks), 1) for each in apart) > 1:
            if waiting:
                yield list(_packed(waiting, sizes.unit_bytes)), False
                waiting = []
            yield list(_packed(apart, sizes.unit_bytes)), True
        else:
            # Also a partition of one extent without blocks, however large it is.
            waiting.append(_Item(extents, ()))
    if waiting:
        yield list(_packed(waiting, sizes.unit_bytes)), False


class _Item(NamedTuple):
    """Extents that stay together in a unit, or one extent that may be cut between its blocks."""

    extents: Sequence[LeveledExtent]
    blocks: Sequence[BlockEntry]


def _packed(items: Iterable[_Item], unit_bytes: int) -> Iterator[Sequence[LeveledExtent]]:
    """The inputs of units, one after another."""
    waiting: list[LeveledExtent] = []
    waiting_bytes: int | None = None
    for extents, blocks in items:
        length = _input_bytes(extents)
        starts = [each.position for each in blocks] or (0,)
        cuts = block_cuts(starts, length, open_bytes=waiting_bytes, unit_bytes=unit_bytes)
        if cuts and not cuts[0]:
            yield waiting
            waiting, waiting_bytes = [], None
            del cuts[0]
        if not cuts:
            waiting += extents
            waiting_bytes = (waiting_bytes or 0) + length
            continue
        *ended, last = parts_of(extents[0], blocks, cuts)
        for part in ended:
            waiting.append(part)
            yield waiting
            waiting = []
        waiting, waiting_bytes = [last], last.length
    if waiting:
        yield waiting


def _with_divided(stretches: Iterable[Stretch], claimed: ClaimedJob) -> Iterator[Stretch]:
    whole = {each.extent_id: each for each in claimed.extents}
    for stretch in stretches:
        parts = [(each, whole[each.extent_id]) for each in stretch.extents if is_part(each)]
        yield replace(stretch, divided=tuple(each for part, each in parts if part.base_offset == each.base_offset))


def _unit(kind: UnitKind, number: int, stretch: int, extents: Sequence[LeveledExtent]) -> Unit:
    return Unit(
        number=number,
        kind=kind,
        stretch=stretch,
        input_bytes=_input_bytes(extents),
        records=sum(each.record_count for each in extents),
    )


def _slice_units(slices: Sequence[Sequence[LeveledExtent]], number: int, stretch: int) -> Iterator[Unit]:
    """Two units for each slice, over the same inputs: `slice_units` pairs them by order. `number` and `stretch` are
    the first ones."""
    for kind in (UnitKind.KEYS, UnitKind.REWRITE):
        for slice_number, some in enumerate(slices):
            yield replace(
                _unit(kind, number, stretch + slice_number, some),
                partition_id=some[0].partition_id,
                slice_number=slice_number,
                base_offset=some[0].base_offset,
                last_offset=some[-1].last_offset,
            )
            number += 1


def _merge_inputs(
    extents: Sequence[LeveledExtent], claimed: ClaimedJob, spec: MergeSpec, deduped: set[int], keys_max: int
) -> Stretch:
    records: Counter[int] = Counter()
    for each in extents:
        records[each.partition_id] += each.record_count
    return Stretch(
        extents=tuple(extents),
        partitions={id_: claimed.partitions[id_] for id_ in records},
        specs={
            id_: _never_cleared(spec.partitions[id_], count, keys_max)
            for id_, count in records.items()
            if id_ in deduped
        },
    )


def _slice_inputs(slices: Sequence[Sequence[LeveledExtent]], claimed: ClaimedJob, spec: MergeSpec) -> Iterator[Stretch]:
    """The inputs of all slices of a partition. Each lists the aborted transactions that reach into it."""
    id_ = slices[0][0].partition_id
    waiting = deque(sorted(spec.partitions[id_].aborted, key=lambda each: each[1]))
    reaching: list[tuple[int, int, int]] = []
    for extents in slices:
        while waiting and waiting[0][1] <= extents[-1].last_offset:
            reaching.append(waiting.popleft())
        reaching = [each for each in reaching if each[2] >= extents[0].base_offset]
        yield Stretch(
            extents=tuple(extents),
            partitions={id_: claimed.partitions[id_]},
            specs={id_: replace(spec.partitions[id_], aborted=tuple(reaching))},
        )


def _input_bytes(extents: Iterable[LeveledExtent]) -> int:
    return sum(each.length for each in extents)


def _never_cleared(spec: PartitionSpec, records: int, keys_max: int) -> PartitionSpec:
    """The spec with at least two passes if the records may have more keys than the buffer holds.

    The cleaner splits a part that overflows all the same.
    """
    return replace(spec, passes=1 if records <= keys_max else max(spec.passes, 2))


def may_go_on(plan: HeavyPlan, claimed: ClaimedJob, spec: MergeSpec, *, cluster_id: str) -> bool:
    """Whether `plan`, made at an earlier claim, still fits this claim of the job.

    The plan may have more inputs: the commit trims extents that died since, and the janitor spares the files of a live
    job.
    """
    if (plan.cluster_id, plan.job_id) != (cluster_id, claimed.job.job_id) or plan.epoch > claimed.job.epoch:
        return False
    if plan.asked != digest_of(spec):
        return False  # another job with the same id, from before a restore of the metadata
    left_ms = plan.commit_by_ms - claimed.now_ms
    if left_ms < RESUME_FRACTION_MIN * (plan.commit_by_ms - plan.claimed_ms):
        return False
    for id_, partition in claimed.partitions.items():
        planned = plan.partitions.get(id_)
        if planned is not None and class_of(planned) is not class_of(partition):
            return False  # cleanup.policy changed: a deduped partition must be copied now, or a copied one deduped
    held = {*plan.extents, *plan.divided}
    return all(each in held for each in claimed.extents if each.partition_id in claimed.partitions)
