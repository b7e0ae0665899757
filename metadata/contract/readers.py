"""The calls of readers: extents of L1 and above, one topic at one instant, and pins.

A snapshot is of one instant: a merge that swaps files while it is taken is in it wholly or not at all, so no offset is
in it twice and none is missing. The files that it names may be deleted from the object store once they die and their
grace is over. So a reader takes a pin first and the snapshot then.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Topic, UnknownTopicError, Watermarks
from metadata.rules.packed_index import iter_index, rows_of

PIN_MS_MAX = 86_400_000
"""What a pin may ask for at once: a reader that is gone holds nothing back for longer."""


SUGGESTIONS_MAX = 3


class L0Extent(NamedTuple):
    """An unbroken stretch of one partition in a live L0 file. Its batches carry no offsets: the first has
    `base_offset`, and each begins where the one before ends."""

    partition_id: int
    base_offset: int
    last_offset: int
    """Inclusive."""
    file_id: int
    key: str
    file_size_bytes: int
    created_ms: int
    """By the store's clock, at the commit."""
    position: int
    length: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    partition: int
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    l0: Sequence[L0Extent]
    """With a last offset at or above the log start, by offset."""
    extents: Sequence[LeveledExtent]
    """Live ones of L1 and above, by offset. Together with `l0` they cover [log start, high watermark) once; the first
    may begin below the log start."""
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the marker) of aborted transactions, by first offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    topic: Topic
    """`configs` are its own overrides alone."""
    taken_ms: int
    """By the store's clock."""
    partitions: Sequence[PartitionSnapshot]
    """By partition number."""


def unknown_topic(name: str, names: Iterable[str]) -> UnknownTopicError:
    """Of all topics: those that may have been meant are named."""
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


def partition_snapshots(
    watermarks: Sequence[Watermarks], files: Iterable[L0FileRow], extents: Iterable[LeveledExtent]
) -> list[PartitionSnapshot]:
    """`watermarks` by partition number, from 0. Of `files` the rows of other topics may have been left out already
    (`rows_of`). Pure; raises PackedIndexError."""
    stretches: dict[int, list[L0Extent]] = {marks.partition_id: [] for marks in watermarks}
    leveled: dict[int, list[LeveledExtent]] = {marks.partition_id: [] for marks in watermarks}
    log_starts = {marks.partition_id: marks.log_start_offset for marks in watermarks}
    wanted = frozenset(stretches)
    for file in files:
        found = rows_of(file.packed_index, wanted)
        for row in iter_index(found) if found else ():
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
                    )
                )
    for extent in extents:
        leveled[extent.partition_id].append(extent)
    return [
        PartitionSnapshot(
            partition=number,
            partition_id=marks.partition_id,
            log_start_offset=marks.log_start_offset,
            last_stable_offset=marks.last_stable_offset,
            high_watermark=marks.high_watermark,
            l0=sorted(stretches[marks.partition_id], key=_base_offset),
            extents=sorted(leveled[marks.partition_id], key=_base_offset),
        )
        for number, marks in enumerate(watermarks)
    ]


def _base_offset(extent: L0Extent | LeveledExtent) -> int:
    return extent.base_offset


class ReaderMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`."""

    # -- L1 and L2

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        """Live L1+ extents whose last offset is at or above `offset`, in offset order. One indexed read."""
        ...

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        """Live L1+ extents with a largest timestamp at or above `timestamp_ms` and last offset at or above
        `from_offset`, in offset order."""
        ...

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        """The live L1+ extent with the largest timestamp; of several the lowest."""
        ...

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        """Everything of one topic at one instant. Raises UnknownTopicError, which names topics that are spelt like it,
        and MetadataUnavailableError."""
        ...

    # -- pins

    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        """Protect every file that is live now from deletion until `ttl_ms` from now or `unpin`; the pin id. Take it
        first, then look at what lives: a file that dies at or after the pin's creation is protected."""
        ...

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        """False when the pin has run out: files may be gone."""
        ...

    async def unpin(self, pin_id: int) -> None: ...
