"""Offsets of a stream: always the same text for the same position, and fair shares under a limit."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.source.offsets import CheckpointError, StreamOffset, TopicOffset, limited
from spark_jobs.source.topics import TopicChoice

TOPIC_ID = uuid.UUID(int=7)
PLACES = st.dictionaries(st.integers(0, 8), st.integers(0, 1000), max_size=8)


def place(**offsets: dict[int, int]) -> StreamOffset:
    return StreamOffset({topic: TopicOffset(TOPIC_ID, each) for topic, each in offsets.items()})


@pytest.mark.parametrize("more", [{}, {"a": {3: 4}}])
def test_the_same_place_is_the_same_text_in_whatever_order_it_was_found(more: dict[str, dict[int, int]]) -> None:
    one = place(t={2: 5, 0: 1, 10: 3}, **more).as_document()
    other = place(**more, t={10: 3, 0: 1, 2: 5}).as_document()

    assert json.dumps(one) == json.dumps(other)
    read = StreamOffset.from_document(json.loads(json.dumps(one)), choice=TopicChoice(names=("a", "t")))
    assert read == place(t={0: 1, 2: 5, 10: 3}, **more)


def test_a_place_in_one_topic_is_written_as_it_always_was() -> None:
    document = {"version": 1, "topic": "t", "topicId": str(TOPIC_ID), "offsets": {"0": 1, "10": 3}}

    assert place(t={10: 3, 0: 1}).as_document() == document
    assert StreamOffset.from_document(document, choice=TopicChoice(pattern="t|u")) == place(t={0: 1, 10: 3})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 3}, "version 3"),
        ({"version": 2}, "cannot be read"),
        ({"version": 2, "topics": {"t": {}}}, "cannot be read"),
        ({"topic": "other"}, "has topic 'other', but the query reads only 't'"),
        ({"topicId": "x"}, "cannot be read"),
        ({"offsets": {"0": "many"}}, "cannot be read"),
        ({"offsets": None}, "cannot be read"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(change: dict[str, Any], told: str) -> None:
    document = place(t={0: 1}).as_document() | change

    with pytest.raises(CheckpointError, match=told):
        StreamOffset.from_document(document, choice=TopicChoice(names=("t",)))


@given(PLACES, PLACES, st.integers(1, 3000))
def test_a_limit_is_kept_and_no_partition_that_waits_starves(
    start: dict[int, int], end: dict[int, int], offsets_max: int
) -> None:
    waiting = {at: last - start.get(at, 0) for at, last in end.items() if last > start.get(at, 0)}

    chosen = limited(start, end, offsets_max)

    taken = {at: chosen[at] - start.get(at, 0) for at in end}
    assert sum(taken.values()) <= max(offsets_max, len(waiting))
    assert all(1 <= taken[at] <= count for at, count in waiting.items())
    assert all(count == 0 for at, count in taken.items() if at not in waiting)


@given(PLACES, st.integers(1, 3000))
def test_batch_after_batch_the_end_is_reached(end: dict[int, int], offsets_max: int) -> None:
    at: dict[int, int] = dict.fromkeys(end, 0)

    for _ in range(max(end.values(), default=0)):  # each waiting partition gets at least one
        at = limited(at, end, offsets_max)

    assert at == end
