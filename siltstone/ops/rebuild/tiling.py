"""Decides, in a rebuild, which stretch of which file holds which offsets of a partition. Pure.

The merged files that the catalogue does not know are of three kinds, which cannot be told apart by their content:

- outputs of merges that were **committed** since the snapshot (increments name them). They replace the stretches that
  they overlap: the newest output is taken first, then older ones that do not overlap it, then the stretches that are
  live in the snapshot.
- outputs of merges **not known to be committed**: orphans, or committed in the last seconds. A deduping merge drops old
  values, and tombstones of old values that it saw. Half of its output beside half of its inputs would bring a deleted
  key back. All its inputs still exist (nothing is deleted before the catalogue calls it dead), so the inputs are used,
  and not the outputs.
- **copies** among these: a merge of L0 files only stamps offsets. If the catalogue does not know the offsets of an L0
  file, only a copy does. A copy is used if the whole of it lies where only L0 files can have been.

The inputs of a committed merge are dead even if its output is lost: in a compacted topic they are not used again, and
the offsets are a hole. Each offset is in one stretch only: a stretch that overlaps a taken one is not taken.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.contract.backup import Row
from metadata.rules.packed_index import IndexRow
from siltstone.ops.rebuild.state import State

LEVEL_KIND, PLAIN, FILLED_KIND = "level", "plain", "rebuild"
"""In a file's properties: the kind of merges that only copy L0, the class of topics that are not compacted, and the
kind of the files that a rebuild writes in place of lost offsets."""


class FooterExtent(NamedTuple):
    topic_id: uuid.UUID
    partition: int
    base_offset: int
    last_offset: int
    position: int
    length: int
    block_index_position: int
    block_index_length: int
    record_count: int
    crc32c: int
    min_ts_ms: int
    max_ts_ms: int
    has_tombstones: bool
    flagged_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The index and properties of a merged file."""

    key: str
    size_bytes: int
    crc32c: int
    level: int
    file_class: str
    created_ms: int
    job_id: int
    epoch: int
    kind: str
    inputs: tuple[tuple[int, str], ...]
    config_version: int
    extents: tuple[FooterExtent, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the merge dropped no record."""
        return self.kind == LEVEL_KIND or self.file_class == PLAIN


class Stretch(NamedTuple):
    """Offsets of a partition, and their holder: exactly one of the last three fields is set."""

    base_offset: int
    last_offset: int
    key: str
    row: Row | None = None
    """The row of `extents` in the snapshot."""
    extent: FooterExtent | None = None
    l0_row: IndexRow | None = None


class Taken:
    """Disjoint stretches of one partition."""

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []

    def overlapping(self, base_offset: int, last_offset: int) -> list[Stretch]:
        first = bisect_left(self.stretches, base_offset, key=lambda each: each.last_offset)
        end = bisect_right(self.stretches, last_offset, key=lambda each: each.base_offset)
        return self.stretches[first:end]

    def covers(self, base_offset: int, last_offset: int) -> bool:
        return not list(self.gaps(base_offset, last_offset + 1))

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(first, last) of each gap between the stretches, from `start` to before `end`."""
        for each in self.overlapping(start, end - 1):
            if each.base_offset > start:
                yield start, each.base_offset - 1
            start = max(start, each.last_offset + 1)
        if start < end:
            yield start, end - 1

    def take(self, stretch: Stretch) -> bool:
        """Returns False and does nothing if a stretch overlaps it."""
        if self.overlapping(stretch.base_offset, stretch.last_offset):
            return False
        insort(self.stretches, stretch, key=lambda each: each.base_offset)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All candidates; only objects that are in the listing."""

    state: State
    live_extents: Mapping[int, Sequence[tuple[Row, str]]]
    """By partition id: (row, key of the file) of extents in L1 and L2 that are live in the snapshot."""
    footers: Mapping[str, Footer]
    """Footers of merged files that the snapshot does not have, by key."""
    done: Mapping[str, tuple[int, int]]
    """Key of such a file whose merge was committed -> (job id, time)."""
    present: frozenset[str]
    """Keys of files whose objects exist."""


def inferred_done(
    footers: Mapping[str, Footer], done: Mapping[str, tuple[int, int]], unexplained: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """`done` and the outputs of merges that must have been committed too, because an input that was live is missing.

    `unexplained`: keys of files that the catalogue calls live, that the store does not have, and whose offsets no other
    file holds. This happens only if part of the catalogue cannot be read. If several merges read such a file, the last
    attempt of the newest job was committed.
    """
    readers: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    of_attempt: defaultdict[tuple[int, int], list[Footer]] = defaultdict(list)
    for footer in footers.values():
        if footer.kind != FILLED_KIND:
            of_attempt[footer.job_id, footer.epoch].append(footer)
            for _, key in footer.inputs:
                readers[key].add((footer.job_id, footer.epoch))
    more = dict(done)
    for key in unexplained:
        for footer in of_attempt[max(readers[key])] if readers[key] else ():
            more.setdefault(footer.key, (footer.job_id, footer.created_ms))
    return more


def tilings(material: Material) -> dict[int, Taken]:
    """By partition id, for all partitions."""
    state = material.state
    done: defaultdict[int, list[tuple[tuple[int, int], Footer, FooterExtent]]] = defaultdict(list)
    copies: defaultdict[int, list[tuple[Footer, FooterExtent]]] = defaultdict(list)
    read_by_done: set[str] = set()
    for key, footer in material.footers.items():
        if footer.kind == FILLED_KIND:
            continue  # its extents are empty, and this run may find the records that an earlier one missed
        if key in material.done:
            read_by_done.update(key for _, key in footer.inputs)
        for extent in footer.extents:
            partition_id = state.partition_id(extent.topic_id, extent.partition)
            if partition_id is None or extent.last_offset < state.log_start(partition_id):
                continue
            if key in material.done:
                done[partition_id].append((material.done[key], footer, extent))
            elif footer.is_copy:
                copies[partition_id].append((footer, extent))
    l0_rows: defaultdict[int, list[tuple[str, IndexRow]]] = defaultdict(list)
    for key, known in state.l0_files.items():
        for row in known.rows:
            if row.partition_id in state.partitions and row.last_offset >= state.log_start(row.partition_id):
                l0_rows[row.partition_id].append((key, row))
    return {
        partition_id: _tiling(
            material, partition_id, done[partition_id], copies[partition_id], l0_rows[partition_id], read_by_done
        )
        for partition_id in state.partitions
    }


def _tiling(
    material: Material,
    partition_id: int,
    done: list[tuple[tuple[int, int], Footer, FooterExtent]],
    copies: list[tuple[Footer, FooterExtent]],
    l0_rows: list[tuple[str, IndexRow]],
    read_by_done: set[str],
) -> Taken:
    state, taken = material.state, Taken()
    # Newest job first: it read the outputs of older ones, so it wins where they overlap.
    for _, footer, extent in sorted(done, key=lambda each: each[0], reverse=True):
        taken.take(Stretch(extent.base_offset, extent.last_offset, footer.key, extent=extent))
    replaced = _replaced(done)
    for row, key in material.live_extents.get(partition_id, ()):
        base, last = row["base_offset"], row["last_offset"]
        if last >= state.log_start(partition_id) and not _is_replaced(replaced, key, base, last):
            taken.take(Stretch(base, last, key, row=row))
    # In a plain partition a merge copies, so its input holds the same records and may stand in for a lost output.
    if state.is_compacted(partition_id):
        l0_rows = [each for each in l0_rows if each[0] not in read_by_done]
    _take_copies(taken, copies, l0_rows, known_end=state.next_offsets[partition_id], present=material.present)
    for key, row in sorted(l0_rows, key=lambda each: each[1].base_offset):
        if key in material.present:
            taken.take(Stretch(row.base_offset, row.last_offset, key, l0_row=row))
    return taken


def _replaced(
    done: Sequence[tuple[tuple[int, int], Footer, FooterExtent]],
) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Key of an input of a committed deduping merge -> the offset ranges of this partition that such merges read."""
    hulls: dict[tuple[int, int], tuple[int, int]] = {}
    inputs: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for _, footer, extent in done:
        if footer.is_copy:
            continue
        job = (footer.job_id, footer.epoch)
        base, last = hulls.get(job, (extent.base_offset, extent.last_offset))
        hulls[job] = (min(base, extent.base_offset), max(last, extent.last_offset))
        for _, key in footer.inputs:
            inputs[key].add(job)
    return {key: [hulls[job] for job in jobs] for key, jobs in inputs.items()}


def _is_replaced(replaced: Mapping[str, Sequence[tuple[int, int]]], key: str, base: int, last: int) -> bool:
    return any(first <= base and last <= end for first, end in replaced.get(key, ()))


def _take_copies(
    taken: Taken,
    copies: Sequence[tuple[Footer, FooterExtent]],
    l0_rows: list[tuple[str, IndexRow]],
    *,
    known_end: int,
    present: frozenset[str],
) -> None:
    """Take copies with offsets that nothing else has. L0 rows within a taken copy are removed from `l0_rows`."""
    in_turn = sorted(copies, key=_turn)
    for footer, extent in in_turn:
        base, last = extent.base_offset, extent.last_offset
        if taken.overlapping(base, last):
            continue
        within = [each for each in l0_rows if each[1].base_offset <= last and each[1].last_offset >= base]
        # An L0 extent that reaches out of the copy cannot be cut, so taking the copy would lose its other offsets.
        if any(row.base_offset < base or row.last_offset > last for _, row in within):
            continue
        known, there = Taken(), Taken()
        for key, row in within:
            stretch = Stretch(row.base_offset, row.last_offset, key)
            known.take(stretch)
            if key in present:
                there.take(stretch)
        # Not needed if the L0 files are there. Not safe unless L0 alone can have held these offsets.
        if there.covers(base, last) or not known.covers(base, min(last, known_end - 1)):
            continue
        if taken.take(Stretch(base, last, footer.key, extent=extent)):
            l0_rows[:] = [each for each in l0_rows if each not in within]


def _turn(copy: tuple[Footer, FooterExtent]) -> tuple[bool, int, int, int, str]:
    """Sort key for overlapping copies: merges of L0 files first, then the later job, because that one could take an L0
    file only if the earlier job was not committed."""
    footer, extent = copy
    return footer.kind != LEVEL_KIND, -footer.job_id, -footer.epoch, extent.base_offset, footer.key
