"""Extents of L1 and L2 files, as readers, merges and the planner see them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class FileClass(StrEnum):
    """The class of an L1 or L2 file: a merge never mixes compacted topics and others in one output."""

    PLAIN = "plain"
    COMPACTED = "compacted"


class LeveledExtent(NamedTuple):
    """A live extent of an L1 or L2 file. Its batches carry their offsets; `position` is its first byte in the
    object."""

    extent_id: int
    partition_id: int
    base_offset: int
    last_offset: int
    """Inclusive. The extent covers all of [base, last], although dedupe may have left only some of these records."""
    file_id: int
    key: str
    level: int
    file_size_bytes: int
    position: int
    length: int
    """0 = the extent covers its offsets without any batch."""
    block_index_position: int
    block_index_length: int
    record_count: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    has_tombstones: bool
    flagged_reason: str | None
    """Why its bytes cannot be read as batches (merges then copy them verbatim); None = they can."""
    # Only planner and merges ask for the rest: agents and readers get the defaults.
    uncompressed_bytes: int | None = None
    """Bytes of its batches with their records uncompressed; None = an older program wrote the row. A compressed batch
    whose frame does not say its size counts as it is stored, until a dedupe has read it."""
    committed_ms: int | None = None
    """When the first of its records was committed; None = not known, or it answers for records of an older program."""
    earliest_horizon_ms: int | None = None
    """The earliest delete horizon of its batches that have records; None = no such batch, or an older program."""
    erased_through: int = 0
    """Every open erasure of the partition with an id up to this was carried out on it."""

    @property
    def cap_bytes(self) -> int:
        """Its size for the cap of a merge, which counts records uncompressed."""
        return self.length if self.uncompressed_bytes is None else self.uncompressed_bytes
