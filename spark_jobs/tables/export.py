"""From a topic to a table, exactly once.

One run: pin the topic and take a snapshot; read the table's end; plan the records in between; write files; commit them
with the offsets they end at. Large runs commit in groups of `commit_bytes`. A crash before a commit leaves files that
nobody names, and the next run begins at the end of the last commit. A fenced run removes its files, reads the offsets
again and decides again: mostly the other writer has done the work.

A latest view is written as a whole first. A table whose rows can be deleted one by one then takes what came since
(`spark_jobs/tables/keyed/`); only partitions whose tail cannot be added are written again. Any other table is written
as a whole each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runtime.logging import get_logger
from spark_jobs.scan.contract import LATEST_VIEW, LOG, AtTimestamp, Edge
from spark_jobs.scan.plan import plan_slices
from spark_jobs.tables.contract import Ask, Engine, Report, ShowProgress, Source, Table
from spark_jobs.tables.dead_letters.table import check_no_dead_letters
from spark_jobs.tables.engines import InProcess
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.file_task import WriteResult
from spark_jobs.tables.keyed.run import add_tail, all_rows, causes_to_replace
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
from spark_jobs.tables.tidying.decide import are_to_tidy
from spark_jobs.tables.tidying.run import tidy
from spark_jobs.tables.writing import Writing

TRIES = 10
"""The most times in a row that other writers may be quicker."""
_log = get_logger(__name__)


def export(
    source: Source,
    table: Table,
    choose: Callable[[int], Engine],
    ask: Ask,
    show: ShowProgress,
    dead_letters: Table | None = None,
) -> Report:
    """One run. `choose` gives the engine for a number of bytes of the log. `dead_letters`: the table for records that
    do not fit.

    Raises WrongTableError, RecreatedTopicError, BadValueError, StaleWriterError (others were quicker each time), and
    the errors of the scan and of the table's store.
    """
    report = Report()
    for fenced in range(TRIES):
        with source.pinned() as pinned:
            writing = Writing(source, table, ask, show, pinned, report, dead_letters)
            try:
                return replace(_run(writing, choose), fenced=fenced)
            except StaleWriterError as error:
                # Groups that were committed before the fence stay in the table, so they stay in the report.
                report = writing.report
                _log.warning("another writer was quicker: reading the table's offsets again", reason=error.message)
    raise StaleWriterError(
        f"others committed to {table.name} before us, {TRIES} times in a row",
        remedy="one export per table is enough: stop the others",
    )


def _run(writing: Writing, choose: Callable[[int], Engine]) -> Report:
    ask, snapshot = writing.ask, writing.snapshot
    held = writing.table.load()
    check_no_dead_letters(writing.table.name, held)
    progress = check_same(held, snapshot, mode=ask.mode, values=ask.values.text, recreated=ask.recreated)
    writing.load_dead_letters(filled=progress is not None)
    if progress is not None:
        progress = writing.erase_before(progress)
    files = writing.table.file_count
    held = writing.erase(_written(writing, choose, progress))
    if writing.report.commits and (
        ask.mode == LATEST_MODE or are_to_tidy(files, writing.table.file_count, len(snapshot.partitions))
    ):
        tidy(writing.table, held)
    writing.tidy_dead_letters()
    return writing.ended(held if writing.report.commits else writing.note(held))


def _written(writing: Writing, choose: Callable[[int], Engine], progress: Progress | None) -> Progress:
    """Bring the table up to date; returns the progress that it has then."""
    ask, snapshot = writing.ask, writing.snapshot
    if ask.mode != LATEST_MODE:
        return _append(writing, choose, progress)
    if progress is None:
        return _replace(writing, choose)
    return progress if unchanged(progress, snapshot) else _brought_up(writing, choose, progress)


def _append(writing: Writing, choose: Callable[[int], Engine], progress: Progress | None) -> Progress:
    """Add the records since `progress`, in groups."""
    ask, snapshot = writing.ask, writing.snapshot
    begins = start_offsets(snapshot, progress, _wanted_start(writing) if progress is None else Edge.EARLIEST)
    options = writing.scan_from(begins)
    slices = plan_slices(snapshot, options, slice_bytes=ask.slice_bytes)
    base = writing.erasing.noted(fresh(snapshot, ask.mode, ask.values.text, begins), progress)
    writing.begin_table(slices, options)
    if not slices:
        return writing.commit([], base, replaces=False) if progress is None else progress.moved(begins)
    engine = choose(sum(part.bytes for part in slices))
    done = 0
    writing.show(done, len(slices))
    for group in in_groups([(part.bytes, part) for part in slices], ask.commit_bytes):
        results = writing.written(engine, group, options, done, len(slices))
        done += len(group)
        base = writing.commit(results, base, replaces=False)
    return base


def _brought_up(writing: Writing, choose: Callable[[int], Engine], progress: Progress) -> Progress:
    """Replace the partitions whose tails cannot be added, in a commit of its own, then add those of the others."""
    table, snapshot = writing.table, writing.snapshot
    causes = causes_to_replace(table, progress, snapshot)
    if causes:
        all_of_them = len(causes) == len(snapshot.partitions)
        _log.debug("partitions are written again", table=table.name, causes=dict(causes))
        progress = _replace(writing, choose) if all_of_them else _replace(writing, choose, progress, sorted(causes))
    return progress if unchanged(progress, snapshot) else add_tail(writing, progress)


def _replace(
    writing: Writing, choose: Callable[[int], Engine], progress: Progress | None = None, partitions: Sequence[int] = ()
) -> Progress:
    """Write the latest view of these partitions, in place of what the table holds of them; without `progress`, that of
    all, in place of all that the table holds."""
    ask, snapshot = writing.ask, writing.snapshot
    begins = {
        each.partition: each.log_start_offset
        for each in snapshot.partitions
        if progress is None or each.partition in partitions
    }
    options = replace(writing.scan_from(begins), view=LATEST_VIEW, partitions=tuple(begins))
    slices = plan_slices(snapshot, options, slice_bytes=ask.slice_bytes)
    engine = choose(sum(part.bytes for part in slices)) if slices else InProcess()
    if engine.shuffles:
        writing.by_key, options = True, replace(options, view=LOG)
        slices = plan_slices(snapshot, options, slice_bytes=ask.slice_bytes)
    writing.begin_table(slices, options)
    results: Sequence[WriteResult] = []
    if slices:
        writing.show(0, len(slices))
        results = writing.written(engine, slices, options, 0, len(slices))
    writing.by_key = False
    base = fresh(snapshot, ask.mode, ask.values.text, ends(snapshot))
    if progress is None:
        return writing.commit(results, writing.erasing.noted(base, None), replaces=True)
    # A killed run goes on from here: what is said of the other partitions stays true.
    base = replace(
        progress,
        offsets={**progress.offsets, **{each: base.offsets[each] for each in partitions}},
        starts={**progress.starts, **{each: base.starts[each] for each in partitions}},
    )
    base = writing.erasing.noted_again(base, progress)
    return writing.commit(results, base, replaces=False, dead=all_rows(writing.table, partitions))


def _wanted_start(writing: Writing) -> Mapping[int, int] | Edge:
    ask, snapshot = writing.ask, writing.snapshot
    if isinstance(ask.begin, AtTimestamp):
        return writing.source.at_time(snapshot, ask.begin.timestamp_ms)
    if isinstance(ask.begin, int):
        if not ask.skip_lost:
            check_begin(snapshot, ask.begin)
        return {each.partition: ask.begin for each in snapshot.partitions}
    return ask.begin
