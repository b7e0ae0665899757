"""Tables whose directories hold files of others already: none removes them, or takes them for its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from metadata.contract.store import MetadataStore
from runtime.clock import SystemClock
from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.iceberg.catalog import open_catalog
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.iceberg.upkeep.upkeep import Upkeep
from tests.fixtures.erased_bytes import request_erasure
from tests.fixtures.lake import JSON, Lake

pytestmark = pytest.mark.timeout(300)
WEEK_MS = 7 * 86_400_000


async def tended(table: IcebergTable) -> None:
    """The upkeep of a week later: files that the table does not know are as old as it needs them to be."""
    await asyncio.to_thread(table.load)
    await asyncio.to_thread(Upkeep(table).tend, SystemClock().wall_ms() + WEEK_MS)


async def test_a_table_made_under_the_name_of_one_that_was_renamed_leaves_its_files(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table that was renamed, and a new one of its old name
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    await lake.exported("t", lake.iceberg())
    await asyncio.to_thread(lake.catalog().rename_table, "lake.t", "lake.old")
    await lake.exported("t", lake.iceberg())
    # when the new one is tended, and a key is erased from it
    await tended(lake.iceberg())
    await request_erasure(metadata, "t", [b"k"])
    assert (await lake.exported("t", lake.iceberg())).erased.rows == 2
    # then the other one has its rows yet
    assert [row["id"] for row in await lake.rows(lake.iceberg("old"))] == [1, 2]
    assert await lake.rows(lake.iceberg()) == []


async def test_two_catalogs_over_one_warehouse_have_a_directory_each(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    # given a table of the same name in another catalog
    other = open_catalog(replace(lake.catalog_place, url=f"sqlite:///{lake.place}/other.db"))
    await lake.exported("t", lake.iceberg())
    await lake.exported("t", IcebergTable(other, "lake.t"))
    # when both are tended
    await tended(lake.iceberg())
    await tended(IcebergTable(other, "lake.t"))
    # then both are whole
    tables = (lake.catalog().load_table("lake.t"), other.load_table("lake.t"))
    assert [table.scan().to_arrow()["id"].to_pylist() for table in tables] == [[1], [1]]
    assert tables[1].location().startswith(f"{tables[0].location()}-")


async def test_a_delta_table_is_made_in_no_directory_with_files_of_others(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    mine = lake.place / "delta" / "t" / "mine.parquet"
    mine.parent.mkdir(parents=True)
    parquet.write_table(pa.table({"n": [1]}), mine)
    with pytest.raises(WrongTableError, match=r"holds a file of others: mine\.parquet"):
        await lake.exported("t", lake.delta(), JSON)
    # and files that a killed run of ours left are no others'
    mine.rename(mine.with_name(f"p00000-{0:019}-{1:019}-{0:010}-0123456789ab.parquet"))
    assert (await lake.exported("t", lake.delta(), JSON)).rows == 1
