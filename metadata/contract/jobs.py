"""Merge jobs and the commit of a merge.

A merge is a durable *job*. It is created over extents that no other live job holds, claimed under an epoch that grows
with every claim, kept alive by heart-beats, and ends in one transaction: outputs in, inputs dead. That commit happens
only when

1. the job's epoch is still ours, and neither its time limit nor `commit_by_ms` has passed (else `JobLostError`);
2. no output key was aborted or used before (else `MergeRefusedError`);
3. no input was replaced by another merge (else `MergeRefusedError`);
4. the outputs cover, per partition, exactly the offsets that the inputs hold (else `MergeRefusedError`).

Retention, DeleteRecords or the deletion of a topic may kill inputs meanwhile. The commit *trims* the outputs then: an
output extent that lies wholly below the log start, or whose partition is gone, is stored dead. A crash before the
commit leaves objects that no row names (orphans for the janitor); after it, everything.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from metadata.contract.leveled import FileClass, LeveledExtent
from runtime.errors import FencedError, SiltstoneError

JOB_ATTEMPTS_MAX = 5
"""Claims after which a job whose holders all vanished is failed."""


class JobLostError(FencedError):
    """The job is not ours any more (a newer epoch, ended, or past its time limit). Nothing was committed; stop."""


class MergeRefusedError(SiltstoneError):
    """The commit certainly did not happen and cannot as asked; the job is failed. Its outputs are orphans."""


class InputsBusyError(SiltstoneError):
    """Another live job holds one of these inputs, or one is not live. No job was made; plan anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Input:
    """A live L0 file as a merge reads it. Which of its rows live: those whose partition is there and whose last
    offset is at or above the log start."""

    file_id: int
    key: str
    size_bytes: int
    created_ms: int
    index: bytes


class JobState(StrEnum):
    """ready -> running -> done | failed; running -> ready when its lease ran out or it was given back."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    kind: str
    """level | merge | daily | forced | purge: what the planner calls it."""
    spec: Mapping[str, Any]
    """JSON-able; opaque here (`compactor/planning/spec.py`)."""
    l0_file_ids: Sequence[int] = ()
    file_ids: Sequence[int] = ()
    """L1+ files of which all live extents are inputs."""
    extent_ids: Sequence[int] = ()
    limit_ms: int
    """From claim to commit at most."""
    forced_partition_ids: Sequence[int] = ()
    """Their `last_forced_ms` becomes now."""
    input_bytes: int = 0
    rest_ms: int = 0
    """For so long nobody claims it but who names it, at most an hour: its maker wants to run it himself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """A row of `merge_jobs`."""

    job_id: int
    kind: str
    state: JobState
    epoch: int
    spec: Mapping[str, Any]
    holder: int | None
    """Node id of the compactor that runs or ran it."""
    attempts: int
    created_ms: int
    started_ms: int | None
    deadline_ms: int | None
    finished_ms: int | None
    lease_until_ms: int | None
    not_before_ms: int = 0
    """It was given back for trouble: nobody claims it before."""
    input_files: int
    input_bytes: int
    progress: Mapping[str, Any]
    """As last beaten; {} at first. `fraction` (0 to 1) and `step` are for people."""
    result: Mapping[str, Any]
    """Of the commit: what `CommitMerge.summary` said."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    job: MergeJob
    now_ms: int
    """The store's time at the claim."""
    l0_files: Sequence[L0Input]
    extents: Sequence[LeveledExtent]
    """Live inputs by (partition, base offset); what died since creation is left out."""
    partitions: Mapping[int, InputPartition]
    """Of every input; absent = the topic was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartition:
    """A partition whose extents a job holds, at the claim."""

    partition_id: int
    topic_id: uuid.UUID
    topic_name: str
    partition: int
    configs: Mapping[str, str]
    """Overrides over the cluster-wide defaults."""
    config_version: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputExtent:
    partition_id: int
    base_offset: int
    last_offset: int
    position: int
    length: int
    block_index_position: int
    block_index_length: int
    record_count: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    has_tombstones: bool
    flagged_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    key: str
    level: int
    file_class: FileClass
    size_bytes: int
    crc32c: int
    config_version: int
    extents: Sequence[OutputExtent]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """What a dedupe pass did to one partition."""

    partition_id: int
    cleaned_through_offset: int | None
    """None: the pass did not begin at the log start. The stored value never goes back."""
    passes_needed: int
    """1, or more when the buffer overflowed and the next pass must be deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMerge:
    job_id: int
    epoch: int
    outputs: Sequence[OutputFile]
    covered: Mapping[int, Sequence[tuple[int, int]]]
    """Per partition the (base, last) ranges of the inputs that the merge read, sorted and disjoint."""
    cleaned: Sequence[CleanedPartition] = ()
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    commit_by_ms: int | None = None
    """Where parts of it were made under an earlier claim: until when the horizons that they stamped hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCommitted:
    file_ids: Sequence[int]
    """Of the outputs, in order."""
    trimmed_extents: int
    """Output extents stored dead because their records were deleted meanwhile."""
