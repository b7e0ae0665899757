"""A table as a Delta table: one commit adds files and writes offsets.

Each commit of ours carries the table's progress in its information, under `siltstone.progress`, and an application
transaction, which outlives the information when the log is cleaned up.

**The fence.** A commit is tried at one version alone, the one behind the version whose offsets were read. (By itself
delta-rs would put it behind the commits of others, which for us would be the same records twice.) After an error the
log tells what happened: the commit of that version, if it is there, names its writer.

**Columns** are added by a commit of their own before the rows, because delta-rs has no other way. It changes nothing
for readers, so a crash in between is harmless. Types never change: Delta's type widening is a feature that few readers
have.

Files without a commit, and those that were replaced, stay until VACUUM runs or rows are erased.

**Erasing** writes files again without the rows and commits that (`log_entry.py`). Then it deletes all files that the
table had before and that are neither of the version so made nor of the newest, so that earlier versions can be read no
more. Our commits behind it name it until that is done, so the next run goes on for one that ended in between. No bytes
of keys reach the log of the table: statistics are of the offsets alone, in commits of other writers too.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from runtime.clock import SystemClock
from runtime.errors import BugError, SiltstoneError
from runtime.ids import SystemIds
from runtime.logging import get_logger
from runtime.text import first_line
from spark_jobs.environment import INSTALL_DELTA
from spark_jobs.scan.arrow import MissingExtraError, pa
from spark_jobs.tables.columns.widening import can_become
from spark_jobs.tables.contract import DeadRows, KeyedFile
from spark_jobs.tables.delta.log_entry import (
    ERASURES,
    UNSWEPT,
    DataFile,
    NewFile,
    Offsets,
    Sweep,
    log_key,
    replacing_entry,
    statistics,
)
from spark_jobs.tables.delta.refusals import OUR_FILE, check_columns, check_features, check_free
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.erasing.parquet_file import schema_of, write_without
from spark_jobs.tables.errors import (
    BadTableError,
    CommitUnknownError,
    PlaceUnavailableError,
    StaleWriterError,
    WrongTableError,
)
from spark_jobs.tables.file_systems import bare_url, file_system
from spark_jobs.tables.file_writer import FileWriter, WrittenFile
from spark_jobs.tables.layout.layout import PLAIN, Layout
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.parquet_table import ParquetPlace
from spark_jobs.tables.progress import Progress
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import parse_store_url

try:
    _delta: Any = importlib.import_module("deltalake")
    _actions: Any = importlib.import_module("deltalake.transaction")
except ModuleNotFoundError as _error:
    raise MissingExtraError(
        f"Delta tables need {_error.name}, which is not installed; nothing was written", remedy=INSTALL_DELTA
    ) from _error

PROGRESS, WRITER = "siltstone.progress", "siltstone.writer"
APPLICATION = "siltstone"
_MISREAD = re.compile(r"[#?]|%[0-9A-Fa-f]{2}")
_STATISTICS = {"delta.dataSkippingStatsColumns": "kafka_partition,kafka_offset"}
"""For all writers: bounds of other columns would be bytes of keys and values in the log."""
_LOOKED_BACK = (1, 100, None)
"""The newest commits among which the progress is looked for; None: all that are kept."""
_log = get_logger(__name__)


class DeltaTable:
    """One writer's view of the table, as of `load` or the last commit; made by its first commit."""

    def __init__(self, url: str) -> None:
        """`url` has the form of an object store's: file:///dir, s3://bucket/prefix?endpoint=...&region=... Raises
        BadTableError."""
        self.url = url
        self.place = ParquetPlace(objects=Objects(url))
        place = parse_store_url(url)
        where = str(place.directory) if place.scheme == "file" else place.prefix
        if _MISREAD.search(where):
            raise BadTableError(
                f"{where} cannot be the place of a Delta table: the library would take '#', '?' and '%' with two digits"
                " for parts of a URL",
                remedy="name a directory without them",
            )
        self._uri, self._options = bare_url(place), _storage_options(place.endpoint, place.region)
        self._table: Any = None
        self._unswept: Sweep | None = None
        self._swept: Sweep | None = None
        """The one after which no file is left to delete, as far as this process knows."""

    @property
    def name(self) -> str:
        return self.url

    @property
    def columns(self) -> Any:
        """`pyarrow.Schema`; None if there is no table yet."""
        return None if self._table is None else pa.schema(self._table.schema())

    @property
    def file_count(self) -> int:
        """0: files are not merged; OPTIMIZE is for that."""
        return 0

    @property
    def stem(self) -> str:
        """The first version that our next commit can have. Once another writer has made it, its files are fenced."""
        return f"{self._next_version():010}"

    @property
    def key_indexes(self) -> None:
        """None: the library deletes rows by writing files again."""
        return None

    def keyed_files(self) -> None:
        """None, as `key_indexes`."""
        return

    def load(self) -> Progress | None:
        """Read the table's progress. Raises WrongTableError for a table that somebody else filled, BadProgressError."""
        self._unswept = None
        with self._asked():
            self._table = self._opened() if _delta.DeltaTable.is_deltatable(self._uri, self._options) else None
            if self._table is None:
                check_free(self.place.objects, self.url)
                return None
            check_features(self._table, self.url)
            told = self._told()
        if told is not None:
            check_columns(self.columns.names, self.url)
            sweep = Sweep.told(told)
            self._unswept = None if sweep == self._swept else sweep
            return Progress.from_json(str(told[PROGRESS]))
        ours = self._table.transaction_version(APPLICATION) is not None
        raise WrongTableError(
            f"{self.url} is a Delta table, and no commit that its log still has says up to which offset it was filled",
            remedy="export to another table"
            + ("; keep the log longer than this command pauses (delta.logRetentionDuration)" if ours else ""),
        )

    def _told(self) -> Mapping[str, Any] | None:
        """The information of the commit whose progress is valid now."""
        for count in _LOOKED_BACK:
            newest = self._table.version()
            for commit in self._table.history(count):
                if commit["version"] > newest:
                    continue  # undone
                if PROGRESS in commit:
                    return commit
                if commit.get("operation") == "RESTORE":
                    newest = self._restored(commit)
        return None

    def _restored(self, commit: Mapping[str, Any]) -> int:
        """The version that a RESTORE went back to; if a time named it, the one with its files. -1: none has them."""
        version = str(commit["operationParameters"].get("version"))
        if version.isdigit():
            return int(version)
        files = set(_paths(self._opened(commit["version"])))
        before = range(commit["version"] - 1, -1, -1)
        return next((each for each in before if set(_paths(self._opened(each))) == files), -1)

    @property
    def layout(self) -> Layout:
        """Files have rows of one partition in the order of offsets."""
        return PLAIN

    def ensure(self, columns: Any, sampled: Any, topic: str) -> None:
        """Do nothing: the first commit makes the table."""

    def file_schema(self, columns: Any) -> Any:
        """The columns unchanged: readers know them by their names. Raises WrongTableError, BadTableError."""
        for have in self.columns or ():
            wanted = columns.field(have.name)
            if have.type != wanted.type and can_become(have, wanted):
                raise WrongTableError(
                    f"{self.url} has the column {have.name} as {have.type}, and a Delta table cannot have it as"
                    f" {wanted.type} from now on",
                    remedy="export to another table",
                )
        _schema(columns)
        return columns

    def commit(
        self,
        files: Sequence[WrittenFile],
        columns: Any,
        progress: Progress,
        *,
        replaces: bool,
        dead: Sequence[DeadRows] = (),
    ) -> str:
        """Commit; returns the version. Raises StaleWriterError, CommitUnknownError, BadTableError."""
        if dead:
            raise BugError("rows of a Delta table cannot be deleted one by one")
        schema = _schema(columns)
        if self._table is not None and not self.columns.equals(columns):
            self._add_columns(columns)
        version = self._next_version()
        writer = SystemIds().uuid4().hex
        unswept = {} if self._unswept is None else {UNSWEPT: self._unswept.mark}
        properties = self._properties({PROGRESS: progress.as_json(), WRITER: writer, **unswept})
        adds = [_added(file) for file in files]
        try:
            if self._table is None:
                _actions.create_table_with_add_actions(
                    self._uri,
                    schema,
                    adds,
                    configuration=_STATISTICS,
                    storage_options=self._options,
                    commit_properties=properties,
                )
            else:
                mode = "overwrite" if replaces else "append"
                self._table.create_write_transaction(adds, mode, schema, commit_properties=properties)
        except Exception as error:  # the library's errors have no common root, and do not tell whether it happened
            self._raise_unless_ours(version, writer, error)
        with self._asked():
            self._table = self._opened(version)
        return str(version)

    def held_rows(self, low: int, high: int) -> Any:
        """The place in the log of the rows with offsets from `low` to below `high`, as of `load` or the last commit.

        Raises PlaceUnavailableError.
        """
        wanted = [("kafka_offset", ">=", low), ("kafka_offset", "<", high)]
        with self._asked():
            return self._table.to_pyarrow_table(columns=["kafka_partition", "kafka_offset"], filters=wanted)

    def rewrite(self, groups: Sequence[Sequence[KeyedFile]], progress: Progress) -> None:
        raise BugError("files of a Delta table have no key indexes")

    # ---- erasing

    def erase(self, gone: GoneRows, progress: Progress, *, by_index: bool, now_ms: int) -> Erased | None:
        """Raises as `commit`."""
        if (why := self._why_kept()) is not None:
            _log.warning(
                "rows of the table cannot be erased: export to another table, and drop this one",
                table=self.url,
                reason=why,
            )
            return None
        rows, removed, added = 0, list[DataFile](), list[NewFile]()
        for file in self._data_files():
            found, new = self._without(file, gone)
            if found:
                rows += found
                removed.append(file)
                added += new
        version, writer = self._next_version(), SystemIds().uuid4().hex
        requests = ",".join(map(str, sorted(gone.requests)))
        told = {PROGRESS: progress.as_json(), WRITER: writer, ERASURES: requests}
        entry = replacing_entry(removed, added, told, (APPLICATION, self._transactions() + 1), now_ms)
        try:
            self.place.objects.put(log_key(version), entry)
        except Exception as error:
            try:
                self._raise_unless_ours(version, writer, error)
            except StaleWriterError:
                self.place.remove([file.written.name for file in added])
                raise
        with self._asked():
            self._table = self._opened(version)
        self._unswept = Sweep(version, now_ms)
        self.finish_erasures(now_ms)
        return Erased(rows, len(removed), gone.requests)

    def finish_erasures(self, now_ms: int) -> None:
        """Delete what erasures took from the table, also those of a process that ended before. Errors are told."""
        sweep = self._unswept  # what earlier ones left is older, too
        if sweep is None:
            return
        try:
            with self._asked():
                self._sweep(sweep.version)
            if now_ms - sweep.at_ms >= SETTLED_MS:
                self._unswept, self._swept = None, sweep
        except SiltstoneError as error:
            _log.warning(
                "files with erased rows could not be deleted yet; the next run tries again",
                table=self.url,
                reason=error.message,
            )

    def _sweep(self, version: int) -> None:
        """Delete all files that the table, or a writer that was fenced, had before a version, and that neither it has
        nor the newest: somebody may have restored the table to an earlier one before its files were deleted."""
        table = self._opened(version)
        left: set[str] = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))

        async def ours(store: ObjectStore) -> list[str]:
            return [stat.key async for stat in store.list("p") if _is_before(stat.key, version)]

        left.update(self.place.objects.call(ours))
        # A checkpoint forgets files that went long ago, also if nobody ran VACUUM since.
        newest = self._opened()
        forgotten = newest.vacuum(dry_run=True, full=True)
        left.update(each for each in forgotten if "/" not in each and each.endswith(".parquet"))
        self.place.remove(sorted(left.difference(_paths(table), _paths(newest))))

    def _why_kept(self) -> str | None:
        """The reason why files of this table cannot be written again; None: there is none."""
        features = self._table.protocol().writer_features or ()
        configuration = self._table.metadata().configuration
        if configuration.get("delta.appendOnly") == "true":
            return "it is append-only (delta.appendOnly)"
        if "deletionVectors" in features:
            return "it has deletion vectors (delta.enableDeletionVectors)"
        return None

    def _data_files(self) -> Sequence[DataFile]:
        with self._asked():
            rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [DataFile(row["path"], row["size_bytes"], _offsets_of(row)) for row in rows]

    def _without(self, file: DataFile, gone: GoneRows) -> tuple[int, Sequence[NewFile]]:
        """The number of those rows in a file, and if there are some, the files to take its place."""
        known = file.offsets
        if known is not None and not gone.may_be_in(*known):
            return 0, ()
        at = known or Offsets(0, 0, 0)
        system, root = file_system(self.url)
        with self._asked(), system.open_input_file(f"{root}/{file.path}") as stream:
            writer = FileWriter(
                place=self.place,
                key_indexes=None,
                schema=schema_of(stream),
                partition=at.partition,
                start=at.first,
                stem=self.stem,
            )
            found = write_without(stream, gone, writer, at.last + 1)
        # With the bounds of the old file, also if there are several: other programs may have sorted its rows.
        return found, [NewFile(new, known) for new in writer.written]

    # ---- inside

    def _next_version(self) -> int:
        return 0 if self._table is None else self._table.version() + 1

    def _transactions(self) -> int:
        """The number of our commits."""
        return 0 if self._table is None else self._table.transaction_version(APPLICATION) or 0

    def _add_columns(self, columns: Any) -> None:
        have = {each.name: each for each in self.columns}
        new = {each.name for each in columns if each.name not in have or have[each.name].type != each.type}
        fields = [each for each in _schema(columns).fields if each.name in new]
        version = self._table.version() + 1
        try:
            self._table.alter.add_columns(fields, commit_properties=self._properties({}))
        except Exception as error:
            raise StaleWriterError(f"columns cannot be added to {self.url}: {first_line(error)}") from error
        with self._asked():
            self._table = self._opened()
        if self._table.version() != version:
            raise StaleWriterError(f"somebody else committed to {self.url}")

    def _properties(self, told: dict[str, str]) -> Any:
        """`told`: the information of the commit. It is a commit of ours if there is some."""
        ours = [_delta.Transaction(APPLICATION, self._transactions() + 1)] if told else None
        return _delta.CommitProperties(custom_metadata=told, max_commit_retries=0, app_transactions=ours)

    def _raise_unless_ours(self, version: int, writer: str, error: Exception) -> None:
        """Find out whether a commit that ended with an error has happened. Raises StaleWriterError and
        CommitUnknownError if it has not, or not yet."""
        key = log_key(version)
        try:
            stored = self.place.objects.call(lambda store: store.get(key))
        except ObjectNotFoundError:
            raise CommitUnknownError(
                f"it is not known whether the commit to {self.url} happened: {first_line(error)}",
                remedy="run the export again: it reads the table's offsets and goes on from there",
            ) from error
        actions = [json.loads(line) for line in stored.splitlines() if line.strip()]
        if not any(each.get("commitInfo", {}).get(WRITER) == writer for each in actions):
            raise StaleWriterError(f"somebody else made version {version} of {self.url}") from error

    def _opened(self, version: int | None = None) -> Any:
        return _delta.DeltaTable(self._uri, version=version, storage_options=self._options)

    @contextmanager
    def _asked(self) -> Generator[None]:
        """A block around calls of the library that only read."""
        try:
            yield
        except SiltstoneError:
            raise
        except Exception as error:
            raise PlaceUnavailableError(
                f"the Delta table {self.url} cannot be read now: {first_line(error)}",
                remedy="check that its place can be reached and that its log is whole",
            ) from error


def _schema(columns: Any) -> Any:
    """Raises BadTableError."""
    try:
        return _delta.Schema.from_arrow(columns)
    except Exception as error:
        raise BadTableError(
            f"a Delta table cannot have these columns: {first_line(error)}",
            remedy="leave the column out of the schema, or export to iceberg: or parquet:",
        ) from error


def _added(file: WrittenFile) -> Any:
    now_ms = int(SystemClock().wall_ms())
    bounds = Offsets(file.partition, file.start, file.end - 1)
    return _actions.AddAction(file.name, file.size_bytes, {}, now_ms, True, statistics(file.rows, bounds))


def _offsets_of(row: Mapping[str, Any]) -> Offsets | None:
    """The bounds that a file's statistics tell; None if they are missing, or those of several partitions."""
    low, high = (row.get(f"{bound}.kafka_partition") for bound in ("min", "max"))
    first, last = (row.get(f"{bound}.kafka_offset") for bound in ("min", "max"))
    if low is None or low != high or first is None or last is None:
        return None
    return Offsets(low, first, last)


def _paths(table: Any) -> list[str]:
    return pa.table(table.get_add_actions()).column("path").to_pylist()


def _is_before(name: str, version: int) -> bool:
    """Whether a file of ours was written for a commit up to this version."""
    found = OUR_FILE.fullmatch(name)
    return found is not None and int(found[1]) <= version


def _storage_options(endpoint: str, region: str) -> dict[str, str]:
    """The library's options; credentials come from the AWS chain."""
    options = {"AWS_CONDITIONAL_PUT": "etag"}
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return options | ({"AWS_REGION": region} if region else {})
