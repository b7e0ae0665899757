"""Rows of files: their states, and the fields that people and the invariants read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileState(StrEnum):
    """live -> dead -> deleted; aborted is an end of its own (its key may never be committed)."""

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
    """The packed index; without rows from L1 up."""
    file_class: str | None = None
    """A `metadata.contract.leveled.FileClass` from L1 up."""
    dead_ms: int | None = None
    live_extents: int = 0
    """L0: the rows of its index while it lives."""
    job_id: int | None = None
    """The merge that wrote it; None for L0."""


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
    """False: merged before the follower looked. Its rows only move the end of their partitions; read them from L1+."""
