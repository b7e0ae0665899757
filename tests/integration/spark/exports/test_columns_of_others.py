"""Columns that other programs rename, drop and add in a table that exports fill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.types import IcebergType, ListType, NestedField, StructType, UUIDType

from tests.fixtures.lake import Lake
from tests.integration.spark.test_tables import values_of

pytestmark = pytest.mark.timeout(300)


def changed(lake: Lake, name: str, change: Callable[[Any], object]) -> None:
    with lake.catalog().load_table(f"lake.{name}").update_schema() as update:
        change(update)


async def test_a_column_that_another_writer_renames_or_drops_is_never_read_as_another(lake: Lake) -> None:
    # given a table in which another program then drops one column and renames another
    table = lake.iceberg()
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"a": 1, "b": "old", "at": {"x": 1}, "tags": ["u"]})
    await lake.exported("t", table)
    await asyncio.to_thread(changed, lake, "t", lambda update: update.delete_column("b"))
    await asyncio.to_thread(changed, lake, "t", lambda update: update.rename_column("a", "renamed"))
    # when values still have both names, and new fields inside of others
    await lake.send_json("t", 0, {"a": 2, "b": "new", "at": {"x": 2, "w": 3}, "tags": ["v"]})
    await lake.exported("t", lake.iceberg())
    # then both are columns of their own, and no value appears under the name of another column
    rows = values_of(await lake.rows(table))
    assert rows == [
        {"renamed": 1, "at": {"x": 1, "w": None}, "tags": ["u"], "a": None, "b": None},
        {"renamed": None, "at": {"x": 2, "w": 3}, "tags": ["v"], "a": 2, "b": "new"},
    ]
    # and another rename leaves earlier values where they were
    await asyncio.to_thread(changed, lake, "t", lambda update: update.rename_column("a", "c"))
    await asyncio.to_thread(changed, lake, "t", lambda update: update.rename_column("b", "a"))
    assert [(row["c"], row["a"]) for row in await lake.rows(table)] == [(None, None), (2, "new")]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (UUIDType(), "x"),
        (StructType(NestedField(100, "of", UUIDType(), required=False)), {"of": "x"}),
        (ListType(100, UUIDType(), element_required=False), ["x"]),
    ],
)
async def test_a_column_of_a_type_that_no_json_has_keeps_its_values_out(
    lake: Lake, kind: IcebergType, value: object
) -> None:
    # given a table to which another program adds a column of UUIDs
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", lake.iceberg())
    await asyncio.to_thread(changed, lake, "t", lambda update: update.add_column("extra", kind))
    # when records come with and without such a field
    await lake.send_json("t", 0, {"id": 2}, {"id": 3, "extra": value})
    report = await lake.exported("t", lake.iceberg())
    # then all are rows, and the value that does not fit stays in its bytes
    rows = await lake.rows(lake.iceberg())
    assert [(row["id"], row["extra"]) for row in rows] == [(1, None), (2, None), (3, None)]
    assert [row["kafka_value"] is None for row in rows] == [True, True, False]
    assert report.errors == 1 and "extra" in rows[2]["kafka_error"]
