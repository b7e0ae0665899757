"""Merge jobs and the commit of a merge.

A merge is a durable *job*. The planner creates it over extents that no other live job holds. A compactor claims it
under an epoch that grows with every claim, and keeps the claim alive by heartbeats. The job ends in one transaction
that stores the outputs and kills the inputs. That commit happens only when

1. the job still has the caller's epoch, and neither its time limit nor `commit_by_ms` has passed (else `JobLostError`);
2. no output key was aborted or used before (else `MergeRefusedError`);
3. no input was replaced by another merge (else `MergeRefusedError`);
4. the outputs cover, per partition, exactly the offsets that the inputs hold (else `MergeRefusedError`).

Retention, DeleteRecords or the deletion of a topic may kill inputs meanwhile. The commit then *trims* the outputs: it
stores an output extent dead if the extent lies wholly below the log start, or if its partition is gone. A crash before
the commit leaves objects that no row names (orphans for the janitor). A crash after the commit loses nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.erasures.contract import ErasedKeys
from runtime.errors import FencedError, SiltstoneError

JOB_ATTEMPTS_MAX = 5
"""Claims per job: after this many holders that vanished, the job fails."""


class JobLostError(FencedError):
    """The compactor no longer holds the job: another one claimed it, it ended, or it is past its time limit. Nothing
    was committed; stop."""


class MergeRefusedError(SiltstoneError):
    """The commit certainly did not happen and never can as requested. The job has failed; its outputs are orphans."""


class InputsBusyError(SiltstoneError):
    """Another live job holds one of these inputs, or one of them is not live. No job was created; plan again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Input:
    """A live L0 file as a merge reads it. A row of its index is live if its partition exists and its last offset is at
    or above the log start."""

    file_id: int
    key: str
    size_bytes: int
    created_ms: int
    index: bytes
    inline: bytes = b""
    """As in `metadata.contract.files.L0File`."""


class JobState(StrEnum):
    """ready -> running -> done | failed. A running job becomes ready again when it is given back; one with an expired
    lease can be claimed again."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    kind: str
    """The planner's name for it: level | merge | daily | forced | purge | erase."""
    spec: Mapping[str, Any]
    """JSON-able. Only the compactor reads it (`compactor/planning/spec.py`)."""
    l0_file_ids: Sequence[int] = ()
    file_ids: Sequence[int] = ()
    """L1+ files; all their live extents are inputs."""
    extent_ids: Sequence[int] = ()
    limit_ms: int
    """The longest time from claim to commit."""
    forced_partition_ids: Sequence[int] = ()
    """Partitions whose `last_forced_ms` becomes now."""
    input_bytes: int = 0
    rest_ms: int = 0
    """Claims by kind skip the job for this long (at most an hour); only a claim that names its id takes it. The creator
    sets this when it wants to run the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """A row of `merge_jobs`."""

    job_id: int
    kind: str
    state: JobState
    epoch: int
    spec: Mapping[str, Any]
    holder: int | None
    """Node id of the compactor that runs or ran the job."""
    attempts: int
    created_ms: int
    started_ms: int | None
    deadline_ms: int | None
    finished_ms: int | None
    lease_until_ms: int | None
    not_before_ms: int = 0
    """The job rests: before this time only a claim that names its id takes it."""
    input_files: int
    input_bytes: int
    progress: Mapping[str, Any]
    """From the last heartbeat that brought one; {} at first. `fraction` (0 to 1) and `step` are for operators."""
    result: Mapping[str, Any]
    """`CommitMerge.summary` of the commit; {} before."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    job: MergeJob
    now_ms: int
    """The store's time at the claim."""
    l0_files: Sequence[L0Input]
    extents: Sequence[LeveledExtent]
    """Live inputs by (partition, base offset), without those that died since the job was created."""
    partitions: Mapping[int, InputPartition]
    """The partitions of all inputs, by id; absent = the topic was deleted."""
    erased_keys: Mapping[int, ErasedKeys] = field(default_factory=dict[int, ErasedKeys])
    """By partition id. Only a merge of the kind `erase` has them; its worker asks for them after the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartition:
    """A partition whose extents a job holds, as it was at the claim."""

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
    uncompressed_bytes: int | None = None
    committed_ms: int | None = None
    earliest_horizon_ms: int | None = None
    erased_through: int = 0


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
    """The result of a dedupe pass for one partition."""

    partition_id: int
    cleaned_through_offset: int | None
    """Exclusive end of the pass; None when it did not begin at the log start. The stored value never goes back."""
    passes_needed: int
    """1, or more when the buffer overflowed and the next pass must be deep."""
    aborted_gone: Sequence[int] = ()
    """The markers' offsets of aborted transactions of which the pass took every record: the store forgets them. Their
    markers stay until a later pass, whose spec no longer lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMerge:
    job_id: int
    epoch: int
    outputs: Sequence[OutputFile]
    covered: Mapping[int, Sequence[tuple[int, int]]]
    """The (base, last) ranges of the inputs that the merge read, by partition id; sorted and disjoint."""
    cleaned: Sequence[CleanedPartition] = ()
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    commit_by_ms: int | None = None
    """When parts of the merge were made under an earlier claim: the time until which the horizons that they stamped are
    valid. None: no such part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCommitted:
    file_ids: Sequence[int]
    """The ids of the outputs, in order."""
    trimmed_extents: int
    """How many output extents were stored dead because their records were deleted meanwhile."""
