"""The data files of a snapshot, each with the delete files by which rows of it are dead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.iceberg.position_deletes import NO_POSITIONS, PATH_ID, Positions, read, union

try:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.utils.concurrent import ExecutorFactory
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

_from_bytes: Any = from_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    file: Any
    """`pyiceberg.manifest.DataFile`"""
    sequence_number: int
    manifest: str
    """The path of the manifest that lists it."""
    about: str | None
    """The path of the only data file in it; None if there may be several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of one snapshot."""

    snapshot_id: int
    file: Any
    """`pyiceberg.manifest.DataFile`"""
    sequence_number: int
    manifest: str
    """The path of the manifest that lists it."""
    deletes: tuple[DeleteFile, ...]
    """Those that may hold positions of this file."""

    @property
    def path(self) -> str:
        return self.file.file_path

    @property
    def rows(self) -> int:
        """Dead ones too."""
        return self.file.record_count

    @property
    def size_bytes(self) -> int:
        return self.file.file_size_in_bytes

    @property
    def own_deletes(self) -> tuple[DeleteFile, ...]:
        """Those about this data file alone."""
        return tuple(each for each in self.deletes if each.about is not None)

    @property
    def shared_deletes(self) -> tuple[DeleteFile, ...]:
        """Those that may be about others too."""
        return tuple(each for each in self.deletes if each.about is None)

    def bounds(self, column: Any) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column (`NestedField`), or a bit beyond; None if nobody noted them."""
        low, high = _bounds(self.file, column.field_id)
        if low is None or high is None:
            return None
        return _from_bytes(column.field_type, low), _from_bytes(column.field_type, high)


def live_files(table: Any) -> list[LiveFile]:
    """The data files of the current snapshot of a `pyiceberg.table.Table`. Raises WrongTableError."""
    snapshot = table.current_snapshot()
    return [] if snapshot is None else live_files_of(table.io, snapshot)


def live_files_of(io: Any, snapshot: Any) -> list[LiveFile]:
    """The data files of a `pyiceberg.table.snapshots.Snapshot`. Raises WrongTableError."""
    data: list[tuple[Any, str]] = []
    deletes: list[DeleteFile] = []
    for entry, manifest in _entries(io, snapshot.manifests(io)):
        if entry.data_file.content == DataFileContent.DATA:
            data.append((entry, manifest))
        else:
            deletes.append(_delete_file(entry, manifest))
    own: dict[str, list[DeleteFile]] = {}
    shared: dict[tuple[int, str], list[DeleteFile]] = {}
    for each in deletes:
        if each.about is None:
            shared.setdefault(_partition(each.file), []).append(each)
        else:
            own.setdefault(each.about, []).append(each)
    return [
        LiveFile(
            snapshot_id=snapshot.snapshot_id,
            file=entry.data_file,
            sequence_number=entry.sequence_number,
            manifest=manifest,
            deletes=_applying(
                entry, [*own.get(entry.data_file.file_path, ()), *shared.get(_partition(entry.data_file), ())]
            ),
        )
        for entry, manifest in data
    ]


def dead_positions(io: Any, live: LiveFile) -> Positions:
    """The numbers of all dead rows of a file, sorted and distinct. Raises WrongTableError."""
    return positions_in(io, live.deletes, live.path)


def positions_in(io: Any, deletes: Sequence[DeleteFile], path: str) -> Positions:
    """The positions in delete files that are about one data file, sorted and distinct. Raises WrongTableError."""
    return union(*(read(io, file).get(path, NO_POSITIONS) for file in {each.file for each in deletes}))


def _entries(io: Any, manifests: Iterable[Any]) -> Iterable[tuple[Any, str]]:
    """All live entries, each with the path of its manifest."""

    def read_one(manifest: Any) -> list[tuple[Any, str]]:
        return [(entry, manifest.manifest_path) for entry in manifest.fetch_manifest_entry(io)]

    return chain.from_iterable(ExecutorFactory.get_or_create().map(read_one, manifests))


def _delete_file(entry: Any, manifest: str) -> DeleteFile:
    file = entry.data_file
    if file.content != DataFileContent.POSITION_DELETES:
        raise WrongTableError(
            f"another program deleted rows of the table by their values (equality deletes): {file.file_path}",
            remedy="compact the table's data files with that program, so that those deletes are applied",
        )
    low, high = _bounds(file, PATH_ID)
    # Bounds may be cut, but then the upper one is made greater than the lower.
    about = low.decode() if low is not None and low == high else None
    return DeleteFile(file=file, sequence_number=entry.sequence_number, manifest=manifest, about=about)


def _partition(file: Any) -> tuple[int, str]:
    return file.spec_id, str(file.partition)


def _applying(data: Any, candidates: Sequence[DeleteFile]) -> tuple[DeleteFile, ...]:
    path = data.data_file.file_path.encode()
    return tuple(
        each for each in candidates if each.sequence_number >= data.sequence_number and _may_name(each.file, path)
    )


def _may_name(delete_file: Any, path: bytes) -> bool:
    low, high = _bounds(delete_file, PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)


def _bounds(file: Any, field_id: int) -> tuple[bytes | None, bytes | None]:
    low: dict[int, bytes] | None = file.lower_bounds
    high: dict[int, bytes] | None = file.upper_bounds
    return (low or {}).get(field_id), (high or {}).get(field_id)
