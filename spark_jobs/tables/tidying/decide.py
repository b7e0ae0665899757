"""Decides which files of a table to rewrite, and when to look for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_jobs.tables.file_writer import INDEXED_ROWS

FANOUT = 8
TINY_BYTES = 16 << 10
_TIERS = 5
"""Files of TINY_BYTES * FANOUT**4 = 64 MiB and more are large enough."""
LARGE_ROWS = INDEXED_ROWS // 2
"""A file with so many rows is large enough, however few its bytes: eight of them would become as many as before."""
DEAD_SHARE = 0.25
"""A file with this share of dead rows is rewritten without them."""
REWRITE_BYTES = 512 << 20
"""The most bytes of files that one run rewrites."""


class FileFacts(NamedTuple):
    """A live data file, as far as these decisions need it."""

    partition: int
    first_offset: int
    rows: int
    dead: int
    size_bytes: int
    section: str = ""
    """Equal for files of one section of the table."""


def are_to_tidy(before: int, after: int, partitions: int) -> bool:
    """Whether a run that brought a log's table from so many files to so many looks for files to merge. Looking means to
    read all manifests, which a run that only adds does not, so it is done once for some FANOUT files of each partition.
    """
    step = FANOUT * partitions
    return before // step != after // step


def to_rewrite(files: Sequence[FileFacts]) -> list[list[int]]:
    """Groups of files, by their place in `files`, each to be rewritten as one: at most REWRITE_BYTES, or one group.

    FANOUT neighbours in one partition and section that are about as small are merged, with the still smaller ones
    between them. So the number of small files stays below FANOUT for each power of it, and a row is rewritten about
    once for each.
    """
    by_place: dict[tuple[int, str], list[int]] = {}
    for number in sorted(range(len(files)), key=lambda at: (files[at].partition, files[at].first_offset)):
        by_place.setdefault((files[number].partition, files[number].section), []).append(number)
    groups: list[list[int]] = []
    for numbers in by_place.values():
        groups += _merged(files, numbers)
    taken = {number for group in groups for number in group}
    groups += [[at] for at, file in enumerate(files) if at not in taken and file.dead > file.rows * DEAD_SHARE]
    chosen: list[list[int]] = []
    left = REWRITE_BYTES
    for group in groups:
        size = sum(files[number].size_bytes for number in group)
        if not chosen or size <= left:
            chosen.append(group)
            left -= size
    return chosen


def _merged(files: Sequence[FileFacts], numbers: Sequence[int]) -> list[list[int]]:
    """The runs to merge among the files of one partition and section."""
    groups: list[list[int]] = []
    tiers = {number: _tier(files[number]) for number in numbers}
    for tier in range(_TIERS):
        run: list[int] = []
        for number in [*numbers, None]:
            if number is not None and tiers[number] <= tier:
                run.append(number)
                continue
            if sum(tiers[each] == tier for each in run) >= FANOUT:
                groups.append(run)
                tiers.update(dict.fromkeys(run, _TIERS))  # no other run takes them
            run = []
    return groups


def _tier(file: FileFacts) -> int:
    """0 for the smallest files, then one more for each power of FANOUT; `_TIERS` for those that are large enough."""
    if file.rows - file.dead >= LARGE_ROWS:
        return _TIERS
    live_bytes = file.size_bytes * (file.rows - file.dead) // max(file.rows, 1)
    tier = 0
    while tier < _TIERS and live_bytes >= TINY_BYTES * FANOUT**tier:
        tier += 1
    return tier
