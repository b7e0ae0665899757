"""The form of our delete files, and readers of those of others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from spark_jobs.tables.iceberg.position_deletes import PATH_ID, POSITION_ID, read, union, write
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, pa, parquet


def test_a_delete_file_has_the_columns_of_the_specification_and_bounds_that_name_its_data_file(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    live = lake.add(500)
    path = f"file://{tmp_path}/deletes.parquet"
    positions = np.array([3, 70, 499])
    file = write(lake.table.io, path, live.file, positions)
    # what it says
    about = live.path.encode()
    assert (file.record_count, file.spec_id, file.partition) == (3, 0, live.file.partition)
    assert file.file_size_in_bytes == (tmp_path / "deletes.parquet").stat().st_size
    assert file.lower_bounds == {PATH_ID: about, POSITION_ID: (3).to_bytes(8, "little")}
    assert file.upper_bounds == {PATH_ID: about, POSITION_ID: (499).to_bytes(8, "little")}
    # what is in it
    held = parquet.ParquetFile(tmp_path / "deletes.parquet")
    wanted = pa.schema([pa.field("file_path", pa.string(), False), pa.field("pos", pa.int64(), False)])
    assert held.schema_arrow.equals(wanted)
    assert [field.metadata[b"PARQUET:field_id"] for field in held.schema_arrow] == [b"2147483546", b"2147483545"]
    assert held.read().to_pydict() == {"file_path": [live.path] * 3, "pos": [3, 70, 499]}
    assert held.metadata.row_group(0).column(1).compression == "ZSTD"
    assert {name: list(found) for name, found in read(lake.table.io, file).items()} == {live.path: [3, 70, 499]}


def test_positions_are_found_by_path_in_any_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    lake = DeltaTable(tmp_path)
    rows = [(f"file:///{chance.randint(0, 5)}", chance.randrange(1 << 40)) for _ in range(3000)]
    columns: Any = dict(zip(("file_path", "pos"), map(list, zip(*rows, strict=True)), strict=True))
    file = write(lake.table.io, f"file://{tmp_path}/d.parquet", lake.add(1).file, np.array([0]))
    parquet.write_table(pa.table(columns), tmp_path / "d.parquet", row_group_size=700)
    found = {path: sorted(positions.tolist()) for path, positions in read(lake.table.io, file).items()}
    assert found == {path: sorted(number for other, number in rows if other == path) for path, _ in rows}
    parquet.write_table(pa.table(columns).slice(0, 0), tmp_path / "d.parquet")
    assert read(lake.table.io, file) == {}


def test_a_union_is_sorted_and_distinct() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(200):
        parts = [[chance.randrange(50) for _ in range(chance.randrange(20))] for _ in range(chance.randrange(4))]
        found = union(*(np.array(part, np.int64) for part in parts))
        assert found.tolist() == sorted({number for part in parts for number in part})
        assert found.dtype == np.int64
