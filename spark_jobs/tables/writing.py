"""One try of a run: the columns of its files, the files, and their commits.

Columns are found as the values are read (`spark_jobs/tables/file_task.py`). A new table begins with the columns of a
sample. Slices that turn out to have more are written again, with all columns of the group, before the commit. Columns
are only added; none changes its type, but for a wider one that a newer schema file asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.errors import BugError
from runtime.logging import get_logger
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.tables.columns.convert import BASE_NAMES, Converter, table_schema, value_fields
from spark_jobs.tables.columns.kinds import COLUMNS_MAX, NULL, Field, Kind, shown, size
from spark_jobs.tables.columns.widening import can_become
from spark_jobs.tables.contract import Ask, DeadRows, Engine, Pinned, Report, ShowProgress, Source, Table
from spark_jobs.tables.dead_letters.rows import UNJUDGED
from spark_jobs.tables.dead_letters.table import DeadLetters
from spark_jobs.tables.erasing.run import Erasing
from spark_jobs.tables.errors import CommitRefusedError, StaleWriterError, WrongTableError
from spark_jobs.tables.file_task import SliceReader, WriteResult, WriteTask, all_seen, same, wanted_columns
from spark_jobs.tables.keyed.key_index import index_name
from spark_jobs.tables.progress import LATEST_MODE, Progress, ends

SAMPLE_RECORDS = 1_000
_log = get_logger(__name__)


class Writing:
    """The parts of a run that logs and latest views share."""

    def __init__(
        self,
        source: Source,
        table: Table,
        ask: Ask,
        show: ShowProgress,
        pinned: Pinned,
        report: Report,
        dead_letters: Table | None,
    ) -> None:
        """`report`: the commits of earlier tries, to which this one adds its own."""
        self.table, self.ask, self.snapshot, self.report = table, ask, pinned.snapshot, report
        self.source = source
        self.show, self._pinned = show, pinned
        self.erasing = Erasing(table, pinned)
        self._letters = None if dead_letters is None else DeadLetters(dead_letters, self.erasing.of(dead_letters))
        self._given = ask.values.given_fields()
        self._warned = False
        self.by_key = False
        """Whether tasks write only the last record of each key, among those of all tasks."""

    def scan_from(self, begins: Mapping[int, int]) -> ScanOptions:
        """The scan of the committed records from these offsets on, by partition."""
        # An end may lie below the begin: the table then begins behind an open transaction.
        limits = ends(self.snapshot)
        return ScanOptions(
            topic=self.ask.topic,
            starting=begins,
            ending={number: max(begin, limits[number]) for number, begin in begins.items()},
            fail_on_data_loss=not self.ask.skip_lost,
        )

    # ---- columns

    def _fixed(self) -> Any:
        """The value's columns in the table, with those of a given schema. Raises WrongTableError."""
        columns = self.table.columns
        fields: dict[str, Field] = {} if columns is None else {each.name: each for each in value_fields(columns)}
        for field in self._given:
            known = fields.get(field.name)
            if known is not None and not can_become(known, field):
                raise WrongTableError(
                    f"{self.table.name} has the column {field.name} as {known.type}, the schema as {field.type}",
                    remedy="export to another table; a column can only grow from int to long, from float to double, and"
                    " to a decimal of more digits before the point",
                )
            fields[field.name] = field
        return pa.schema(list(fields.values()))

    def begin_table(self, slices: Sequence[Slice], options: ScanOptions) -> None:
        """The first columns; a table that does not exist yet is made with them."""
        fixed, seen = self._fixed(), NULL
        if self.table.columns is None and self.ask.values.infers and slices:
            # By key, the newest records are those that are likely to survive.
            seen = self._sampled(slices[-1 if self.by_key else 0], options)
        sampled = self._whole(wanted_columns(fixed, seen))
        self.table.ensure(self._whole(fixed), sampled, self.snapshot.topic.name)
        self._columns = wanted_columns(self._fixed(), seen, self.table.layout.names)
        if self._letters is not None:
            self._letters.begin(slices, self.snapshot.topic.name)

    def load_dead_letters(self, *, filled: bool) -> None:
        """Read the progress of the dead letters. `filled`: the table has records. Raises as `DeadLetters.load`."""
        if self._letters is not None:
            self._letters.load(self.snapshot, mode=self.ask.mode, values=self.ask.values.text, filled=filled)

    def _sampled(self, part: Slice, options: ScanOptions) -> Any:
        sample, held = Converter(replace(self.ask.values, on_error="column"), []), 0
        for batch in self.source.reader.read(part, options):
            sample.convert(batch.slice(0, SAMPLE_RECORDS))
            held += batch.num_rows
            if held >= SAMPLE_RECORDS:
                break
        return sample.seen

    def _whole(self, fields: Any) -> Any:
        """All columns of the table: those it has, and those of files with these columns of the value."""
        columns = self.table.columns
        ours = table_schema(self.ask.values, list(fields))
        if columns is None:
            return ours
        newer = {field.name: field for field in ours}
        kept = [newer.pop(field.name, field) if field.name not in BASE_NAMES else field for field in columns]
        return pa.schema(kept + [field for name, field in newer.items() if columns.get_field_index(name) < 0])

    # ---- one group

    def written(
        self,
        engine: Engine,
        group: Sequence[Slice],
        options: ScanOptions,
        done: int,
        total: int,
        reader: SliceReader | None = None,
    ) -> list[WriteResult]:
        """The files of all slices, with columns that hold everything. `reader`: the topic's, if none is given."""
        fixed = self._fixed()
        from_where = reader or self.source.reader
        tasks = [self._task(part, options, fixed, from_where) for part in group]
        results = list(engine.run(tasks, lambda count: self.show(done + count, total)))
        if not self.ask.values.infers:
            return results
        seen = all_seen(results)
        wanted = wanted_columns(fixed, seen, self.table.layout.names)
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
                [
                    replace(
                        self._task(group[number], options, fixed, from_where),
                        final=True,
                        survivors=results[number].survivors,
                    )
                    for number in again
                ],
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
                table=self.table.name,
                columns_max=COLUMNS_MAX,
                without_column=len(without),
                first=shown(without[0]),
            )

    def _task(self, part: Slice, options: ScanOptions, fixed: Any, reader: SliceReader) -> WriteTask:
        latest = self.ask.mode == LATEST_MODE
        return WriteTask(
            part=part,
            options=options,
            reader=reader,
            place=self.table.place,
            values=self.ask.values,
            fixed=fixed,
            columns=self._columns,
            file_schema=self.table.file_schema(self._whole(self._columns)),
            stem=self.table.stem,
            by_key=self.by_key,
            key_indexes=self.table.key_indexes if latest else None,
            # The sizes of sorted files would not tell whether more of them fit into one.
            layout=self.table.layout.unsorted if latest else self.table.layout,
            letters=None if self._letters is None else self._letters.files(),
            judged=UNJUDGED if self._letters is None else self._letters.judged(part),
        )

    def commit(
        self, results: Sequence[WriteResult], base: Progress, *, replaces: bool, dead: Sequence[DeadRows] = ()
    ) -> Progress:
        """Commit the files, with the offsets they end at. `replaces`: they are the whole table; else `dead` are the
        rows that they supersede. Raises StaleWriterError, and the errors of the table's commit.
        """
        if not all(result.complete for result in results):
            raise BugError(f"files that lack records were to be committed to {self.table.name}")
        files = [file for result in results for file in result.files]
        moved = base.moved({result.partition: result.end for result in results})
        before: set[str] = set() if self.table.columns is None else set(self.table.columns.names)
        columns = self._whole(self._columns)
        self._pinned.check()  # files that a lost pin released may be missing
        self._commit_letters(results, moved)
        try:
            name = self.table.commit(files, columns, moved, replaces=replaces, dead=dead)
        except (StaleWriterError, CommitRefusedError):
            self._remove_rows(results)
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

    def _commit_letters(self, results: Sequence[WriteResult], moved: Progress) -> None:
        """Commit the dead letters, before the table's own commit. Raises as `DeadLetters.commit`."""
        if self._letters is None:
            return
        files = [file for result in results for file in result.letters]
        try:
            self._letters.commit(files, moved)
        except (StaleWriterError, CommitRefusedError):
            self._remove(results)
            raise
        # Reported even if the table's commit fails now: the next try finds them judged and writes none of them.
        dead = self.report.dead_letters + sum(file.rows for file in files)
        self.report = replace(self.report, dead_letters=dead)

    def erase_before(self, progress: Progress) -> Progress:
        """Finish what an earlier run began to erase, and erase what is due. Raises as `Table.erase`."""
        self.erasing.warn(progress)
        self.table.finish_erasures(self.snapshot.taken_ms)
        if self._letters is not None:
            self._letters.finish_erasures(self.snapshot.taken_ms)
        return self.erase(progress)

    def erase(self, progress: Progress) -> Progress:
        """Erase what is due from the table, which has this progress, and from the dead letters. Raises as
        `Table.erase`."""
        after, done = self.erasing.apply(progress)
        if self._letters is not None:
            done = done.plus(self._letters.erase())
        self.report = replace(self.report, erased=self.report.erased.plus(done))
        return after

    def note(self, held: Progress) -> Progress:
        """Write down that a run without a commit asked for erasures. Raises as `Table.commit`."""
        if self._letters is not None:
            self._letters.note()
        return self.erasing.note(held)

    def tidy_dead_letters(self) -> None:
        """Merge small files of the dead letters, if this run made that due. Raises as `Table.commit`."""
        if self._letters is not None:
            self._letters.tidy()

    def ended(self, held: Progress) -> Report:
        """The report of a run that leaves the table with this progress."""
        marks = {each.partition: each.high_watermark for each in self.snapshot.partitions}
        behind = sum(max(0, mark - held.offsets.get(partition, 0)) for partition, mark in marks.items())
        return replace(self.report, held=held.offsets, behind=behind)

    def _remove(self, results: Sequence[WriteResult]) -> None:
        self._remove_rows(results)
        if self._letters is not None:
            self._letters.place.remove([file.name for result in results for file in result.letters])

    def _remove_rows(self, results: Sequence[WriteResult]) -> None:
        """Remove the files of the table, not those of dead letters."""
        names = [file.name for result in results for file in result.files]
        self.table.place.remove(names)
        if self.ask.mode == LATEST_MODE and self.table.key_indexes is not None:
            self.table.key_indexes.remove([index_name(name) for name in names])
