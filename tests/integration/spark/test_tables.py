"""Topics exported to tables: every record is read back exactly once, also after kills and concurrent exports."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs.scan.contract import Edge
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.contract import Table
from spark_jobs.tables.errors import (
    BadTableError,
    BadValueError,
    RecreatedTopicError,
    StaleWriterError,
    WrongTableError,
)
from spark_jobs.tables.file_writer import WrittenFile
from spark_jobs.tables.parquet_table import ParquetTable, live_files
from tests.fixtures.agents import read_all
from tests.fixtures.lake import JSON, RAW, Lake


@pytest.fixture(params=["parquet", "iceberg"])
def table(request: pytest.FixtureRequest, lake: Lake) -> Table:
    return lake.parquet() if request.param == "parquet" else lake.iceberg()


mostly_parquet = pytest.mark.parametrize(
    "table", ["parquet", pytest.param("iceberg", marks=pytest.mark.soak)], indirect=True
)
"""The operations that hardly differ between the two kinds of tables."""


def again(lake: Lake, table: Table) -> Table:
    """The table as a new process would open it."""
    return lake.parquet() if isinstance(table, ParquetTable) else lake.iceberg()


def values_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only the columns of the value."""
    return [{name: each for name, each in row.items() if not name.startswith("kafka_")} for row in rows]


class Killed(BaseException):
    """A stop that is no error: nothing is tidied up after it, as after kill -9."""


async def test_rows_are_the_records_and_a_second_run_adds_what_came_since(lake: Lake, table: Table) -> None:
    # given records in two partitions
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1, "city": "Ulm"}, {"id": 2, "city": None})
    await lake.send_json("t", 1, {"id": 3, "at": {"x": 1.5, "tags": ["a", "b"]}})
    # when the topic is exported
    report = await lake.exported("t", table)
    # then the table has them, with each value in columns
    rows = await lake.rows(table)
    assert values_of(rows) == [
        {"id": 1, "city": "Ulm", "at": None},
        {"id": 2, "city": None, "at": None},
        {"id": 3, "city": None, "at": {"x": 1.5, "tags": ["a", "b"]}},
    ]
    assert [(row["kafka_partition"], row["kafka_offset"], row["kafka_key"], row["kafka_error"]) for row in rows] == [
        (0, 0, b"k", None),
        (0, 1, b"k", None),
        (1, 0, b"k", None),
    ]
    assert (report.rows, report.files, report.errors, report.offsets) == (3, 2, 0, {0: (0, 2), 1: (0, 1)})
    # and when another process runs it again, after more was produced, with a field that was not there before
    await lake.send_json("t", 0, {"id": 4, "seat": "12A", "at": {"y": True}})
    table = again(lake, table)
    report = await lake.exported("t", table)
    rows = await lake.rows(table)
    assert (report.rows, report.added_columns) == (1, ("seat",))
    assert [row["id"] for row in rows] == [1, 2, 4, 3]
    assert (rows[2]["seat"], rows[2]["at"]["y"], rows[3]["at"]["x"]) == ("12A", True, 1.5)
    # and a third finds nothing to do
    assert (await lake.exported("t", again(lake, table))).commits == ()


@mostly_parquet
async def test_raw_rows_are_what_a_consumer_reads(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"\x00\xff", None, b"")
    await lake.exported("t", table, RAW)
    consumed = [(record.key, record.value) for _, record in await read_all(lake.client, "t")]
    rows = await lake.rows(table)
    assert [(row["kafka_key"], row["kafka_value"]) for row in rows] == [
        (bytes(key or b""), None if value is None else bytes(value)) for key, value in consumed
    ]


@pytest.mark.parametrize("values", [RAW, JSON], ids=["raw values", "json values"])
async def test_keys_become_text_or_json_and_keys_that_are_neither_keep_their_bytes(
    lake: Lake, table: Table, values: ValueFormat
) -> None:
    # given keys of every sort
    await lake.client.create_topic("t", partitions=1)
    keys = [b'{"id": 1}', "Zürich".encode(), None, b"", b"\xff\x00", b"[" * 100_000, b"NaN"]
    for key in keys:
        await lake.send("t", 0, b'{"n": 1}', key=key)
    # when they are exported as JSON, then those that are JSON are text, and the others have their bytes and a reason
    as_json = replace(values, keys="json")
    report = await lake.exported("t", table, as_json)
    rows = await lake.rows(table)
    assert [row["kafka_key"] for row in rows] == ['{"id": 1}', *([None] * 6)]
    assert [row["kafka_key_bytes"] for row in rows] == [None, keys[1], None, *keys[3:]]
    assert [row["kafka_error"] is None for row in rows] == [True, False, True, *([False] * 4)]
    assert (report.rows, report.errors) == (7, 5)
    # and as text, in another table
    named = lake.parquet if isinstance(table, ParquetTable) else lake.iceberg
    other = named("other")
    report = await lake.exported("t", other, replace(values, keys="text"))
    rows = await lake.rows(other)
    texts = ['{"id": 1}', "Zürich", None, "", None, "[" * 100_000, "NaN"]
    assert [row["kafka_key"] for row in rows] == texts
    assert [row["kafka_key_bytes"] for row in rows] == [None] * 4 + [b"\xff\x00", None, None]
    assert [row["kafka_error"] for row in rows if row["kafka_error"]] == ["the key is not UTF-8 (byte 0)"]
    assert all(row["kafka_value"] == (b'{"n": 1}' if values is RAW else None) for row in rows)
    # then a table keeps to its way of reading keys, and --on-error fail ends the export
    with pytest.raises(WrongTableError, match="keys as text") as refused:
        await lake.exported("t", named("other"), values)
    assert "--key text" in refused.value.remedy
    with pytest.raises(BadValueError, match=r"a key does not fit \(partition 0, offset 4\)"):
        await lake.exported("t", named("third"), replace(values, keys="text", on_error="fail"))


@mostly_parquet
async def test_values_that_do_not_fit_stay_with_a_reason(lake: Lake, table: Table) -> None:
    # given a table whose columns are settled, and then values of every wrong kind
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1, "s": "x"})
    await lake.exported("t", table)
    broken = [b"{", b"[1]", b'{"n": "word", "s": "kept"}', b'{"n": 1e400}', b'{"N": 1}', b'{"n": NaN}', b"\xff"]
    await lake.send("t", 0, *broken, None, b'{"n": 9223372036854775808}', b'{"n": 3}')
    # when they are exported
    report = await lake.exported("t", table)
    # then each row is there: its bytes, the reason, and the fields that did fit
    rows = (await lake.rows(table))[1:]
    assert report.errors == 8
    assert [row["kafka_value"] for row in rows] == [*broken, None, b'{"n": 9223372036854775808}', None]
    assert [bool(row["kafka_error"]) for row in rows] == [True] * 7 + [False, True, False]
    assert "n: a string does not fit" in rows[2]["kafka_error"] and rows[2]["s"] == "kept"
    assert [row["kafka_tombstone"] for row in rows] == [False] * 7 + [True, False, False]
    assert rows[-1]["n"] == 3


async def test_a_value_that_does_not_fit_ends_the_export_where_that_is_asked_for(lake: Lake) -> None:
    table = lake.parquet()
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b'{"n": 1}', b"nonsense")
    with pytest.raises(BadValueError, match="partition 0, offset 1"):
        await lake.exported("t", table, ValueFormat(kind="json", on_error="fail"))
    assert live_files(table.url) == []


@pytest.mark.parametrize("late", [b'{"n": 1, "N": 2}', b'{"kafka_error": 1}'])
async def test_a_field_that_the_sample_did_not_show_ends_no_export_unless_it_can_have_no_column(
    lake: Lake, late: bytes
) -> None:
    table, strict = lake.parquet(), ValueFormat(kind="json", on_error="fail")
    # given a sample without fields, and values in other slices that disagree
    await lake.client.create_topic("t", partitions=2)
    await lake.send("t", 0, b"{}")
    await lake.send("t", 1, *[b'{"n": 1}'] * 1100, b'{"n": "one"}', b'{"more": true}')
    # when they are exported, then all of them have columns
    report = await lake.exported("t", table, strict)
    rows = await lake.rows(table)
    assert report.errors == 0 and [row["n"] for row in rows[-3:]] == ["1", '"one"', None] and rows[-1]["more"] is True
    # and a field that can have no column ends the next export
    before = live_files(table.url)
    await lake.send("t", 1, b'{"n": 2, "new": 1}', late)
    with pytest.raises(BadValueError, match="partition 1, offset 1103"):
        await lake.exported("t", table, strict)
    assert live_files(table.url) == before


async def test_columns_hold_what_the_sample_did_not_show(lake: Lake, table: Table) -> None:
    # given a topic whose values change their form, in the same slice and in another one
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, *({"n": number} for number in range(1200)))
    await lake.send_json("t", 0, {"n": 0.5, "late": "yes"})
    await lake.send_json("t", 1, {"n": 7, "mixed": [1]}, {"mixed": {"a": 1}}, {"empty": {}})
    # when it is exported
    report = await lake.exported("t", table)
    # then no value is an error, numbers have a type that holds them all, and fields that disagree are JSON text
    rows = await lake.rows(table)
    assert report.errors == 0 and len(rows) == 1204
    assert [row["n"] for row in rows[1198:1202]] == [1198.0, 1199.0, 0.5, 7.0]
    assert rows[1200]["late"] == "yes"
    assert [json.loads(row["mixed"]) for row in rows[1201:1203]] == [[1], {"a": 1}]
    assert rows[1203]["empty"] == "{}"
    # and such a column stays JSON text
    await lake.send_json("t", 1, {"mixed": "word"})
    assert (await lake.exported("t", again(lake, table))).errors == 0
    assert (await lake.rows(table))[-1]["mixed"] == '"word"'


async def test_an_export_killed_before_its_commit_is_done_once_by_the_next(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one export that was finished, and one that was killed when its files were written and nothing was committed
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    await lake.exported("t", table)
    await lake.send_json("t", 0, {"id": 3})
    await lake.send_json("t", 1, {"id": 4})
    written: list[str] = []

    def die(files: Sequence[WrittenFile], *_: Any, **__: Any) -> str:
        written.extend(file.name for file in files)
        raise Killed

    monkeypatch.setattr(table, "commit", die)
    with pytest.raises(Killed):
        await lake.exported("t", table)
    assert len(written) == 2
    assert await lake.offsets(table) == [(0, 0), (0, 1)]
    # when the next process exports
    table = again(lake, table)
    report = await lake.exported("t", table)
    # then every record is there once, and in a plain directory the left-over files are gone
    assert await lake.offsets(table) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert report.rows == 2
    if isinstance(table, ParquetTable):
        there = {path.name for path in (lake.place / "parquet" / "t").glob("*.parquet")}
        assert there == set(live_files(table.url)) and not there & set(written)


async def test_of_two_exports_at_once_one_is_fenced_and_each_record_is_there_once(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two processes that have both read the table's end, and written their files
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", table)
    await lake.send_json("t", 0, {"id": 2}, {"id": 3})
    slow, quick = again(lake, table), again(lake, table)
    commit, refused = slow.commit, list[BaseException]()

    def late(*arguments: Any, **options: Any) -> str:
        if not refused:
            lake.run("t", quick)  # the other one commits first
        try:
            return commit(*arguments, **options)
        except StaleWriterError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(slow, "commit", late)
    # when both commit
    report = await lake.exported("t", slow)
    # then the second is refused, reads the offsets again, and finds nothing left to do
    assert len(refused) == 1
    assert (report.fenced, report.rows) == (1, 0)
    assert await lake.offsets(table) == [(0, 0), (0, 1), (0, 2)]
    # and leaves no files behind
    files = list((lake.place / "parquet" / "t").glob("*.parquet")) + list((lake.place / "warehouse").rglob("*.parquet"))
    assert len(files) == 2


async def test_first_exports_that_make_the_namespace_at_once_all_end_well(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given exports to new tables of a new namespace, which all see that it does not exist
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    all_seen, exists = threading.Barrier(4), SqlCatalog.namespace_exists

    def seen(catalog: SqlCatalog, namespace: Any) -> bool:
        found = exists(catalog, namespace)
        if not found:
            all_seen.wait(timeout=60)
        return found

    monkeypatch.setattr(SqlCatalog, "namespace_exists", seen)
    # when they go on, then each makes its table
    tables = [lake.iceberg(f"t{number}") for number in range(4)]
    await asyncio.gather(*(lake.exported("t", each) for each in tables))
    for each in tables:
        assert await lake.offsets(each) == [(0, 0)]


@mostly_parquet
async def test_a_recreated_topic_is_refused_unless_told(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    await lake.exported("t", table)
    await lake.client.delete_topic("t")
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 10})
    with pytest.raises(RecreatedTopicError, match="deleted and created again"):
        await lake.exported("t", again(lake, table))
    await lake.exported("t", again(lake, table), recreated=True)
    assert sorted(row["id"] for row in await lake.rows(table)) == [1, 2, 10]
    # and after it was told once, it goes on by itself
    await lake.send_json("t", 0, {"id": 11})
    await lake.exported("t", again(lake, table))
    assert sorted(row["id"] for row in await lake.rows(table)) == [1, 2, 10, 11]


@mostly_parquet
async def test_an_empty_topic_is_an_empty_table_that_goes_on(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.exported("t", table)
    assert await lake.rows(table) == []
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", again(lake, table))
    assert [row["id"] for row in await lake.rows(table)] == [1]


@mostly_parquet
async def test_a_table_begun_at_the_end_has_what_came_after(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", table, begin=Edge.LATEST)
    await lake.send_json("t", 0, {"id": 2})
    await lake.exported("t", again(lake, table))
    assert await lake.offsets(table) == [(0, 1)]


async def test_the_latest_view_is_written_anew_each_time(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    for key, value in ((b"a", {"v": 1}), (b"b", {"v": 2}), (b"a", {"v": 3})):
        await lake.send("t", 0, json.dumps(value).encode(), key=key)
    await lake.exported("t", table, mode="latest")
    assert [(row["kafka_key"], row["v"]) for row in await lake.rows(table)] == [(b"b", 2), (b"a", 3)]
    # when a key is deleted and another changes
    await lake.send("t", 0, None, key=b"a")
    await lake.send("t", 0, b'{"v": 4}', key=b"b")
    table = again(lake, table)
    await lake.exported("t", table, mode="latest")
    assert [(row["kafka_key"], row["v"]) for row in await lake.rows(table)] == [(b"b", 4)]
    # then nothing is written where nothing changed, and an export of the log into such a table is refused
    assert (await lake.exported("t", again(lake, table), mode="latest")).commits == ()
    with pytest.raises(WrongTableError, match="--mode latest"):
        await lake.exported("t", again(lake, table))


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
    ],
}


@mostly_parquet
async def test_avro_values_with_confluents_frame(lake: Lake, table: Table) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    row = {
        "id": 7,
        "note": None,
        "price": Decimal("12.50"),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "lines": [{"a": 1}, {}],
    }
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), row)
    framed = b"\0\0\0\0\x2a" + body.getvalue()
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, framed, framed[:-1], framed + b"x", b"\x01")
    values = ValueFormat(kind="avro", schema_text=json.dumps(SCHEMA), framing="confluent")
    report = await lake.exported("t", table, values)
    rows = await lake.rows(table)
    first = values_of(rows)[0]
    first["lines"] = [dict(each) for each in first["lines"]]
    assert first == row
    assert [row["kafka_schema_id"] for row in rows] == [42, 42, 42, None]
    assert report.errors == 3
    assert [row["kafka_value"] for row in rows] == [None, framed[:-1], framed + b"x", b"\x01"]


@mostly_parquet
async def test_large_runs_commit_in_groups_and_a_kill_between_them_loses_and_repeats_nothing(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.client.create_topic("t", partitions=2)
    for number in range(4):
        await lake.send_json("t", number % 2, {"id": number, f"f{number}": number})
    commit, commits = table.commit, list[str]()

    def twice(*arguments: Any, **options: Any) -> str:
        if len(commits) == 2:
            raise Killed
        commits.append(commit(*arguments, **options))
        return commits[-1]

    monkeypatch.setattr(table, "commit", twice)
    with pytest.raises(Killed):
        await lake.exported("t", table, slice_bytes=1, commit_bytes=1)
    assert len(await lake.rows(table)) == 2
    await lake.exported("t", again(lake, table), slice_bytes=1, commit_bytes=1)
    rows = await lake.rows(table)
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3]
    assert all(row[f"f{row['id']}"] == row["id"] for row in rows)


@mostly_parquet
async def test_tables_of_others_are_left_alone(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.client.create_topic("u", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", table)
    with pytest.raises(WrongTableError, match="holds the topic 't'"):
        await lake.exported("u", again(lake, table))


@mostly_parquet
async def test_values_of_a_table_are_read_one_way_for_ever(lake: Lake, table: Table) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", table, RAW)
    with pytest.raises(WrongTableError, match="written from values read as raw") as refused:
        await lake.exported("t", again(lake, table))
    assert "--value raw" in str(refused.value.remedy) and "--key raw" in str(refused.value.remedy)
    await lake.exported("t", again(lake, table), RAW)


async def test_a_first_offset_that_a_partition_does_not_have_is_refused_with_a_remedy(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2}, {"id": 3})
    with pytest.raises(BadTableError, match="partition 1 of topic 't' ends at offset 0") as refused:
        await lake.exported("t", lake.parquet(), begin=2)
    assert "--from @TIME" in str(refused.value.remedy)
    # and where every partition has the offset, the export begins there, and a later `begin` changes nothing
    await lake.send_json("t", 1, {"id": 4}, {"id": 5})
    await lake.exported("t", lake.parquet(), begin=2)
    await lake.send_json("t", 1, {"id": 6})
    await lake.exported("t", lake.parquet(), begin=99)
    assert await lake.offsets(lake.parquet()) == [(0, 2), (1, 2)]


async def test_a_field_that_a_given_schema_does_not_name_keeps_its_record_with_the_reason(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1}, {"n": 2, "x": 3})
    given = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
    report = await lake.exported("t", lake.parquet(), ValueFormat(kind="json", schema_text=given))
    rows = await lake.rows(lake.parquet())
    assert [(row["n"], row["kafka_value"]) for row in rows] == [(1, None), (2, b'{"n": 2, "x": 3}')]
    assert (report.rows, report.errors) == (2, 1) and rows[1]["kafka_error"] == "x: no column has this name"
