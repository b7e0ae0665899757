"""The stored forms of an export on a cluster: its plan, the results of its units, and the notes of those that failed.
Pure.

The plan is an object of frames (`compactor/heavy/plan/frames.py`). The head has everything that all units share. Each
frame is one slice, with the judgements of earlier runs on its records, and with the packed offsets of the records to
write if an earlier plan found them. A result is the manifest of its unit. The rest is JSON, and none of it holds
credentials: tasks find their own, as the AWS chain does.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import zstandard

from compactor.heavy.plan.frames import (
    Directory,
    FramesError,
    decompress,
    dump_json,
    encode_frames,
    load_json,
    whole_number,
)
from runtime.errors import BadInputError, BugError, SiltstoneError
from spark_jobs.keys.layout import KeyPlace
from spark_jobs.latest.places import places_of
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import AtTimestamp, DataLossError, Edge, OffsetSpec, ScanOptions, Slice, SliceError
from spark_jobs.stored_plan import EXPORT
from spark_jobs.tables.cluster.places import place_json, place_of
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.columns.kinds import Kind
from spark_jobs.tables.dead_letters.rows import UNJUDGED, Judged, LetterFiles
from spark_jobs.tables.errors import BadTableError, BadValueError, TableError
from spark_jobs.tables.file_task import WriteResult, WriteTask
from spark_jobs.tables.file_writer import Place, WrittenFile
from spark_jobs.tables.layout.layout import PLAIN, Layout, Placed, SectionField, SortField
from spark_jobs.tables.parquet_table import ParquetPlace
from spark_jobs.tables.source import UrlReader

VERSION = 3
"""The version of the plan, the results and the notes. 2: plans by key, of which a driver of version 1 would write every
record. 3: the layout and dead letters; a driver of version 2 would write rows of several sections into a file, and dead
letters into the table."""
RESULT_BYTES_MAX = 256 << 20
MESSAGE_CHARS_MAX = 2_000
_NEWER = "run one release of Siltstone for the export and on the cluster"


class ExportPlanError(BadInputError):
    """The object is no plan of an export, no part of one, or of another release."""


class ExportUnitError(TableError):
    """A slice cannot be written, and another try would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHead:
    """The facts that all units of a plan share."""

    job_id: int
    """By chance, so that two exports at once never share a plan."""
    ends_ms: int
    """By the wall clock: no unit begins later."""
    sizes: tuple[int, ...]
    """The bytes of each unit's slice."""
    reader: UrlReader
    place: Place
    options: ScanOptions
    values: ValueFormat
    fixed: Any
    columns: Any
    file_schema: Any
    stem: str
    final: bool
    key_indexes: Place | None = None
    layout: Layout = PLAIN
    letters: LetterFiles | None = None
    places: tuple[KeyPlace, ...] = ()
    """The slices of a plan whose units are written by key, after a shuffle of all their keys; () for other plans."""

    @property
    def units(self) -> int:
        return len(self.sizes)

    @property
    def can_go_on(self) -> bool:
        """Whether a driver may go on where another one ended. By key each unit depends on what was read of all others,
        and another driver may find records that the first one skipped as lost."""
        return not self.places or self.options.fail_on_data_loss

    @property
    def place_name(self) -> str:
        """The table's place, for people."""
        return self.place.objects.url if isinstance(self.place, ParquetPlace) else getattr(self.place, "directory", "")

    def task(self, unit: PlanUnit, place: Place) -> WriteTask:
        return WriteTask(
            part=unit.part,
            options=self.options,
            reader=self.reader,
            place=place,
            values=self.values,
            fixed=self.fixed,
            columns=self.columns,
            file_schema=self.file_schema,
            stem=self.stem,
            final=self.final,
            by_key=bool(self.places or unit.survivors),
            survivors=unit.survivors,
            key_indexes=self.key_indexes,
            layout=self.layout,
            letters=self.letters,
            judged=unit.judged,
        )


class PlanUnit(NamedTuple):
    """A frame."""

    part: Slice
    survivors: bytes = b""
    """As in `WriteTask`, like the next."""
    judged: Judged = UNJUDGED


def head_of(tasks: Sequence[WriteTask], *, job_id: int, ends_ms: int) -> ExportHead:
    """The shared facts of tasks, which may differ by their slices alone. Raises BadTableError for a table or records
    that a cluster cannot reach."""
    first = tasks[0]
    if any(_shared(each) != _shared(first) for each in tasks):
        raise BugError("the tasks of an export differ by more than their slices")
    reader = first.reader
    if not isinstance(reader, UrlReader):
        raise BugError("a cluster cannot read from an open store")
    return ExportHead(
        job_id=job_id,
        ends_ms=ends_ms,
        sizes=tuple(each.part.bytes for each in tasks),
        reader=reader,
        place=first.place,
        options=first.options,
        values=first.values,
        fixed=first.fixed,
        columns=first.columns,
        file_schema=first.file_schema,
        stem=first.stem,
        final=first.final,
        key_indexes=first.key_indexes,
        layout=first.layout,
        letters=first.letters,
        places=tuple(places_of([each.part for each in tasks])) if first.by_key and not first.survivors else (),
    )


def _shared(task: WriteTask) -> tuple[object, ...]:
    return task.final, task.stem, task.by_key, bool(task.survivors), task.letters is None


def encode_plan(head: ExportHead, units: Sequence[PlanUnit]) -> bytes:
    """Raises BadTableError for a place that a plan cannot name."""
    fields = {
        "version": VERSION,
        "kind": EXPORT,
        "job_id": head.job_id,
        "ends_ms": head.ends_ms,
        "sizes": list(head.sizes),
        "records": head.reader.url,
        "place": place_json(head.place),
        "options": _options_json(head.options),
        "values": asdict(head.values),
        "fixed": _schema_text(head.fixed),
        "columns": _schema_text(head.columns),
        "file_schema": _schema_text(head.file_schema),
        "stem": head.stem,
        "final": head.final,
        "key_indexes": None if head.key_indexes is None else place_json(head.key_indexes),
        "layout": asdict(head.layout),
        "letters": None if head.letters is None else _letters_json(head.letters),
        "places": [list(each) for each in head.places],
    }
    return encode_frames(dump_json(fields), map(_unit_body, units))


def _unit_body(unit: PlanUnit) -> bytes:
    judged = f"{unit.judged.below} {base64.b64encode(unit.judged.packed).decode()}"
    return b"\n".join((unit.part.to_json().encode(), judged.encode(), unit.survivors))


def decode_head(stored: bytes, directory: Directory) -> ExportHead:
    """`stored`: the bytes of the head. Raises ExportPlanError."""
    try:
        fields = _object(directory.head.body(stored), "the head of the plan")
    except FramesError as error:
        raise ExportPlanError(f"the plan cannot be read: {error.message}") from error
    _check_version(fields, "the plan of the export")
    if fields.get("kind") != EXPORT:
        raise ExportPlanError(f"the plan is one of kind {fields.get('kind')!r}, not of an export", remedy=_NEWER)
    try:
        head = ExportHead(
            job_id=int(fields["job_id"]),
            ends_ms=int(fields["ends_ms"]),
            sizes=tuple(int(each) for each in fields["sizes"]),
            reader=UrlReader(url=str(fields["records"])),
            place=place_of(fields["place"]),
            options=_options(fields["options"]),
            values=ValueFormat(**fields["values"]),
            fixed=_schema(fields["fixed"]),
            columns=_schema(fields["columns"]),
            file_schema=_schema(fields["file_schema"]),
            stem=str(fields["stem"]),
            final=bool(fields["final"]),
            key_indexes=None if fields["key_indexes"] is None else place_of(fields["key_indexes"]),
            layout=_layout(fields["layout"]),
            letters=None if fields["letters"] is None else _letters(fields["letters"]),
            places=tuple(KeyPlace(*(whole_number(each) for each in place)) for place in fields["places"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise ExportPlanError(f"the plan of the export cannot be read: {error!r}") from error
    if head.units != len(directory.frames):
        raise ExportPlanError(f"the plan names {head.units} units and has {len(directory.frames)} slices")
    if head.places and [each.number for each in head.places] != list(range(head.units)):
        raise ExportPlanError("the plan does not name the keys of each of its slices")
    return head


def decode_unit(stored: bytes, directory: Directory, unit: int) -> PlanUnit:
    """Raises ExportPlanError."""
    try:
        part, judged, survivors = directory.frames[unit].body(stored).split(b"\n", 2)
        below, packed = judged.split(b" ")
        known = Judged(int(below), base64.b64decode(packed, validate=True))
        return PlanUnit(Slice.from_json(part), survivors, known)
    except (FramesError, SliceError) as error:
        raise ExportPlanError(
            f"slice {unit} of the plan cannot be read: {error.message}", remedy=error.remedy
        ) from error
    except ValueError as error:
        raise ExportPlanError(f"slice {unit} of the plan cannot be read: {error}") from error


# ---- results and notes ---------------------------------------------------------------------------------------------


def encode_result(result: WriteResult, *, fingerprint: str, unit: int) -> bytes:
    """The manifest of a unit. `fingerprint`: that of the plan."""
    fields = {
        **{name: getattr(result, name) for name in ("partition", "start", "end", "rows", "errors", "complete")},
        "files": [asdict(file) for file in result.files],
        "letters": [asdict(file) for file in result.letters],
        "seen": result.seen,
        "survivors": base64.b64encode(result.survivors).decode(),
    }
    return _packed({"plan": fingerprint, "unit": unit, "result": fields})


def decode_result(stored: bytes, *, fingerprint: str, unit: int, part: Slice) -> WriteResult:
    """Raises ExportPlanError, also for the result of another plan, unit or slice."""
    fields = _unpacked(stored, f"the result of slice {unit}", fingerprint, unit)
    try:
        row = dict(fields["result"])
        for name in ("files", "letters"):
            row[name] = tuple(_file(file) for file in row[name])
        row["seen"] = _kind(row["seen"])
        row["survivors"] = base64.b64decode(row["survivors"], validate=True)
        result = WriteResult(**row)
    except (KeyError, TypeError, ValueError) as error:
        raise ExportPlanError(f"the result of slice {unit} cannot be read: {error!r}") from error
    if (result.partition, result.start, result.end) != (part.partition, part.start, part.end):
        raise ExportPlanError(f"the result of slice {unit} is of other offsets")
    return result


def encode_failure(error: SiltstoneError, *, fingerprint: str, unit: int) -> bytes:
    """The note of a unit that failed for good."""
    message, remedy = error.message[:MESSAGE_CHARS_MAX], error.remedy[:MESSAGE_CHARS_MAX]
    told = {"error": type(error).__name__, "message": message, "remedy": remedy}
    return _packed({"plan": fingerprint, "unit": unit, **told})


def decode_failure(stored: bytes, *, fingerprint: str, unit: int) -> SiltstoneError:
    """The error as the task met it, or an ExportUnitError for one of a class that means nothing here.

    Raises ExportPlanError."""
    fields = _unpacked(stored, f"the note of slice {unit}", fingerprint, unit)
    name, message, remedy = (str(fields.get(each, "")) for each in ("error", "message", "remedy"))
    for known in (BadValueError, DataLossError, BadTableError):
        if known.__name__ == name:
            return known(message, remedy=remedy)
    return ExportUnitError(f"slice {unit} cannot be written: {message} [{name}]", remedy=remedy)


def _packed(fields: Mapping[str, Any]) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(dump_json({"version": VERSION, **fields}))


def _unpacked(stored: bytes, what: str, fingerprint: str, unit: int) -> Mapping[str, Any]:
    try:
        body = decompress(stored, RESULT_BYTES_MAX)
    except FramesError as error:
        raise ExportPlanError(f"{what} cannot be read: {error.message}") from error
    fields = _object(body, what)
    _check_version(fields, what)
    if (fields.get("plan"), fields.get("unit")) != (fingerprint, unit):
        raise ExportPlanError(f"{what} is of another plan or slice")
    return fields


def _object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        loaded = load_json(body)
    except ValueError as error:
        raise ExportPlanError(f"{what} is no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ExportPlanError(f"{what} is no object")
    return cast("dict[str, Any]", loaded)


def _check_version(fields: Mapping[str, Any], what: str) -> None:
    if fields.get("version") != VERSION:
        raise ExportPlanError(
            f"{what} has version {fields.get('version')!r}; this release reads {VERSION}", remedy=_NEWER
        )


def _kind(value: Any) -> Kind:
    if isinstance(value, str):
        return value
    name, inner = value
    if name == "list":
        return ("list", _kind(inner))
    if name != "struct":
        raise ValueError(f"there is no kind {name!r}")
    return ("struct", tuple((str(field), _kind(each)) for field, each in inner))


# ---- options, layouts, dead letters and schemas --------------------------------------------------------------------


def _layout(row: Mapping[str, Any]) -> Layout:
    def field(of: Mapping[str, Any]) -> dict[str, Any]:
        return {**of, "column": tuple(of["column"])}

    return Layout(
        spec_id=whole_number(row["spec_id"]),
        sections=tuple(SectionField(**field(each)) for each in row["sections"]),
        order_id=whole_number(row["order_id"]),
        order=tuple(SortField(**field(each)) for each in row["order"]),
        names=tuple(row["names"]),
    )


def _file(row: Mapping[str, Any]) -> WrittenFile:
    told = dict(row)
    placed = told.pop("placed")
    at = Placed(whole_number(placed["spec_id"]), tuple(placed["section"]), whole_number(placed["order_id"]))
    return WrittenFile(**told, placed=at)


def _letters_json(letters: LetterFiles) -> Mapping[str, Any]:
    return {
        "place": place_json(letters.place),
        "file_schema": _schema_text(letters.file_schema),
        "stem": letters.stem,
        "layout": asdict(letters.layout),
    }


def _letters(fields: Mapping[str, Any]) -> LetterFiles:
    return LetterFiles(
        place=place_of(fields["place"]),
        file_schema=_schema(fields["file_schema"]),
        stem=str(fields["stem"]),
        layout=_layout(fields["layout"]),
    )


def _options_json(options: ScanOptions) -> Mapping[str, Any]:
    row = {name: getattr(options, name) for name in ("topic", "isolation", "view", "fail_on_data_loss")}
    return {
        **row,
        "partitions": None if options.partitions is None else list(options.partitions),
        "starting": _spec_json(options.starting),
        "ending": _spec_json(options.ending),
        "columns": list(options.columns),
    }


def _options(fields: Mapping[str, Any]) -> ScanOptions:
    partitions = fields["partitions"]
    return ScanOptions(
        topic=str(fields["topic"]),
        partitions=None if partitions is None else tuple(int(each) for each in partitions),
        starting=_spec(fields["starting"]),
        ending=_spec(fields["ending"]),
        columns=tuple(map(str, fields["columns"])),
        isolation=str(fields["isolation"]),
        view=str(fields["view"]),
        fail_on_data_loss=bool(fields["fail_on_data_loss"]),
    )


def _spec_json(spec: OffsetSpec) -> Any:
    if isinstance(spec, Edge):
        return spec.value
    if isinstance(spec, AtTimestamp):
        return {"timestamp_ms": spec.timestamp_ms}
    offsets = {str(number): each.value if isinstance(each, Edge) else each for number, each in spec.items()}
    return {"offsets": offsets}


def _spec(row: Any) -> OffsetSpec:
    if isinstance(row, str):
        return Edge(row)
    if "timestamp_ms" in row:
        return AtTimestamp(int(row["timestamp_ms"]))
    return {int(number): Edge(each) if isinstance(each, str) else int(each) for number, each in row["offsets"].items()}


def _schema_text(schema: Any) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
