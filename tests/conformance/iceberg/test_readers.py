"""DuckDB and Spark read what our deltas made of a table, and Spark and we change it in turn."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.iceberg.live_files import dead_positions, live_files
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.table import FencedTransaction
from tests.conformance.iceberg.readers import Program
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, parquet
from tests.unit.spark_jobs.tables.iceberg.history import History

pytestmark = pytest.mark.soak


def as_json(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [[key, text, place, str(day)] for key, text, place, day in rows]


class InSpark:
    """The table in a catalog of Spark's that takes a folder's word for the newest metadata."""

    numbers = itertools.count()

    def __init__(self, spark: Program, folder: Path) -> None:
        self.metadata = folder / "lake" / "n" / "t" / "metadata"
        catalog = f"c{next(self.numbers)}"
        for name, value in (
            ("", "org.apache.iceberg.spark.SparkCatalog"),
            (".type", "hadoop"),
            (".warehouse", (folder / "lake").as_uri()),
            (".cache-enabled", "false"),
        ):
            spark.ask(f"SET `spark.sql.catalog.{catalog}{name}`=`{value}`")
        self.catalog, self.name = catalog, f"{catalog}.n.t"

    def given(self, table: Any) -> str:
        """Make the table's newest state its own. The name of the table."""
        version = len(list(self.metadata.glob("v*.metadata.json"))) + 1
        self.metadata.mkdir(parents=True, exist_ok=True)
        shutil.copy(path_of(table.metadata_location), self.metadata / f"v{version}.metadata.json")
        (self.metadata / "version-hint.text").write_text(str(version))
        return self.name

    def taken(self, lake: DeltaTable) -> Any:
        """The table as Spark left it, in our catalog."""
        version = (self.metadata / "version-hint.text").read_text()
        name = f"n.back{next(self.numbers)}"
        return lake.catalog.register_table(name, (self.metadata / f"v{version}.metadata.json").as_uri())


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def test_duckdb_reads_each_commit(tmp_path: Path, duckdb: Program) -> None:
    history = History(tmp_path)
    for _ in range(12):
        history.step()
        place = path_of(history.lake.table.metadata_location)
        rows = duckdb.ask(f"SELECT k, text, place, day FROM iceberg_scan('{place}') ORDER BY k")
        assert rows == as_json(history.lake.wanted())


def test_spark_reads_each_snapshot_of_a_table_whose_partitioning_changed(tmp_path: Path, spark: Program) -> None:
    history = History(tmp_path)
    for number in range(15):
        if number in (5, 10):
            history.repartition()
        history.step()
        history.judge()
    table = InSpark(spark, tmp_path).given(history.lake.table)
    for snapshot_id, rows in history.then.items():
        assert spark.ask(f"SELECT * FROM {table} VERSION AS OF {snapshot_id} ORDER BY k") == as_json(rows)
    # its own view of what is in the manifests
    [[files, deletes]] = spark.ask(
        f"SELECT count_if(content = 0), count_if(content = 1) FROM {table}.files WHERE readable_metrics IS NOT NULL"
    )
    live = live_files(history.lake.table)
    assert (files, deletes) == (len(live), sum(len(each.deletes) for each in live))


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_spark_and_we_change_a_table_in_turn(tmp_path: Path, spark: Program, granularity: str) -> None:
    modes = {f"write.{each}.mode": "merge-on-read" for each in ("delete", "update", "merge")}
    history = History(tmp_path, **modes, **{"write.delete.granularity": granularity})
    lake, chance = history.lake, history.chance
    there = InSpark(spark, tmp_path)
    for number in range(6):
        # we
        for _ in range(4):
            history.step()
            assert lake.read() == lake.wanted()
        if number == 2:
            history.repartition()
        # Spark
        table = there.given(lake.table)
        assert spark.ask(f"SELECT * FROM {table} ORDER BY k") == as_json(lake.wanted())
        keys = {row[0] for row in lake.wanted()}
        dead = set(chance.sample(sorted(keys), min(len(keys), 8)))
        spark.ask(f"DELETE FROM {table} WHERE k IN ({', '.join(map(str, [-1, *dead]))})")
        if number % 3 == 1:
            spark.ask(f"CALL {there.catalog}.system.rewrite_position_delete_files('n.t')")
        if number % 3 == 2:
            spark.ask(
                f"CALL {there.catalog}.system.rewrite_data_files(table => 'n.t', "
                "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
            )
            spark.ask(f"CALL {there.catalog}.system.rewrite_manifests('n.t')")
        lake.table = there.taken(lake)
        adopt(lake)
        assert {row[0] for row in lake.wanted()} == keys - dead
        assert lake.read() == lake.wanted()


def adopt(lake: DeltaTable) -> None:
    """Expect what is there now: the rows of all files, without the dead ones."""
    lake.expected = {}
    for live in live_files(lake.table):
        rows = parquet.read_table(live.path.removeprefix("file://"), columns=["k", "text", "place", "day"])
        held: list[tuple[Any, ...] | None] = [tuple(row.values()) for row in rows.to_pylist()]
        for position in dead_positions(lake.table.io, live):
            held[position] = None
        lake.expected[live.path] = held


def test_deletion_vectors_of_the_newer_format_are_read_and_such_a_table_not_changed(
    tmp_path: Path, spark: Program
) -> None:
    there = InSpark(spark, tmp_path)
    spark.ask(
        f"CREATE TABLE {there.name} (k bigint, text string, place string, day date) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    for first in (0, 100):
        rows = f"SELECT /*+ COALESCE(1) */ id, 'x', 'p', NULL FROM range({first}, {first} + 50)"
        spark.ask(f"INSERT INTO {there.name} {rows}")
    spark.ask(f"DELETE FROM {there.name} WHERE k IN (3, 7, 120)")
    table = there.taken(DeltaTable(tmp_path / "ours"))
    found = sorted(dead_positions(table.io, live).tolist() for live in live_files(table))
    assert found == [[3, 7], [20]]
    with pytest.raises(WrongTableError, match="format version 3"):
        RowDelta(FencedTransaction(table), {}).set_dead(live_files(table)[0], np.array([1]))
