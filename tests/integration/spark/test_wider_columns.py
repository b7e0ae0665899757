"""Columns that a newer Avro schema makes wider: old and new files are one table for their readers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyiceberg.types import LongType

from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.contract import Table
from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.layout.wanted import parse_layout
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from tests.conformance.iceberg import readers
from tests.fixtures.lake import Lake


def avro(whole: str, fraction: str, digits: int, scale: int = 2) -> dict[str, Any]:
    money = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": scale}
    inner = {"type": "record", "name": "At", "fields": [{"name": "x", "type": whole}, {"name": "price", "type": money}]}
    return {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "id", "type": whole},
            {"name": "share", "type": fraction},
            {"name": "price", "type": ["null", money]},
            {"name": "at", "type": inner},
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": fraction}}},
        ],
    }


NARROW, WIDE = avro("int", "float", 9), avro("long", "double", 20)


def values_of(schema: dict[str, Any]) -> ValueFormat:
    return ValueFormat(kind="avro", schema_text=json.dumps(schema))


def row(number: int, share: float, price: str) -> dict[str, Any]:
    return {
        "id": number,
        "share": share,
        "price": Decimal(price),
        "at": {"x": number, "price": Decimal(price)},
        "lines": [{"a": share}],
    }


OLD = [row(-(2**31), 0.5, "-1234567.89"), row(2**31 - 1, 1.25, "0.01")]
NEW = [row(2**60, 0.1, "123456789012345678.90"), row(-1, 1e300, "-0.01")]


async def send(lake: Lake, schema: dict[str, Any], *rows: dict[str, Any], keys: bytes = b"kl") -> None:
    for each, key in zip(rows, keys, strict=True):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), each)
        await lake.send("t", 0, body.getvalue(), key=bytes([key]))


async def read(lake: Lake, table: Table) -> list[dict[str, Any]]:
    rows = [{name: each[name] for name in OLD[0]} for each in await lake.rows(table)]
    for each in rows:
        each["lines"] = [dict(line) for line in each["lines"]]
    return rows


@pytest.fixture(params=["parquet", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_old_and_new_rows_are_read_exactly(lake: Lake, kind: str) -> None:
    table = lake.parquet if kind == "parquet" else lake.iceberg
    await lake.client.create_topic("t", partitions=1)
    await send(lake, NARROW, *OLD)
    await lake.exported("t", table(), values_of(NARROW))
    assert await read(lake, table()) == OLD
    # when a wider schema comes, then a run without records leaves the table as it is
    assert (await lake.exported("t", table(), values_of(WIDE))).commits == ()
    # and one with records has wider columns, with nothing lost
    await send(lake, WIDE, *NEW)
    report = await lake.exported("t", table(), values_of(WIDE))
    assert (report.errors, report.added_columns) == (0, ())
    assert await read(lake, table()) == [*OLD, *NEW]
    opened = table()
    await asyncio.to_thread(opened.load)
    assert [str(opened.columns.field(name).type) for name in ("id", "share", "price")] == [
        "int64",
        "double",
        "decimal128(20, 2)",
    ]
    # and the narrow one is refused from then on, like every other change
    await send(lake, NARROW, *OLD)
    for other in (NARROW, avro("string", "double", 20), avro("long", "double", 21, 3), avro("double", "double", 20)):
        with pytest.raises(WrongTableError, match=f"{opened.name} has the column .* the schema as") as refused:
            await lake.exported("t", table(), values_of(other))
        assert "from int to long" in refused.value.remedy


async def test_rows_of_a_table_by_key_are_rewritten_in_the_wider_type(
    lake: Lake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given small files that are merged at once
    monkeypatch.setattr("spark_jobs.tables.tidying.decide.FANOUT", 2)
    table = lake.parquet if kind == "parquet" else lake.iceberg
    await lake.client.create_topic("t", partitions=1)
    await send(lake, NARROW, *OLD)
    await lake.exported("t", table(), values_of(NARROW), mode=LATEST_MODE)
    # when one key gets a wide value, and the other keeps its narrow one
    await send(lake, WIDE, NEW[0], keys=b"l")
    if kind == "parquet":
        # the whole view is read again by the new schema, and Avro bytes do not show theirs
        await send(lake, WIDE, NEW[1], keys=b"k")
        await lake.exported("t", table(), values_of(WIDE), mode=LATEST_MODE)
        assert await read(lake, table()) == NEW
        return
    await lake.exported("t", table(), values_of(WIDE), mode=LATEST_MODE)
    assert await read(lake, table()) == [OLD[0], NEW[0]]
    [file] = await asyncio.to_thread(lambda: list(lake.catalog().load_table("lake.t").scan().plan_files()))
    assert file.file.record_count == 2, "they were merged"


@pytest.mark.parametrize("rule", ["id", "share", "price", "truncate(10, id)"])
async def test_a_table_is_cut_by_a_column_that_gets_wider(lake: Lake, rule: str) -> None:
    # given a table that is cut by a column, with rows of its narrow type
    await lake.client.create_topic("t", partitions=1)
    await send(lake, NARROW, *OLD)
    await lake.exported("t", lake.iceberg(wanted=parse_layout([rule], [])), values_of(NARROW))
    # when values come that only the wide type has
    for _ in range(2):
        await send(lake, WIDE, *NEW)
        await lake.exported("t", lake.iceberg(), values_of(WIDE))
    # then all are there, and found by their partitions, in files written again too
    table = lake.iceberg()
    held, files = table.load(), table.keyed_files()
    assert held is not None and files is not None
    table.rewrite([[each] for each in files.files], held)
    assert sorted(map(str, await read(lake, table))) == sorted(map(str, [*OLD, *NEW, *NEW]))
    asked = {
        "id = 1152921504606846976": 2,
        "share > 10.0": 2,
        "price > 100000000000": 2,
        "id < -5": 1,
        "share = 0.5": 1,
    }
    for wanted, count in asked.items():
        found = await asyncio.to_thread(lake.catalog().load_table("lake.t").scan(row_filter=wanted).to_arrow)
        assert found.num_rows == count, wanted


@pytest.mark.soak
async def test_duckdb_reads_old_and_new_rows_of_an_iceberg_table(lake: Lake) -> None:
    with closing(readers.duckdb()) as duckdb:
        await lake.client.create_topic("t", partitions=1)
        found: list[Any] = []
        for schema, rows in ((NARROW, OLD), (WIDE, NEW)):
            await send(lake, schema, *rows)
            await lake.exported("t", lake.iceberg(), values_of(schema))
            place = await asyncio.to_thread(lambda: lake.catalog().load_table("lake.t").metadata_location)
            columns = """id, share, price, "at".x, "at".price, lines[1]['a']"""
            sql = f"SELECT {columns} FROM iceberg_scan('{place.removeprefix('file://')}') ORDER BY kafka_offset"
            found.append(await asyncio.to_thread(duckdb.ask, sql))
    plain = [
        [each["id"], each["share"], str(each["price"]), each["id"], str(each["price"]), each["share"]]
        for each in [*OLD, *NEW]
    ]
    assert found == [plain[:2], plain]


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
async def test_columns_of_ours_that_another_program_changes_are_followed_or_refused_in_words(
    lake: Lake, mode: str
) -> None:
    # given tables of which another program then changes one of our own columns
    changes: Mapping[str, Callable[[Any], object]] = {
        "wider": lambda update: update.update_column("kafka_partition", LongType()),
        "optional": lambda update: update.update_column("kafka_offset", required=False),
        "described": lambda update: update.update_column("kafka_key", doc="who"),
        "moved": lambda update: update.move_first("id"),
    }
    lost: Mapping[str, Callable[[Any], object]] = {
        "renamed": lambda update: update.rename_column("kafka_key", "who"),
        "dropped": lambda update: update.delete_column("kafka_timestamp"),
    }
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    for name, change in {**changes, **lost}.items():
        await lake.exported("t", lake.iceberg(name), mode=mode)
        with lake.catalog().load_table(f"lake.{name}").update_schema(allow_incompatible_changes=True) as update:
            change(update)
    await lake.send("t", 0, b'{"id": 2}', key=b"other")
    # when they are exported, then those by which rows can still be found have all rows, in files written again too
    for name in changes:
        await lake.exported("t", lake.iceberg(name), mode=mode)
        table = lake.iceberg(name)
        held = table.load()
        files = table.keyed_files()
        assert held is not None and files is not None
        table.rewrite([sorted(files.files, key=lambda each: each.first_offset)], held)
        assert [row["id"] for row in await lake.rows(table)] == [1, 2], name
    # and the others are refused
    for name in lost:
        with pytest.raises(WrongTableError, match="another program renamed or dropped the column kafka_") as refused:
            await lake.exported("t", lake.iceberg(name), mode=mode)
        assert "rename it back to kafka_" in refused.value.remedy
    # and so is a table that another program made
    lake.catalog().create_table("lake.made", pa.schema([("id", pa.int64())]))
    with pytest.raises(WrongTableError, match="cannot get our columns"):
        await lake.exported("t", lake.iceberg("made"), mode=mode)


async def test_lists_and_maps_of_rows_that_are_written_again_stay_as_they_were(lake: Lake) -> None:
    # given a table with lists and maps of records that are null, and others that are empty
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": ["null", "long"]}]}
    objects = ["null", {"type": "array", "items": ["null", inner]}]
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "objects", "type": objects},
            {"name": "named", "type": ["null", {"type": "map", "values": "In"}]},
            {"name": "lists", "type": ["null", {"type": "array", "items": ["null", {"type": "array", "items": "In"}]}]},
            {"name": "deep", "type": ["null", {"type": "map", "values": {"type": "array", "items": "In"}}]},
        ],
    }
    filled: dict[str, Any] = {"objects": [{"x": 1}, None], "named": {"a": {"x": 2}}}
    filled |= {"lists": [[{"x": 3}], None, []], "deep": {"b": [{"x": 4}], "c": []}}
    empty: dict[str, Any] = {"objects": [], "named": {}, "lists": [], "deep": {}}
    rows = [dict.fromkeys(filled), empty, filled, {**filled, "objects": None}]
    await lake.client.create_topic("t", partitions=1)
    for each in rows:
        await send(lake, schema, each, keys=b"k")
        await lake.exported("t", lake.iceberg(), values_of(schema))
    # when another program renames a field inside of them, and the files are written again as one
    with lake.catalog().load_table("lake.t").update_schema() as update:
        for path in ("lists.element.element.x", "deep.value.element.x"):
            update.rename_column(path, "y")
    table = lake.iceberg()
    held, files = table.load(), table.keyed_files()
    assert held is not None and files is not None
    table.rewrite([sorted(files.files, key=lambda each: each.first_offset)], held)
    # then the new file has the same
    [task] = lake.catalog().load_table("lake.t").scan().plan_files()
    found = parquet.read_table(task.file.file_path.removeprefix("file://"), columns=list(filled)).to_pylist()
    for each in found:
        for name in ("named", "deep"):
            each[name] = None if each[name] is None else dict(each[name])
    renamed = {"lists": [[{"y": 3}], None, []], "deep": {"b": [{"y": 4}], "c": []}}
    assert found == [*rows[:2], *({**each, **renamed} for each in rows[2:])]


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
async def test_lists_of_several_kinds_are_json_text_in_every_run(lake: Lake, kind: str) -> None:
    await lake.client.create_topic("t", partitions=1)
    values: list[Any] = [[1, "one", {}], [2, [None]], []]
    for number, value in enumerate(values):
        await lake.send_json("t", 0, {"mixed": value, "inside": [{"mixed": value}], "nested": [value]})
        assert (await lake.exported("t", getattr(lake, kind)())).errors == 0, number
    rows = await lake.rows(getattr(lake, kind)())
    assert [json.loads(row["mixed"]) for row in rows] == values
    assert [json.loads(row["nested"]) for row in rows] == [[value] for value in values]
    assert [json.loads(row["inside"][0]["mixed"]) for row in rows] == values
    # and so they are by a schema
    free: Any = {"mixed": {"type": "array", "items": {}}}
    schema = ValueFormat(kind="json", schema_text=json.dumps({"properties": {**free, "nested": {}, "inside": {}}}))
    for _ in range(2):
        await lake.exported("t", getattr(lake, kind)("given"), schema)
    assert [json.loads(row["mixed"]) for row in await lake.rows(getattr(lake, kind)("given"))] == values
