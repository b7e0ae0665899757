"""The bounds of one cleaning, which decide what may go from a compacted partition, and the counts that it reports.

The rules exist twice and give the same bytes: `compactor/cleaning/oracle.py` is plain Python for readers, and
`compactor/cleaning/partition_cleaner.py` runs in production over compiled kernels. Both take the batches of one
partition in offset order, with offsets stamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.errors import BadInputError

DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024
DEDUPE_ENTRY_BYTES = 41
DEDUPE_KEYS_MAX = DEDUPE_BUFFER_BYTES // DEDUPE_ENTRY_BYTES
assert DEDUPE_KEYS_MAX == 3_273_603
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanBounds:
    """The bounds of one partition in one merge. Offsets are exclusive."""

    first_uncleanable_offset: int
    """Records at or above this offset never enter the table and stay as they are."""
    whole_through_offset: int
    """The inputs hold every live extent from the log start to here. Only below it may tombstones be stamped or go."""
    now_ms: int
    """The spec's time: a horizon at or below it has passed."""
    delete_horizon_ms: int
    """Stamped into a batch that keeps a tombstone and has no horizon yet."""
    high_watermark: int
    last_stable_offset: int
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the abort marker) of the listed aborted transactions, by first offset. A
    marker may lie above all other bounds."""

    def __post_init__(self) -> None:
        """Raises BadInputError for a time that does not fit a batch: a horizon that wrapped would lie in the past."""
        for name, value_ms in (("now_ms", self.now_ms), ("delete_horizon_ms", self.delete_horizon_ms)):
            if not LONG_MIN <= value_ms <= LONG_MAX:
                raise BadInputError(f"{name} is {value_ms}, which does not fit a signed 64-bit number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """After the key passes over a partition."""

    records: int
    """Records walked below the first uncleanable offset."""
    dead_records: int
    keys: int
    """Distinct keys entered, over all fillings of the buffer. The next pass must expect as many."""
    clears: int
    """The number of times the buffer overflowed and was cleared (deep passes never clear it)."""
    first_clear_offset: int | None
    """The offset of the record at which the buffer was first cleared. Tombstones at or above it must stay as they are.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedStats:
    """After the rewrite of a partition."""

    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    tombstones_out: int
    tombstones_dropped: int
    keyless_dropped: int
    batches_verbatim: int
    batches_rebuilt: int
    batches_removed: int
    aborted_left: frozenset[int] = frozenset()
    """The offsets of the markers of listed aborted transactions of which a batch with records is left."""
