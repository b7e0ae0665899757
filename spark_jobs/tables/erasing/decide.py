"""The erasures that a table has not had yet, and the offsets in which to search its rows for them. Pure.

A table takes an erasure as soon as it is requested: its marks name a fixed set of records, so nothing is gained by
waiting until the log has lost them. Tombstones go with the erasure's second stage, as in the log, so that readers of
the table have the same time to see them.

**A table behind its topic.** The log may still have the erased records while the table has not come to them, and will
read them. So an erasure counts as applied through the table's end of that moment. Once the end has moved on, the rows
that came since are searched too, until it has passed all marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from metadata.erasures.contract import ErasureStage, KeyMark, TopicErasure
from metadata.erasures.marks import end_offset
from metadata.erasures.stages import KEPT_MS
from spark_jobs.tables.progress import Applied

ROWS, TOMBSTONES = 1, 2
"""Steps: the records below the marks, then their tombstones too."""
LOOKED_KEPT_MS = 7 * 86_400_000
"""A table in which nothing changes notes so often that it has asked for erasures."""
SETTLED_MS = 600_000
"""A writer that a commit fenced finishes no file, and a commit that was not seen comes no more, so long after it."""


def step_of(erasure: TopicErasure) -> int:
    """The step that the erasure has come to."""
    begun = erasure.stage in (ErasureStage.ERASING, ErasureStage.DONE)
    return TOMBSTONES if erasure.erases_tombstones and begun else ROWS


def may_be_due(erasure: TopicErasure, before: Applied | None) -> bool:
    """Whether the marks of the erasure have to be looked at."""
    return before is None or before.step < step_of(erasure) or bool(before.through)


def marks_at(step: int, marks: Mapping[int, Sequence[KeyMark]]) -> dict[int, list[KeyMark]]:
    """The marks as they count in a step."""
    return {
        number: [mark._replace(tombstone=mark.tombstone and step >= TOMBSTONES) for mark in each]
        for number, each in marks.items()
    }


def to_search(
    before: Applied | None, step: int, marks: Mapping[int, Sequence[KeyMark]], held: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Partition -> the offsets to search, the end exclusive. `marks`: as of `marks_at`; `held`: the table's ends."""
    found: dict[int, tuple[int, int]] = {}
    for number, each in marks.items():
        end = end_offset(each)
        first = 0 if before is None or before.step < step else before.through.get(number, end)
        last = min(end, held.get(number, 0))
        if first < last:
            found[number] = (first, last)
    return found


def applied(step: int, marks: Mapping[int, Sequence[KeyMark]], held: Mapping[int, int], created_ms: int) -> Applied:
    """The note when the table's rows up to these ends were searched."""
    ends = {number: held.get(number, 0) for number, each in marks.items() if held.get(number, 0) < end_offset(each)}
    return Applied(step, ends, created_ms)


def carried(before: Mapping[int, Applied], known: Collection[TopicErasure]) -> dict[int, Applied]:
    """The notes to keep: those of erasures that are still remembered."""
    created_ms = {each.erasure_id: each.created_ms for each in known}
    return {number: each for number, each in before.items() if created_ms.get(number) == each.created_ms}


def of_the_log(known: Collection[TopicErasure]) -> dict[int, Applied]:
    """The notes of a table that is written from the log alone: the erasures that are done there."""
    return {
        each.erasure_id: Applied(step_of(each), {}, each.created_ms)
        for each in known
        if each.stage is ErasureStage.DONE
    }


def still_true(before: Mapping[int, Applied], known: Collection[TopicErasure]) -> dict[int, Applied]:
    """The notes to keep when a part of the table is written from the log again, and the rest stays. The log may give
    rows again that an erasure took, unless the erasure is done there."""
    done = of_the_log(known)
    return {number: each for number, each in before.items() if number in done}


def joined(ranges: Iterable[Mapping[int, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """The least range of each partition that covers all."""
    found: dict[int, tuple[int, int]] = {}
    for each in ranges:
        for number, (first, last) in each.items():
            low, high = found.get(number, (first, last))
            found[number] = (min(low, first), max(high, last))
    return found


def has_missed(looked_ms: int | None, now_ms: int) -> bool:
    """Whether erasures may have been forgotten since the table's last run."""
    return looked_ms is not None and now_ms - looked_ms >= KEPT_MS


def is_note_due(looked_ms: int | None, now_ms: int) -> bool:
    return looked_ms is None or now_ms - looked_ms >= LOOKED_KEPT_MS
