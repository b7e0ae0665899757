"""Facts about an output extent that its batches or its inputs tell: size uncompressed, commit time, horizons, erasures.

Pure. An output extent answers for the inputs whose offsets it overlaps: it is as old as the oldest of them, and only
erasures that were carried out on all of them were carried out on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compactor.merging.kway_merge import InputExtent
from compactor.merging.windows import BatchWindow
from wire.batch import DELETE_HORIZON_BIT
from wire.kernels.batches import BatchTable


class ExtentFacts(NamedTuple):
    """As in `LeveledExtent`."""

    uncompressed_bytes: int | None
    committed_ms: int | None
    earliest_horizon_ms: int | None
    erased_through: int


class FactsOfInputs:
    """The facts of one partition's outputs, as far as they follow from its inputs."""

    def __init__(self, inputs: Sequence[InputExtent], erased_through: int = 0) -> None:
        """`inputs`: in offset order and disjoint. `erased_through`: the stamp of the erasures carried out here."""
        self._inputs = inputs
        self._erased_through = erased_through
        self._last_offsets = [each.last_offset for each in inputs]

    def of(
        self, base_offset: int, last_offset: int, uncompressed_bytes: int, earliest_horizon_ms: int | None
    ) -> ExtentFacts:
        at = bisect_left(self._last_offsets, base_offset)
        committed: list[int | None] = []
        erased: list[int] = []
        while at < len(self._inputs) and self._inputs[at].base_offset <= last_offset:
            committed.append(self._inputs[at].committed_ms)
            erased.append(self._inputs[at].erased_through)
            at += 1
        known = [each for each in committed if each is not None]
        return ExtentFacts(
            uncompressed_bytes,
            # One unknown time may be the earliest of all.
            min(known) if known and len(known) == len(committed) else None,
            earliest_horizon_ms,
            # Never lower than the inputs had: an erasure with a higher stamp may be done by now.
            max(min(erased, default=0), self._erased_through),
        )


def earliest_horizon_ms(table: BatchTable, before: int | None, *, end_offset: int) -> int | None:
    """The earliest delete horizon of these batches below `end_offset`, and of the ones `before`. A batch without
    records has nothing left that a horizon could drop."""
    stamped = ((table.attributes & DELETE_HORIZON_BIT) != 0) & (table.record_counts > 0)
    stamped &= table.base_offsets < end_offset
    if not stamped.any():
        return before
    earliest = int(table.base_timestamps_ms[stamped].min())
    return earliest if before is None else min(earliest, before)


def with_known_sizes(window: BatchWindow) -> BatchTable:
    """The window's table, its uncompressed sizes by what is known of the inputs: more than copied batches say.

    The known bytes of an input are spread over its batches by their stored sizes. Earlier merges read some of these
    batches, and their rows tell no size of a single batch.
    """
    table = window.table
    known = [piece for piece in window.pieces if (piece.extent.uncompressed_bytes or 0) > piece.extent.length > 0]
    if not known:
        return table
    sizes = table.uncompressed_sizes.copy()
    for extent, first, end in known:
        ratio = (extent.uncompressed_bytes or 0) / extent.length
        ends = np.rint(np.cumsum(table.sizes[first:end]) * ratio).astype(np.int64)
        sizes[first:end] = np.diff(ends, prepend=0)
    return table._replace(uncompressed_sizes=sizes)
