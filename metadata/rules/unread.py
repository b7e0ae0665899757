"""The time of the oldest record that a group has not read, as far as L0 files hold it. Pure.

Files are read from the newest on, as far as the caller wants to read: a group that keeps up has its records there. One
whose record lies in an older file is told as late as the oldest file that was read, which is less than it is. The time
of a row of the index is that of its newest record, so every answer is at least the time of the record, not its exact
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from metadata.rules.packed_index import iter_index, rows_of


class FirstUnread(NamedTuple):
    """The first offset of a partition that a group has not read."""

    partition_id: int
    offset: int


def times_in_l0(
    wanted: Collection[FirstUnread], files: Iterable[tuple[int, bytes]], *, is_cut: bool
) -> Mapping[FirstUnread, int]:
    """A time in ms for each place that the files have records for.

    `files`: (time of its writing, packed index). `is_cut`: there are older files that were not read.
    """
    by_partition: dict[int, list[FirstUnread]] = {}
    for each in wanted:
        by_partition.setdefault(each.partition_id, []).append(each)
    ids = frozenset(by_partition)
    nearest: dict[FirstUnread, tuple[int, int, int]] = {}
    """The row that holds it, or else the first one behind it: (last offset, base offset, time)."""
    oldest_ms = None
    for written_ms, index in files:
        oldest_ms = written_ms if oldest_ms is None else min(oldest_ms, written_ms)
        found = rows_of(index, ids)
        for row in iter_index(found) if found else ():
            # Records of old producers have no time of their own.
            row_ms = row.max_timestamp_ms if row.max_timestamp_ms >= 0 else written_ms
            for place in by_partition[row.partition_id]:
                if row.last_offset >= place.offset and row.last_offset < nearest.get(place, _FAR)[0]:
                    nearest[place] = (row.last_offset, row.base_offset, row_ms)
    times = {place: row_ms for place, (_, _, row_ms) in nearest.items()}
    if is_cut and oldest_ms is not None:
        for place in wanted:
            if place not in nearest or nearest[place][1] > place.offset:
                times[place] = min(times.get(place, oldest_ms), oldest_ms)
    return times


_FAR = (1 << 63, 0, 0)
