"""The result of a unit of a heavy merge: value, stored form, and the check that it fits its unit. Pure.

A task writes the manifest of its unit last, and only if there is none: the first finished try of a unit counts. Nothing
names the outputs of other tries, so they go with the orphans.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import zstandard

from compactor.heavy.plan.frames import FramesError, decompress, load_json, whole_number
from compactor.heavy.plan.parts import is_part
from compactor.heavy.plan.units import HeavyPlan, Unit, UnitKind
from compactor.merging.kway_merge import class_of
from compactor.merging.ranges import joined_ranges
from metadata.contract.jobs import CleanedPartition, OutputExtent, OutputFile
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.rules.jobs import UNREADABLE
from runtime.errors import SiltstoneError
from storage.keys import BadKeyError, parse_file_key

MANIFEST_VERSION = 4
"""4: the CRC-32Cs of parts."""
MANIFEST_BYTES_MAX = 256 << 20
SECONDS_MAX = 1e9


class ManifestMismatchError(SiltstoneError):
    """The object is not a manifest, or not that of this plan and unit. Nothing of the job may be committed."""


class PartRead(NamedTuple):
    """A part of an extent (`compactor/heavy/plan/parts.py`), as a unit read it."""

    partition_id: int
    base_offset: int
    crc32c: int | None
    """None = it was found corrupt."""


def parts_read(extents: Iterable[LeveledExtent], crcs: Mapping[tuple[int, int], int]) -> Sequence[PartRead]:
    """For a unit with these inputs. `crcs`: by (partition, base offset), those of sound parts."""
    places = [(each.partition_id, each.base_offset) for each in extents if is_part(each)]
    return tuple(PartRead(*place, crcs.get(place)) for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    plan: str
    """Fingerprint of the plan."""
    unit: int
    kind: UnitKind
    covered: Mapping[int, Sequence[tuple[int, int]]]
    """Per partition the (base, last) ranges that the unit read and wrote; {} for KEYS."""
    outputs: Sequence[OutputFile]
    cleaned: Sequence[CleanedPartition]
    """The deduped partitions. The entries of all slices of a partition describe the whole partition and are the same,
    except for `aborted_gone`: a slice names there the transactions of which it leaves nothing."""
    summary: Mapping[str, Any]
    """Numbers, by the names of `CommitMerge.summary`."""
    seconds: float
    parts: Sequence[PartRead] = ()
    """The inputs that are parts, in order."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Facts that only a unit of this kind reports. JSON."""

    def encode(self) -> bytes:
        body = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()
        return zstandard.ZstdCompressor(level=3).compress(body)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": MANIFEST_VERSION,
            "plan": self.plan,
            "unit": self.unit,
            "kind": self.kind.value,
            "covered": {str(id_): [list(one) for one in ranges] for id_, ranges in self.covered.items()},
            "outputs": [_file_json(each) for each in self.outputs],
            "cleaned": [
                [each.partition_id, each.cleaned_through_offset, each.passes_needed, list(each.aborted_gone)]
                for each in self.cleaned
            ],
            "summary": dict(self.summary),
            "seconds": self.seconds,
            "parts": [list(each) for each in self.parts],
            "details": dict(self.details),
        }


def decode_result(stored: bytes) -> UnitResult:
    """Raises ManifestMismatchError for an object that is no manifest of this release."""
    try:
        loaded = load_json(decompress(stored, MANIFEST_BYTES_MAX))
        fields = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        if fields.get("version") != MANIFEST_VERSION:
            raise ManifestMismatchError(
                f"the manifest has version {fields.get('version')!r}; this release reads {MANIFEST_VERSION}",
                remedy="run the same release of Siltstone on the compactor and on the cluster",
            )
        return UnitResult(
            plan=str(fields["plan"]),
            unit=whole_number(fields["unit"]),
            kind=UnitKind(fields["kind"]),
            covered={
                int(id_): tuple((whole_number(base), whole_number(last)) for base, last in ranges)
                for id_, ranges in fields["covered"].items()
            },
            outputs=tuple(_file(each) for each in fields["outputs"]),
            cleaned=tuple(
                CleanedPartition(
                    partition_id=whole_number(id_),
                    cleaned_through_offset=None if through is None else whole_number(through),
                    passes_needed=whole_number(passes),
                    aborted_gone=tuple(whole_number(each) for each in gone),
                )
                for id_, through, passes, gone in fields["cleaned"]
            ),
            summary=_summary(fields["summary"]),
            seconds=_seconds(fields["seconds"]),
            parts=tuple(
                PartRead(whole_number(id_), whole_number(base), None if crc is None else whole_number(crc))
                for id_, base, crc in fields["parts"]
            ),
            details=dict(fields["details"]),
        )
    except FramesError as error:
        raise ManifestMismatchError(f"the manifest cannot be read: {error.message}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ManifestMismatchError(f"the manifest cannot be read: {error!r}") from error


def check_result(plan: HeavyPlan, unit: Unit, result: UnitResult) -> None:
    """Raises ManifestMismatchError with the difference if the result does not fit the unit."""

    def refuse(what: str) -> ManifestMismatchError:
        return ManifestMismatchError(f"the manifest of unit {unit.number} of job {plan.job_id}: {what}")

    if (result.plan, result.unit, result.kind) != (plan.fingerprint, unit.number, unit.kind):
        named = f"{result.kind.value} unit {result.unit} of plan {result.plan}"
        raise refuse(f"it is that of {named}, not of {unit.kind.value} unit {unit.number} of plan {plan.fingerprint}")
    if unit.kind is UnitKind.KEYS:
        if result.outputs or result.covered or result.cleaned:
            raise refuse("it names outputs, and a unit that reads keys has none")
        return
    covered = _ranges((each.partition_id, each.base_offset, each.last_offset) for each in plan.extents_of(unit))
    if {id_: list(ranges) for id_, ranges in result.covered.items()} != covered:
        raise refuse("it covers other offsets than its extents hold")
    written = [each for file in result.outputs for each in file.extents]
    if _ranges((each.partition_id, each.base_offset, each.last_offset) for each in written) != covered:
        raise refuse("its outputs hold other offsets than its extents")
    stretch = plan.stretch_of(unit)
    classes = {id_: class_of(stretch.partitions[id_]) for id_ in covered}
    for file in result.outputs:
        problem = _problem(plan, classes, file)
        if problem:
            raise refuse(f"its output {file.key!r} {problem}")
    deduped = stretch.specs.keys()
    if sorted(each.partition_id for each in result.cleaned) != sorted(deduped):
        raise refuse("it reports other partitions as deduped than the plan does")
    for each in result.cleaned:
        listed = {marker for _, _, marker in stretch.specs[each.partition_id].aborted}
        if not listed.issuperset(each.aborted_gone):
            raise refuse(f"it reports aborted transactions of partition {each.partition_id} that its plan does not")
    # Copied partitions only: a dedupe drops records, and may drop all of them. Nobody knows how many a part has; those
    # of whole partitions are compared when all units are done.
    unknown = deduped | {each.partition_id for each in plan.extents_of(unit) if is_part(each)}
    records_in = sum(each.record_count for each in plan.extents_of(unit) if each.partition_id not in unknown)
    if records_in != sum(each.record_count for each in written if each.partition_id not in unknown):
        raise refuse("its outputs hold more or fewer records of copied partitions than its extents")


def check_parts(plan: HeavyPlan, unit: Unit, result: UnitResult) -> None:
    """Raises ManifestMismatchError for a result that tells of other parts than the unit has. A driver, which has not
    the inputs of KEYS units, checks their results without this."""
    if [each[:2] for each in result.parts] != [each[:2] for each in parts_read(plan.extents_of(unit), {})]:
        raise ManifestMismatchError(
            f"the manifest of unit {unit.number} of job {plan.job_id}: it tells of other parts of extents than its unit"
            " has"
        )


def _problem(plan: HeavyPlan, classes: Mapping[int, FileClass], file: OutputFile) -> str:
    try:
        key = parse_file_key(file.key)
    except BadKeyError:
        return "has a key that is not a file's key"
    if (key.writer_id, key.epoch) != (plan.lease.writer_id, plan.lease.epoch):
        return "was written under another compactor's id than the plan's"
    if not key.level == file.level == plan.spec.level:
        return f"is of level {file.level}, not of the plan's level {plan.spec.level}"
    if any(classes.get(each.partition_id) is not file.file_class for each in file.extents):
        return f"is of class {file.file_class.value}, but holds partitions that are not"
    if any(each.position < 0 or each.position + each.length > file.size_bytes for each in file.extents):
        return "has an extent that ends outside the file"
    return ""


def _ranges(extents: Any) -> dict[int, list[tuple[int, int]]]:
    """Ranges by partition, joined where they touch. Overlapping ranges stay apart and never equal a unit's ranges."""
    found: dict[int, list[tuple[int, int]]] = {}
    for partition_id, base_offset, last_offset in sorted(extents):
        found.setdefault(partition_id, []).append((base_offset, last_offset))
    return {id_: list(joined_ranges(ranges)) for id_, ranges in found.items()}


def _file_json(file: OutputFile) -> dict[str, Any]:
    return {
        "key": file.key,
        "level": file.level,
        "class": file.file_class.value,
        "size_bytes": file.size_bytes,
        "crc32c": file.crc32c,
        "config_version": file.config_version,
        "extents": [[getattr(each, name) for name in _EXTENT_FIELDS] for each in file.extents],
    }


_EXTENT_FIELDS = tuple(OutputExtent.__dataclass_fields__)
_MAY_BE_UNKNOWN = frozenset({"uncompressed_bytes", "committed_ms", "earliest_horizon_ms"})


def _file(stored: Mapping[str, Any]) -> OutputFile:
    return OutputFile(
        key=str(stored["key"]),
        level=whole_number(stored["level"]),
        file_class=FileClass(stored["class"]),
        size_bytes=whole_number(stored["size_bytes"]),
        crc32c=whole_number(stored["crc32c"]),
        config_version=whole_number(stored["config_version"]),
        extents=tuple(_extent(row) for row in stored["extents"]),
    )


def _extent(row: Sequence[Any]) -> OutputExtent:
    fields = dict(zip(_EXTENT_FIELDS, row, strict=True))
    for name, value in fields.items():
        if name == "has_tombstones":
            if type(value) is not bool:
                raise TypeError(f"has_tombstones is {value!r}")
        elif name == "flagged_reason":
            if value is not None and type(value) is not str:
                raise TypeError(f"flagged_reason is {value!r}")
        elif value is not None or name not in _MAY_BE_UNKNOWN:
            whole_number(value)
    return OutputExtent(**fields)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < SECONDS_MAX:
        raise ValueError(f"seconds is {value!r}, which is no possible duration")
    return float(value)


def _summary(stored: Any) -> Mapping[str, Any]:
    """The part that `combine` adds up: whole numbers, and the unreadable batches."""
    found: dict[str, Any] = {}
    for name, value in dict(stored).items():
        if name == UNREADABLE:
            found[name] = [_unreadable(each) for each in value]
        elif type(value) is int:
            found[name] = whole_number(value)
    return found


def _unreadable(stored: Any) -> Mapping[str, Any]:
    fields = dict(stored)
    whole_number(fields["partition_id"])
    whole_number(fields["batches"])
    return fields
