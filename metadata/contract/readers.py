"""The calls of readers: extents of L1 and above, one topic at one instant, and pins.

A snapshot shows one instant. It contains a merge that commits meanwhile wholly or not at all, so it holds no offset
twice and misses none. The files that it names may be deleted from the object store once they are dead and their grace
period is over. So a reader first takes a pin and then the snapshot.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, Protocol

from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Topic, UnknownTopicError, Watermarks
from metadata.rules.packed_index import iter_index, rows_of
from metadata.transactions.contract import AbortedTransaction

PIN_MS_MAX = 86_400_000
"""The longest lifetime of a pin without renewal: a reader that is gone delays deletions for at most this long."""


SUGGESTIONS_MAX = 3
"""Topics that the error for an unknown topic suggests."""


class L0Extent(NamedTuple):
    """An unbroken stretch of one partition in a live L0 file. Its batches carry no offsets: the first batch starts at
    `base_offset`, and each next batch starts where the previous one ends."""

    partition_id: int
    base_offset: int
    last_offset: int
    """Inclusive."""
    file_id: int
    key: str
    file_size_bytes: int
    created_ms: int
    """The time of the commit, by the store's clock."""
    position: int
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    inline: bytes = b""
    """The bytes of the file, if no object holds them (`metadata.contract.files.L0File`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    partition: int
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    l0: Sequence[L0Extent]
    """The extents whose last offset is at or above the log start, by offset."""
    extents: Sequence[LeveledExtent]
    """Live extents of L1 and above, by offset. Together with `l0` they cover [log start, high watermark) exactly once.
    The first may begin below the log start."""
    aborted: Sequence[tuple[int, int, int]] = ()
    """Aborted transactions below the last stable offset, by first offset: (producer id, first offset, offset of the
    marker)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    topic: Topic
    """Its `configs` are only its own overrides, without cluster-wide defaults."""
    taken_ms: int
    """By the store's clock."""
    partitions: Sequence[PartitionSnapshot]
    """By partition number."""


def unknown_topic(name: str, names: Iterable[str]) -> UnknownTopicError:
    """The error for a topic that does not exist. Its remedy suggests similar names among `names`, the names of all
    topics."""
    known = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), known, SUGGESTIONS_MAX)
    meant = ", ".join(repr(known[each]) for each in close)
    remedy = f"did you mean {meant}?" if meant else "`siltstone topics list` shows those that exist"
    return UnknownTopicError(f"there is no topic {name!r}", remedy=remedy)


class L0FileRow(NamedTuple):
    file_id: int
    key: str
    size_bytes: int
    created_ms: int
    packed_index: bytes
    inline: bytes = b""


def partition_snapshots(
    watermarks: Sequence[Watermarks],
    files: Iterable[L0FileRow],
    extents: Iterable[LeveledExtent],
    aborted: Iterable[AbortedTransaction] = (),
) -> list[PartitionSnapshot]:
    """The snapshots of all partitions of a topic, by partition number. Pure.

    `watermarks`: by partition number, from 0. `files`: live L0 files; their packed indexes may be reduced to the rows
    of this topic (`rows_of`). `extents`: live L1+ extents of the topic. `aborted`: of the topic. Raises
    PackedIndexError.
    """
    stretches: dict[int, list[L0Extent]] = {marks.partition_id: [] for marks in watermarks}
    leveled: dict[int, list[LeveledExtent]] = {marks.partition_id: [] for marks in watermarks}
    log_starts = {marks.partition_id: marks.log_start_offset for marks in watermarks}
    wanted = frozenset(stretches)
    for file in files:
        found = rows_of(file.packed_index, wanted)
        for row in iter_index(found) if found else ():
            # An L0 extent has no state of its own: the log start decides whether its records still live.
            if row.last_offset >= log_starts[row.partition_id]:
                stretches[row.partition_id].append(
                    L0Extent(
                        row.partition_id,
                        row.base_offset,
                        row.last_offset,
                        file.file_id,
                        file.key,
                        file.size_bytes,
                        file.created_ms,
                        row.position,
                        row.length,
                        row.min_timestamp_ms,
                        row.max_timestamp_ms,
                        file.inline,
                    )
                )
    for extent in extents:
        leveled[extent.partition_id].append(extent)
    lists: dict[int, list[tuple[int, int, int]]] = {marks.partition_id: [] for marks in watermarks}
    for each in aborted:
        lists[each.partition_id].append((each.producer_id, each.first_offset, each.last_offset))
    return [
        PartitionSnapshot(
            partition=number,
            partition_id=marks.partition_id,
            log_start_offset=marks.log_start_offset,
            last_stable_offset=marks.last_stable_offset,
            high_watermark=marks.high_watermark,
            l0=sorted(stretches[marks.partition_id], key=_base_offset),
            extents=sorted(leveled[marks.partition_id], key=_base_offset),
            aborted=sorted(
                (each for each in lists[marks.partition_id] if each[2] < marks.last_stable_offset),
                key=itemgetter(1),
            ),
        )
        for number, marks in enumerate(watermarks)
    ]


def _base_offset(extent: L0Extent | LeveledExtent) -> int:
    return extent.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LeveledWindow:
    extents: Sequence[LeveledExtent]
    """By offset."""
    aborted: Sequence[AbortedTransaction]
    """By marker: those whose marker is at or above the offset asked for, and that began at or below the last offset of
    the extents. A later merge may remove their records and then forget them; so they belong to these extents alone."""


class ReaderMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`."""

    # -- L1 and L2

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        """Live L1+ extents whose last offset is at or above `offset`, in offset order. One indexed read."""
        ...

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        """The same extents, and at the same instant the aborted transactions that may have records in them."""
        ...

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        """Live L1+ extents with a largest timestamp at or above `timestamp_ms` and last offset at or above
        `from_offset`, in offset order."""
        ...

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        """The live L1+ extent with the largest timestamp; if several have it, the one with the lowest offsets."""
        ...

    async def topics(self) -> Sequence[Topic]:
        """All topics by name. Their replication factor is 1, here and in `topic_snapshot`: a reader may not see it."""
        ...

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        """One topic at one instant, with all its extents. Raises UnknownTopicError, which suggests similar names, and
        MetadataUnavailableError."""
        ...

    # -- pins

    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        """Protect every file that is live now from deletion, for `ttl_ms` or until `unpin`. Returns the pin id. Take
        the pin first and then read which files are live: the pin protects files that die at or after its creation."""
        ...

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        """Extend the pin to `ttl_ms` from now. False when it has expired: its files may be gone."""
        ...

    async def unpin(self, pin_id: int) -> None: ...
