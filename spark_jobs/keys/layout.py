"""The numbers of tasks and buckets of a shuffle of keys, and what belongs to which. Pure.

- A *place* is a stretch of offsets of one partition, which one task reads. A map task reads some places in turn.
- Each partition has its own *buckets*, for `BUCKET_ROWS` rows each. A reduce task takes some buckets in turn.
- A *group* is some places whose survivors one task takes, place by place.

Spark writes a block for each pair of a map and a reduce task, and keeps the size of each block in its driver. So there
are at most `TASKS_MAX` tasks of each kind, however many rows and places there are; beyond that, a task does more. All
three are cut by rows into parts of about the same size: no part is larger than its share and one place or bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError

BUCKET_ROWS = 2_000_000
"""The memory of a reduce task: about 150 MB, and the rows of one batch of Arrow (`columns.py`)."""
TASKS_MAX = 2_000
"""Two kinds of tasks share at most 4 M blocks. Above 2,000 Spark also tells their sizes less exactly."""

Numbers = NDArray[np.int64]


class KeyPlace(NamedTuple):
    """A stretch of offsets of one partition whose keys one task reads."""

    number: int
    """The caller's number of it."""
    partition_id: int
    """Keys of different partitions never meet."""
    base_offset: int
    last_offset: int
    """Inclusive. The places of one partition are disjoint and ascending."""
    rows: int
    """About how many records."""


class Surviving(NamedTuple):
    """The records of a place that are the last of their keys."""

    offsets: Numbers
    """Rising: the records of the place that are the last of their key in the partition."""
    rows: int
    """The rows of this place that reached the reducers. The caller compares with what it read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Places, partitions and buckets by their index. `..._edges`: part i has those from edge i up to edge i + 1."""

    numbers: Numbers
    """[places]: the caller's numbers."""
    base_offsets: Numbers
    last_offsets: Numbers
    place_edges: Numbers
    """[partitions + 1]: the places of each partition."""
    bucket_edges: Numbers
    """[partitions + 1]: the buckets of each partition."""
    map_edges: Numbers
    """[map tasks + 1]: the places that each map task reads."""
    reduce_edges: Numbers
    """[reduce tasks + 1]: the buckets of each reduce task."""
    group_edges: Numbers
    """[groups + 1]: the places of each group."""

    @property
    def places(self) -> int:
        return len(self.numbers)

    @property
    def buckets(self) -> int:
        return int(self.bucket_edges[-1])

    @property
    def map_tasks(self) -> int:
        return len(self.map_edges) - 1

    @property
    def reduce_tasks(self) -> int:
        return len(self.reduce_edges) - 1

    @property
    def groups(self) -> int:
        return len(self.group_edges) - 1


def sizes(places: Sequence[KeyPlace]) -> Layout:
    """The layout for these places, at least one. Raises BugError for places that overlap or are not in order."""
    if not places:
        raise BugError("there are no places to lay out")
    numbers, partition_ids, base_offsets, last_offsets, rows = np.array(places, dtype=np.int64).T
    _check(places, partition_ids, base_offsets, last_offsets)
    first_places = np.append(0, np.flatnonzero(np.diff(partition_ids)) + 1)
    rows_of_partitions = np.add.reduceat(rows, first_places)
    buckets = np.maximum(-(-rows_of_partitions // BUCKET_ROWS), 1)
    bucket_rows = np.repeat(-(-rows_of_partitions // buckets), buckets)
    by_rows = cut_evenly(rows, TASKS_MAX)
    return Layout(
        numbers=numbers.copy(),
        base_offsets=base_offsets.copy(),
        last_offsets=last_offsets.copy(),
        place_edges=np.append(first_places, len(places)),
        bucket_edges=np.append(0, np.cumsum(buckets)),
        map_edges=by_rows,
        reduce_edges=cut_evenly(bucket_rows, TASKS_MAX),
        group_edges=by_rows,
    )


def cut_evenly(rows: Numbers, parts_max: int) -> Numbers:
    """Edges of at most `parts_max` parts of whole items, in order, none empty and all of about the same rows.

    No part has more rows than its share and one item.
    """
    count = len(rows)
    if count <= parts_max:
        return np.arange(count + 1)
    # An item without rows takes a little time too.
    weights = np.asarray(rows, dtype=np.float64) + 1
    middles = np.cumsum(weights) - weights / 2
    part_of = np.minimum((middles * (parts_max / float(weights.sum()))).astype(np.int64), parts_max - 1)
    return np.concatenate(([0], np.flatnonzero(np.diff(part_of)) + 1, [count]))


def part_of(edges: Numbers, items: Numbers) -> Numbers:
    """The part that each item lies in."""
    return np.searchsorted(edges, items, side="right") - 1


def _check(places: Sequence[KeyPlace], partition_ids: Numbers, base_offsets: Numbers, last_offsets: Numbers) -> None:
    is_next_partition = np.diff(partition_ids) != 0
    is_wrong = np.append(False, ~is_next_partition & (base_offsets[1:] <= last_offsets[:-1]))
    is_wrong |= last_offsets < base_offsets
    for at in np.flatnonzero(is_wrong)[:1].tolist():
        raise BugError(f"{places[at]} is empty, or does not lie behind the place before it")
    if len(np.unique(partition_ids)) != int(is_next_partition.sum()) + 1:
        raise BugError("the places of a partition do not follow one another")
