"""One slice of a topic written as Parquet files: the work of an export's task, in this process or inside Spark.

The task reads the slice, turns values into columns, and writes files under names of its own. It commits nothing: the
driver's commit alone puts its files into a table, and a task that dies leaves files that nobody names. If the given
columns turn out not to hold everything, the task writes nothing more, reads on to see the rest, and reports it; the
driver then gives it better columns.

Memory: one file at most (`FILE_BYTES`, compressed) beside that of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]

from runtime.ids import SystemIds
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.tables.columns.convert import TAKEN_NAMES, Converter, ValueFormat
from spark_jobs.tables.columns.kinds import NULL, Field, Kind, extended, fits, merge

FILE_BYTES = 256 << 20
COMPRESSION = "zstd"
ROW_GROUP_BYTES = 32 << 20
"""Arrow's bytes in memory; readers decode one row group at once."""
parquet: Any = _parquet


class Place(Protocol):
    """The place for files; travels to tasks by pickle, without credentials."""

    def put(self, name: str, body: memoryview) -> None:
        """Write a file that nobody has written before."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove files that no commit names, and none can name any more."""
        ...


class SliceReader(Protocol):
    """Yields batches of one slice and opens it where it is called; travels to tasks by pickle."""

    def read(self, part: Slice, options: ScanOptions) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    part: Slice
    options: ScanOptions
    reader: SliceReader
    place: Place
    values: ValueFormat
    fixed: Any
    """`pyarrow.Schema` of the value's columns that the table has for good."""
    columns: Any
    """`pyarrow.Schema` of the columns to write."""
    file_schema: Any
    """`pyarrow.Schema` of the files' columns, by name, with the table's additions: field ids."""
    stem: str
    """A part of the names of its files."""
    final: bool = False
    """Whether the columns were made from all values, so that no better ones will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    name: str
    partition: int
    start: int
    """The first offset it stands for."""
    end: int
    """Exclusive."""
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    partition: int
    start: int
    end: int
    rows: int
    errors: int
    files: tuple[WrittenFile, ...]
    complete: bool
    """False: the columns did not hold everything, so `files` must not be committed."""
    seen: Kind


@dataclass(slots=True)
class _OpenFile:
    sink: Any
    writer: Any
    rows: int = 0
    pending: list[Any] = field(default_factory=list[Any])
    pending_bytes: int = 0

    def write(self, batch: Any) -> None:
        self.rows += batch.num_rows
        self.pending.append(batch)
        self.pending_bytes += batch.nbytes
        if self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            self.writer.write_table(pa.Table.from_batches(self.pending))
            self.pending, self.pending_bytes = [], 0

    def close(self) -> memoryview:
        self.flush()
        self.writer.close()
        return memoryview(self.sink.getvalue())


def write_slice(task: WriteTask) -> WriteResult:
    """Run one task. Raises the errors of the scan, BadValueError, and the errors of putting a file."""
    return _Writing(task).run()


class _Writing:
    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._converter = Converter(task.values, list(task.columns))
        self._files: list[WrittenFile] = []
        self._open: _OpenFile | None = None
        self._start = task.part.start
        self._rows = 0
        self._complete = True
        self._judged: Kind = NULL

    def run(self) -> WriteResult:
        task = self._task
        last = task.part.start - 1
        for batch in task.reader.read(task.part, task.options):
            if not batch.num_rows:
                continue
            converted = self._converter.convert(batch)
            # Reads on without writing, to report the columns of the whole slice at once.
            if not self._still_complete():
                continue
            last = int(batch.column(batch.schema.get_field_index("offset"))[batch.num_rows - 1].as_py())
            self._rows += batch.num_rows
            self._file().write(converted)
            if self._open is not None and self._open.sink.tell() >= FILE_BYTES:
                self._close(last + 1)
        if self._open is not None and self._complete:
            self._close(task.part.end)
        return WriteResult(
            partition=task.part.partition,
            start=task.part.start,
            end=task.part.end,
            rows=self._rows,
            errors=self._converter.errors,
            files=tuple(self._files),
            complete=self._complete,
            seen=self._converter.seen,
        )

    def _still_complete(self) -> bool:
        seen = self._converter.seen
        if self._complete and not self._task.final and seen != self._judged:
            self._judged = seen
            self._complete = suits(self._task.columns, self._task.fixed, seen)
        return self._complete

    def _file(self) -> _OpenFile:
        if self._open is None:
            # In memory, because `Place.put` takes a whole file.
            sink = pa.BufferOutputStream()
            schema = pa.schema([self._task.file_schema.field(each.name) for each in self._converter.schema])
            writer = parquet.ParquetWriter(sink, schema, compression=COMPRESSION)
            self._open = _OpenFile(sink, writer)
        return self._open

    def _close(self, end: int) -> None:
        if self._open is None:
            return
        body = self._open.close()
        part = self._task.part
        name = file_name(part.partition, self._start, end, self._task.stem)
        self._task.place.put(name, body)
        self._files.append(
            WrittenFile(
                name=name,
                partition=part.partition,
                start=self._start,
                end=end,
                rows=self._open.rows,
                size_bytes=body.nbytes,
            )
        )
        self._start, self._open = end, None


def file_name(partition: int, start: int, end: int, stem: str) -> str:
    """Names sort by partition and offset; `end` is exclusive. No two attempts at one task make the same name."""
    return f"p{partition:05}-{start:019}-{end:019}-{stem}-{SystemIds().uuid4().hex[:12]}.parquet"


def wanted_columns(fixed: Any, seen: Kind) -> Any:
    """`pyarrow.Schema` of the columns for everything that was seen, the fixed ones first."""
    return pa.schema(extended(list(fixed), seen, TAKEN_NAMES))


def suits(columns: Any, fixed: Any, seen: Kind) -> bool:
    """Whether these are the best columns for everything that was seen: all that could be made to fit does."""
    kinds: dict[str, Kind] = dict(seen[1]) if isinstance(seen, tuple) else {}
    have: dict[str, Field] = {each.name: each for each in columns}
    settled = set(fixed.names)
    return all(
        each.name in have
        and (
            have[each.name].equals(each, check_metadata=True)
            or (each.name not in settled and fits(kinds[each.name], have[each.name]))
            or (each.name in settled and each.name not in kinds)
        )
        for each in wanted_columns(fixed, seen)
    )


def same(columns: Any, wanted: Any) -> bool:
    """Whether files with these columns equal files with those: all new columns of a commit get field ids."""
    have: dict[str, Field] = {each.name: each for each in columns}
    return len(have) == len(wanted) and all(
        each.name in have and have[each.name].equals(each, check_metadata=True) for each in wanted
    )


def all_seen(results: Sequence[WriteResult]) -> Kind:
    whole: Kind = NULL
    for result in results:
        whole = merge(whole, result.seen)
    return whole
