"""A change of an Iceberg table in one snapshot: data files that come, rows that die, data files that go.

Rows die by position (docs/decisions/0044). A data file has one delete file of ours at most: the union of what was dead
and what dies replaces it, so that a reader opens no more than two files for one. A delete file that another program
wrote for several data files stays until the last of them goes. A data file without a living row goes wholly.

`RowDelta` belongs into a `FencedTransaction`, which commits on top of the snapshot that its `LiveFile`s were read from,
or not at all. If the commit certainly failed, all files that it wrote are removed; the data files are their writer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, TypeVar, cast

import numpy as np

from runtime.errors import BugError
from runtime.ids import SystemIds
from spark_jobs.tables.errors import StaleWriterError, WrongTableError
from spark_jobs.tables.iceberg import position_deletes
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.iceberg.live_files import DeleteFile, LiveFile, live_files_of, positions_in
from spark_jobs.tables.iceberg.manifests import FORMAT_VERSION, Change, Kind, ManifestFiles
from spark_jobs.tables.iceberg.position_deletes import NO_POSITIONS, Positions, read, union
from spark_jobs.tables.layout.layout import Placed
from spark_jobs.tables.layout.sections import decoded

try:
    import pyiceberg.table.update.snapshot as _snapshot_updates
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.manifest import DATA_FILE_TYPE, ManifestContent, write_manifest_list
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import TableProperties, Transaction
    from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
    from pyiceberg.table.snapshots import (
        Operation,
        Snapshot,
        SnapshotSummaryCollector,
        Summary,
        update_snapshot_summaries,
    )
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertRefSnapshotId,
        SetSnapshotRefUpdate,
        UpdateTableMetadata,
    )
    from pyiceberg.typedef import Record
    from pyiceberg.types import TimestampType, TimestamptzType
    from pyiceberg.utils.concurrent import ExecutorFactory
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

_PRODUCER: Any = getattr(_snapshot_updates, "_SnapshotProducer", None)
_PRIVATE = (
    (Transaction, ("_table", "_register_snapshot_producer")),
    (UpdateTableMetadata, ("_transaction", "_commit")),
    (_PRODUCER, ("_snapshot_id", "_cleanup_uncommitted", "_clean_all_uncommitted")),
)
"""pyiceberg's private names, because there are no public ones. A transaction tells its producers of snapshots by them
how the commit ended."""
_FIELDS = [field.name for field in DATA_FILE_TYPE[FORMAT_VERSION].fields]
_PARTITION, _SORT_ORDER = _FIELDS.index("partition"), _FIELDS.index("sort_order_id")
"""Places in a `DataFile`, which has no setters for them."""
_METRICS = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
_TIMES = (TimestampType, TimestamptzType)
_data_file_of: Any = parquet_file_to_data_file
_write_list: Any = write_manifest_list
_summed: Any = update_snapshot_summaries
_snapshot: Any = Snapshot
_set_reference: Any = SetSnapshotRefUpdate
_assert_reference: Any = AssertRefSnapshotId
_NEW = SystemIds()
Item = TypeVar("Item")
Result = TypeVar("Result")


def _missing_names() -> list[str]:
    return [
        name
        for owner, names in _PRIVATE
        for name in names
        if name not in {*dir(owner), *getattr(owner, "__annotations__", ())}
    ]


if _missing_names():
    raise BugError(f"this pyiceberg takes no snapshots of ours: it no longer has {', '.join(_missing_names())}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """The changes of a commit, by file."""

    added: Sequence[Any]
    """`DataFile`s of data."""
    deletes: Sequence[Any]
    """`DataFile`s of new delete files."""
    gone: Sequence[LiveFile | DeleteFile]

    @property
    def removes_data(self) -> bool:
        return any(isinstance(each, LiveFile) for each in self.gone)

    @property
    def operation(self) -> Operation:
        dead = bool(self.deletes) or self.removes_data
        if self.added and dead:
            return Operation.OVERWRITE
        return Operation.DELETE if dead else Operation.APPEND

    def as_change(self, *, forgets: bool) -> Change:
        added: dict[Kind, list[Any]] = {}
        for content, files in ((ManifestContent.DATA, self.added), (ManifestContent.DELETES, self.deletes)):
            for file in files:
                added.setdefault((content, file.spec_id), []).append(file)
        return Change(
            added=added,
            gone=frozenset(each.file.file_path for each in self.gone),
            touched=frozenset(each.manifest for each in self.gone),
            forgets=forgets,
        )


class RowDelta(UpdateTableMetadata["RowDelta"]):
    """Takes the changes, then commits them once: by `commit`, or at the end of a `with` block."""

    def __init__(
        self, transaction: Any, properties: Mapping[str, str], *, rewrites: bool = False, forgets: bool = False
    ) -> None:
        """`properties` go into the snapshot's summary. `rewrites`: the rows stay the same. `forgets`: as in `Change`.
        Raises WrongTableError."""
        super().__init__(transaction)
        metadata: Any = transaction.table_metadata
        if metadata.format_version != FORMAT_VERSION:
            raise WrongTableError(
                f"the table has Iceberg's format version {metadata.format_version}; rows of it cannot be deleted here",
                remedy=f"use a table of version {FORMAT_VERSION}",
            )
        self._table: Any = transaction._table
        self._metadata, self._properties, self._rewrites = metadata, properties, rewrites
        self._forgets = forgets
        self._parent: Any = metadata.current_snapshot()
        self._snapshot_id: int = metadata.new_snapshot_id()
        self._new_paths = list[str]()
        self._adds = list[tuple[str, Placed | None]]()
        self._dying: dict[str, tuple[LiveFile, Positions]] = {}
        self._removed: dict[str, LiveFile] = {}

    @property
    def snapshot_id(self) -> int:
        """The id that the new snapshot gets."""
        return self._snapshot_id

    def add(self, path: str, placed: Placed | None = None) -> None:
        """Add a Parquet file that is written already, with the ids of the table's columns. Without `placed` its
        statistics tell its section, by the table's present spec."""
        self._adds.append((path, placed))

    def set_dead(self, live: LiveFile, positions: Positions) -> None:
        """Let rows die. Those that are dead already may be named or not; they stay dead. Raises StaleWriterError."""
        self._check(live)
        if not len(positions):
            return
        if positions.min() < 0 or positions.max() >= live.rows:
            raise BugError(f"{live.path} has {live.rows} rows; one that should die is not among them")
        _, before = self._dying.get(live.path, (live, NO_POSITIONS))
        self._dying[live.path] = (live, union(before, positions))

    def remove(self, live: LiveFile) -> None:
        """Remove a data file and its delete files. Raises StaleWriterError."""
        self._check(live)
        self._removed[live.path] = live

    def commit(self) -> None:
        cast("Any", self._transaction)._register_snapshot_producer(self)
        super().commit()

    def _check(self, live: LiveFile) -> None:
        if self._parent is None or live.snapshot_id != self._parent.snapshot_id:
            raise StaleWriterError(f"{live.path} was read from another snapshot of the table")

    def _commit(self) -> Any:
        io = self._table.io
        try:
            files = self._files()
            writer = ManifestFiles(io, self._metadata, self._snapshot_id, self._manifest_paths(), self._compression)
            before: list[Any] = [] if self._parent is None else self._parent.manifests(io)
            return self._updates(files, writer.after(files.as_change(forgets=self._forgets), before))
        except BaseException:
            self._clean_all_uncommitted()
            raise

    def _files(self) -> FileChanges:
        removed = dict(self._removed)
        dying = list[tuple[LiveFile, Positions]]()
        asked = [each for path, each in self._dying.items() if path not in removed]
        for (live, _), (after, living) in zip(asked, in_threads(self._after, asked), strict=True):
            if not living:
                removed[live.path] = live
            elif after is not None:
                dying.append((live, after))
        gone = list[LiveFile | DeleteFile](removed.values())
        for live in (*removed.values(), *(live for live, _ in dying)):
            gone += live.own_deletes
        return FileChanges(
            added=in_threads(self._added, self._adds),
            deletes=in_threads(self._delete_file, dying),
            gone=[*gone, *self._left_alone(removed)],
        )

    def _after(self, asked: tuple[LiveFile, Positions]) -> tuple[Positions | None, int]:
        """The positions for a new delete file, None if nothing new dies; and the number of rows that stay alive."""
        live, positions = asked
        own = positions_in(self._table.io, live.own_deletes, live.path)
        shared = positions_in(self._table.io, live.shared_deletes, live.path)
        before = union(own, shared)
        fresh = np.setdiff1d(positions, before, assume_unique=True)
        return union(own, fresh) if len(fresh) else None, live.rows - len(before) - len(fresh)

    def _added(self, asked: tuple[str, Placed | None]) -> Any:
        path, placed = asked
        if placed is None:
            file = _data_file(self._table.io, self._metadata, path)
            file.spec_id = self._metadata.default_spec_id
            return file
        file = _data_file(self._table.io, self._unpartitioned, path)
        spec = self._metadata.specs()[placed.spec_id]
        types = [field.field_type for field in spec.partition_type(self._metadata.schema()).fields]
        file[_PARTITION] = Record(*decoded(placed.section, types))
        file[_SORT_ORDER] = placed.order_id or None
        file.spec_id = placed.spec_id
        return file

    @cached_property
    def _unpartitioned(self) -> Any:
        """The table's metadata without a partition spec: statistics tell a file's section neither always nor surely."""
        return self._metadata.model_copy(update={"partition_specs": [PartitionSpec(spec_id=0)], "default_spec_id": 0})

    def _delete_file(self, dying: tuple[LiveFile, Positions]) -> Any:
        live, positions = dying
        name = f"{_NEW.uuid4()}-deletes.parquet"
        path = self._noted(self._table.location_provider().new_data_location(name))
        return position_deletes.write(self._table.io, path, live.file, positions)

    def _left_alone(self, removed: Mapping[str, LiveFile]) -> list[DeleteFile]:
        """Delete files about several data files, all of which are gone now."""
        shared = {each.file.file_path: each for live in removed.values() for each in live.shared_deletes}
        if not shared:
            return []
        staying = {live.path for live in live_files_of(self._table.io, self._parent)} - set(removed)
        return [each for each in shared.values() if staying.isdisjoint(read(self._table.io, each.file))]

    def _updates(self, files: FileChanges, manifests: Sequence[Any]) -> Any:
        metadata, io = self._metadata, self._table.io
        parent_id = None if self._parent is None else self._parent.snapshot_id
        sequence_number = metadata.next_sequence_number()
        path = self._metadata_path(f"snap-{self._snapshot_id}-0-{_NEW.uuid4()}.avro")
        with _write_list(
            FORMAT_VERSION, io.new_output(path), self._snapshot_id, parent_id, sequence_number, self._compression
        ) as writer:
            writer.add_manifests(list(manifests))
        snapshot = _snapshot(
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            manifest_list=path,
            sequence_number=sequence_number,
            summary=self._summary(files),
            schema_id=metadata.current_schema_id,
        )
        reference = _set_reference(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=self._snapshot_id)
        fence = _assert_reference(ref=MAIN_BRANCH, snapshot_id=parent_id)
        return (AddSnapshotUpdate(snapshot=snapshot), reference), (fence,)

    def _summary(self, files: FileChanges) -> Any:
        collector: Any = SnapshotSummaryCollector()
        schema, specs = self._metadata.schema(), self._metadata.specs()
        for file in (*files.added, *files.deletes):
            with suppress(OverflowError):  # the name of a partition beyond the year 9999, after the file was counted
                collector.add_file(file, schema, specs[file.spec_id])
        for each in files.gone:
            with suppress(OverflowError):
                collector.remove_file(each.file, schema, specs[each.file.spec_id])
        summary = Summary(files.operation, **{**collector.build(), **self._properties})
        summed = _summed(summary, None if self._parent is None else self._parent.summary)
        # pyiceberg adds no sums for this operation, by which readers of changes know that there is none.
        return Summary(Operation.REPLACE, **summed.additional_properties) if self._rewrites else summed

    @property
    def _compression(self) -> str:
        return self._metadata.properties.get(
            TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        )

    def _manifest_paths(self) -> Iterator[str]:
        commit = _NEW.uuid4()
        return (self._metadata_path(f"{commit}-m{number}.avro") for number in count())

    def _metadata_path(self, name: str) -> str:
        return self._noted(self._table.location_provider().new_metadata_location(name))

    def _noted(self, path: str) -> str:
        self._new_paths.append(path)
        return path

    def _cleanup_uncommitted(self) -> None:
        """The commit happened, by the only attempt that there is."""

    def _clean_all_uncommitted(self) -> None:
        """The commit certainly did not happen."""
        for path in self._new_paths:
            with suppress(Exception):  # what stays is an orphan like any other, and the first error matters more
                self._table.io.delete(path)
        self._new_paths.clear()


def _data_file(io: Any, metadata: Any, path: str) -> Any:
    """The `DataFile` of a Parquet file, without the bounds of times if one lies beyond those of Python. Raises
    StaleWriterError."""
    try:
        return _data_file_of(io, metadata, path)
    except FileNotFoundError as error:
        raise StaleWriterError(f"another writer erased rows of the table, and removed {path}") from error
    except OverflowError:
        times = (field.name for field in metadata.schema().fields if isinstance(field.field_type, _TIMES))
        properties = {**metadata.properties, **{f"{_METRICS}.{name}": "none" for name in times}}
        return _data_file_of(io, metadata.model_copy(update={"properties": properties}), path)


def in_threads(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """All results. When an error is raised, no call runs any more."""
    calls = [ExecutorFactory.get_or_create().submit(do, each) for each in items]
    wait(calls)
    return [each.result() for each in calls]
