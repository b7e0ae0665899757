"""The plan of a heavy merge: values and their stored form. Pure.

A heavy merge is cut into *units*. Each unit is a small merge of some extents of the job, read and written by one task
on any machine. The plan holds all facts that a task needs, so a task only needs access to the object store. The plan is
stored as JSON, compressed by zstd, under a key that contains its *fingerprint* (SHA-256 of the JSON), so the work of a
task for one plan can never count for another plan.

The extents of a plan are sorted by (partition, base offset), and a unit takes an unbroken stretch of them:

- MERGE: a small merge as the embedded engine runs it. A deduped partition is whole in one such unit, or in none.
- KEYS and REWRITE, for deduped partitions that are too large for one task: one unit of each kind reads a *slice* of the
  partition. KEYS units collect the keys; REWRITE units write the surviving records of their slice.

All facts that decide which records stay (log start, stable offset, horizons, time) are those of the claim for which the
plan was made. The same holds for `commit_by_ms`, the end of the time in which its horizons are valid.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, cast

import zstandard

from compactor.merging.kway_merge import MergeInputs, PartitionInputs, order_inputs
from compactor.merging.kway_merge import whole_through as whole_through_inputs
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MergeSpec, SpecError
from metadata.contract.jobs import ClaimedJob, InputPartition, JobState, MergeJob
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import LeveledExtent
from runtime.errors import BadInputError
from storage.format.file_format import FORMAT_VERSION

PLAN_VERSION = 3
"""2: tasks that read it drop markers of listed aborted transactions."""
PLAN_BYTES_MAX = 1 << 30
"""Size of the JSON, enough for 5 M extents. No more is decompressed, whatever size an object claims."""
FINGERPRINT_HEX = 32
_NEWER = "run the release of Siltstone that made the plan, on the compactor and on the cluster alike"


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
    first: int
    """Index of its first extent in `HeavyPlan.extents`."""
    end: int
    """Exclusive end of its extents."""
    input_bytes: int
    partition_id: int | None = None
    """KEYS and REWRITE: the partition of the slice."""
    slice_number: int = 0
    """KEYS and REWRITE: 0 for the slice with the lowest offsets."""


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
    partitions: Mapping[int, InputPartition]
    extents: tuple[LeveledExtent, ...]
    """All inputs, by (partition, base offset)."""
    units: tuple[Unit, ...]
    memory: MergeMemory
    """The memory of a unit."""

    # ---- derived

    @cached_property
    def body(self) -> bytes:
        """The JSON of the plan, in the one form that gives the fingerprint."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:FINGERPRINT_HEX]

    @cached_property
    def inputs(self) -> MergeInputs:
        """The inputs of all units. Raises MergeInputError for extents that overlap."""
        return order_inputs(self.claimed(), self.spec)

    @property
    def input_bytes(self) -> int:
        return sum(extent.length for extent in self.extents)

    def unit(self, number: int) -> Unit:
        """Raises PlanError for a number that no unit has."""
        if not 0 <= number < len(self.units):
            raise PlanError(f"the plan of job {self.job_id} has {len(self.units)} units, none is number {number}")
        return self.units[number]

    def extents_of(self, unit: Unit) -> Sequence[LeveledExtent]:
        return self.extents[unit.first : unit.end]

    def units_of(self, kind: UnitKind, partition_id: int | None = None) -> Sequence[Unit]:
        """The units of one kind, in order of (partition, slice); with `partition_id`, those of that partition only."""
        return [
            unit
            for unit in self.units
            if unit.kind is kind and (partition_id is None or unit.partition_id == partition_id)
        ]

    @property
    def sliced(self) -> Sequence[int]:
        """Ids of the partitions that are cut into slices, ascending."""
        return sorted({unit.partition_id for unit in self.units if unit.partition_id is not None})

    def inputs_of(self, partition_id: int) -> PartitionInputs:
        """The inputs of all units in one partition."""
        return next(each for each in self.inputs.partitions if each.partition.partition_id == partition_id)

    def whole_through(self, partition_id: int) -> int:
        """The exclusive end up to which the inputs of the *plan* hold every live extent of a deduped partition."""
        inputs = self.inputs_of(partition_id)
        return min(self.spec.partitions[partition_id].whole_through_offset, whole_through_inputs(inputs))

    def claimed(self, unit: Unit | None = None) -> ClaimedJob:
        """The job as a merge takes it, restricted to the extents of `unit`."""
        extents = self.extents if unit is None else self.extents_of(unit)
        ids = {extent.partition_id for extent in extents}
        row = MergeJob(
            job_id=self.job_id,
            kind=self.spec.kind.value,
            state=JobState.RUNNING,
            epoch=self.epoch,
            spec=self.unit_spec(unit).to_json(),
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
        return ClaimedJob(
            job=row,
            now_ms=self.claimed_ms,
            l0_files=(),
            extents=tuple(extents),
            partitions={id_: partition for id_, partition in self.partitions.items() if id_ in ids},
        )

    def unit_spec(self, unit: Unit | None = None) -> MergeSpec:
        """The spec, restricted to the partitions of `unit`."""
        if unit is None:
            return self.spec
        ids = {extent.partition_id for extent in self.extents_of(unit)}
        return replace(
            self.spec,
            file_ids=(),
            extent_ids=(),
            input_bytes=unit.input_bytes,
            partitions={id_: each for id_, each in self.spec.partitions.items() if id_ in ids},
        )

    # ---- stored

    def encode(self) -> bytes:
        """The stored object: the JSON, compressed by zstd."""
        return zstandard.ZstdCompressor(level=3).compress(self.body)

    def to_json(self) -> dict[str, Any]:
        files = {extent.file_id: (extent.key, extent.level, extent.file_size_bytes) for extent in self.extents}
        return {
            "version": PLAN_VERSION,
            "file_format": FORMAT_VERSION,
            "cluster_id": self.cluster_id,
            "job_id": self.job_id,
            "epoch": self.epoch,
            "writer": [self.lease.writer_id, self.lease.epoch],
            "claimed_ms": self.claimed_ms,
            "commit_by_ms": self.commit_by_ms,
            "spec": self.spec.to_json(),
            "files": [[file_id, *facts] for file_id, facts in sorted(files.items())],
            "partitions": [_partition_row(each) for _, each in sorted(self.partitions.items())],
            "extents": [_extent_row(each) for each in self.extents],
            "units": [
                [unit.kind.value, unit.first, unit.end, unit.input_bytes, unit.partition_id, unit.slice_number]
                for unit in self.units
            ],
            "keys_max": self.memory.keys_max,
            "cursor_bytes": self.memory.cursor_bytes,
            "kept_bytes_max": self.memory.kept_bytes_max,
        }


def decode_plan(stored: bytes, *, cluster_id: str | None = None, fingerprint: str | None = None) -> HeavyPlan:
    """The plan in a stored object. `cluster_id`: the reader's cluster; `fingerprint`: that of the object's key.

    Raises PlanError for an object that is no plan, or a plan of another cluster, version, file format or key.
    """
    body = decompress(stored, PLAN_BYTES_MAX)
    try:
        loaded = load_json(body)
    except ValueError as error:
        raise PlanError(f"the plan is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise PlanError("the plan is not a JSON object")
    fields = cast("dict[str, Any]", loaded)
    for name, known in (("version", PLAN_VERSION), ("file_format", FORMAT_VERSION)):
        if fields.get(name) != known:
            label = name.replace("_", " ")
            raise PlanError(f"the plan has {label} {fields.get(name)!r}; this release reads {known}", remedy=_NEWER)
    if cluster_id is not None and fields.get("cluster_id") != cluster_id:
        raise PlanError(
            f"the plan is of cluster {fields.get('cluster_id')!r}, but the object store is cluster {cluster_id}'s",
            remedy="run the plan against the object store of its own cluster",
        )
    plan = _plan(fields)
    if fingerprint is not None and plan.fingerprint != fingerprint:
        message = f"the plan of job {plan.job_id} has the fingerprint {plan.fingerprint}, but its key has {fingerprint}"
        raise PlanError(message)
    return plan


def load_json(body: bytes) -> object:
    """Parses JSON that Postgres accepts too. Raises ValueError, also for NaN, for numbers beyond a double, and for JSON
    that is nested too deeply."""
    try:
        return json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond a double")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def decompress(stored: bytes, bytes_max: int) -> bytes:
    """Decompresses zstd. Raises PlanError, also for a frame that claims more than `bytes_max`."""
    try:
        size = zstandard.get_frame_parameters(stored).content_size
        if not 0 < size <= bytes_max:
            raise PlanError(f"the object claims to hold {size} bytes of JSON; from 1 to {bytes_max} are accepted")
        return zstandard.ZstdDecompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise PlanError(f"the object is not zstd: {error}") from error


def _plan(fields: Mapping[str, Any]) -> HeavyPlan:
    """Raises PlanError."""
    try:
        files = {_int(row[0]): (_str(row[1]), _int(row[2]), _int(row[3])) for row in fields["files"]}
        partitions = [_partition(row) for row in fields["partitions"]]
        plan = HeavyPlan(
            cluster_id=_str(fields["cluster_id"]),
            job_id=_int(fields["job_id"]),
            epoch=_int(fields["epoch"]),
            lease=WriterLease(writer_id=_int(fields["writer"][0]), epoch=_int(fields["writer"][1])),
            claimed_ms=_int(fields["claimed_ms"]),
            commit_by_ms=_int(fields["commit_by_ms"]),
            spec=MergeSpec.from_json(fields["spec"]),
            partitions={each.partition_id: each for each in partitions},
            extents=tuple(_extent(row, files) for row in fields["extents"]),
            units=tuple(_unit(number, row) for number, row in enumerate(fields["units"])),
            memory=MergeMemory(
                keys_max=_int(fields["keys_max"]),
                cursor_bytes=_int(fields["cursor_bytes"]),
                kept_bytes_max=_int(fields["kept_bytes_max"]),
            ),
        )
    except SpecError as error:
        raise PlanError(f"the plan cannot be used: {error.message}", remedy=error.remedy) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the plan cannot be read: {error!r}") from error
    for unit in plan.units:
        if not 0 <= unit.first < unit.end <= len(plan.extents):
            raise PlanError(f"unit {unit.number} takes the extents {unit.first} to {unit.end} of {len(plan.extents)}")
    missing = {extent.partition_id for extent in plan.extents} - plan.partitions.keys()
    if missing:
        raise PlanError(f"a plan with extents of partition {min(missing)}, of which it says nothing")
    return plan


def _partition_row(each: InputPartition) -> list[Any]:
    return [
        each.partition_id,
        str(each.topic_id),
        each.topic_name,
        each.partition,
        dict(each.configs),
        each.config_version,
        each.log_start_offset,
        each.last_stable_offset,
        each.high_watermark,
    ]


def _partition(row: Sequence[Any]) -> InputPartition:
    return InputPartition(
        partition_id=_int(row[0]),
        topic_id=uuid.UUID(_str(row[1])),
        topic_name=_str(row[2]),
        partition=_int(row[3]),
        configs={_str(name): _str(value) for name, value in row[4].items()},
        config_version=_int(row[5]),
        log_start_offset=_int(row[6]),
        last_stable_offset=_int(row[7]),
        high_watermark=_int(row[8]),
    )


_FILE_FIELDS = ("key", "level", "file_size_bytes")
"""Fields of an extent that are stored once per file."""
_EXTENT_FIELDS = tuple(name for name in LeveledExtent._fields if name not in _FILE_FIELDS)


def _extent_row(extent: LeveledExtent) -> list[Any]:
    return [getattr(extent, name) for name in _EXTENT_FIELDS]


def _extent(row: Sequence[Any], files: Mapping[int, tuple[str, int, int]]) -> LeveledExtent:
    checks: Mapping[str, Callable[[Any], Any]] = {
        "has_tombstones": _bool,
        "flagged_reason": _text_or_none,
        **dict.fromkeys(("uncompressed_bytes", "committed_ms", "earliest_horizon_ms"), _int_or_none),
    }
    fields: dict[str, Any] = {
        name: checks.get(name, _int)(value) for name, value in zip(_EXTENT_FIELDS, row, strict=True)
    }
    key, level, size_bytes = files[fields["file_id"]]
    return LeveledExtent(**fields, key=key, level=level, file_size_bytes=size_bytes)


def _unit(number: int, row: Sequence[Any]) -> Unit:
    kind, first, end, input_bytes, partition_id, slice_number = row
    return Unit(
        number=number,
        kind=UnitKind(kind),
        first=_int(first),
        end=_int(end),
        input_bytes=_int(input_bytes),
        partition_id=None if partition_id is None else _int(partition_id),
        slice_number=_int(slice_number),
    )


def _int(value: Any) -> int:
    # `bool` is an `int` for isinstance, but not a number of this format.
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"a whole number of {value.bit_length()} bits")
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a text")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _int_or_none(value: Any) -> int | None:
    return None if value is None else _int(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _str(value)
