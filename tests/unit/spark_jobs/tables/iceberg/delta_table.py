"""A real Iceberg table in a SQL catalog of its own, and beside it what it must hold."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus

from spark_jobs.tables.iceberg.live_files import LiveFile, live_files
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.table import FencedTransaction, arrow_schema

pa: Any = _pyarrow
parquet: Any = _parquet
COLUMNS = pa.schema([("k", pa.int64()), ("text", pa.string()), ("place", pa.string()), ("day", pa.date32())])
DAY = date(2024, 2, 28)


class DeltaTable:
    """`expected` holds each data file's rows by position; None stands for a dead one."""

    def __init__(self, folder: Path, catalog: Any = None, **properties: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        make: Any = SqlCatalog
        self.catalog: Any = catalog or make(
            "c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake"
        )
        self.catalog.create_namespace("n")
        self.table: Any = self.catalog.create_table("n.t", COLUMNS, properties=properties)
        self.expected: dict[str, list[tuple[Any, ...] | None]] = {}
        self._keys = 0

    def new_rows(self, count: int, place: str | None = "p", day: int = 0) -> list[tuple[Any, ...]]:
        first, self._keys = self._keys, self._keys + count
        return [(k, f"row {k}", place, DAY + timedelta(days=day)) for k in range(first, first + count)]

    def write(self, rows: Iterable[tuple[Any, ...]]) -> str:
        """The path of a data file that no snapshot names yet."""
        rows = list(rows)
        path = f"{self.table.location()}/data/f{rows[0][0]:05}.parquet"
        file = Path(path.removeprefix("file://"))
        file.parent.mkdir(parents=True, exist_ok=True)
        schema = arrow_schema(self.table.schema(), ids=True)
        columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), schema, strict=False)]
        columns += [pa.nulls(len(rows), kind.type) for kind in list(schema)[len(columns) :]]
        parquet.write_table(pa.Table.from_arrays(columns, schema=schema), file)
        self.expected[path] = list(rows)
        return path

    @contextmanager
    def delta(self, **properties: str) -> Generator[RowDelta]:
        """One commit."""
        transaction = FencedTransaction(self.table)
        with RowDelta(transaction, properties) as delta:
            yield delta
        self.table = transaction.commit_transaction()

    def add(self, count: int, **kind: Any) -> LiveFile:
        """Commit one file."""
        path = self.write(self.new_rows(count, **kind))
        with self.delta() as delta:
            delta.add(path)
        return self.live(path)

    def live(self, path: str) -> LiveFile:
        [found] = [each for each in live_files(self.table) if each.path == path]
        return found

    def die(self, delta: RowDelta, live: LiveFile, *positions: int) -> None:
        delta.set_dead(live, np.array(positions, np.int64))
        for each in positions:
            self.expected[live.path][each] = None
        if not any(self.expected[live.path]):
            del self.expected[live.path]

    def go(self, delta: RowDelta, live: LiveFile) -> None:
        delta.remove(live)
        self.expected.pop(live.path, None)

    def read(self, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """As pyiceberg reads it, by key."""
        rows = self.table.scan(snapshot_id=snapshot_id).to_arrow().select(COLUMNS.names).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=lambda row: row[0])

    def wanted(self) -> list[tuple[Any, ...]]:
        return sorted((row for rows in self.expected.values() for row in rows if row), key=lambda row: row[0])

    def files(self) -> set[Path]:
        """All files of the table but the catalog's own."""
        return {each for each in (self.folder / "lake").rglob("*") if each.is_file() and each.suffix != ".json"}

    def named(self) -> set[Path]:
        """All files that some snapshot names."""
        snapshots = self.table.metadata.snapshots
        manifests = {each for snapshot in snapshots for each in snapshot.manifests(self.table.io)}
        found = {snapshot.manifest_list for snapshot in snapshots} | {each.manifest_path for each in manifests}
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=False)
            found |= {entry.data_file.file_path for entry in entries}
        return {Path(each.removeprefix("file://")) for each in found}


def check(table: Any) -> None:
    """The rules of the format for the current snapshot, and our own: one delete file for a data file."""
    snapshot = table.current_snapshot()
    parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
    before = {} if parent is None else _numbers(table, parent)
    files = dict[str, Any]()
    for manifest in snapshot.manifests(table.io):
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        _check_counts(manifest, entries)
        for entry in entries:
            path = entry.data_file.file_path
            assert (entry.data_file.content == DataFileContent.DATA) == (manifest.content == ManifestContent.DATA)
            if entry.status == ManifestEntryStatus.DELETED:
                assert entry.snapshot_id == snapshot.snapshot_id or manifest.added_snapshot_id != snapshot.snapshot_id
                continue
            assert path not in files
            files[path] = entry.data_file
            # An erasure expires the snapshots before its own, and then nothing tells what they had.
            if parent is not None or snapshot.sequence_number == 1:
                assert (entry.sequence_number, entry.file_sequence_number, entry.snapshot_id) == before.get(
                    path, (snapshot.sequence_number, snapshot.sequence_number, snapshot.snapshot_id)
                )
    _check_totals(snapshot.summary, files.values())
    for live in live_files(table):
        assert len(live.own_deletes) <= 1
        assert all(each.file.partition == live.file.partition for each in live.deletes)
        assert all(each.file.spec_id == live.file.spec_id for each in live.deletes)


def _numbers(table: Any, snapshot: Any) -> dict[str, tuple[int, int, int]]:
    return {
        entry.data_file.file_path: (entry.sequence_number, entry.file_sequence_number, entry.snapshot_id)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def _check_counts(manifest: Any, entries: list[Any]) -> None:
    def count(status: ManifestEntryStatus, of: Callable[[Any], int]) -> int:
        return sum(of(entry.data_file) for entry in entries if entry.status == status)

    added, existing, deleted = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
    assert manifest.added_files_count == count(added, lambda _: 1)
    assert manifest.existing_files_count == count(existing, lambda _: 1)
    assert manifest.deleted_files_count == count(deleted, lambda _: 1)
    assert manifest.added_rows_count == count(added, lambda file: file.record_count)
    assert manifest.existing_rows_count == count(existing, lambda file: file.record_count)
    assert manifest.deleted_rows_count == count(deleted, lambda file: file.record_count)
    live = [entry.sequence_number for entry in entries if entry.status != deleted]
    assert not live or manifest.min_sequence_number == min(live)


def _check_totals(summary: Any, files: Iterable[Any]) -> None:
    data = [each for each in files if each.content == DataFileContent.DATA]
    deletes = [each for each in files if each.content != DataFileContent.DATA]
    assert {name: int(summary[name]) for name in summary.additional_properties if name.startswith("total-")} == {
        "total-data-files": len(data),
        "total-delete-files": len(deletes),
        "total-records": sum(each.record_count for each in data),
        "total-position-deletes": sum(each.record_count for each in deletes),
        "total-equality-deletes": 0,
        "total-files-size": sum(each.file_size_in_bytes for each in (*data, *deletes)),
    }
