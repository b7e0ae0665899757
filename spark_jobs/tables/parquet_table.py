"""A table as a directory of Parquet files, with a log of commits beside them.

`p<partition>-<start>-<end>-<sequence>-<id>.parquet` are the rows, `_siltstone/<sequence>.json` the commits, from 1 on.
A commit names the files that it adds (or that replace all before it), the columns, and the offsets that the table then
holds. It is written if absent, which makes the sequence the fence: of two writers that read the same table one wins,
and the other reads again. Files come first, the commit last; a crash in between leaves files that no commit names.

**Readers and restarts go by the commits.** A file can be committed only under the sequence in its name. So once that
commit exists without naming the file, no commit ever will, and the file is removed: by its writer when it is fenced,
otherwise by the next commit and by the next run. Between a crash and that moment a listing of the directory shows too
many files.

**Erasures** name all files of the table again, with new ones in place of those that had erased rows. Such a commit has
a format of its own: an older release, which would take files of earlier commits for replaced ones, refuses it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import BugError
from runtime.ids import SystemIds
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.contract import DeadRows, KeyedFile
from spark_jobs.tables.delta.log_entry import LOG
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.erasing.parquet_file import schema_of, write_without
from spark_jobs.tables.errors import PlaceUnavailableError, StaleWriterError, TableError, WrongTableError
from spark_jobs.tables.file_systems import file_system
from spark_jobs.tables.file_writer import FileWriter, WrittenFile
from spark_jobs.tables.layout.layout import PLAIN, Layout
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.progress import BadProgressError, Progress
from storage.objects import ObjectExistsError, ObjectStore

COMMITS = "_siltstone/"
FORMAT, KEEPING_FORMAT = 1, 2
"""The second is that of a commit that replaces the table, but keeps files of earlier commits."""
SWEPT_BACK = 100
"""The newest commits in which a run looks, when it begins, for files that were left behind."""
_REMEDY = "check the place and the rights to it"
_COMMIT = re.compile(r"_siltstone/(\d{10})\.json", re.ASCII)
_FILE = re.compile(r"p(\d{5,})-(\d{19})-(\d{19})-(\d{10})-[0-9a-f]{12}\.parquet", re.ASCII)


class BadCommitError(TableError):
    """A commit file that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    sequence: int
    writer: str
    """A random id, so that no two writers' commits have the same bytes."""
    replaces: bool
    """Whether the files are the whole table."""
    files: tuple[str, ...]
    rows: int
    """The rows of new files."""
    columns: Any
    """`pyarrow.Schema` of all columns of the table."""
    progress: Progress
    keeps: bool = False
    """Whether files of earlier commits are among the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPlace:
    objects: Objects

    def put(self, name: str, body: memoryview) -> None:
        self.objects.put(name, body)

    def remove(self, names: Sequence[str]) -> None:
        self.objects.remove(names)


class ParquetTable:
    """One writer's view of the directory, as of `load`."""

    def __init__(self, url: str) -> None:
        """`url` has the form of an object store's: file:///dir, s3://bucket/prefix?endpoint=...&region=..."""
        self.url = url
        self.place = ParquetPlace(objects=Objects(url))
        self._newest: Commit | None = None
        self._swept = False
        self._erased_ms: int | None = None
        """The time of an erasure of this process. Writers that it fenced may still put files."""

    @property
    def name(self) -> str:
        return self.url

    @property
    def columns(self) -> Any:
        """`pyarrow.Schema` that the table has for good; None before its first commit."""
        return None if self._newest is None else self._newest.columns

    @property
    def key_indexes(self) -> None:
        """None: readers know no dead rows."""
        return None

    @property
    def file_count(self) -> int:
        """0: files are not merged, because readers of the directory would miss them."""
        return 0

    def keyed_files(self) -> None:
        """None, as `key_indexes`."""
        return

    @property
    def stem(self) -> str:
        """The part of the file names that belongs to our next commit."""
        return f"{self._sequence():010}"

    def load(self) -> Progress | None:
        """Read the table's progress. Raises BadCommitError, WrongTableError."""
        self._newest = self.place.objects.call(_newest)
        if self._newest is None and self.place.objects.has(LOG):
            raise WrongTableError(
                f"{self.url} is a Delta table, whose files would be removed as those of killed exports",
                remedy="name another directory, or write --to delta:...",
            )
        if not self._swept:
            is_whole = self._newest is not None and self._newest.replaces
            self._sweep(1 if is_whole else max(1, self._sequence() - SWEPT_BACK))
            self._swept = True
        return None if self._newest is None else self._newest.progress

    @property
    def layout(self) -> Layout:
        return PLAIN

    def ensure(self, columns: Any, sampled: Any, topic: str) -> None:
        """Do nothing: the first commit makes the table."""

    def file_schema(self, columns: Any) -> Any:
        """The columns unchanged: readers know them by their names."""
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
        """Commit; returns the commit's name. Raises StaleWriterError. After any other error only `load` tells whether
        it happened.
        """
        if dead:
            raise BugError("rows of a Parquet file cannot be deleted one by one")
        commit = Commit(
            sequence=self._sequence(),
            writer=SystemIds().uuid4().hex,
            replaces=replaces,
            files=tuple(file.name for file in files),
            rows=sum(file.rows for file in files),
            columns=columns,
            progress=progress,
        )
        self._put(commit)
        return str(commit.sequence)

    def erase(self, gone: GoneRows, progress: Progress, *, by_index: bool, now_ms: int) -> Erased:
        """Raises as `commit`."""
        files = live_files(self.url)
        rows, kept, written = 0, list[str](), list[WrittenFile]()
        hit = 0
        for name in files:
            found, new = self._without(name, gone)
            kept += [name] if not found else [file.name for file in new]
            written += new
            rows, hit = rows + found, hit + bool(found)
        try:
            self._put(
                Commit(
                    sequence=self._sequence(),
                    writer=SystemIds().uuid4().hex,
                    replaces=True,
                    files=tuple(kept),
                    rows=sum(file.rows for file in written),
                    columns=self.columns,
                    progress=progress,
                    keeps=True,
                )
            )
        except StaleWriterError:
            self.place.remove([file.name for file in written])
            raise
        self._erased_ms = now_ms
        return Erased(rows, hit, gone.requests)

    def finish_erasures(self, now_ms: int) -> None:
        """Remove what fenced writers put since the erasure. What an earlier process left, `load` has removed."""
        if self._erased_ms is None:
            return
        self._sweep(max(1, self._sequence() - SWEPT_BACK))
        if now_ms - self._erased_ms >= SETTLED_MS:
            self._erased_ms = None

    def _without(self, name: str, gone: GoneRows) -> tuple[int, Sequence[WrittenFile]]:
        """The number of those rows in a file, and if there are some, the files to take its place."""
        named = _FILE.fullmatch(name)
        if named is None:
            raise BadCommitError(f"a commit of {self.url} names {name}, which is no file of a table")
        partition, start, end = (int(each) for each in named.groups()[:3])
        if not gone.may_be_in(partition, start, end - 1):
            return 0, ()
        system, root = file_system(self.url)
        try:
            with system.open_input_file(f"{root}/{name}") as stream:
                schema = schema_of(stream)
                writer = FileWriter(
                    place=self.place, key_indexes=None, schema=schema, partition=partition, start=start, stem=self.stem
                )
                return write_without(stream, gone, writer, end), writer.written
        except OSError as error:
            raise PlaceUnavailableError(f"{name} of {self.url} cannot be read: {error}", remedy=_REMEDY) from error

    def _put(self, commit: Commit) -> None:
        """Raises StaleWriterError."""
        try:
            self.place.objects.put(_key(commit.sequence), encode(commit))
        except ObjectExistsError:
            raise StaleWriterError(f"somebody else made commit {commit.sequence} of {self.url}") from None
        self._newest = commit
        self._swept = False
        self._sweep(1 if commit.replaces else commit.sequence)
        self._swept = True

    def held_rows(self, low: int, high: int) -> Any:
        """The place in the log of the rows with offsets from `low` to below `high`. Raises as `open_dataset`."""
        import pyarrow.dataset as _datasets  # pyright: ignore[reportMissingTypeStubs]

        datasets: Any = _datasets
        offset = datasets.field("kafka_offset")
        wanted = ["kafka_partition", "kafka_offset"]
        try:
            return open_dataset(self.url).to_table(columns=wanted, filter=(offset >= low) & (offset < high))
        except OSError as error:
            raise PlaceUnavailableError(
                f"files of the table at {self.url} cannot be read: {error}", remedy=_REMEDY
            ) from error

    def rewrite(self, groups: Sequence[Sequence[KeyedFile]], progress: Progress) -> None:
        raise BugError("files of a Parquet table have no dead rows")

    def _sequence(self) -> int:
        return 1 if self._newest is None else self._newest.sequence + 1

    def _sweep(self, since: int) -> None:
        """Remove files that commits from `since` on could have named and did not, or that were replaced."""
        newest = 0 if self._newest is None else self._newest.sequence
        if newest:
            self.place.remove(self.place.objects.call(lambda store: _left(store, since, newest)))


def has_commits(objects: Objects) -> bool:
    """Whether there is a table of Parquet files."""
    return objects.has(f"{COMMITS}0")  # not the jobs of Spark, which any table has there


def live_files(url: str) -> list[str]:
    """The keys of the files that make up the table, below `url`. Raises BadCommitError."""
    return list(Objects(url).call(_live)[0])


def open_dataset(url: str) -> Any:
    """The table as a `pyarrow.dataset.Dataset`: its committed files, with the columns of its newest commit.

    For file:// and s3:// URLs. Raises BadCommitError, and TableError if there is no table.
    """
    import pyarrow.dataset as datasets  # pyright: ignore[reportMissingTypeStubs]

    from spark_jobs.tables.file_systems import file_system

    files, columns = Objects(url).call(_live)
    if columns is None:
        raise TableError(f"{url} holds no table", remedy="fill it: siltstone tables export TOPIC --to parquet:URL")
    system, root = file_system(url)
    dataset: Any = datasets
    return dataset.dataset([f"{root}/{name}" for name in files], schema=columns, format="parquet", filesystem=system)


# ---- the log of commits -------------------------------------------------------------------------------------------


def encode(commit: Commit) -> bytes:
    row = {
        "format": KEEPING_FORMAT if commit.keeps else FORMAT,
        "sequence": commit.sequence,
        "writer": commit.writer,
        "replaces": commit.replaces,
        "files": commit.files,
        "rows": commit.rows,
        "columns": {field.name: str(field.type) for field in commit.columns},
        "arrow_schema": base64.b64encode(commit.columns.serialize().to_pybytes()).decode(),
        "progress": json.loads(commit.progress.as_json()),
    }
    return json.dumps(row, indent=1).encode()


def decode(text: bytes, name: str) -> Commit:
    """Raises BadCommitError."""
    try:
        row: Mapping[str, Any] = json.loads(text)
        if row["format"] not in (FORMAT, KEEPING_FORMAT):
            raise BadCommitError(
                f"{name} has format {row['format']!r}, but this release reads up to {KEEPING_FORMAT}",
                remedy="export with the release that wrote it, or to another table",
            )
        return Commit(
            sequence=int(row["sequence"]),
            writer=str(row["writer"]),
            replaces=bool(row["replaces"]),
            files=tuple(map(str, row["files"])),
            rows=int(row["rows"]),
            columns=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(row["arrow_schema"]))),
            progress=Progress.from_json(json.dumps(row["progress"])),
            keeps=row["format"] == KEEPING_FORMAT,
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException, BadProgressError) as error:
        raise BadCommitError(f"{name} is not a commit of a table: {error}") from error


def _key(sequence: int) -> str:
    return f"{COMMITS}{sequence:010}.json"


async def _read(store: ObjectStore, sequence: int) -> Commit:
    key = _key(sequence)
    return decode(await store.get(key), key)


async def _newest(store: ObjectStore) -> Commit | None:
    newest = 0
    async for stat in store.list(COMMITS):
        found = _COMMIT.fullmatch(stat.key)
        newest = max(newest, int(found[1]) if found else 0)
    return await _read(store, newest) if newest else None


async def _live(store: ObjectStore) -> tuple[list[str], Any]:
    """The files, and the columns; None if there is no commit."""
    newest = await _newest(store)
    found: list[str] = []
    commit = newest
    while commit is not None:
        # In front, because the log is walked from the newest commit back.
        found[:0] = commit.files
        if commit.replaces or commit.sequence == 1:
            break
        commit = await _read(store, commit.sequence - 1)
    return found, None if newest is None else newest.columns


async def _left(store: ObjectStore, since: int, newest: int) -> list[str]:
    """Files with a sequence from `since` to `newest` that are not, or no longer, part of the table."""
    by_sequence: dict[int, list[str]] = {}
    async for stat in store.list("p"):
        found = _FILE.fullmatch(stat.key)
        if found and since <= int(found[4]) <= newest:
            by_sequence.setdefault(int(found[4]), []).append(stat.key)
    if not by_sequence:
        return []
    last = await _read(store, newest)
    left: list[str] = []
    for sequence, keys in by_sequence.items():
        # A commit that replaces the table names all files that stay.
        commit = last if last.replaces or sequence == newest else await _read(store, sequence)
        left += [key for key in keys if key not in commit.files]
    return left
