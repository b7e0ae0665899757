"""The stored form of a plan: an object of frames (`compactor/heavy/plan/frames.py`). Pure.

The head has the facts of the job and of all units, in columns; each further frame has one stretch, the inputs of a
unit. The key of the object contains the *fingerprint*, so the work of a task for one plan can never count for another
plan. A plan of 100,000 extents takes some MB, of which a task reads the head and one frame.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, cast

from compactor.heavy.plan.frames import (
    Directory,
    Frame,
    FramesError,
    dump_json,
    encode_frames,
    fingerprint_of,
    load_json,
    piece,
    read_directory,
    whole_number,
)
from compactor.heavy.plan.units import HeavyPlan, PlanError, Stretch, Unit, UnitKind
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MergeSpec, PartitionSpec, SpecError
from metadata.contract.jobs import InputPartition
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import LeveledExtent
from storage.format.file_format import FORMAT_VERSION

PLAN_VERSION = 4
"""2: tasks that read it drop markers of listed aborted transactions. 4: frames, of which a task reads one."""
_NEWER = "run the release of Siltstone that made the plan, on the compactor and on the cluster alike"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def sealed(plan: HeavyPlan) -> HeavyPlan:
    """The plan, which has all its stretches, with its stored form and fingerprint."""
    frames = (dump_json(_stretch_json(plan, plan.stretches[number])) for number in range(len(plan.stretches)))
    body = encode_frames(dump_json(_head_json(plan)), frames)
    return replace(plan, body=body, fingerprint=fingerprint_of(body))


def decode_plan(stored: bytes, *, cluster_id: str | None = None, fingerprint: str | None = None) -> HeavyPlan:
    """The whole plan in a stored object. `cluster_id`: the reader's cluster; `fingerprint`: that of the object's key.

    Raises PlanError for an object that is no plan, or a plan of another cluster, version, file format or key.
    """
    directory = plan_directory(stored, fingerprint=fingerprint)
    plan = decode_head(piece(stored, directory.head), directory, cluster_id=cluster_id)
    frames = {number: piece(stored, frame) for number, frame in enumerate(directory.frames)}
    return replace(plan, stretches=decode_stretches(frames, plan, directory))


def plan_directory(beginning: bytes, *, fingerprint: str | None = None) -> Directory:
    """`beginning`: the object, or its first bytes up to the end of the directory. Raises PlanError."""
    check_beginning(beginning)
    try:
        directory = read_directory(beginning)
    except FramesError as error:
        raise PlanError(f"the object is not a plan: {error.message}") from error
    if fingerprint is not None and directory.fingerprint != fingerprint:
        raise PlanError(f"the plan has the fingerprint {directory.fingerprint}, but its key has {fingerprint}")
    return directory


def check_beginning(beginning: bytes) -> None:
    """`beginning`: the first bytes of the object. Raises PlanError for a plan of version 3 or lower."""
    if beginning.startswith(_ZSTD_MAGIC):
        raise PlanError(f"an older release wrote the plan; this release reads version {PLAN_VERSION}", remedy=_NEWER)


def decode_head(stored: bytes | memoryview, directory: Directory, *, cluster_id: str | None = None) -> HeavyPlan:
    """The plan without stretches. `stored`: the bytes of the head. Raises PlanError."""
    fields = _loaded(directory.head, stored)
    for name, known in (("version", PLAN_VERSION), ("file_format", FORMAT_VERSION)):
        if fields.get(name) != known:
            label = name.replace("_", " ")
            raise PlanError(f"the plan has {label} {fields.get(name)!r}; this release reads {known}", remedy=_NEWER)
    if cluster_id is not None and fields.get("cluster_id") != cluster_id:
        raise PlanError(
            f"the plan is of cluster {fields.get('cluster_id')!r}, but the object store is cluster {cluster_id}'s",
            remedy="run the plan against the object store of its own cluster",
        )
    try:
        return HeavyPlan(
            cluster_id=_str(fields["cluster_id"]),
            job_id=whole_number(fields["job_id"]),
            epoch=whole_number(fields["epoch"]),
            lease=WriterLease(writer_id=whole_number(fields["writer"][0]), epoch=whole_number(fields["writer"][1])),
            claimed_ms=whole_number(fields["claimed_ms"]),
            commit_by_ms=whole_number(fields["commit_by_ms"]),
            spec=MergeSpec.from_json(fields["spec"]),
            asked=_str(fields["asked"]),
            units=_units(fields["units"], len(directory.frames)),
            whole_through={whole_number(id_): whole_number(offset) for id_, offset in fields["whole_through"]},
            memory=MergeMemory(
                keys_max=whole_number(fields["keys_max"]),
                cursor_bytes=whole_number(fields["cursor_bytes"]),
                kept_bytes_max=whole_number(fields["kept_bytes_max"]),
            ),
            stretches={},
            fingerprint=directory.fingerprint,
        )
    except SpecError as error:
        raise PlanError(f"the plan cannot be used: {error.message}", remedy=error.remedy) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the plan cannot be read: {error!r}") from error


def decode_stretches(
    stored: Mapping[int, bytes | memoryview], plan: HeavyPlan, directory: Directory
) -> Mapping[int, Stretch]:
    """Some of the plan's stretches. `stored`: the bytes of their frames, by number. Raises PlanError."""
    if not stored:
        return {}
    fields = [_loaded(directory.frames[number], body) for number, body in stored.items()]
    try:
        stretches = [
            Stretch(
                extents=extents,
                partitions={each.partition_id: each for each in map(_partition, each["partitions"])},
                specs=_specs(plan, each["specs"]),
                divided=divided,
            )
            for each, extents, divided in zip(
                fields, _extents(fields, "extents"), _extents(fields, "divided"), strict=True
            )
        ]
    except SpecError as error:
        raise PlanError(f"the plan cannot be used: {error.message}", remedy=error.remedy) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the inputs of a unit cannot be read: {error!r}") from error
    for stretch in stretches:
        missing = {extent.partition_id for extent in stretch.extents} - stretch.partitions.keys()
        if missing or not stretch.extents:
            what = f"extents of partition {min(missing)}, of which it says nothing" if missing else "no extents"
            raise PlanError(f"a plan of which a stretch has {what}")
    return dict(zip(stored, stretches, strict=True))


# ---- the head


_UNIT_COLUMNS: Mapping[str, tuple[type, ...]] = {
    "kind": (str,),
    "stretch": (int,),
    "input_bytes": (int,),
    "records": (int,),
    "partition_id": (int, type(None)),
    "slice_number": (int,),
    "base_offset": (int,),
    "last_offset": (int,),
}


def _head_json(plan: HeavyPlan) -> dict[str, Any]:
    return {
        "version": PLAN_VERSION,
        "file_format": FORMAT_VERSION,
        "cluster_id": plan.cluster_id,
        "job_id": plan.job_id,
        "epoch": plan.epoch,
        "writer": [plan.lease.writer_id, plan.lease.epoch],
        "claimed_ms": plan.claimed_ms,
        "commit_by_ms": plan.commit_by_ms,
        "spec": plan.spec.to_json(),
        "asked": plan.asked,
        "units": [[getattr(unit, name) for unit in plan.units] for name in _UNIT_COLUMNS],
        "whole_through": sorted(plan.whole_through.items()),
        "keys_max": plan.memory.keys_max,
        "cursor_bytes": plan.memory.cursor_bytes,
        "kept_bytes_max": plan.memory.kept_bytes_max,
    }


def _units(stored: Any, stretches: int) -> tuple[Unit, ...]:
    columns = _columns(stored, tuple(_UNIT_COLUMNS.values()), "units")
    kinds = {kind.value: kind for kind in UnitKind}
    units = tuple(
        Unit(
            number=number,
            kind=kinds[kind],
            stretch=stretch,
            input_bytes=input_bytes,
            records=records,
            partition_id=partition_id,
            slice_number=slice_number,
            base_offset=base_offset,
            last_offset=last_offset,
        )
        for number, (
            kind,
            stretch,
            input_bytes,
            records,
            partition_id,
            slice_number,
            base_offset,
            last_offset,
        ) in enumerate(zip(*columns, strict=True))
    )
    if any(not 0 <= unit.stretch < stretches for unit in units):
        raise ValueError(f"a unit takes a stretch that is not one of {stretches}")
    return units


# ---- a stretch


_FILE_FIELDS = ("key", "level", "file_size_bytes")
"""Fields of an extent that are stored once per file."""
_EXTENT_FIELDS = tuple(name for name in LeveledExtent._fields if name not in _FILE_FIELDS)
_EXTENT_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_EXTENT_FIELDS, (int,)),
    "has_tombstones": (bool,),
    "flagged_reason": (str, type(None)),
    **dict.fromkeys(("uncompressed_bytes", "committed_ms", "earliest_horizon_ms"), (int, type(None))),
}


def _stretch_json(plan: HeavyPlan, stretch: Stretch) -> dict[str, Any]:
    files = {extent.file_id: (extent.key, extent.level, extent.file_size_bytes) for extent in stretch.extents}
    rows = [(file_id, *facts) for file_id, facts in sorted(files.items())]
    return {
        "files": list(zip(*rows, strict=True)),
        "partitions": [_partition_row(each) for _, each in sorted(stretch.partitions.items())],
        "specs": replace(plan.spec, partitions=stretch.specs).to_json()["partitions"],
        "extents": _extent_columns(stretch.extents),
        # Their files are those of their parts.
        "divided": _extent_columns(stretch.divided),
    }


def _extent_columns(extents: Sequence[LeveledExtent]) -> list[Sequence[Any]]:
    """[] for no extents."""
    if not extents:
        return []
    columns = dict(zip(LeveledExtent._fields, zip(*extents, strict=True), strict=True))
    return [columns[name] for name in _EXTENT_FIELDS]


def _specs(plan: HeavyPlan, rows: Sequence[Any]) -> Mapping[int, PartitionSpec]:
    return MergeSpec.from_json({**plan.spec.to_json(), "partitions": rows}).partitions if rows else {}


_FILE_TYPES = ((int,), (str,), (int,), (int,))


def _extents(stretches: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[LeveledExtent, ...]]:
    """The extents of each stretch. Their columns are joined before they are checked, because a check costs more for
    each column than for each value."""
    held = [each[name] for each in stretches if each[name]]
    rows: Iterator[LeveledExtent] = iter(())
    if held:
        ids, *facts = _joined([each["files"] for each in stretches], _FILE_TYPES, "files")
        files = dict(zip(ids, zip(*facts, strict=True), strict=True))
        types = tuple(_EXTENT_TYPES[name] for name in _EXTENT_FIELDS)
        columns: dict[str, Sequence[Any]] = dict(zip(_EXTENT_FIELDS, _joined(held, types, name), strict=True))
        of_files = [files[file_id] for file_id in columns["file_id"]]
        columns.update(zip(_FILE_FIELDS, zip(*of_files, strict=True), strict=False))
        rows = map(LeveledExtent._make, zip(*(columns[name] for name in LeveledExtent._fields), strict=True))
    for each in stretches:
        yield tuple(islice(rows, len(each[name][0]) if each[name] else 0))


def _joined(parts: Sequence[Sequence[list[Any]]], types: Sequence[tuple[type, ...]], name: str) -> Sequence[list[Any]]:
    """The columns of all parts, joined. Raises ValueError, TypeError."""
    for part in parts:
        _check_shape(part, len(types), name)
    columns = [list(chain.from_iterable(each)) for each in zip(*parts, strict=True)]
    return _columns(columns, types, name)


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
        partition_id=whole_number(row[0]),
        topic_id=uuid.UUID(_str(row[1])),
        topic_name=_str(row[2]),
        partition=whole_number(row[3]),
        configs={_str(name): _str(value) for name, value in row[4].items()},
        config_version=whole_number(row[5]),
        log_start_offset=whole_number(row[6]),
        last_stable_offset=whole_number(row[7]),
        high_watermark=whole_number(row[8]),
    )


# ---- values


def _loaded(frame: Frame, stored: bytes | memoryview) -> Mapping[str, Any]:
    """Raises PlanError."""
    try:
        loaded = load_json(frame.body(stored))
    except FramesError as error:
        raise PlanError(f"the plan cannot be read: {error.message}") from error
    except ValueError as error:
        raise PlanError(f"the plan is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise PlanError("the plan is not a JSON object")
    return cast("dict[str, Any]", loaded)


def _columns(stored: Any, types: Sequence[tuple[type, ...]], name: str) -> Sequence[list[Any]]:
    """Columns of equal length, whose values have exactly these types: a column is checked at once, not value by value.

    Raises ValueError, TypeError.
    """
    columns = cast("list[list[Any]]", stored)
    _check_shape(columns, len(types), name)
    for column, allowed in zip(columns, types, strict=True):
        # By `type`, because `bool` is an `int` for isinstance, but not a number of this format.
        wrong = set(map(type, column)).difference(allowed)
        if wrong:
            raise TypeError(f"{name} have a value of type {min(each.__name__ for each in wrong)}")
        if int in allowed:
            _check_bits(column)
    return columns


def _check_shape(columns: Sequence[Sequence[Any]], count: int, name: str) -> None:
    if len(columns) != count or len(set(map(len, columns))) > 1:
        raise ValueError(f"{name} in {len(columns)} columns of different lengths, or not {count} of them")


def _check_bits(column: Iterable[Any]) -> None:
    numbers = [each for each in column if each is not None]
    if numbers and not (min(numbers) >= -(2**63) and max(numbers) < 2**63):
        raise ValueError("a whole number of more than 64 bits")


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a text")
    return value
