"""From a topic to a table, exactly once.

One run: pin the topic and take a snapshot; read the table's end; plan the records in between; write files; commit them
with the offsets they end at. Large runs commit in groups of `commit_bytes`. A crash before a commit leaves files that
nobody names, and the next run begins at the end of the last commit. A fenced run removes its files, reads the offsets
again and decides again: mostly the other writer has done the work.

Columns are found as the values are read (`spark_jobs/tables/file_task.py`). A new table begins with the columns of a
sample. Slices that turn out to have more are written again, with all columns of the group, before the commit. Columns
are only added; none changes its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from metadata.contract.readers import TopicSnapshot
from runtime.logging import get_logger
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import LATEST_VIEW, LOG, AtTimestamp, Edge, ScanOptions, Slice
from spark_jobs.scan.plan import plan_slices
from spark_jobs.tables.columns.convert import BASE_NAMES, Converter, ValueFormat, table_schema, value_fields
from spark_jobs.tables.columns.kinds import COLUMNS_MAX, Kind, shown, size
from spark_jobs.tables.errors import StaleWriterError, WrongTableError
from spark_jobs.tables.file_task import (
    Place,
    SliceReader,
    WriteResult,
    WriteTask,
    WrittenFile,
    all_seen,
    same,
    wanted_columns,
)
from spark_jobs.tables.progress import (
    LATEST_MODE,
    Progress,
    check_begin,
    check_same,
    ends,
    fresh,
    in_groups,
    start_offsets,
    unchanged,
)

SLICE_BYTES = 64 << 20
COMMIT_BYTES = 4 << 30
"""The bytes of the log in one commit."""
SAMPLE_RECORDS = 1_000
TRIES = 10
"""The most times in a row that other writers may be quicker."""
From = Edge | AtTimestamp | Mapping[int, int] | int
_log = get_logger(__name__)


class Table(Protocol):
    """One writer's view of a table: Parquet files or Iceberg."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Any: ...
    @property
    def stem(self) -> str: ...
    @property
    def place(self) -> Place: ...
    def load(self) -> Progress | None: ...
    def ensure(self, columns: Any, topic: str) -> None: ...
    def file_schema(self, columns: Any) -> Any: ...
    def commit(self, files: Sequence[WrittenFile], columns: Any, progress: Progress, *, replaces: bool) -> str: ...


class Pinned(Protocol):
    @property
    def snapshot(self) -> TopicSnapshot: ...

    def check(self) -> None:
        """Raises PinLostError when files of the snapshot may be gone."""
        ...


class Source(Protocol):
    """The topic to read."""

    @property
    def reader(self) -> SliceReader: ...

    def pinned(self) -> AbstractContextManager[Pinned]:
        """A snapshot that can be read as long as the block lasts."""
        ...

    def at_time(self, snapshot: TopicSnapshot, timestamp_ms: int) -> Mapping[int, int]: ...


class Engine(Protocol):
    """The engine that runs tasks."""

    name: str

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        """Run all tasks; results are in the same order, and `done` is called with the number of finished ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run."""

    commits: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    errors: int = 0
    """The rows among them with something in `kafka_error`."""
    size_bytes: int = 0
    fenced: int = 0
    """The number of times that another writer was quicker."""
    offsets: Mapping[int, tuple[int, int]] | None = None
    """Partition -> from, up to: the offsets that this run read. After a fence, records that another writer committed in
    between may lie in the range."""
    added_columns: tuple[str, ...] = ()
    held: Mapping[int, int] | None = None
    """Partition -> the table's present end."""
    behind: int = 0
    """The offsets above it when the run began: those of open transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request for an export."""

    topic: str
    mode: str
    values: ValueFormat
    begin: From = Edge.EARLIEST
    """The begin of a table that holds nothing yet."""
    recreated: bool = False
    skip_lost: bool = False
    slice_bytes: int = SLICE_BYTES
    commit_bytes: int = COMMIT_BYTES


ShowProgress = Callable[[int, int], None]
"""Slices done, of all slices."""


def export(source: Source, table: Table, choose: Callable[[int], Engine], ask: Ask, show: ShowProgress) -> Report:
    """One run. `choose` gives the engine for a number of bytes of the log.

    Raises WrongTableError, RecreatedTopicError, BadValueError, StaleWriterError (others were quicker each time), and
    the errors of the scan and of the table's store.
    """
    report = Report()
    for fenced in range(TRIES):
        with source.pinned() as pinned:
            run = _Run(source, table, choose, ask, show, pinned, report)
            try:
                return replace(run.go(), fenced=fenced)
            except StaleWriterError as error:
                # Groups that were committed before the fence stay in the table, so they stay in the report.
                report = run.report
                _log.warning("another writer was quicker: reading the table's offsets again", reason=error.message)
    raise StaleWriterError(
        f"others committed to {table.name} before us, {TRIES} times in a row",
        remedy="one export per table is enough: stop the others",
    )


class _Run:
    def __init__(
        self,
        source: Source,
        table: Table,
        choose: Callable[[int], Engine],
        ask: Ask,
        show: ShowProgress,
        pinned: Pinned,
        report: Report,
    ) -> None:
        """`report`: the commits of earlier tries, to which this one adds its own."""
        self._source, self._table, self._choose = source, table, choose
        self._ask, self._show, self._pinned = ask, show, pinned
        self._snapshot = pinned.snapshot
        self._given = ask.values.given_fields()
        self.report = report
        self._warned = False

    def go(self) -> Report:
        ask, snapshot, table = self._ask, self._snapshot, self._table
        values = ask.values.text
        progress = check_same(table.load(), snapshot, mode=ask.mode, values=values, recreated=ask.recreated)
        latest = ask.mode == LATEST_MODE
        if latest and progress is not None and unchanged(progress, snapshot):
            return self._ended(progress)
        begins = start_offsets(snapshot, progress, self._wanted_start() if progress is None else Edge.EARLIEST)
        if latest:
            begins = {each.partition: each.log_start_offset for each in snapshot.partitions}
        options = ScanOptions(
            topic=ask.topic,
            starting=begins,
            ending=ends_of(begins, ends(snapshot)),
            view=LATEST_VIEW if latest else LOG,
            fail_on_data_loss=not ask.skip_lost,
        )
        slices = plan_slices(snapshot, options, slice_bytes=ask.slice_bytes)
        base = fresh(snapshot, ask.mode, values, begins)
        self._begin_table(slices, options)
        engine = self._choose(sum(part.bytes for part in slices))
        groups = [list(slices)] if latest else in_groups([(part.bytes, part) for part in slices], ask.commit_bytes)
        done = 0
        if slices:
            self._show(done, len(slices))
        for group in groups if slices else []:
            results = self._written(engine, group, options, done, len(slices))
            done += len(group)
            base = self._commit(results, base, replaces=latest)
        if not slices and (progress is None or latest):
            base = fresh(snapshot, ask.mode, values, ends(snapshot)) if latest else base
            self._commit([], base, replaces=latest)
        return self._ended(base)

    def _ended(self, held: Progress) -> Report:
        marks = {each.partition: each.high_watermark for each in self._snapshot.partitions}
        behind = sum(max(0, mark - held.offsets.get(partition, 0)) for partition, mark in marks.items())
        return replace(self.report, held=held.offsets, behind=behind)

    def _wanted_start(self) -> Mapping[int, int] | Edge:
        begin = self._ask.begin
        if isinstance(begin, AtTimestamp):
            return self._source.at_time(self._snapshot, begin.timestamp_ms)
        if isinstance(begin, int):
            if not self._ask.skip_lost:
                check_begin(self._snapshot, begin)
            return {each.partition: begin for each in self._snapshot.partitions}
        return begin

    # ---- columns

    def _fixed(self) -> Any:
        """The value's columns in the table, with those of a given schema. Raises WrongTableError."""
        columns = self._table.columns
        have = [] if columns is None else value_fields(columns)
        names = {field.name: field for field in have}
        for field in self._given:
            known = names.get(field.name)
            if known is not None and not known.equals(field, check_metadata=True):
                raise WrongTableError(
                    f"{self._table.name} has the column {field.name} as {known.type}, the schema as {field.type}",
                    remedy="export to another table",
                )
        return pa.schema(have + [field for field in self._given if field.name not in names])

    def _begin_table(self, slices: Sequence[Slice], options: ScanOptions) -> None:
        """The first columns; a table that does not exist yet is made with them."""
        fixed = self._fixed()
        self._columns = fixed
        if self._table.columns is None and self._ask.values.infers and slices:
            self._columns = wanted_columns(fixed, self._sampled(slices[0], options))
        self._table.ensure(self._whole(fixed), self._snapshot.topic.name)

    def _sampled(self, part: Slice, options: ScanOptions) -> Any:
        sample, held = Converter(replace(self._ask.values, on_error="column"), []), 0
        for batch in self._source.reader.read(part, options):
            sample.convert(batch.slice(0, SAMPLE_RECORDS))
            held += batch.num_rows
            if held >= SAMPLE_RECORDS:
                break
        return sample.seen

    def _whole(self, fields: Any) -> Any:
        """All columns of the table: those it has, and those of files with these columns of the value."""
        columns = self._table.columns
        ours = table_schema(self._ask.values, list(fields))
        if columns is None:
            return ours
        newer = {field.name: field for field in ours}
        kept = [newer.pop(field.name, field) if field.name not in BASE_NAMES else field for field in columns]
        return pa.schema(kept + [field for name, field in newer.items() if columns.get_field_index(name) < 0])

    # ---- one group

    def _written(
        self, engine: Engine, group: Sequence[Slice], options: ScanOptions, done: int, total: int
    ) -> list[WriteResult]:
        """The files of all slices, with columns that hold everything."""
        fixed = self._fixed()
        tasks = [self._task(part, options, fixed) for part in group]
        results = list(engine.run(tasks, lambda count: self._show(done + count, total)))
        if not self._ask.values.infers:
            return results
        seen = all_seen(results)
        wanted = wanted_columns(fixed, seen)
        self._warn_of_width(wanted, seen)
        again = [
            number
            for number, (task, result) in enumerate(zip(tasks, results, strict=True))
            if not result.complete or not same(task.columns, wanted)
        ]
        if again:
            self._columns = wanted
            # Nobody will commit them: the same slices are written again with better columns.
            self._remove([results[number] for number in again])
            redone = engine.run(
                [replace(self._task(group[number], options, fixed), final=True) for number in again],
                lambda _count: None,
            )
            for number, result in zip(again, redone, strict=True):
                results[number] = result
        self._columns = wanted
        return results

    def _warn_of_width(self, wanted: Any, seen: Kind) -> None:
        """Warn, once per run, that values have more fields than a table may have columns."""
        if self._warned or sum(map(size, wanted)) < COLUMNS_MAX or not isinstance(seen, tuple):
            return
        without = [name for name, _ in seen[1] if wanted.get_field_index(name) < 0]
        if without:
            self._warned = True
            _log.warning(
                "values have more fields than a table has columns: the rest stays in kafka_value, with kafka_error",
                table=self._table.name,
                columns_max=COLUMNS_MAX,
                without_column=len(without),
                first=shown(without[0]),
            )

    def _task(self, part: Slice, options: ScanOptions, fixed: Any) -> WriteTask:
        return WriteTask(
            part=part,
            options=options,
            reader=self._source.reader,
            place=self._table.place,
            values=self._ask.values,
            fixed=fixed,
            columns=self._columns,
            file_schema=self._table.file_schema(self._whole(self._columns)),
            stem=self._table.stem,
        )

    def _commit(self, results: Sequence[WriteResult], base: Progress, *, replaces: bool) -> Progress:
        files = [file for result in results for file in result.files]
        moved = base.moved({result.partition: result.end for result in results})
        before: set[str] = set() if self._table.columns is None else set(self._table.columns.names)
        columns = self._whole(self._columns)
        self._pinned.check()  # files that a lost pin released may be missing
        try:
            name = self._table.commit(files, columns, moved, replaces=replaces)
        except StaleWriterError:
            self._remove(results)
            raise
        report = self.report
        offsets = dict(report.offsets or {})
        for result in results:
            offsets[result.partition] = (offsets.get(result.partition, (result.start, 0))[0], result.end)
        self.report = replace(
            report,
            commits=(*report.commits, name),
            files=report.files + len(files),
            rows=report.rows + sum(result.rows for result in results),
            errors=report.errors + sum(result.errors for result in results),
            size_bytes=report.size_bytes + sum(file.size_bytes for file in files),
            offsets=offsets,
            added_columns=(*report.added_columns, *(each for each in columns.names if each not in before)),
        )
        return moved

    def _remove(self, results: Sequence[WriteResult]) -> None:
        self._table.place.remove([file.name for result in results for file in result.files])


def ends_of(begins: Mapping[int, int], limits: Mapping[int, int]) -> dict[int, int]:
    """The end of each partition, or its begin if that is higher: below the records of open transactions."""
    return {number: max(begins[number], limits[number]) for number in begins}
