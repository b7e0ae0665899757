"""Commits that fail: nothing of them is left, and nobody else's work is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.table import FencedTransaction
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, check


class LostAnswer(SqlCatalog):
    """Commits, and then fails as if it had not."""

    error: Exception | None = None

    def commit_table(self, *request: Any, **named: Any) -> Any:
        answer: Any = super().commit_table(*request, **named)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return answer


class FullPlace:
    """The files of a table, in a place with room for some files."""

    def __init__(self, io: Any, room: int) -> None:
        self._io, self.room = io, room

    def new_output(self, path: str) -> Any:
        if not self.room:
            raise OSError(28, "no space left")
        self.room -= 1
        return self._io.new_output(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)


def lost(folder: Path) -> tuple[DeltaTable, LostAnswer]:
    make: Any = LostAnswer
    catalog = make("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    return DeltaTable(folder, catalog), catalog


def change_all(delta: RowDelta, lake: DeltaTable) -> None:
    """A delta with everything in it."""
    first, second, third = live_files(lake.table)
    lake.die(delta, first, 1)
    lake.die(delta, second, 2)
    lake.go(delta, third)


def test_a_stale_writer_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    for _ in range(3):
        lake.add(4)
    kept = {path: list(rows) for path, rows in lake.expected.items()}
    # given a commit that somebody else overtakes
    stale: Any = FencedTransaction(lake.table)
    with RowDelta(stale, {}) as delta:
        change_all(delta, lake)
    lake.expected = kept
    lake.table = lake.catalog.load_table("n.t")
    lake.add(2)
    # when
    with pytest.raises(CommitFailedException):
        stale.commit_transaction()
    # then
    lake.table = lake.catalog.load_table("n.t")
    assert lake.read() == lake.wanted()
    assert lake.files() == lake.named()
    check(lake.table)


def test_a_commit_whose_answer_was_lost_counts_as_done(tmp_path: Path) -> None:
    lake, catalog = lost(tmp_path)
    for _ in range(3):
        lake.add(4)
    catalog.error = CommitFailedException("a conflict: the one with our own commit")
    with lake.delta() as delta:
        change_all(delta, lake)
    assert lake.read() == lake.wanted()
    assert lake.files() == lake.named()
    check(lake.table)


def test_files_stay_when_nobody_knows_whether_the_commit_happened(tmp_path: Path) -> None:
    lake, catalog = lost(tmp_path)
    for _ in range(3):
        lake.add(4)
    catalog.error = ConnectionError("reset by peer")
    with pytest.raises(ConnectionError), lake.delta() as delta:
        change_all(delta, lake)
    lake.table = lake.catalog.load_table("n.t")
    assert lake.read() == lake.wanted()
    check(lake.table)


def test_a_commit_that_cannot_write_one_of_its_files_leaves_none(tmp_path: Path) -> None:
    lake = DeltaTable(tmp_path)
    for _ in range(3):
        lake.add(4)
    before, rows = lake.files(), lake.read()
    failed = 0
    while True:
        table = lake.catalog.load_table("n.t")
        table.io = FullPlace(table.io, failed)
        delta = RowDelta(FencedTransaction(table), {})
        change_all(delta, lake)
        try:
            delta.commit()
        except OSError:
            assert lake.files() == before
            assert lake.catalog.load_table("n.t").scan().to_arrow().num_rows == len(rows)
            failed += 1
        else:
            break
    assert failed == 5  # two delete files, two manifests and their list
