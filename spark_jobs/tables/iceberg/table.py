"""A table as an Iceberg table: one snapshot adds files and writes offsets.

Each snapshot of ours carries the table's progress in its summary, under `siltstone.progress`. A run goes on from the
newest snapshot of the main branch that carries it, so that other programs may compact or expire in between, and a
rollback of the table rolls its offsets back with it.

**The fence.** A commit asserts that the branch is still at the snapshot whose offsets were read. pyiceberg repairs a
failed append by itself: it loads the table again and puts the same files on top of the present ones, which for us would
be the same records twice. So the repair is refused here, and a stale writer learns that it is one. (A commit whose
answer was lost but that did arrive is still found by its snapshot's id and counts as done.)

**Columns are known by their ids**, which files carry: a name that another writer gave to another column, or took away,
reads as it was when the file was written. New columns get their ids in the commit. The ids in a file are computed
before, on the same schema, so all files of a commit have the same columns. If somebody else changes the schema in
between, a commit with new columns is refused like any stale one.

Files without a commit stay where they are when their writer dies; the upkeep deletes them after a day. A fenced writer
removes its own.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from runtime.errors import BugError, SiltstoneError
from runtime.logging import get_logger
from runtime.text import first_line
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.columns.kinds import DOC, Field
from spark_jobs.tables.contract import DeadRows, KeyedFile
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.errors import (
    CommitRefusedError,
    CommitUnknownError,
    StaleWriterError,
    WrongTableError,
)
from spark_jobs.tables.file_writer import WrittenFile
from spark_jobs.tables.iceberg.catalog import asked, make_namespace, missing, shown_of
from spark_jobs.tables.iceberg.keyed_files import FIELD_ID, KEYS_DIRECTORY, KeyedFiles
from spark_jobs.tables.iceberg.location import free_location
from spark_jobs.tables.iceberg.manifests import FORMAT_VERSION
from spark_jobs.tables.iceberg.place import IcebergPlace
from spark_jobs.tables.iceberg.position_deletes import Positions
from spark_jobs.tables.iceberg.rewrite import rewritten
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.specs import check_layout, layout_of, needed, new_table
from spark_jobs.tables.iceberg.upkeep.expiry import FOR_NEW_TABLES
from spark_jobs.tables.iceberg.upkeep.purge import Purge
from spark_jobs.tables.keyed.key_index import KEY_COLUMNS, index_name
from spark_jobs.tables.layout.layout import Layout
from spark_jobs.tables.layout.wanted import WantedLayout
from spark_jobs.tables.progress import LATEST_MODE, Progress

try:
    import pyiceberg.exceptions as _exceptions
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io import pyarrow as _pyarrow_io
    from pyiceberg.table import Transaction
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

PROGRESS = "siltstone.progress"
TOPIC = "siltstone.topic"
ERASURES = "siltstone.erasures"
"""In the summary of a snapshot that erased rows: the ids of the requests."""
FINDING_COLUMNS = ("kafka_partition", "kafka_offset", "kafka_timestamp", *KEY_COLUMNS)
_REPAIR = "_rebuild_snapshot_updates"
"""pyiceberg's private name, because it has no public one; `tests/integration/spark/test_tables.py` proves that a stale
writer is refused."""
_OF_FILES = ("py-io-impl", "s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.")
"""Prefixes of the properties that tasks need; the catalog's own, with its passwords, stay with the driver."""
_KNOWN = (
    _exceptions.CommitFailedException,
    _exceptions.CommitStateUnknownException,
    _exceptions.NoSuchTableError,
    _exceptions.TableAlreadyExistsError,
)
_REFUSALS = (
    _exceptions.BadRequestError,
    _exceptions.UnauthorizedError,
    _exceptions.ForbiddenError,
    _exceptions.TooManyRequestsError,
)
"""Answers of a REST catalog that say that a commit did not happen. All other errors may come after it."""
_log = get_logger(__name__)
_to_arrow: Any = cast("Any", _pyarrow_io).schema_to_pyarrow


class FencedTransaction(Transaction):
    """Commits on top of the snapshot with which it began, or not at all."""

    _known: tuple[Any, Any, Any] | None = None

    @property
    def table_metadata(self) -> Any:
        """The table's metadata with the updates so far.

        pyiceberg looks at it up to forty times for a commit and copies all snapshots each time; here once per update.
        """
        base, updates = self._table.metadata, self._updates
        if self._known is None or self._known[0] is not base or self._known[1] is not updates:
            self._known = (base, updates, super().table_metadata)
        return self._known[2]

    def _rebuild_snapshot_updates(self) -> None:
        raise _exceptions.CommitFailedException("the table has a newer snapshot")


if not hasattr(Transaction, _REPAIR):
    raise BugError(f"this pyiceberg may commit on top of other writers: its Transaction no longer has {_REPAIR}")


@dataclass(frozen=True, slots=True)
class Going:
    """The rows that an erasure takes."""

    rows: Mapping[str, Positions]
    """By the path of their file."""
    requests: frozenset[int]
    now_ms: int

    @property
    def requests_text(self) -> str:
        return ",".join(map(str, sorted(self.requests)))


class IcebergTable:
    """One writer's view of the table, as of `load`; made in the catalog by the first `ensure`."""

    def __init__(self, catalog: Any, identifier: str, wanted: WantedLayout | None = None) -> None:
        """`identifier`: NAMESPACE.TABLE; the namespace may have dots too. `wanted`: the layout of a new table. Raises
        WrongTableError."""
        namespace, _, name = identifier.rpartition(".")
        if not namespace or not name:
            raise WrongTableError(f"{identifier!r} names no table", remedy="write iceberg:NAMESPACE.TABLE")
        self._catalog, self._namespace, self._identifier = catalog, namespace, identifier
        self._wanted = wanted or WantedLayout()
        self._table: Any = None
        self._files: tuple[int, KeyedFiles] | None = None
        """The files of the snapshot with that id."""
        self._purge = Purge()

    @property
    def name(self) -> str:
        return self._identifier

    @property
    def loaded(self) -> Any:
        """`pyiceberg.table.Table` as of the last load or commit; None if there is no table yet."""
        return self._table

    @property
    def columns(self) -> Any:
        """`pyarrow.Schema`; None if there is no table yet."""
        return None if self._table is None else arrow_schema(self._table.schema())

    @property
    def stem(self) -> str:
        return "data"

    @property
    def place(self) -> IcebergPlace:
        known: Mapping[str, Any] = self._table.io.properties
        properties = {name: str(value) for name, value in known.items() if name.startswith(_OF_FILES)}
        return IcebergPlace(directory=f"{self._table.location()}/data", properties=properties)

    @property
    def layout(self) -> Layout:
        """The layout of new files. Raises WrongTableError for one that they cannot have."""
        layout = layout_of(self._table.metadata, self._identifier)
        if layout.sections and not self._takes_deltas:
            raise WrongTableError(
                f"{self._identifier} is partitioned and has Iceberg's format version"
                f" {self._table.metadata.format_version}; only partitions of version {FORMAT_VERSION} can be filled",
                remedy=f"set the table's property format-version to {FORMAT_VERSION}, or export to another table",
            )
        return layout

    @property
    def key_indexes(self) -> IcebergPlace | None:
        place = self.place
        directory = f"{self._table.location()}/{KEYS_DIRECTORY}"
        return replace(place, directory=directory) if self._takes_deltas else None

    @property
    def _takes_deltas(self) -> bool:
        return self._table.metadata.format_version == FORMAT_VERSION

    @property
    def file_count(self) -> int:
        snapshot = None if self._table is None else self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None or not self._takes_deltas:
            return 0
        return int(snapshot.summary.additional_properties.get("total-data-files", 0))

    def keyed_files(self) -> KeyedFiles | None:
        """Raises WrongTableError, CatalogUnavailableError, PlaceUnavailableError."""
        indexes = self.key_indexes
        snapshot = self._table.current_snapshot()
        if indexes is None or snapshot is None:
            return None
        if self._files is None or self._files[0] != snapshot.snapshot_id:
            with self._asked():
                self._files = (snapshot.snapshot_id, KeyedFiles(self._table, indexes))
        return self._files[1]

    def load(self) -> Progress | None:
        """Read the table's progress. Raises WrongTableError for a table that somebody else filled, BadProgressError."""
        try:
            with self._asked():
                self._table = self._catalog.load_table(self._identifier)
        except _exceptions.NoSuchTableError:
            self._table = None
            return None
        check_layout(self._table.metadata, self._wanted, self._identifier)
        self._check_columns()
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return None
        while snapshot is not None:
            told = None if snapshot.summary is None else snapshot.summary.additional_properties.get(PROGRESS)
            if told is not None:
                return Progress.from_json(told)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        ours = TOPIC in self._table.properties
        raise WrongTableError(
            f"{self._identifier} has snapshots, and none of those kept says up to which offset it was filled",
            remedy="export to another table"
            + ("; keep a snapshot that this command made when you expire others" if ours else ""),
        )

    def _check_columns(self) -> None:
        """Check that the columns by which rows are found have their names. Raises WrongTableError."""
        before = {field.name for schema in self._table.metadata.schemas for field in schema.fields}
        now = {field.name for field in self._table.schema().fields}
        for name in FINDING_COLUMNS:
            if name in before - now:
                raise WrongTableError(
                    f"another program renamed or dropped the column {name} of {self._identifier}, by which its rows are"
                    " found",
                    remedy=f"rename it back to {name}, or export to another table",
                )

    def ensure(self, columns: Any, sampled: Any, topic: str) -> None:
        """Make the table if it does not exist. Another process may make it at the same time. Raises BadTableError."""
        if self._table is not None:
            return
        columns = pa.schema([*columns, *needed(columns, sampled, self._wanted)])
        made = new_table(self._catalog, columns, sampled.names, self._wanted)
        try:
            with self._asked():
                make_namespace(self._catalog, self._namespace)
                location = free_location(self._catalog, self._namespace, self._identifier.rpartition(".")[2])
                properties = {TOPIC: topic, **FOR_NEW_TABLES}
                self._table = self._catalog.create_table(
                    self._identifier, location=location, properties=properties, **made
                )
        except _exceptions.TableAlreadyExistsError:
            raise StaleWriterError(f"somebody else made the table {self._identifier}") from None

    def file_schema(self, columns: Any) -> Any:
        """`columns`, all those of the table after the next commit, with the ids that they will have then."""
        transaction: Any = FencedTransaction(self._table)
        self._extend(transaction, columns)
        return arrow_schema(transaction.table_metadata.schema(), ids=True)

    def _extend(self, transaction: Any, columns: Any) -> None:
        if not self.columns.equals(columns):
            try:
                with transaction.update_schema() as update:
                    update.union_by_name(columns)
            except ValueError as error:
                raise WrongTableError(
                    f"{self._identifier}, which another program made or changed, cannot get our columns: {error}",
                    remedy="export to another table, which this command makes",
                ) from error

    def commit(
        self,
        files: Sequence[WrittenFile],
        columns: Any,
        progress: Progress,
        *,
        replaces: bool,
        dead: Sequence[DeadRows] = (),
    ) -> str:
        """The new snapshot's id. Raises StaleWriterError, CommitRefusedError, CommitUnknownError."""
        transaction: Any = FencedTransaction(self._table)
        with self._committing(transaction):
            self._stage(transaction, files, columns, progress, replaces=replaces, dead=dead)
        return str(self._table.current_snapshot().snapshot_id)

    def held_rows(self, low: int, high: int) -> Any:
        """The place in the log of the rows with offsets from `low` to below `high`, as of `load` or the last commit.

        Raises CatalogUnavailableError, PlaceUnavailableError."""
        wanted = f"kafka_offset >= {low} and kafka_offset < {high}"
        with self._asked():
            return self._table.scan(wanted, ("kafka_partition", "kafka_offset")).to_arrow()

    def rewrite(self, groups: Sequence[Sequence[KeyedFile]], progress: Progress) -> None:
        """Write each group of files again as one, in one commit. Raises as `commit`."""
        self._write_again(groups, progress, by_index=progress.mode == LATEST_MODE)

    def erase(self, gone: GoneRows, progress: Progress, *, by_index: bool, now_ms: int) -> Erased | None:
        """Raises as `commit`, and CatalogUnavailableError, PlaceUnavailableError."""
        found = self._rows_of(gone, by_index=by_index)
        if found is None:
            return None
        files = [file for file in self._live_files().files if file.path in found]
        self._write_again([[file] for file in files], progress, Going(found, gone.requests, now_ms), by_index=by_index)
        self.finish_erasures(now_ms)
        return Erased(sum(map(len, found.values())), len(files), gone.requests)

    def finish_erasures(self, now_ms: int) -> None:
        """Delete what erasures took from the table, also those of a process that ended before. Errors are told."""
        try:
            with asked(shown_of(self._catalog), _KNOWN):
                if self._purge.finish(self._table, now_ms):
                    now = self._catalog.load_table(self._identifier)
                    # Another writer's commit must fence the next one of ours.
                    if now.metadata.current_snapshot_id == self._table.metadata.current_snapshot_id:
                        self._table = now
        except (SiltstoneError, *_KNOWN) as error:
            _log.warning(
                "files with erased rows could not be deleted yet; the next run tries again",
                table=self._identifier,
                reason=str(error),
            )

    def _rows_of(self, gone: GoneRows, *, by_index: bool) -> Mapping[str, Positions] | None:
        """The positions of those rows by path; None if they cannot be erased, which is told."""
        names = set(self.columns.names)
        try:
            if not self._takes_deltas or not {"kafka_partition", "kafka_offset"} <= names:
                version = self._table.metadata.format_version
                raise WrongTableError(f"it has the format version {version}, and the columns {sorted(names)}")
            with self._asked():
                files = self._live_files()
                found = {file.path: files.gone(file, gone, by_index=by_index) for file in files.files}
        except WrongTableError as error:
            _log.warning(
                "rows of the table cannot be erased: export to another table, and drop this one",
                table=self._identifier,
                reason=error.message,
            )
            return None
        return {path: positions for path, positions in found.items() if len(positions)}

    def _live_files(self) -> KeyedFiles:
        keyed = self.keyed_files()
        if keyed is None:
            raise BugError(f"files of {self._identifier} cannot be written again")
        return keyed

    def _write_again(
        self,
        groups: Sequence[Sequence[KeyedFile]],
        progress: Progress,
        going: Going | None = None,
        *,
        by_index: bool,
    ) -> None:
        """Commit each group of files as one. `going`: rows that are left out; without it the rows stay the same."""
        keyed, indexes = self._live_files(), self.key_indexes if by_index else None
        transaction: Any = FencedTransaction(self._table)
        place, schema = self.place, arrow_schema(self._table.schema(), ids=True)
        layout = self.layout.unsorted if by_index else self.layout
        properties = {PROGRESS: progress.as_json(), **({} if going is None else {ERASURES: going.requests_text})}
        written: list[WrittenFile] = []
        removal = ""
        try:
            with self._committing(transaction):
                delta = RowDelta(transaction, properties, rewrites=going is None, forgets=going is not None)
                for group in groups:
                    old = [keyed.live(file.path) for file in group]
                    out: Mapping[str, Positions] = {} if going is None else going.rows
                    new = rewritten(self._table, old, schema, place, indexes, layout, out)
                    written += new
                    for file in new:
                        delta.add(place.path(file.name), file.placed)
                    for live in old:
                        delta.remove(live)
                if going is not None:
                    staying = [*keyed.paths_without(going.rows), *(place.path(file.name) for file in written)]
                    removal = self._purge.begin(self._table, staying, delta.snapshot_id, going.now_ms)
                delta.commit()
        except (StaleWriterError, CommitRefusedError):
            place.remove([file.name for file in written])
            if indexes is not None:
                indexes.remove([index_name(file.name) for file in written])
            if removal:
                with suppress(OSError):  # a removal without its snapshot is dropped by a later run
                    self._purge.drop(self._table, removal)
            raise

    @contextmanager
    def _committing(self, transaction: Any) -> Generator[None]:
        """A block that stages a commit, which happens at its end."""
        try:
            with self._asked():
                yield
            self._table = transaction.commit_transaction()
        except _exceptions.CommitFailedException as error:
            raise StaleWriterError(f"somebody else committed to {self._identifier}: {error}") from error
        except _REFUSALS as error:
            raise CommitRefusedError(
                f"{shown_of(self._catalog)} refused the commit to {self._identifier}: {error}",
                remedy="check that its user may write to the table, and what else it says",
            ) from error
        except _exceptions.CommitStateUnknownException as error:
            raise self._unknown() from error
        except SiltstoneError:
            raise
        except Exception as error:  # the catalog's connection broke, before or after it heard us
            raise self._unknown(f": {first_line(error)}") from error

    def _stage(
        self,
        transaction: Any,
        files: Sequence[WrittenFile],
        columns: Any,
        progress: Progress,
        *,
        replaces: bool,
        dead: Sequence[DeadRows],
    ) -> None:
        place, properties = self.place, {PROGRESS: progress.as_json()}
        self._extend(transaction, columns)
        if self._takes_deltas:
            delta = RowDelta(transaction, properties)
            for file in files:
                delta.add(place.path(file.name), file.placed)
            # A commit that only adds need not know the files that are there.
            keyed = self.keyed_files() if replaces or dead else None
            if keyed is not None:
                for file in keyed.files if replaces else ():
                    delta.remove(keyed.live(file.path))
                for each in dead:
                    if each.positions is None:
                        delta.remove(keyed.live(each.path))
                    else:
                        delta.set_dead(keyed.live(each.path), each.positions)
            delta.commit()
            return
        if replaces and self._table.current_snapshot() is not None:
            transaction.delete(AlwaysTrue(), snapshot_properties=properties)
        if files:
            paths = [place.path(file.name) for file in files]
            transaction.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)
        else:
            with transaction.update_snapshot(snapshot_properties=properties).fast_append():
                pass  # a snapshot for the offsets alone

    def _unknown(self, why: str = "") -> CommitUnknownError:
        return CommitUnknownError(
            f"it is not known whether the commit to {self._identifier} happened{why}",
            remedy="run the export again: it reads the table's offsets and goes on from there",
        )

    def _asked(self) -> AbstractContextManager[None]:
        """A block around calls of pyiceberg. Raises CatalogUnavailableError, PlaceUnavailableError."""
        return asked(shown_of(self._catalog), _KNOWN)


def arrow_schema(schema: Any, *, ids: bool = False) -> Any:
    """The Arrow schema of an Iceberg one, in the types that our files have; with `ids`, in Parquet's form."""
    kept = (DOC, FIELD_ID) if ids else (DOC,)
    return pa.schema([_plain(field, kept) for field in _to_arrow(schema, include_field_ids=ids)])


def _plain(field: Field, kept: Sequence[bytes]) -> Field:
    """pyiceberg reads strings, bytes and lists into their large forms; undo that. Only the named metadata is kept."""
    told = {name: field.metadata[name] for name in kept if field.metadata and name in field.metadata}
    return pa.field(field.name, _plain_type(field.type, kept), field.nullable, told or None)


def _plain_type(of: Any, kept: Sequence[bytes]) -> Any:
    types = pa.types
    if types.is_large_string(of):
        return pa.string()
    if types.is_large_binary(of):
        return pa.binary()
    if types.is_list(of) or types.is_large_list(of):
        return pa.list_(_plain(of.value_field, kept))
    if types.is_struct(of):
        return pa.struct([_plain(each, kept) for each in of])
    if types.is_map(of):
        return pa.map_(_plain(of.key_field, kept), _plain(of.item_field, kept))
    return of
