"""The numbers of tasks, buckets and groups: bounded, even, and of everything exactly one part."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import BugError
from spark_jobs.keys.layout import BUCKET_ROWS, TASKS_MAX, KeyPlace, Layout, Numbers, cut_evenly, part_of, sizes
from spark_jobs.keys.spread import keys_of_tasks, task_of
from tests.fixtures.chance import examples


def in_partitions(places: int, partitions: int, rows: int) -> list[KeyPlace]:
    """Places of `rows` each, numbered from 1000 on."""
    of_each, step = -(-places // partitions), max(rows, 1)
    return [
        KeyPlace(1000 + at, 7 * (at // of_each), step * (at % of_each), step * (at % of_each + 1) - 1, rows)
        for at in range(places)
    ]


def check(layout: Layout, places: list[KeyPlace]) -> None:
    total = sum(place.rows for place in places)
    assert layout.numbers.tolist() == [place.number for place in places]
    partitions = len({place.partition_id for place in places})
    for edges, items in (
        (layout.place_edges, len(places)),
        (layout.map_edges, len(places)),
        (layout.group_edges, len(places)),
        (layout.reduce_edges, layout.buckets),
    ):
        assert (edges[0], edges[-1]) == (0, items)
        assert (np.diff(edges) > 0).all()
    assert len(layout.place_edges) == len(layout.bucket_edges) == partitions + 1
    # bounded
    assert max(layout.map_tasks, layout.reduce_tasks, layout.groups) <= TASKS_MAX
    assert layout.map_tasks * layout.reduce_tasks <= 4_000_000
    assert layout.buckets <= total // BUCKET_ROWS + partitions


@pytest.mark.parametrize(
    ("places", "partitions", "rows"),
    [
        (1, 1, 0),
        (1, 1, 10**11),
        (2, 2, 1),
        (16, 1, 500_000),
        (10_000, 1, 10**7),  # 10^11 rows
        (10_000, 10_000, 10**7),
        (10_000, 10_000, 1),
        (10_000, 13, 3_000_000),
    ],
)
def test_numbers_are_bounded_up_to_ten_thousand_places_and_hundred_billion_rows(
    places: int, partitions: int, rows: int
) -> None:
    given_places = in_partitions(places, partitions, rows)
    layout = sizes(given_places)
    check(layout, given_places)
    # and no task has more than its share and one item
    total = places * rows
    for edges, largest in ((layout.map_edges, rows), (layout.group_edges, rows)):
        shares = np.diff(edges) * rows
        assert shares.max() <= -(-total // TASKS_MAX) + largest + 10
    bucket_rows = np.repeat(np.diff(layout.place_edges) * rows, np.diff(layout.bucket_edges)) / np.repeat(
        np.diff(layout.bucket_edges), np.diff(layout.bucket_edges)
    )
    assert bucket_rows.max() <= BUCKET_ROWS
    of_tasks = np.add.reduceat(bucket_rows, layout.reduce_edges[:-1])
    assert of_tasks.max() <= total / TASKS_MAX + BUCKET_ROWS + 10


def test_the_inputs_of_a_measured_merge_get_a_task_a_slice_and_a_bucket_each() -> None:
    layout = sizes(in_partitions(16, 1, 500_000))
    assert (layout.map_tasks, layout.reduce_tasks, layout.buckets, layout.groups) == (16, 4, 4, 16)


@settings(max_examples=examples(200))
@given(rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=60), parts_max=st.integers(1, 20))
def test_parts_have_about_the_same_rows_and_none_more_than_its_share_and_one_item(
    rows: list[int], parts_max: int
) -> None:
    edges = cut_evenly(np.array(rows, dtype=np.int64), parts_max)
    assert (edges[0], edges[-1], len(edges) - 1 <= parts_max) == (0, len(rows), True)
    assert (np.diff(edges) > 0).all()
    for start, stop in pairwise(edges.tolist()):
        share = (sum(rows) + len(rows)) / parts_max
        assert sum(rows[start:stop]) <= share + max(rows) + 1
    found = part_of(edges, np.arange(len(rows)))
    assert found.tolist() == [at for at, width in enumerate(np.diff(edges).tolist()) for _ in range(width)]


def test_places_that_overlap_or_are_out_of_order_are_refused() -> None:
    for wrong in (
        [KeyPlace(0, 1, 0, 9, 1), KeyPlace(1, 1, 9, 20, 1)],
        [KeyPlace(0, 1, 10, 9, 1)],
        [KeyPlace(0, 1, 10, 19, 1), KeyPlace(1, 1, 0, 9, 1)],
    ):
        with pytest.raises(BugError, match="is empty, or does not lie behind"):
            sizes(wrong)
    with pytest.raises(BugError, match="do not follow one another"):
        sizes([KeyPlace(0, 1, 0, 9, 1), KeyPlace(1, 2, 0, 9, 1), KeyPlace(2, 1, 10, 19, 1)])
    with pytest.raises(BugError, match="no places"):
        sizes([])


@pytest.mark.parametrize("tasks", [1, 2, 3, 16, 1999, TASKS_MAX])
def test_each_task_has_a_key_that_lands_there_and_nowhere_else(tasks: int) -> None:
    keys = keys_of_tasks(tasks)
    assert task_of(keys, tasks).tolist() == list(range(tasks))


def test_the_hash_is_murmur3_as_spark_computes_it() -> None:
    # given what `SELECT hash(...)` of Spark answers for these
    hashes = {0: 933211791, 1: -559580957, 2: 1765031574, 42: 29417773}
    tried: Numbers = task_of(np.array(list(hashes), dtype=np.int32), 2**31)
    assert tried.tolist() == [each % 2**31 for each in hashes.values()]
