"""The plan of a heavy merge: values. Pure.

A heavy merge is cut into *units*. Each unit is a small merge of some extents of the job, read and written by one task
on any machine. The plan holds all facts that a task needs, so a task only needs access to the object store. A task
reads the facts of all units (`HeavyPlan`) and of its own inputs (one `Stretch`), however large the plan is; the stored
form is in `compactor/heavy/plan/codec.py`.

The extents of a plan are sorted by (partition, base offset), with parts in place of extents that units divide, and a
stretch is an unbroken run of them:

- MERGE: a small merge as the embedded engine runs it. A deduped partition is whole in one such unit, or in none.
- KEYS and REWRITE, for deduped partitions that are too large for one task: one unit of each kind reads a *slice* of the
  partition, which is a stretch. KEYS units collect the keys; REWRITE units write the surviving records of their slice.

All facts that decide which records stay (log start, stable offset, horizons, time) are those of the claim for which the
plan was made. The same holds for `commit_by_ms`, the end of the time in which its horizons are valid.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from compactor.heavy.plan.frames import dump_json
from compactor.heavy.plan.parts import is_part
from compactor.merging.kway_merge import MergeInputs, PartitionInputs, order_inputs
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MergeSpec, PartitionSpec
from metadata.contract.jobs import ClaimedJob, InputPartition, JobState, MergeJob
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import LeveledExtent
from runtime.errors import BadInputError, BugError


class PlanError(BadInputError):
    """The object is not a plan, or a plan of another version, file format or cluster. No unit of it was begun."""


class UnitKind(StrEnum):
    MERGE = "merge"
    KEYS = "keys"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    number: int
    """Its index in `HeavyPlan.units`. Only this number travels through the cluster."""
    kind: UnitKind
    stretch: int
    """The number of its inputs; the two units of a slice have the same."""
    input_bytes: int
    records: int
    """Records of its extents."""
    partition_id: int | None = None
    """KEYS and REWRITE: the partition of the slice."""
    slice_number: int = 0
    """KEYS and REWRITE: 0 for the slice with the lowest offsets. So for the next two."""
    base_offset: int = 0
    last_offset: int = 0
    """Inclusive."""


def digest_of(spec: MergeSpec) -> str:
    """SHA-256, in hex, of a spec without its partitions."""
    return hashlib.sha256(dump_json(replace(spec, partitions={}).to_json())).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The inputs of a unit."""

    extents: tuple[LeveledExtent, ...]
    """By (partition, base offset)."""
    partitions: Mapping[int, InputPartition]
    specs: Mapping[int, PartitionSpec]
    """The deduped ones among `partitions`. Those of a slice list only aborted transactions that reach into it."""
    divided: tuple[LeveledExtent, ...] = ()
    """The whole extents whose first part is among `extents` (`compactor/heavy/plan/parts.py`)."""


@dataclass(frozen=True, kw_only=True)
class HeavyPlan:
    """A class without slots, because cached properties keep derived values."""

    cluster_id: str
    job_id: int
    epoch: int
    """Epoch of the claim for which the plan was made. Footers of outputs contain it."""
    lease: WriterLease
    """Lease of the compactor that made the plan. Keys of outputs contain it."""
    claimed_ms: int
    """The metadata store's time of that claim."""
    commit_by_ms: int
    """The latest time of a commit. After it, the horizons that the units stamped are no longer valid."""
    spec: MergeSpec
    """Without partitions and inputs, which the stretches hold."""
    asked: str
    """The digest of the whole spec (`digest_of`), by which a later claim knows the job again."""
    units: tuple[Unit, ...]
    whole_through: Mapping[int, int]
    """Sliced partitions: the exclusive end up to which the inputs of the plan hold every live extent."""
    memory: MergeMemory
    """The memory of a unit."""
    stretches: Mapping[int, Stretch] = field(repr=False)
    """By number: all of them in a compactor, that of one unit in a task, none in a driver."""
    fingerprint: str = ""
    """Names the plan. Empty until `sealed` (`compactor/heavy/plan/codec.py`) has encoded it."""
    body: bytes = field(default=b"", repr=False)
    """The stored form, in the process that made the plan; empty in others."""

    # ---- derived

    @cached_property
    def extents(self) -> tuple[LeveledExtent, ...]:
        """The inputs in all stretches at hand, by (partition, base offset)."""
        return tuple(extent for _, stretch in sorted(self.stretches.items()) for extent in stretch.extents)

    @cached_property
    def divided(self) -> tuple[LeveledExtent, ...]:
        """The whole extents of which `extents` has the parts, in the same order."""
        return tuple(extent for _, stretch in sorted(self.stretches.items()) for extent in stretch.divided)

    @cached_property
    def parts(self) -> Mapping[int, Sequence[LeveledExtent]]:
        """The parts of each of `divided`, in order, by extent id."""
        found: defaultdict[int, list[LeveledExtent]] = defaultdict(list)
        for extent in self.extents:
            if is_part(extent):
                found[extent.extent_id].append(extent)
        return found

    @cached_property
    def file_ids(self) -> frozenset[int]:
        return frozenset(extent.file_id for extent in self.extents)

    @cached_property
    def partitions(self) -> Mapping[int, InputPartition]:
        return {id_: each for stretch in self.stretches.values() for id_, each in stretch.partitions.items()}

    @cached_property
    def partition_specs(self) -> Mapping[int, PartitionSpec]:
        """The deduped partitions, with the aborted transactions of all slices."""
        by_partition: defaultdict[int, list[PartitionSpec]] = defaultdict(list)
        for _, stretch in sorted(self.stretches.items()):
            for id_, spec in stretch.specs.items():
                by_partition[id_].append(spec)
        return {
            id_: specs[0]
            if len(specs) == 1
            # A transaction that reaches into several slices is listed in each of them.
            else replace(specs[0], aborted=tuple(dict.fromkeys(one for each in specs for one in each.aborted)))
            for id_, specs in by_partition.items()
        }

    @cached_property
    def inputs(self) -> MergeInputs:
        """The inputs of all units at hand. Raises MergeInputError for extents that overlap."""
        whole = Stretch(extents=self.extents, partitions=self.partitions, specs=self.partition_specs)
        return order_inputs(self._claimed(whole), self._spec_of(whole))

    @cached_property
    def _inputs_by_partition(self) -> Mapping[int, PartitionInputs]:
        return {each.partition.partition_id: each for each in self.inputs.partitions}

    @cached_property
    def _units_by_place(self) -> Mapping[tuple[UnitKind, int | None], Sequence[Unit]]:
        found: defaultdict[tuple[UnitKind, int | None], list[Unit]] = defaultdict(list)
        for unit in self.units:
            found[unit.kind, unit.partition_id].append(unit)
        return found

    @property
    def input_bytes(self) -> int:
        """The bytes of all units; a slice counts once."""
        return sum(unit.input_bytes for unit in self.units if unit.kind is not UnitKind.KEYS)

    def unit(self, number: int) -> Unit:
        """Raises PlanError for a number that no unit has."""
        if not 0 <= number < len(self.units):
            raise PlanError(f"the plan of job {self.job_id} has {len(self.units)} units, none is number {number}")
        return self.units[number]

    def stretch_of(self, unit: Unit) -> Stretch:
        stretch = self.stretches.get(unit.stretch)
        if stretch is None:
            raise BugError(f"unit {unit.number} of job {self.job_id} is needed where its inputs were not read")
        return stretch

    def extents_of(self, unit: Unit) -> Sequence[LeveledExtent]:
        return self.stretch_of(unit).extents

    def units_of(self, kind: UnitKind, partition_id: int | None = None) -> Sequence[Unit]:
        """The units of one kind, in order of (partition, slice); with `partition_id`, those of that partition only."""
        if partition_id is not None:
            return self._units_by_place.get((kind, partition_id), ())
        return [unit for unit in self.units if unit.kind is kind]

    @cached_property
    def sliced(self) -> Sequence[int]:
        """Ids of the partitions that are cut into slices, ascending."""
        return sorted({unit.partition_id for unit in self.units if unit.partition_id is not None})

    def inputs_of(self, partition_id: int) -> PartitionInputs:
        """The inputs of all units at hand in one partition."""
        return self._inputs_by_partition[partition_id]

    def unit_inputs(self, unit: Unit) -> MergeInputs:
        """The inputs of one unit. Raises MergeInputError for extents that overlap."""
        return order_inputs(self.claimed(unit), self.unit_spec(unit))

    def claimed(self, unit: Unit) -> ClaimedJob:
        """The job as a merge takes it, restricted to the extents of `unit`."""
        return self._claimed(self.stretch_of(unit))

    def unit_spec(self, unit: Unit) -> MergeSpec:
        """The spec, restricted to the partitions of `unit`."""
        return self._spec_of(self.stretch_of(unit))

    def _spec_of(self, stretch: Stretch) -> MergeSpec:
        return replace(
            self.spec,
            input_bytes=sum(extent.length for extent in stretch.extents),
            partitions=stretch.specs,
        )

    def _claimed(self, stretch: Stretch) -> ClaimedJob:
        extents = stretch.extents
        row = MergeJob(
            job_id=self.job_id,
            kind=self.spec.kind.value,
            state=JobState.RUNNING,
            epoch=self.epoch,
            spec=self._spec_of(stretch).to_json(),
            holder=self.lease.writer_id,
            attempts=1,
            created_ms=self.spec.now_ms,
            started_ms=self.claimed_ms,
            deadline_ms=self.commit_by_ms,
            finished_ms=None,
            lease_until_ms=None,
            input_files=len({extent.file_id for extent in extents}),
            input_bytes=sum(extent.length for extent in extents),
            progress={},
            result={},
            error="",
        )
        return ClaimedJob(job=row, now_ms=self.claimed_ms, l0_files=(), extents=extents, partitions=stretch.partitions)
