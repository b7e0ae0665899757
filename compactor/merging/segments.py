"""The places where merged extents and files are cut. Pure.

An extent (Kafka's segment) ends

1. where the inputs of its partition have a gap: an extent answers for every offset in its range, so it may cover only
   offsets that its inputs hold;
2. before the batch that would take it over `segment.bytes`;
3. before the batch whose largest timestamp is more than `segment.ms`, or an eighth of `retention.ms`, after that of the
   extent's first batch: retention drops whole extents by their largest timestamp, so old records must not wait for
   young ones in the same extent;
4. around an extent whose bytes cannot be read as batches, which stays alone.

`ExtentCutter` implements rules 2 and 3; the other rules need only the ranges of the inputs. Ranges tile: an extent that
is cut before a batch ends right below that batch's base offset, and the next extent begins there.

A file ends at the border between extents that leaves its size nearest to the wanted size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadata.configs.topic import as_int, as_list, resolve

EXTENTS_MAX = 200_000
"""Extents of one file: their index takes 19 MiB, which every reader of the file must hold."""
RETENTION_SHARE = 8
_LOOK_AHEAD = 64
"""Batches that the search for a cut by time looks at first; doubled until the cut is found."""


class SegmentRule(NamedTuple):
    """When an extent of one topic is full."""

    bytes_max: int
    """A single batch above it is an extent of its own."""
    span_ms_max: int | None
    """None = no limit."""


def segment_rule(configs: Mapping[str, str], *, output_bytes: int) -> SegmentRule:
    """The rule from a topic's overrides. An extent never exceeds a file, so `output_bytes` bounds it too.

    `retention.ms` counts only if the cleanup policy deletes. Raises InvalidConfigError for a value that is no number.
    """
    resolved = resolve(configs)
    span_ms = as_int(resolved, "segment.ms")
    retention_ms = as_int(resolved, "retention.ms")
    if retention_ms >= 0 and "delete" in as_list(resolved, "cleanup.policy"):
        span_ms = min(span_ms, retention_ms // RETENTION_SHARE)
    return SegmentRule(min(as_int(resolved, "segment.bytes"), output_bytes), span_ms)


class ExtentCutter:
    """Rules 2 and 3 for the batches of one partition, in order."""

    def __init__(self, rule: SegmentRule) -> None:
        self._rule = rule
        self._bytes = 0
        self._first_timestamp_ms: int | None = None
        """The timestamp of the first batch of the open extent that has one."""

    def start(self) -> None:
        """A new extent begins for another reason (a gap, a flagged neighbour)."""
        self._bytes = 0
        self._first_timestamp_ms = None

    def cuts(self, sizes: NDArray[np.int64], max_timestamps_ms: NDArray[np.int64]) -> list[int]:
        """Takes the next batches; returns the indexes, rising, of the batches before which a new extent begins."""
        ends = np.cumsum(sizes)
        batches = len(sizes)
        cuts: list[int] = []
        at = 0
        while at < batches:
            cut = min(self._full_at(ends, at), self._too_late_at(max_timestamps_ms, at))
            if cut >= batches:
                self._bytes += int(ends[-1]) - (int(ends[at - 1]) if at else 0)
                break
            cuts.append(cut)
            self.start()
            at = cut
        return cuts

    def _full_at(self, ends: NDArray[np.int64], at: int) -> int:
        """The first batch from `at` on that does not fit; the first batch of an extent always fits."""
        begun = int(ends[at - 1]) if at else 0
        full = int(ends.searchsorted(begun + self._rule.bytes_max - self._bytes, side="right"))
        # An extent takes at least one batch, or a batch above the limit would begin empty extents for ever.
        return max(full, at if self._bytes else at + 1)

    def _too_late_at(self, timestamps_ms: NDArray[np.int64], at: int) -> int:
        """The first batch from `at` on that is too young for the open extent; sets the extent's first timestamp."""
        batches = len(timestamps_ms)
        if self._rule.span_ms_max is None:
            return batches
        if self._first_timestamp_ms is None:
            # Batches without timestamps (-1) say nothing about age; the clock of an extent starts with the first that
            # has one.
            at = _first_above(timestamps_ms, at, -1)
            if at == batches:
                return batches
            self._first_timestamp_ms = int(timestamps_ms[at])
        return _first_above(timestamps_ms, at, self._first_timestamp_ms + self._rule.span_ms_max)


def _first_above(values: NDArray[np.int64], at: int, bound: int) -> int:
    """The index of the first value above `bound` from `at` on; the number of values when there is none."""
    if bound >= np.iinfo(np.int64).max:
        return len(values)
    look_ahead = _LOOK_AHEAD
    while at < len(values):
        found = (values[at : at + look_ahead] > bound).nonzero()[0]
        if len(found):
            return at + int(found[0])
        at += look_ahead
        look_ahead *= 2
    return len(values)


def ends_file(*, file_bytes: int, file_extents: int, next_bytes: int, output_bytes: int) -> bool:
    """Whether a file of `file_bytes` should end before an extent of about `next_bytes`."""
    if not file_extents:
        return False
    if file_extents >= EXTENTS_MAX:
        return True
    over = file_bytes + next_bytes - output_bytes
    # Ends only if the file is then nearer to the wanted size than with the next extent.
    return over > 0 and over >= output_bytes - file_bytes
