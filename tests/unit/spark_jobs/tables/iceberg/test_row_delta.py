"""Snapshots that add files, let rows die and remove files: what readers and the metadata say after each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.table.snapshots import Operation

from runtime.errors import BugError
from spark_jobs.tables.errors import StaleWriterError, WrongTableError
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.table import FencedTransaction
from tests.unit.spark_jobs.tables.iceberg.delta_table import COLUMNS, DeltaTable, check, pa
from tests.unit.spark_jobs.tables.iceberg.history import History


@pytest.mark.parametrize("run", range(2))
def test_a_table_is_what_its_commits_made_of_it_also_when_its_partitioning_changes(tmp_path: Path, run: int) -> None:
    history = History(tmp_path)
    for number in range(18):
        if number in (6, 12):
            history.repartition()
        if number % 6 == 5:
            history.another_program()
        else:
            history.step()
        history.judge()
    for snapshot_id, rows in history.then.items():
        assert history.lake.read(snapshot_id) == rows
    assert history.lake.files() == history.lake.named()


def test_the_summary_tells_what_happened(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)

    def last() -> Any:
        return lake.table.current_snapshot().summary

    first = lake.add(10)
    assert last().operation is Operation.APPEND
    with lake.delta(note="mine") as delta:
        lake.die(delta, first, 1, 2)
    assert last().operation is Operation.DELETE
    assert {last()[name] for name in ("added-delete-files", "added-position-delete-files")} == {"1"}
    assert (last()["added-position-deletes"], last()["note"]) == ("2", "mine")
    with lake.delta() as delta:
        lake.die(delta, lake.live(first.path), 3)
        delta.add(lake.write(lake.new_rows(1)))
    assert last().operation is Operation.OVERWRITE
    assert (last()["added-position-deletes"], last()["removed-position-deletes"]) == ("3", "2")
    with lake.delta() as delta:
        lake.go(delta, lake.live(first.path))
    assert last().operation is Operation.DELETE
    assert (last()["deleted-data-files"], last()["removed-delete-files"], last()["deleted-records"]) == ("1", "1", "10")
    with lake.delta(note="offsets alone"):
        pass
    assert (last().operation, last()["note"]) == (Operation.APPEND, "offsets alone")
    check(lake.table)


def test_positions_that_are_dead_already_change_nothing(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first = lake.add(10)
    with lake.delta() as delta:
        lake.die(delta, first, 4, 7)
    before = lake.live(first.path).deletes
    with lake.delta() as delta:
        lake.die(delta, lake.live(first.path), 7, 7, 4)
    assert lake.live(first.path).deletes == before


def test_a_file_whose_rows_are_all_dead_goes(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first, second = lake.add(3), lake.add(2)
    with lake.delta() as delta:
        lake.die(delta, lake.live(first.path), 0, 2)
    with lake.delta() as delta:
        lake.die(delta, lake.live(first.path), 1)
    assert [each.path for each in live_files(lake.table)] == [second.path]
    assert lake.table.current_snapshot().summary["total-delete-files"] == "0"
    check(lake.table)


def test_a_file_may_die_in_part_and_be_removed_in_one_commit(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first = lake.add(3)
    with lake.delta() as delta:
        delta.set_dead(first, np.array([1]))
        lake.go(delta, first)
    assert lake.read() == []
    assert lake.files() == lake.named()


def test_columns_that_come_in_the_same_commit_are_read(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first = lake.add(5)
    transaction: Any = FencedTransaction(lake.table)
    with transaction.update_schema() as update:
        update.union_by_name(pa.schema([*COLUMNS, ("more", pa.int32())]))
    with RowDelta(transaction, {}) as delta:
        lake.die(delta, first, 0)
    lake.table = transaction.commit_transaction()
    lake.add(2)
    assert lake.read() == lake.wanted()
    assert lake.table.scan().to_arrow().column("more").null_count == 6
    check(lake.table)


def test_numbers_outside_the_file_are_refused(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first = lake.add(5)
    delta = RowDelta(FencedTransaction(lake.table), {})
    for number in (-1, 5):
        with pytest.raises(BugError, match="5 rows"):
            delta.set_dead(first, np.array([number]))


def test_files_of_another_snapshot_are_refused(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    first = lake.add(5)
    lake.add(1)
    delta = RowDelta(FencedTransaction(lake.table), {})
    with pytest.raises(StaleWriterError):
        delta.set_dead(first, np.array([1]))
    with pytest.raises(StaleWriterError):
        delta.remove(first)


def test_a_table_of_an_older_format_is_refused(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path, **{"format-version": "1"})
    with pytest.raises(WrongTableError, match="format version 1"):
        RowDelta(FencedTransaction(lake.table), {})


def test_a_live_file_tells_the_bounds_of_its_columns(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    lake.add(5)
    live = lake.add(7, place=None)
    schema = lake.table.schema()
    assert (live.rows, live.bounds(schema.find_field("k"))) == (7, (5, 11))
    assert live.bounds(schema.find_field("place")) is None


def test_a_pyiceberg_without_the_names_that_we_need_is_refused_at_import() -> None:
    without = "import pyiceberg.table as t; del t.Transaction._register_snapshot_producer"
    ended = subprocess.run(
        [sys.executable, "-c", f"{without}; import spark_jobs.tables.iceberg.row_delta"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode
    assert "takes no snapshots of ours: it no longer has _register_snapshot_producer" in ended.stderr
