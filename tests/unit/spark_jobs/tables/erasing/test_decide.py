"""The erasures that a table has not had yet, and the offsets to search for them."""

from __future__ import annotations

import dataclasses
import random

from metadata.erasures.contract import ErasureStage, KeyMark, TopicErasure
from metadata.erasures.stages import KEPT_MS
from spark_jobs.tables.erasing.decide import (
    LOOKED_KEPT_MS,
    applied,
    carried,
    has_missed,
    is_note_due,
    joined,
    marks_at,
    may_be_due,
    of_the_log,
    step_of,
    to_search,
)
from spark_jobs.tables.progress import Applied, Progress, fresh, unchanged
from tests.fixtures.erasures import hash_of
from tests.unit.spark_jobs.scan.test_scan_plan import partition, topic

MARKS = {0: [KeyMark(hash_of(b"a"), 10), KeyMark(hash_of(b"b"), 4, tombstone=True)], 1: [KeyMark(hash_of(b"a"), 3)]}


def erasure(number: int, stage: ErasureStage, *, tombstones: bool = False) -> TopicErasure:
    return TopicErasure(number, stage, tombstones, 0)


def test_tombstones_count_once_their_stage_has_begun() -> None:
    # an erasure that rests is to take them next, and has not begun to
    assert step_of(erasure(1, ErasureStage.WAITING)) == step_of(erasure(1, ErasureStage.RESTING, tombstones=True)) == 1
    assert step_of(erasure(1, ErasureStage.ERASING, tombstones=True)) == 2
    assert step_of(erasure(1, ErasureStage.DONE, tombstones=True)) == 2
    assert [mark.tombstone for mark in marks_at(1, MARKS)[0]] == [False, False]
    assert marks_at(2, MARKS)[0] == MARKS[0]


def test_rows_are_searched_up_to_the_tables_end_and_again_behind_it() -> None:
    marks = marks_at(1, MARKS)
    # given a table that ends below the marks in one partition, and has nothing of another
    assert to_search(None, 1, marks, {0: 6}) == {0: (0, 6)}
    after = applied(1, marks, {0: 6}, created_ms=0)
    assert after == Applied(1, {0: 6, 1: 0})
    # then nothing is due until it has moved on
    assert to_search(after, 1, marks, {0: 6}) == {}
    assert to_search(after, 1, marks, {0: 30, 1: 2}) == {0: (6, 10), 1: (0, 2)}
    last = applied(1, marks, {0: 30, 1: 3}, created_ms=0)
    assert last == Applied(1, {}) and to_search(last, 1, marks, {0: 99, 1: 99}) == {}
    assert not may_be_due(erasure(1, ErasureStage.ERASING), last)
    # and the step of the tombstones searches all of it once more
    assert may_be_due(erasure(1, ErasureStage.ERASING, tombstones=True), last)
    assert to_search(last, 2, marks_at(2, MARKS), {0: 30, 1: 3}) == {0: (0, 10), 1: (0, 3)}


def test_a_table_however_it_grows_is_searched_for_each_row_when_it_has_it() -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        marks = {number: [KeyMark(bytes(32), chance.randrange(20))] for number in range(3)}
        held = dict.fromkeys(range(3), 0)
        before: Applied | None = None
        searched = {number: set[int]() for number in range(3)}
        for _ in range(chance.randrange(1, 6)):
            held = {number: end + chance.randrange(12) for number, end in held.items() if number in held}
            for number, (first, last) in to_search(before, 1, marks, held).items():
                assert last <= held[number] and not searched[number] & set(range(first, last))
                searched[number] |= set(range(first, last))
            before = applied(1, marks, held, created_ms=0)
        for number, (mark,) in marks.items():
            assert searched[number] == set(range(min(mark.before_offset, held[number])))


def test_notes_are_kept_as_long_as_the_erasure_is_remembered() -> None:
    known = [erasure(3, ErasureStage.DONE), erasure(5, ErasureStage.ERASING)]
    before = {2: Applied(1, {}), 5: Applied(1, {0: 4})}
    assert carried(before, known) == {5: Applied(1, {0: 4})}
    # a table that is written from the log alone has what the log has had
    assert of_the_log(known) == {3: Applied(1, {})}
    assert joined([{0: (5, 9)}, {0: (2, 6), 1: (0, 1)}]) == {0: (2, 9), 1: (0, 1)}
    assert joined([]) == {}


def test_the_time_of_the_last_look_tells_what_may_be_missed_and_when_to_note_it() -> None:
    assert not has_missed(None, KEPT_MS) and not has_missed(1, KEPT_MS) and has_missed(0, KEPT_MS)
    assert is_note_due(None, 0) and not is_note_due(1, LOOKED_KEPT_MS) and is_note_due(0, LOOKED_KEPT_MS)
    assert LOOKED_KEPT_MS < KEPT_MS / 2


def test_progress_carries_the_notes_and_that_of_an_older_release_has_none() -> None:
    snapshot = topic(partition(end=300))
    older = fresh(snapshot, "latest", "raw", {0: 300})
    text = (
        '{"format":2,"topic":"%s","topic_id":"%s","mode":"latest","values":"raw","offsets":{"0":300},"starts":{"0":%d}}'
    )
    read = Progress.from_json(text % (older.topic, older.topic_id, older.starts[0]))
    assert read == older and (read.erased, read.looked_ms) == ({}, None)
    noted = dataclasses.replace(older, erased={7: Applied(2, {}), 9: Applied(1, {0: 4})}, looked_ms=12)
    assert Progress.from_json(noted.as_json()) == noted
    # and the notes alone are no reason to write a latest view again
    assert unchanged(noted, snapshot) and not unchanged(dataclasses.replace(noted, offsets={0: 299}), snapshot)
