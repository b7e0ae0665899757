"""Twenty random histories of a table with one row per key, whose writers die at any step: in each snapshot, DuckDB and
Spark read the rows that pyiceberg reads, which are the log's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.iceberg.readers import Program
from tests.conformance.iceberg.test_readers import InSpark, path_of
from tests.integration.spark.keyed.history import SECTIONS, History, history, live_through

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]
__all__ = ["history"]  # a fixture
FIRST_SEED = int(os.environ.get("KEYED_SEED", "100"))


@pytest.mark.parametrize(
    ("history", "partition_by"),
    [(FIRST_SEED + number, SECTIONS if number % 4 == 3 else ()) for number in range(20)],
    indirect=["history"],
)
async def test_three_readers_find_the_latest_view_of_the_log(
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: Sequence[str],
    tmp_path: Path,
    duckdb: Program,
    spark: Program,
) -> None:
    there, read = InSpark(spark, tmp_path / "spark"), 0

    def also_read(table: Any, rows: Mapping[tuple[int, str], Any]) -> None:
        nonlocal read
        fields = sorted(each.name for each in table.schema().fields if not each.name.startswith("kafka_"))
        wanted = ", ".join(["kafka_partition", "kafka_key", "kafka_offset", *fields])
        expected = sorted(
            [partition, key, offset, *map(value.get, fields)] for (partition, key), (offset, value) in rows.items()
        )
        place = path_of(table.metadata_location)
        for program, named in ((duckdb, f"iceberg_scan('{place}')"), (spark, there.given(table))):
            found = program.ask(f"SELECT {wanted} FROM {named}")
            assert sorted(found, key=lambda row: (row[0], row[1])) == expected, json.dumps(named)
        read += 1

    await live_through(history, monkeypatch, partition_by, also_read)
    print(f"{read} snapshots read by DuckDB and Spark")
    assert read > 1
