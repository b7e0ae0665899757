"""Compares rebuilt metadata with the live ones from which the bucket came. Pure.

The live cluster goes on while the drill works. So there are two looks at it: what the first saw and the second still
sees must have come back. Whatever a client deleted meanwhile need not; whatever was written meanwhile may have.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.contract.operators import SystemView
from metadata.contract.topics import Topic
from metadata.postgres.backup.kept import NOT_IN_THE_BUCKET, Kept
from metadata.rules.invariants.all_levels import live_extents
from metadata.rules.packed_index import iter_index
from siltstone.ops.rebuild.plan import Hole


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a database."""

    topics: Mapping[uuid.UUID, Topic]
    view: SystemView
    kept: Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLater:
    """The second look at the live database."""

    topics: Mapping[uuid.UUID, Topic]
    log_starts: Mapping[int, int]
    kept: Kept


class LostRange(NamedTuple):
    """Offsets that were committed and did not come back."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    since_ms: int
    """When the first of them was committed, by the clock of Postgres."""

    @property
    def records(self) -> int:
        """An upper bound: dedupe may have removed some."""
        return self.last_offset - self.base_offset + 1


class Compared(NamedTuple):
    """One kind of things: how many there are, and how many of these came back."""

    what: str
    live: int
    rebuilt: int

    @property
    def lost(self) -> int:
        return self.live - self.rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    taken_ms: int
    rows: Sequence[Compared]
    lost: Sequence[LostRange]
    lost_topics: Sequence[Topic]
    wrong: Sequence[str]
    """Places where the rebuilt metadata name other records than the live ones."""
    changed_ms: int
    """When topics, configs, ACLs or quotas last changed."""

    @property
    def lost_records(self) -> int:
        return sum(each.records for each in self.lost)

    @property
    def lost_ms(self) -> int:
        """The recovery point: how long before the drill the oldest lost record, or topic, was committed. 0: nothing was
        lost."""
        since = [each.since_ms for each in self.lost] + [topic.created_ms for topic in self.lost_topics]
        return max(0, self.taken_ms - min(since)) if since else 0

    def differing(self) -> Sequence[str]:
        """Things of the catalogue that did not come back, as clients set them."""
        return [row.what for row in self.rows if row.lost and row.what in CATALOGUED]


INT63 = 2**63 - 1
CATALOGUED = frozenset({"topics", "topic configs", "ACLs", "quotas"})
"""Increments hold these: they come back as of the last one."""


def compare(live: Seen, later: SeenLater, rebuilt: Seen, holes: Iterable[Hole], *, known_ms: int) -> Comparison:
    """`known_ms`: later changes are not in the catalogue."""
    topics = {id_: topic for id_, topic in live.topics.items() if id_ in later.topics}
    there = {id_: rebuilt.topics[id_] for id_ in topics if id_ in rebuilt.topics}
    lost = _lost(live, later, rebuilt, holes, topics, known_ms)
    marks = {mark.partition_id: mark for mark in live.view.watermarks}
    wanted = sum(end - base for base, end in _wanted(live, later).values())
    committed = live.kept.group_offsets
    behind = sum(rebuilt.kept.group_offsets.get(place, -1) < offset for place, offset in committed.items())
    steady = {id_: each for id_, each in there.items() if later.topics[id_].configs == topics[id_].configs}
    same = sum(topics[id_].configs == topic.configs for id_, topic in steady.items())
    partitions = [each for topic in topics.values() for each in topic.partition_ids if each in marks]
    came_back = {each for topic in there.values() for each in topic.partition_ids}
    counts = {name: min(count, later.kept.counts[name]) for name, count in live.kept.counts.items()}
    rows = [
        Compared("topics", len(topics), len(there)),
        Compared("topic configs", len(steady), same),
        Compared("partitions", len(partitions), sum(each in came_back for each in partitions)),
        Compared("records", wanted, wanted - sum(each.records for each in lost)),
        Compared("group offsets", len(committed), len(committed) - behind),
        *(
            Compared(name, count, min(count, 0 if name in NOT_IN_THE_BUCKET else rebuilt.kept.counts[name]))
            for name, count in counts.items()
        ),
    ]
    return Comparison(
        taken_ms=live.view.now_ms,
        rows=rows,
        lost=lost,
        lost_topics=[topic for id_, topic in topics.items() if id_ not in there],
        wrong=list(_wrong(live.view, rebuilt.view)),
        changed_ms=max(live.kept.changed_ms, later.kept.changed_ms),
    )


def _wanted(live: Seen, later: SeenLater) -> Mapping[int, tuple[int, int]]:
    """Partition id -> first offset and end of what must come back."""
    starts = later.log_starts
    return {
        mark.partition_id: (max(mark.log_start_offset, starts[mark.partition_id]), mark.high_watermark)
        for mark in live.view.watermarks
        if starts.get(mark.partition_id, mark.high_watermark) < mark.high_watermark
    }


def _lost(
    live: Seen,
    later: SeenLater,
    rebuilt: Seen,
    holes: Iterable[Hole],
    topics: Mapping[uuid.UUID, Topic],
    known_ms: int,
) -> Sequence[LostRange]:
    marks = {mark.partition_id: mark for mark in rebuilt.view.watermarks}
    of_holes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for hole in holes:
        of_holes[hole.partition_id].append((hole.base_offset, hole.last_offset + 1))
    ranges: list[tuple[int, int, int]] = []
    for partition_id, (base, end) in _wanted(live, later).items():
        mark = marks.get(partition_id)
        missing = [(base, end)]
        if mark is not None:
            missing = [(base, mark.log_start_offset), *of_holes[partition_id], (mark.high_watermark, end)]
        clipped = [(max(base, first), min(end, last)) for first, last in missing]
        ranges += [(partition_id, first, last) for first, last in clipped if first < last]
    since = _committed_ms(live.view, ranges, known_ms)
    places = {id_: (topic.name, number) for topic in topics.values() for number, id_ in enumerate(topic.partition_ids)}
    return [
        LostRange(*places[each[0]], each[1], each[2] - 1, since.get(each, min(known_ms, live.view.now_ms)))
        for each in ranges
        if each[0] in places
    ]


def _committed_ms(
    view: SystemView, ranges: Sequence[tuple[int, int, int]], known_ms: int
) -> Mapping[tuple[int, int, int], int]:
    """Range -> when the first of its records was committed."""
    if not ranges:
        return {}
    marks = {mark.partition_id: mark for mark in view.watermarks}
    created = {file.key: file.created_ms for file in view.l0_files}
    merged = {(each.key, each.partition_id, each.base_offset): each.committed_ms for each in view.extents}
    of_partition: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for extent in live_extents(view.l0_files, marks, view.extents):
        row = extent.row
        # Of a merged file from before commits were noted, only this is known: the catalogue lacks it.
        at_ms = created.get(extent.key) or merged.get((extent.key, row.partition_id, row.base_offset)) or known_ms
        of_partition[row.partition_id].append((row.base_offset, row.last_offset, at_ms))
    found: dict[tuple[int, int, int], int] = {}
    for each in ranges:
        partition_id, base, end = each
        times = [at_ms for first, last, at_ms in of_partition[partition_id] if first < end and last >= base]
        if times:
            found[each] = min(times)
    return found


def _wrong(live: SystemView, rebuilt: SystemView) -> Iterator[str]:
    """An extent that both know must lie at the same offsets and bytes in both."""
    before = {each.key: each for each in live.l0_files}
    starts = {mark.partition_id: mark.log_start_offset for mark in live.watermarks}
    for file in rebuilt.l0_files:
        known = before.get(file.key)
        if known is None:
            continue
        rows = {row for row in iter_index(file.index) if row.last_offset >= starts.get(row.partition_id, INT63)}
        if not rows <= set(iter_index(known.index)):
            yield f"{file.key}: its records have other offsets"
    places = {(each.key, each.partition_id, each.base_offset): each for each in live.extents}
    for extent in rebuilt.extents:
        other = places.get((extent.key, extent.partition_id, extent.base_offset))
        if other is not None and (other.last_offset, other.position, other.length, other.crc32c) != (
            extent.last_offset,
            extent.position,
            extent.length,
            extent.crc32c,
        ):
            yield f"{extent.key}: its extent at offset {extent.base_offset:,} differs"
