"""Decides whether a table with one row per key can take the tail of its topic. Pure.

**A tail with gaps.** A tombstone is the only sign that a row is to go. Some time after a dedupe has seen it, another
dedupe drops it, and then nothing in the log tells that the key is gone. But a gap is left: the extent holds fewer
records than it has offsets. So a tail with such an extent is not used, and the whole view is written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadata.contract.readers import PartitionSnapshot, TopicSnapshot

TAIL_ROWS = 2 << 20
"""About the most records of a tail in one commit: their keys and offsets, 40 bytes a record, are in memory."""


def tail_rows(snapshot: TopicSnapshot, offsets: Mapping[int, int]) -> Mapping[int, int]:
    """The number of offsets in each partition behind those, which the table has not seen."""
    return {
        each.partition: max(0, each.last_stable_offset - max(each.log_start_offset, offsets.get(each.partition, 0)))
        for each in snapshot.partitions
    }


def with_gaps(snapshot: TopicSnapshot, offsets: Mapping[int, int]) -> Sequence[int]:
    """The partitions in which records behind these offsets have been removed from the log."""
    return [
        each.partition
        for each in snapshot.partitions
        if _has_gap(each, max(each.log_start_offset, offsets.get(each.partition, 0)))
    ]


def _has_gap(part: PartitionSnapshot, start: int) -> bool:
    end = part.last_stable_offset
    return any(
        extent.record_count != extent.last_offset + 1 - extent.base_offset
        for extent in part.extents
        if extent.last_offset >= start and extent.base_offset < end
    )
