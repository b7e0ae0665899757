"""The erasures of a run: read from the metadata, applied to the table, noted in its progress.

A run applies what is due before it reads the log, so that a long or failing read delays no erasure, and again after its
commits, for the records that it has just read. Filtering these while they are read would keep their bytes from the
table for those seconds; but the marks would have to travel to every task of every engine, and rows of earlier runs
would need this way all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from metadata.contract.errors import RightsMissingError
from metadata.erasures.contract import KeyMark, TopicErasure
from runtime.logging import get_logger
from spark_jobs.tables.contract import Pinned, Table
from spark_jobs.tables.erasing.decide import (
    applied,
    carried,
    has_missed,
    is_note_due,
    joined,
    marks_at,
    may_be_due,
    of_the_log,
    step_of,
    still_true,
    to_search,
)
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.progress import LATEST_MODE, Progress

_log = get_logger(__name__)


class Erasing:
    """The erasures of one try of a run."""

    def __init__(self, table: Table, pinned: Pinned) -> None:
        """Raises MetadataUnavailableError."""
        self._table, self._pinned = table, pinned
        self._now_ms = pinned.snapshot.taken_ms
        self._known: Sequence[TopicErasure] | None
        try:
            self._known = pinned.topic_erasures()
        except RightsMissingError as error:
            self._known = None
            _log.warning(
                "the erasures of the topic cannot be read, so the table keeps erased rows",
                table=table.name,
                reason=error.message,
                remedy="give the role the rights of this release: siltstone migrate --reader ROLE",
            )

    def of(self, table: Table) -> Erasing:
        """The same erasures for another table of the run."""
        other = copy(self)
        other._table = table
        return other

    def noted(self, base: Progress, before: Progress | None) -> Progress:
        """`base` with the notes of `before`; None: all rows come from the log as it is now."""
        if self._known is None:
            return base if before is None else replace(base, erased=before.erased, looked_ms=before.looked_ms)
        erased = of_the_log(self._known) if before is None else carried(before.erased, self._known)
        return replace(base, erased=erased, looked_ms=self._now_ms)

    def noted_again(self, base: Progress, before: Progress) -> Progress:
        """`base` with the notes of `before`, as far as they are true of rows that come from the log as it is now."""
        noted = self.noted(base, before)
        if self._known is None:
            return noted
        return replace(noted, erased=still_true(noted.erased, self._known))

    def warn(self, progress: Progress) -> None:
        """Warn of a table that may have missed an erasure."""
        if has_missed(progress.looked_ms, self._now_ms):
            _log.warning(
                "the table was last exported so long ago that erasures since may be forgotten: request them again",
                table=self._table.name,
            )

    def apply(self, progress: Progress) -> tuple[Progress, Erased]:
        """Erase what is due from the table, which has this progress. Raises as `Table.erase`."""
        marks: dict[int, list[KeyMark]] = {}
        ranges: dict[int, dict[int, tuple[int, int]]] = {}
        erased = dict(carried(progress.erased, self._known or ()))
        for each in self._known or ():
            before, step = erased.get(each.erasure_id), step_of(each)
            if not may_be_due(each, before):
                continue
            ours = marks_at(step, self._pinned.erasure_marks(each.erasure_id))
            found = to_search(before, step, ours, progress.offsets)
            if found:
                ranges[each.erasure_id] = found
                for number in found:
                    marks.setdefault(number, []).extend(ours[number])
            erased[each.erasure_id] = applied(step, ours, progress.offsets, each.created_ms)
        if not ranges:
            return progress, Erased()
        after = replace(progress, erased=erased, looked_ms=self._now_ms)
        gone = GoneRows.of(marks, joined(ranges.values()), frozenset(ranges))
        by_index = progress.mode == LATEST_MODE
        done = self._table.erase(gone, after, by_index=by_index, now_ms=self._now_ms)
        return (progress, Erased()) if done is None else (after, done)

    def note(self, progress: Progress) -> Progress:
        """Write down that this run asked for erasures, if that is due in a table to which no run adds. Raises as
        `Table.commit`."""
        if self._known is None or not is_note_due(progress.looked_ms, self._now_ms):
            return progress
        after = self.noted(progress, progress)
        self._table.commit([], self._table.columns, after, replaces=False)
        return after
