"""Delete files as other programs write them: about several data files, or of another kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.iceberg import position_deletes
from spark_jobs.tables.iceberg.live_files import LiveFile, dead_positions, live_files
from spark_jobs.tables.iceberg.row_delta import FileChanges, RowDelta
from spark_jobs.tables.iceberg.table import FencedTransaction
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, check, pa, parquet


class Foreign(RowDelta):
    """A commit of delete files that `RowDelta` does not write."""

    def __init__(self, transaction: Any, files: Sequence[Any]) -> None:
        super().__init__(transaction, {})
        self._foreign = files

    def _files(self) -> FileChanges:
        return dataclasses.replace(super()._files(), deletes=self._foreign)


def commit(lake: DeltaTable, file: Any) -> None:
    transaction: Any = FencedTransaction(lake.table)
    with Foreign(transaction, [file]):
        pass
    lake.table = transaction.commit_transaction()


def shared(lake: DeltaTable, dead: Sequence[tuple[LiveFile, int]], *, bounds: bool = True) -> str:
    """Commit one delete file about several data files. Its path."""
    for live, position in dead:
        lake.expected[live.path][position] = None
    dead = sorted(dead, key=lambda each: (each[0].path, each[1]))
    paths, positions = [live.path for live, _ in dead], [position for _, position in dead]
    path = f"{lake.table.location()}/data/shared-{len(lake.table.metadata.snapshots)}.parquet"
    file = Path(path.removeprefix("file://"))
    parquet.write_table(pa.table({"file_path": paths, "pos": pa.array(positions, pa.int64())}), file)
    arguments: dict[str, Any] = {
        "content": DataFileContent.POSITION_DELETES,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": dead[0][0].file.partition,
        "record_count": len(dead),
        "file_size_in_bytes": file.stat().st_size,
    }
    if bounds:
        arguments["lower_bounds"] = {position_deletes.PATH_ID: paths[0].encode()}
        arguments["upper_bounds"] = {position_deletes.PATH_ID: paths[-1].encode()}
    commit(lake, of(**arguments))
    return path


def of(**arguments: Any) -> Any:
    make: Any = DataFile.from_args
    file = make(**arguments)
    file.spec_id = 0
    return file


@pytest.mark.parametrize("bounds", [True, False])
def test_a_delete_file_about_several_stays_until_the_last_of_them_goes(tmp_path: Path, bounds: bool) -> None:
    lake = DeltaTable(tmp_path)
    a, b, c = lake.add(5), lake.add(5), lake.add(5)
    path = shared(lake, [(a, 0), (a, 3), (b, 1)], bounds=bounds)
    later = lake.add(5)

    def of_shared() -> set[str]:
        return {each.path for each in live_files(lake.table) if path in {one.file.file_path for one in each.deletes}}

    # it is seen by the files that it may be about, and older than it
    assert of_shared() == ({a.path, b.path} if bounds else {a.path, b.path, c.path})
    assert dead_positions(lake.table.io, lake.live(a.path)).tolist() == [0, 3]
    assert dead_positions(lake.table.io, lake.live(c.path)).tolist() == []
    assert dead_positions(lake.table.io, lake.live(later.path)).tolist() == []
    # more rows die: it stays, with a file of ours beside it
    with lake.delta() as delta:
        lake.die(delta, lake.live(a.path), 4)
    assert dead_positions(lake.table.io, lake.live(a.path)).tolist() == [0, 3, 4]
    assert len(lake.live(a.path).deletes) == 2
    assert lake.read() == lake.wanted()
    # the files that it is about go, one after the other
    with lake.delta() as delta:
        lake.go(delta, lake.live(a.path))
    assert b.path in of_shared()
    assert lake.read() == lake.wanted()
    with lake.delta() as delta:
        lake.go(delta, lake.live(b.path))
    assert of_shared() == set()
    assert lake.table.current_snapshot().summary["total-delete-files"] == "0"
    assert lake.read() == lake.wanted()
    check(lake.table)


def test_both_files_that_a_delete_file_is_about_go_in_one_commit(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    a, b = lake.add(5), lake.add(5)
    shared(lake, [(a, 0), (b, 1)])
    with lake.delta() as delta:
        for each in live_files(lake.table):
            lake.go(delta, each)
    assert lake.table.current_snapshot().summary["total-delete-files"] == "0"
    check(lake.table)


def test_a_file_goes_whose_last_rows_die_beside_a_delete_file_about_several(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    a, b = lake.add(3), lake.add(3)
    shared(lake, [(a, 0), (b, 1)])
    with lake.delta() as delta:
        lake.die(delta, lake.live(a.path), 1, 0, 2)
    assert [each.path for each in live_files(lake.table)] == [b.path]
    assert lake.read() == lake.wanted()
    check(lake.table)


def test_several_delete_files_about_one_data_file_become_one(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    a = lake.add(9)
    for position in (1, 2, 3):
        shared(lake, [(a, position)])
    assert len(lake.live(a.path).own_deletes) == 3
    with lake.delta() as delta:
        lake.die(delta, lake.live(a.path), 5)
    assert lake.read() == lake.wanted()
    check(lake.table)


def test_rows_deleted_by_their_values_are_refused(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    lake.add(3)
    file = of(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{lake.table.location()}/data/equality.parquet",
        file_format=FileFormat.PARQUET,
        partition=lake.live(next(iter(lake.expected))).file.partition,
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[1],
    )
    commit(lake, file)
    with pytest.raises(WrongTableError, match="equality deletes"):
        live_files(lake.table)


def test_a_delete_file_in_another_format_is_refused(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    lake.add(3)
    path = Path(lake.table.location().removeprefix("file://")) / "data" / "deletes.avro"
    path.write_bytes(b"Obj")
    file = of(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.AVRO,
        partition=lake.live(next(iter(lake.expected))).file.partition,
        record_count=1,
        file_size_in_bytes=3,
    )
    commit(lake, file)
    with pytest.raises(WrongTableError, match="AVRO"):
        dead_positions(lake.table.io, lake.live(next(iter(lake.expected))))
