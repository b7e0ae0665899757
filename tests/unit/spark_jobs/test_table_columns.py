"""The columns of JSON values, and values without a column: their bytes stay, with the reason."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyiceberg.catalog import Catalog

from spark_jobs.scan.contract import SCHEMA
from spark_jobs.tables.columns.convert import Converter, ValueFormat
from spark_jobs.tables.columns.kinds import COLUMNS_MAX, SEEN_MAX, Seen, kind_of, size
from spark_jobs.tables.errors import BadTableError
from spark_jobs.tables.file_task import suits, wanted_columns

JSON = ValueFormat(kind="json")
NO_COLUMNS = pa.schema([])


def batch_of(*values: bytes) -> pa.RecordBatch:
    count = len(values)
    cells = {
        "topic": pa.array(["t"] * count, SCHEMA.field("topic").type),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([0] * count, SCHEMA.field("timestamp").type),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array([[]] * count, SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([cells[name] for name in SCHEMA.names], schema=SCHEMA)


def exported(*values: bytes, fixed: Any = NO_COLUMNS) -> tuple[Any, list[dict[str, Any]]]:
    """The columns of all the values together, and the rows as read back from a file. Iceberg accepts the columns
    too.
    """
    batch = batch_of(*values)
    first = Converter(JSON, list(fixed))
    first.convert(batch)
    columns = wanted_columns(fixed, first.seen)
    second = Converter(JSON, list(columns))
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_batches([second.convert(batch)]), file)
    assert suits(columns, fixed, second.seen)
    pa.ipc.read_schema(pa.py_buffer(second.schema.serialize().to_pybytes()))
    taken = Catalog._convert_schema_if_needed(second.schema)  # pyright: ignore[reportPrivateUsage]
    assert len(taken.fields) == len(second.schema)
    return columns, parquet.read_table(file).to_pylist()


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_what_lies_deep_is_json_text(opening: str, closing: str) -> None:
    value = b'{"v":' + nested(60, opening, closing) + b"}"
    columns, rows = exported(b'{"id":1}', value)
    assert size(columns.field("v")) <= 21
    inner, depth = rows[1]["v"], 0
    while not isinstance(inner, str):
        inner, depth = (inner[0] if isinstance(inner, list) else inner["a"]), depth + 1
    assert inner.encode() == nested(60 - depth, opening, closing)
    assert rows[1]["kafka_error"] is None


@pytest.mark.parametrize("depth", [400, 990, 100_000])
def test_one_value_too_deep_to_be_read_is_an_error_of_its_record_alone(depth: int) -> None:
    value = nested(depth, '{"a":', "}")
    columns, rows = exported(b'{"id":1}', value, b'{"id":2}')
    assert [row["id"] for row in rows] == [1, None, 2]
    assert rows[1]["kafka_error"] is None or rows[1]["kafka_value"] == value
    assert (rows[0]["kafka_error"], rows[2]["kafka_error"]) == (None, None)
    if depth == 100_000:
        assert rows[1]["kafka_value"] == value and columns.names == ["id"]


@pytest.mark.parametrize(
    "name",
    [
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_PARTITION", "kafka_offset"),
        # and paths of columns inside our own
        *("Kafka_Value", "kafka_headers.element", "kafka_headers.element.key", "Kafka_Headers.Element"),
    ],
)
def test_names_of_readers_and_of_our_own_columns_are_no_columns_of_a_value(name: str) -> None:
    value = json.dumps({name: 1, "id": 7}).encode()
    columns, rows = exported(value)
    assert columns.names == ["id"]
    assert (rows[0]["id"], rows[0]["kafka_value"]) == (7, value)
    assert rows[0]["kafka_error"] == f"{name}: no column can have this name"


def test_no_column_of_ours_has_a_name_that_iceberg_keeps_for_itself() -> None:
    assert all(name.startswith("kafka_") for name in Converter(JSON, []).schema.names)


@pytest.mark.parametrize("value", [b'{"\\ud800":1}', b'{"id":1,"\\ud800":1}', b'{"id":1,"a\\u0000":1}', b'{"":1}'])
def test_a_name_that_nothing_can_have_is_no_column(value: bytes) -> None:
    columns, rows = exported(value, b'{"id":2}')
    assert columns.names == ["id"]
    assert rows[0]["kafka_value"] == value and "no column can have this name" in rows[0]["kafka_error"]
    assert rows[1]["kafka_error"] is None


def test_a_string_that_cannot_be_encoded_is_an_error_of_its_record_alone() -> None:
    _, rows = exported(b'{"a":"\\ud800","b":{"\\ud800":1}}', b'{"a":"x"}')
    assert [bool(row["kafka_error"]) for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (b'{"a":{"b":1},"a.b":2}', ["a"]),
        (b'{"x":[1],"x.element":2}', ["x"]),
        (b'{"a":{"b.c":1},"a.b":{"c":2}}', ["a"]),
        (b'{"A":{"b":1},"a.b":2}', ["A"]),
        (b'{"a":{"b":{"c":1},"b.c":2}}', ["a"]),
        (b'{"a":1,"a.b":2,"c.d":3}', ["a", "a.b", "c.d"]),
    ],
)
def test_names_that_are_the_path_of_another_column_are_no_columns(value: bytes, names: list[str]) -> None:
    columns, rows = exported(value)
    assert columns.names == names
    fits = len(names) == 3
    assert rows[0]["kafka_value"] == (None if fits else value)
    assert (rows[0]["kafka_error"] is None) == fits


def test_an_object_that_comes_later_than_a_name_with_its_dot_is_no_column() -> None:
    settled, _ = exported(b'{"a.b":1}')
    columns, rows = exported(b'{"a":{"b":1}}', b'{"a.b":2}', fixed=settled)
    assert columns.names == ["a.b"]
    assert rows[0]["kafka_error"] == "a: no column can have this name"
    assert rows[1]["a.b"] == 2


def test_given_columns_that_cannot_be_are_refused() -> None:
    for properties in ({"a": {"type": "object", "properties": {"b": {}}}, "a.b": {}}, {"_file": {}}, {"\ud800": {}}):
        values = ValueFormat(kind="json", schema_text=json.dumps({"properties": properties}))
        with pytest.raises(BadTableError, match="the schema names a column"):
            values.given_fields()


@pytest.mark.parametrize("value", [b'{"id":1,"n":1e400}', b'{"id":1,"n":[-1e999]}', b'{"id":1,"n":{"m":1e400}}'])
def test_a_number_beyond_doubles_is_an_error_and_never_infinity(value: bytes) -> None:
    # alone, beside numbers, and in a column of JSON text
    for others in ([], [b'{"n":0.5}'], [b'{"n":"word"}', b'{"n":[[1]]}']):
        columns, rows = exported(value, *others)
        assert rows[0]["id"] == 1 and rows[0]["kafka_value"] == value
        assert rows[0]["kafka_error"].startswith("n: ")
        assert rows[0].get("n") is None
        assert all(row["kafka_error"] is None for row in rows[1:]), columns


def test_more_names_than_columns_keep_their_bytes() -> None:
    # given values with ever new names
    values = [json.dumps({f"k{number}": number, "id": number}).encode() for number in range(COLUMNS_MAX + 500)]
    # when they become a table
    columns, rows = exported(*values)
    # then it has the maximum of columns and no more, and nothing is lost
    assert len(columns) == COLUMNS_MAX
    for value, row in zip(values, rows, strict=True):
        if row["kafka_error"] is None:
            assert {name: row[name] for name in json.loads(value)} == json.loads(value)
        else:
            assert "no room for more columns" in row["kafka_error"] and row["kafka_value"] == value
    # and a table that is full gets no more columns later either
    assert exported(b'{"a_new_one":1}', fixed=columns)[0].equals(columns)


def test_an_object_with_ever_new_names_inside_is_json_text() -> None:
    value = json.dumps({"a": {f"k{number}": 1 for number in range(COLUMNS_MAX)}, "id": 1}).encode()
    columns, rows = exported(value)
    assert columns.names == ["a", "id"]
    assert json.loads(rows[0]["a"]) == json.loads(value)["a"] and rows[0]["kafka_error"] is None


def test_a_value_costs_what_it_holds_and_not_what_all_before_it_held() -> None:
    def seconds(count: int) -> float:
        seen, kinds = Seen(), [kind_of({f"k{number}": 1}) for number in range(count)]
        begun = time.process_time()
        for kind in kinds:
            seen.add(kind)
        return time.process_time() - begun

    assert min(seconds(8_000) for _ in range(3)) < 0.5
    seen = Seen()
    for number in range(SEEN_MAX + 10):
        seen.add(kind_of({f"k{number}": 1}))
    assert len(seen.kind[1]) == SEEN_MAX
