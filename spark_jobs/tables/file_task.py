"""One slice of a topic written as Parquet files: the work of an export's task, in this process or inside Spark.

The task reads the slice, turns values into columns, and writes files under names of its own. It commits nothing: the
driver's commit alone puts its files into a table, and a task that dies leaves files that nobody names. If the given
columns turn out not to hold everything, the task writes nothing more, reads on to see the rest, and reports it; the
driver then gives it better columns.

Memory: one file at most (`file_writer.py`) beside that of the scan, and one of dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.tables.columns.convert import FAIL, TAKEN_NAMES, Converter, ValueFormat
from spark_jobs.tables.columns.kinds import NULL, Field, Kind, extended, fits, merge
from spark_jobs.tables.dead_letters.rows import LETTERS, UNJUDGED, Judged, LetterFiles, letters, part_rows
from spark_jobs.tables.file_writer import FileWriter, Place, WrittenFile
from spark_jobs.tables.keyed.key_index import key_hashes
from spark_jobs.tables.layout.layout import PLAIN, Layout


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
    key_indexes: Place | None = None
    """The place for an index of the keys beside each file, for a table whose rows are superseded one by one."""
    layout: Layout = PLAIN
    final: bool = False
    """Whether the columns were made from all values, so that no better ones will come."""
    by_key: bool = False
    """Whether only the last record of each key is written, among those of all tasks of a run."""
    survivors: bytes = b""
    """These records, for a task `by_key`, if an earlier run found them (`spark_jobs/tables/keyed/writes.py`)."""
    letters: LetterFiles | None = None
    """The files for records that do not fit; None: these go into the table, with the reason."""
    judged: Judged = UNJUDGED


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
    survivors: bytes = b""
    """Those of a task `by_key` that may be run again with better columns."""
    letters: tuple[WrittenFile, ...] = ()
    """Files of dead letters."""


def write_slice(task: WriteTask) -> WriteResult:
    """Run one task. Raises the errors of the scan, BadValueError, and the errors of putting a file."""
    return _Writing(task).run()


class _Writing:
    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._may_change = task.values.infers and not task.final
        self._converter = Converter(task.values, list(task.columns), for_now=self._may_change)
        part = task.part
        self._files = FileWriter(
            place=task.place,
            key_indexes=task.key_indexes,
            schema=pa.schema([task.file_schema.field(each.name) for each in self._converter.schema]),
            partition=part.partition,
            start=part.start,
            stem=task.stem,
            layout=task.layout,
        )
        self._letters = _letter_writer(task)
        self._dead_before = task.judged.dead
        self._errors = 0
        self._complete = True
        self._suited: Kind = NULL

    def run(self) -> WriteResult:
        task = self._task
        for batch in task.reader.read(task.part, task.options):
            if not batch.num_rows:
                continue
            converted = self._converter.convert(batch)
            # Reads on without writing, to report the columns of the whole slice at once.
            if not self._still_complete():
                continue
            self._write(batch, converted)
        if self._complete:
            for writer in (self._files, self._letters):
                if writer is not None:
                    writer.close(task.part.end)
        return WriteResult(
            partition=task.part.partition,
            start=task.part.start,
            end=task.part.end,
            rows=sum(file.rows for file in self._files.written),
            errors=self._errors,
            files=tuple(self._files.written),
            complete=self._complete,
            seen=self._converter.seen,
            letters=() if self._letters is None else tuple(self._letters.written),
        )

    def _write(self, batch: Any, converted: Any) -> None:
        """Write a batch of records, and the rows that were made of them, to the files where they belong."""
        offsets = batch.column("offset").to_numpy()
        end = int(offsets[-1]) + 1
        wrong = np.zeros(len(offsets), dtype=bool)
        if "kafka_error" in converted.schema.names:
            wrong = converted.column("kafka_error").is_valid().to_numpy(zero_copy_only=False)
        if self._letters is not None:
            kept, dead = part_rows(offsets, wrong, self._task.judged.below, self._dead_before)
            if dead.any():
                mask = pa.array(dead)
                rows = letters(batch.filter(mask), converted.filter(mask), self._task.options.topic)
                self._letters.write(rows, None, end)
            if not kept.all():
                batch, converted, wrong = batch.filter(pa.array(kept)), converted.filter(pa.array(kept)), wrong[kept]
        self._errors += int(wrong.sum())
        if converted.num_rows:
            hashes = None if self._task.key_indexes is None else key_hashes(batch.column("key"))
            self._files.write(converted, hashes, end)

    def _still_complete(self) -> bool:
        if not (self._complete and self._may_change):
            return self._complete
        if self._task.values.on_error == FAIL and self._converter.errors:
            self._complete = False  # the last columns decide: with them the slice is written, or ends the export
        elif (seen := self._converter.seen) != self._suited:
            self._suited = seen
            self._complete = suits(self._task.columns, self._task.fixed, seen, self._task.layout.names)
        return self._complete


def _letter_writer(task: WriteTask) -> FileWriter | None:
    wanted = task.letters
    if wanted is None:
        return None
    return FileWriter(
        place=wanted.place,
        key_indexes=None,
        schema=pa.schema([wanted.file_schema.field(name) for name in LETTERS.names]),
        partition=task.part.partition,
        start=task.part.start,
        stem=wanted.stem,
        layout=wanted.layout,
    )


def wanted_columns(fixed: Any, seen: Kind, taken: Sequence[str] = ()) -> Any:
    """`pyarrow.Schema` of the columns for everything that was seen, the fixed ones first.

    `taken`: names that no column of this table can have, beside those that none of any table can have.
    """
    return pa.schema(extended(list(fixed), seen, (*TAKEN_NAMES, *taken)))


def suits(columns: Any, fixed: Any, seen: Kind, taken: Sequence[str] = ()) -> bool:
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
        for each in wanted_columns(fixed, seen, taken)
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
