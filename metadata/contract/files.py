"""The rows of files: their states, and the fields that operators and the invariants read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileState(StrEnum):
    """live -> dead -> deleted. `aborted` is a separate final state: its key can never be committed."""

    LIVE = "live"
    DEAD = "dead"
    DELETED = "deleted"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    file_id: int
    key: str
    level: int
    state: FileState
    writer_id: int | None
    epoch: int | None
    seq: int | None
    size_bytes: int
    crc32c: int
    created_ms: int
    index: bytes
    """The packed index; it has no rows from L1 up, and none once the file is deleted (but see
    `DeletionMetadata.files_deleted`)."""
    file_class: str | None = None
    """A `metadata.contract.leveled.FileClass` from L1 up."""
    dead_ms: int | None = None
    live_extents: int = 0
    """How many of its extents are live. L0: the number of rows of its index while it lives."""
    job_id: int | None = None
    """The merge that wrote it; None for L0."""
    inline: bytes = b""
    """As in `L0File`; none once the file is deleted."""
    txn_rows: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class L0File:
    file_id: int
    key: str
    writer_id: int
    epoch: int
    seq: int
    size_bytes: int
    created_ms: int
    index: bytes
    live: bool = True
    """False: a merge replaced the file before the follower saw it. Its rows only move the ends of their partitions; the
    records are read from L1+."""
    inline: bytes = b""
    """The bytes of the file, if no object holds them: markers of transactions. Its index rows point into them, several
    of them at the same bytes."""
    txn_rows: bytes = b""
    """The transactions that begin and end in the file (`metadata/transactions/rows.py`), also if it is not live."""
