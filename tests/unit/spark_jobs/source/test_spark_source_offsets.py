"""Offsets of a stream: always the same text for the same position, and fair shares under a limit."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.source.offsets import CheckpointError, StreamOffset, limited

TOPIC_ID = uuid.UUID(int=7)
PLACES = st.dictionaries(st.integers(0, 8), st.integers(0, 1000), max_size=8)


def test_the_same_place_is_the_same_text_in_whatever_order_it_was_found() -> None:
    one = StreamOffset("t", TOPIC_ID, {2: 5, 0: 1, 10: 3}).as_document()
    other = StreamOffset("t", TOPIC_ID, {10: 3, 0: 1, 2: 5}).as_document()

    assert json.dumps(one) == json.dumps(other)
    assert StreamOffset.from_document(json.loads(json.dumps(one)), topic="t").next_offsets == {0: 1, 2: 5, 10: 3}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 2"),
        ({"topic": "other"}, "belongs to topic 'other', but the query reads 't'"),
        ({"topicId": "x"}, "cannot be read"),
        ({"offsets": {"0": "many"}}, "cannot be read"),
        ({"offsets": None}, "cannot be read"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(change: dict[str, Any], told: str) -> None:
    document = StreamOffset("t", TOPIC_ID, {0: 1}).as_document() | change

    with pytest.raises(CheckpointError, match=told):
        StreamOffset.from_document(document, topic="t")


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
