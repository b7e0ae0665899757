"""The stored forms of an export on a cluster, back as they were."""

from __future__ import annotations

import json
from dataclasses import astuple, fields, replace
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as some

from compactor.heavy.plan.frames import dump_json, encode_frames, piece, read_directory
from runtime.errors import SiltstoneError
from spark_jobs.keys.layout import KeyPlace
from spark_jobs.scan.contract import COLUMNS, AtTimestamp, DataLossError, Edge, Piece, ScanOptions, Slice
from spark_jobs.tables.cluster import plan as plans
from spark_jobs.tables.cluster.engine import left_behind
from spark_jobs.tables.cluster.places import plans_url
from spark_jobs.tables.cluster.plan import ExportHead, ExportPlanError, ExportUnitError, PlanUnit
from spark_jobs.tables.columns.convert import ValueFormat, table_schema
from spark_jobs.tables.columns.kinds import merge
from spark_jobs.tables.dead_letters.rows import LETTERS, Judged, LetterFiles
from spark_jobs.tables.errors import BadTableError, BadValueError, WrongTableError
from spark_jobs.tables.file_task import WriteResult
from spark_jobs.tables.file_writer import WrittenFile
from spark_jobs.tables.iceberg.place import IcebergPlace
from spark_jobs.tables.layout.layout import Layout, Placed, SectionField, SortField
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.parquet_table import ParquetPlace
from spark_jobs.tables.source import UrlReader
from storage.objects import ObjectStat
from tests.fixtures.chance import examples

FINGERPRINT = "ab" * 16
whole = some.integers(min_value=0, max_value=2**62)
partitions = some.integers(min_value=0, max_value=9)
edges = some.sampled_from(Edge)
starting = some.one_of(
    some.just(Edge.EARLIEST), some.builds(AtTimestamp, whole), some.dictionaries(partitions, whole | edges, max_size=3)
)
ending = some.one_of(some.just(Edge.LATEST), some.dictionaries(partitions, whole | edges, max_size=3))
options = some.builds(
    ScanOptions,
    topic=some.text(min_size=1),
    partitions=some.none() | some.lists(partitions, max_size=3).map(tuple),
    starting=starting,
    ending=ending,
    columns=some.permutations(COLUMNS).map(tuple),
    isolation=some.sampled_from(["read_committed", "read_uncommitted"]),
    view=some.sampled_from(["log", "latest"]),
    fail_on_data_loss=some.booleans(),
)
pieces = some.builds(
    Piece, *([some.text(min_size=1)] + [whole] * 9), flagged_reason=some.none() | some.text(), crc32c=whole
)
parts = some.builds(
    Slice,
    partition=partitions,
    partition_id=whole,
    start=whole,
    end=whole,
    pieces=some.lists(pieces, max_size=3).map(tuple),
    aborted=some.lists(some.tuples(whole, whole, whole), max_size=3).map(tuple),
)
names = some.text(min_size=1, max_size=5)


def structs(inner: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    named = some.dictionaries(names, inner, max_size=3).map(lambda row: tuple(sorted(row.items())))
    return some.tuples(some.just("struct"), named)


kinds = some.recursive(
    some.sampled_from(["null", "bool", "small", "long", "double", "string", "json", "huge"]),
    lambda inner: (
        some.tuples(some.just("list"), inner)
        | some.tuples(
            some.just("struct"), some.dictionaries(names, inner, max_size=3).map(lambda d: tuple(sorted(d.items())))
        )
    ),
    max_leaves=10,
)
placed = some.builds(Placed, whole, some.lists(some.none() | names, max_size=3).map(tuple), whole)
files = some.builds(
    WrittenFile,
    name=some.text(),
    partition=partitions,
    start=whole,
    end=whole,
    rows=whole,
    size_bytes=whole,
    placed=placed,
)
columns = some.lists(names, max_size=3).map(tuple)
layouts = some.builds(
    Layout,
    spec_id=whole,
    sections=some.lists(some.builds(SectionField, columns, names, names), max_size=3).map(tuple),
    order_id=whole,
    order=some.lists(some.builds(SortField, columns, some.booleans(), some.booleans()), max_size=3).map(tuple),
    names=columns,
)
places = some.sampled_from(
    [
        ParquetPlace(objects=Objects("s3://lake/t?endpoint=http%3A%2F%2Fhost%3A1&region=r")),
        ParquetPlace(objects=Objects("file:///lake/t")),
        IcebergPlace(directory="s3://lake/t/data", properties={"s3.endpoint": "http://host:1", "s3.region": "r"}),
    ]
)
judgements = some.builds(Judged, whole, some.binary())
VALUE_COLUMNS = pa.schema(
    [
        pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "7", "doc": "JSON text"}),
        pa.field("deep", pa.list_(pa.struct([pa.field("x", pa.float64())]))),
    ]
)


def letter_files(place: Any) -> LetterFiles:
    return LetterFiles(place=place, file_schema=LETTERS, stem="0000000002")


def a_head(**facts: Any) -> ExportHead:
    values = ValueFormat(kind="json", keys="text")
    return ExportHead(
        **{
            "job_id": 7,
            "ends_ms": 1_000,
            "sizes": (),
            "reader": UrlReader(url="s3://records/p"),
            "place": ParquetPlace(objects=Objects("s3://lake/t")),
            "options": ScanOptions(topic="t"),
            "values": values,
            "fixed": pa.schema([]),
            "columns": VALUE_COLUMNS,
            "file_schema": table_schema(values, list(VALUE_COLUMNS)),
            "stem": "0000000001",
            "final": False,
            **facts,
        }
    )


def schemas(head: ExportHead) -> tuple[Any, ...]:
    return head.fixed, head.columns, head.file_schema


def a_result(**facts: Any) -> WriteResult:
    row = {"partition": 0, "start": 0, "end": 9, "rows": 9, "errors": 0, "files": (), "complete": True, "seen": "null"}
    return WriteResult(**{**row, **facts})


A_PART = Slice(partition=0, partition_id=1, start=0, end=9, pieces=())


@settings(max_examples=examples(60))
@given(
    options=options,
    units=some.lists(some.builds(PlanUnit, parts, some.binary(), judgements), max_size=4),
    place=places,
    job_id=whole,
    final=some.booleans(),
    by_key=some.booleans(),
    layout=layouts,
    letters=some.none() | places.map(letter_files),
)
def test_a_plan_comes_back_as_it_was_written(
    options: ScanOptions,
    units: list[PlanUnit],
    place: Any,
    job_id: int,
    final: bool,
    by_key: bool,
    layout: Layout,
    letters: Any,
) -> None:
    keys = tuple(KeyPlace(number, *astuple(unit.part)[1:4], 7) for number, unit in enumerate(units) if by_key)
    head = a_head(
        options=options,
        place=place,
        job_id=job_id,
        final=final,
        sizes=tuple(each.part.bytes for each in units),
        places=keys,
        layout=layout,
        letters=letters,
    )
    body = plans.encode_plan(head, units)
    directory = read_directory(body)
    read = plans.decode_head(bytes(piece(body, directory.head)), directory)
    for one, other in zip(schemas(read), schemas(head), strict=True):
        assert one.equals(other, check_metadata=True)
    plain = [each.name for each in fields(ExportHead) if each.name not in ("fixed", "columns", "file_schema")]
    assert [getattr(read, name) for name in plain] == [getattr(head, name) for name in plain]
    assert units == [
        plans.decode_unit(bytes(piece(body, frame)), directory, number) for number, frame in enumerate(directory.frames)
    ]


@settings(max_examples=examples(60))
@given(
    kind=kinds,
    other=kinds,
    written=some.lists(files, max_size=3).map(tuple),
    rows=whole,
    complete=some.booleans(),
    survivors=some.binary(),
    dead=some.lists(files, max_size=3).map(tuple),
)
def test_a_result_comes_back_as_it_was_written(
    kind: Any,
    other: Any,
    written: tuple[WrittenFile, ...],
    rows: int,
    complete: bool,
    survivors: bytes,
    dead: tuple[WrittenFile, ...],
) -> None:
    seen = merge(kind, other)
    result = a_result(files=written, rows=rows, complete=complete, seen=seen, survivors=survivors, letters=dead)
    body = plans.encode_result(result, fingerprint=FINGERPRINT, unit=3)
    assert plans.decode_result(body, fingerprint=FINGERPRINT, unit=3, part=A_PART) == result


def test_a_result_of_something_else_is_refused() -> None:
    body = plans.encode_result(a_result(), fingerprint=FINGERPRINT, unit=3)
    for fingerprint, unit, part in (
        ("cd" * 16, 3, A_PART),
        (FINGERPRINT, 4, A_PART),
        (FINGERPRINT, 3, replace(A_PART, end=8)),
    ):
        with pytest.raises(ExportPlanError, match="is of"):
            plans.decode_result(body, fingerprint=fingerprint, unit=unit, part=part)


def test_another_release_is_refused_in_words() -> None:
    head = json.loads(read_directory(body := plans.encode_plan(a_head(), [])).head.body(_head_bytes(body)))
    # 2: the release before, whose drivers and plans know nothing of sections and dead letters
    for version in (2, 4):
        other = encode_frames(dump_json({**head, "version": version}), [])
        said = f"the plan of the export has version {version}; this release reads 3"
        with pytest.raises(ExportPlanError, match=said) as refused:
            plans.decode_head(_head_bytes(other), read_directory(other))
        assert "one release" in refused.value.remedy
    result = zstandard.ZstdCompressor().compress(dump_json({"version": 1}))
    with pytest.raises(ExportPlanError, match="the result of slice 3 has version 1"):
        plans.decode_result(result, fingerprint=FINGERPRINT, unit=3, part=A_PART)
    with pytest.raises(ExportPlanError, match="cannot be read"):
        plans.decode_result(b"rubbish", fingerprint=FINGERPRINT, unit=3, part=A_PART)


def _head_bytes(body: bytes) -> bytes:
    return bytes(piece(body, read_directory(body).head))


def test_the_error_of_a_unit_comes_back_in_its_class_and_words() -> None:
    for error in (BadValueError("bad", remedy="mend it"), DataLossError("gone"), BadTableError("no")):
        found = decoded(error)
        assert (type(found), found.message, found.remedy) == (type(error), error.message, error.remedy)
    found = decoded(WrongTableError("strange", remedy="help"))
    assert isinstance(found, ExportUnitError) and "strange [WrongTableError]" in str(found) and found.remedy == "help"


def decoded(error: SiltstoneError) -> SiltstoneError:
    body = plans.encode_failure(error, fingerprint=FINGERPRINT, unit=1)
    return plans.decode_failure(body, fingerprint=FINGERPRINT, unit=1)


def test_credentials_of_a_catalog_are_not_stored() -> None:
    for name in ("s3.secret-access-key", "s3.session-token", "client.access-key-id"):
        place = IcebergPlace(directory="s3://lake/t/data", properties={"s3.region": "r", name: "hush"})
        with pytest.raises(BadTableError, match=name) as refused:
            plans.encode_plan(a_head(place=place), [])
        assert "hush" not in str(refused.value)


def test_plans_lie_where_readers_of_the_table_do_not_look() -> None:
    wanted = {
        ParquetPlace(objects=Objects("file:///lake/t")): "file:///lake/t/_siltstone",
        ParquetPlace(objects=Objects("s3://lake/t?region=r")): "s3://lake/t/_siltstone?region=r",
        ParquetPlace(objects=Objects("s3://lake")): "s3://lake/_siltstone",
    }
    assert {place: str(plans_url(place)) for place in wanted} == wanted
    properties = {"s3.endpoint": "http://host:1", "s3.region": "r"}
    place = IcebergPlace(directory="s3a://lake/t/data", properties=properties)
    assert str(plans_url(place)) == "s3://lake/t/data/_siltstone?endpoint=http%3A%2F%2Fhost%3A1&region=r"
    place = IcebergPlace(directory="file:///lake/t/data", properties={})
    assert str(plans_url(place)) == "file:///lake/t/data/_siltstone"
    with pytest.raises(BadTableError, match="gs://lake"):
        plans_url(IcebergPlace(directory="gs://lake/t", properties={}))


def test_only_plans_that_nobody_keeps_alive_are_left_behind() -> None:
    def stat(key: str, last_modified_ms: int) -> ObjectStat:
        return ObjectStat(key=key, size_bytes=1, last_modified_ms=last_modified_ms)

    groups = {
        (1, "a"): [stat("a/plan", 10), stat("a/alive-1", 90)],
        (2, "b"): [stat("b/plan", 10), stat("b/u0", 20)],
        (3, "c"): [stat("c/plan", 50)],
    }
    assert left_behind(groups, 50) == ["b/plan", "b/u0"]
