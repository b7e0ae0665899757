"""Spark and DuckDB read our tables with partitions and a sort order, and Spark cuts the same rows the same way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs.tables.contract import DeadRows
from spark_jobs.tables.file_writer import FileWriter
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.layout.wanted import SectionRule, parse_layout
from spark_jobs.tables.progress import Progress
from tests.conformance.iceberg.readers import Program
from tests.conformance.iceberg.test_readers import InSpark, path_of
from tests.unit.spark_jobs.tables.iceberg.delta_table import check
from tests.unit.spark_jobs.tables.layout.test_sections import TYPES, WANTED, batch, pa, rows

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("k", pa.int64()), *(pa.field(name, kind) for name, (_, kind) in TYPES.items())])
PROGRESS = Progress(topic="t", topic_id="1", mode="log", values="raw", offsets={0: 1}, starts={0: 0})
OF_SPARK = {"timestamptz": "timestamp", "long": "bigint"}


def rule_text(column: str, transform: str) -> str:
    return SectionRule(column, transform).text


def spark_rule(column: str, transform: str) -> str:
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return column
    return f"{name}({number}, {column})" if number else f"{name}s({column})"


class Filled:
    """A table with random rows of all types, cut by some of the rules that there are, a few rows of it dead."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        make: Any = SqlCatalog
        catalog = make("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
        self.chosen = self._chosen(chance)
        wanted = parse_layout([rule_text(*each) for each in self.chosen], [chance.choice(["k desc", "text,n", "at"])])
        table = IcebergTable(catalog, "n.t", wanted)
        table.ensure(SCHEMA, SCHEMA, "t")
        self.rows: dict[int, dict[str, Any]] = {}
        for start in (0, 100):
            held = rows(chance, 100)
            given = batch(held).add_column(0, "k", pa.array(range(start, start + 100)))
            writer = FileWriter(
                place=table.place,
                key_indexes=None,
                schema=table.file_schema(SCHEMA),
                partition=0,
                start=start,
                stem="data",
                layout=table.layout,
            )
            writer.write(given, None, start + 100)
            writer.close(start + 100)
            table.commit(writer.written, SCHEMA, PROGRESS, replaces=False)
            self.rows.update(enumerate(held, start))
        self.kill(table, chance)
        check(table.loaded)
        self.table = table.loaded

    def _chosen(self, chance: random.Random) -> list[tuple[str, str]]:
        # Identity by a double would be a partition for NaN, about which engines disagree.
        known = [each for each in WANTED if each[1] != "void" and each[0] != "share"]
        while True:
            found = chance.sample(known, chance.randint(1, 3))
            if len({column for column, _ in found}) == len(found):
                return found

    def kill(self, table: IcebergTable, chance: random.Random) -> None:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

        dead: list[DeadRows] = []
        for live in live_files(table.loaded):
            keys: list[int] = parquet.read_table(live.path.removeprefix("file://"))["k"].to_pylist()
            positions = [at for at in range(len(keys)) if chance.random() < 0.2]
            if positions:
                dead.append(DeadRows(live.path, np.array(positions, np.int64)))
            for at in positions:
                del self.rows[keys[at]]
        table.commit([], SCHEMA, PROGRESS, replaces=False, dead=dead)

    def conditions(self) -> list[tuple[str, set[int]]]:
        """Conditions in SQL, and the keys that fulfil them."""
        then = "{type} '1990-01-01 00:00:00+00:00'"
        tests: list[tuple[str, Any]] = [
            ("n = 0", lambda row: row["n"] == 0),
            ("n > 5", lambda row: row["n"] is not None and row["n"] > 5),
            ("n IS NULL", lambda row: row["n"] is None),
            ("text = ''", lambda row: row["text"] == ""),
            ("text = 'äöü'", lambda row: row["text"] == "äöü"),
            ("text > 'a'", lambda row: row["text"] is not None and row["text"].encode() > b"a"),
            ("yes", lambda row: row["yes"] is True),
            ("small = 0", lambda row: row["small"] == 0),
            ("price >= 1.5", lambda row: row["price"] is not None and row["price"] >= 1.5),
            ("day < DATE '1970-01-01'", lambda row: row["day"] is not None and row["day"].year < 1970),
            (f"t.at < {then}", lambda row: row["at"] is not None and row["at"].year < 1990),
            (
                f"t.at >= {then}",
                lambda row: row["at"] is not None and row["at"].year >= 1990,
            ),
        ]
        return [(sql, {key for key, row in self.rows.items() if test(row)}) for sql, test in tests]


@pytest.mark.parametrize("number", range(3))
def test_engines_find_each_row_where_it_must_be(tmp_path: Path, spark: Program, duckdb: Program, number: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    filled = Filled(tmp_path, random.Random(seed))
    print(filled.chosen)
    there = InSpark(spark, tmp_path)
    ours, theirs = there.given(filled.table), f"{there.catalog}.n.own"
    conditions = [("true", set(filled.rows)), *filled.conditions()]
    for program, table, type_ in (
        (spark, ours, "TIMESTAMP"),
        (duckdb, f"iceberg_scan('{path_of(filled.table.metadata_location)}')", "TIMESTAMPTZ"),
    ):
        each = [
            f"SELECT {at}, k FROM {table} t WHERE {sql.format(type=type_)}" for at, (sql, _) in enumerate(conditions)
        ]
        found = program.ask(" UNION ALL ".join(each))
        wanted = [[at, key] for at, (_, keys) in enumerate(conditions) for key in sorted(keys)]
        assert sorted(found) == wanted
    # Spark's own table with the same rules has the same rows in the same partitions
    columns = ", ".join(f"{name} {OF_SPARK.get(kind, kind)}" for name, (kind, _) in TYPES.items())
    by = ", ".join(spark_rule(*each) for each in filled.chosen)
    spark.ask(f"CREATE TABLE {theirs} (k bigint, {columns}) USING iceberg PARTITIONED BY ({by})")
    spark.ask(f"INSERT INTO {theirs} SELECT * FROM {ours}")
    told = [spark.ask(f"SELECT k, CAST(_partition AS STRING) FROM {table} ORDER BY k") for table in (ours, theirs)]
    assert len(told[0]) == len(filled.rows) and told[0] == told[1]
