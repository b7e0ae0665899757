"""What the compactor asks of the metadata store: views, durable merge jobs, retention, what may be deleted.

Kept by the same two implementations as `metadata/contract/service.py` (Postgres, memory), under one contract suite
(`tests/contract/test_compaction_*.py`). Like there, every method is one transaction, and what it decides is decided
by pure functions that both implementations call (`metadata/rules/merge_commit.py`).

A merge is a durable *job*. It is created over extents that no other live job holds, claimed under an epoch that grows
with every claim, kept alive by heart-beats, and ends in one transaction: outputs in, inputs dead. That commit happens
only when

1. the job's epoch is still ours, its time limit has not passed, nor `commit_by_ms` (else `JobLostError`);
2. no output key was aborted or used before (else `MergeRefusedError`);
3. no input was replaced by another merge (else `MergeRefusedError`);
4. the outputs cover, per partition, exactly the offsets that the inputs hold (else `MergeRefusedError`).

What retention, DeleteRecords or the deletion of a topic killed meanwhile is *trimmed* by the commit: an output extent
that lies wholly below the log start, or whose partition is gone, is stored dead. A crash before the commit leaves
objects that no row names (orphans for the janitor); after it, everything. All times are the store's own clock's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from metadata.contract.admin import AdminMetadata
from metadata.contract.groups import GroupMetadata
from metadata.contract.leveled import FileClass as FileClass  # part of this contract
from metadata.contract.leveled import LeveledExtent as LeveledExtent
from metadata.contract.scan import ScanMetadata
from metadata.contract.service import L0File, MetadataService, Watermarks, WriterLease
from metadata.rules.history import History, ServerHistory
from metadata.rules.jobs import PAST_LIMIT as PAST_LIMIT
from runtime.errors import BadInputError, FencedError, SiltstoneError

JOB_LEASE_MS = 10_000
JOB_BEAT_MS = 2_000
JOB_ATTEMPTS_MAX = 5
"""Claims after which a job whose holders all vanished is failed."""


class JobLostError(FencedError):
    """The job is not ours any more (a newer epoch, ended, or past its time limit). Nothing was committed; stop."""


class MergeRefusedError(SiltstoneError):
    """The commit certainly did not happen and cannot as asked; the job is failed. Its outputs are orphans."""


class InputsBusyError(SiltstoneError):
    """Another live job holds one of these inputs, or one is not live. No job was made; plan anew."""


class NotCompactedError(BadInputError):
    """Compaction was asked for of a topic without `compact` in its cleanup.policy."""


class InvalidOffsetError(BadInputError):
    """DeleteRecords above the high watermark or below zero."""


# ---- values -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Input:
    """A live L0 file as a merge reads it. Which of its rows live: those whose partition is there and whose last
    offset is at or above the log start."""

    file_id: int
    key: str
    size_bytes: int
    created_ms: int
    index: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """A live file as the planner sees it."""

    file_id: int
    level: int
    file_class: FileClass | None
    """None for L0."""
    lo: int
    hi: int
    """The range of L0 file ids it stands for; (file_id, file_id) for L0."""
    run_id: int
    """The job that wrote it (files of one merge are one run); for L0 the file id."""
    size_bytes: int
    live_bytes: int
    """Of live extents; L0: size_bytes."""
    oldest_dead_ms: int | None
    """When the first of its dead extents died; None = all live."""
    max_timestamp_ms: int
    expires_ms: int | None
    """When retention will have killed all its extents; None = never, or not all of them, or not known (L0)."""
    created_ms: int
    trouble_until_ms: int = 0
    """A merge of it failed, with the error `trouble`: leave it alone until then."""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition of a topic with `compact` in its policy, as the planner sees it (plain ones need no view)."""

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
    cleaned_through_offset: int
    """Exclusive: everything below was part of a pass from the log start."""
    last_cleaned_ms: int | None
    last_forced_ms: int | None
    passes_needed: int
    """Above 1: the last dedupe overflowed its buffer, the next is deep with this many passes."""
    requested_through_offset: int | None
    """Somebody asked for compaction up to here, now."""
    extents: Sequence[LeveledExtent]
    """Live L1+ extents in offset order, those of busy jobs too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionView:
    """Everything the planner needs, at one instant."""

    now_ms: int
    files: Sequence[FileView]
    partitions: Sequence[PartitionView]
    busy_files: frozenset[int]
    """L0 files and files with at least one extent that are inputs of a live job."""
    busy_extents: frozenset[int]
    live_jobs: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """Of the jobs that are ready or running: with how many bytes each was planned, by kind."""
    last_daily_ms: int | None = None
    """When the newest `daily` job that did not fail was made; None = none is known."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFile:
    file_id: int
    key: str
    size_bytes: int
    dead_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one round of retention did."""

    extents: int
    bytes: int
    partitions: int
    """Whose log start moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """What the invariants of L1 and above judge, at one instant."""

    now_ms: int
    watermarks: Sequence[Watermarks]
    l0_files: Sequence[L0File]
    """Live ones, by file id."""
    extents: Sequence[LeveledExtent]
    """Live ones, by partition and offset."""
    live_extents: Mapping[int, int]
    """What the rows of live L1+ files say of themselves: file id -> live extents."""
    job_inputs: Sequence[tuple[int, int, int | None]]
    """(job id, file id, extent id) of live jobs; None = the whole L0 file."""
    pins: Sequence[int]
    """Creation times of live pins."""


class CompactionMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`; those that change something also `MetadataInDoubtError`:
    all but `create_job` may simply be called again."""

    # -- compactors and their duties
    async def register_compactor(self, host: str) -> WriterLease:
        """A fresh node id (epoch 0) from the agents' sequence, with a lease of JOB_LEASE_MS."""
        ...

    async def beat_compactor(self, lease: WriterLease) -> None:
        """Extend the lease; one that merely ran out revives. Raises WriterFencedError when it was ended."""
        ...

    async def unregister_compactor(self, lease: WriterLease) -> None:
        """End the lease; running jobs of this holder become ready again."""
        ...

    async def live_compactors(self) -> Sequence[tuple[int, str]]:
        """(node id, host) with a running lease."""
        ...

    async def take_duty(self, name: str, lease: WriterLease, *, ttl_ms: int) -> bool:
        """True when `name` is ours for `ttl_ms` from now: nobody alive has it. Saves double work, no more."""
        ...

    # -- planning and jobs
    async def compaction_view(self) -> CompactionView: ...

    async def create_job(self, job: NewJob) -> int:
        """Returns the job id. Raises InputsBusyError."""
        ...

    async def claim_job(
        self,
        lease: WriterLease,
        *,
        kinds: Sequence[str] = (),
        job_id: int | None = None,
        bytes_min: int = 0,
        bytes_below: int | None = None,
    ) -> ClaimedJob | None:
        """The oldest ready job (or running with its lease run out) of these kinds (empty = any) and, as it was planned,
        `input_bytes`, with epoch + 1 and a deadline of now + its limit. With `job_id` that alone, though it rests."""
        ...

    async def beat_job(self, job_id: int, epoch: int, *, progress: Mapping[str, Any] | None = None) -> None:
        """Extend the job's lease. Raises JobLostError."""
        ...

    async def give_back_job(self, job_id: int, epoch: int, *, trouble: str = "", file_ids: Sequence[int] = ()) -> None:
        """Make it ready again, if it is ours. With `trouble` (of a store, in words) it rests first, and is failed at
        last; `file_ids`, if any, are to blame: see `metadata/rules/jobs.py`."""
        ...

    async def fail_job(
        self, job_id: int, epoch: int, *, error: str, file_ids: Sequence[int] = (), retry_after_ms: int = 60_000
    ) -> None:
        """End it, if it is ours, as failed and free its inputs; the planner leaves `file_ids` alone for a while."""
        ...

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        """See the module's head. Idempotent: a repeat by the same epoch after a lost answer returns the same. Moves
        `cleaned_through_offset` (never back), `last_cleaned_ms`, `passes_needed`, clears a request that is fulfilled,
        and appends one MERGED change with the L0 files it killed. Raises JobLostError, MergeRefusedError."""
        ...

    async def jobs(
        self, *, states: Sequence[JobState] = (), topic_id: uuid.UUID | None = None, result: str = "", limit: int = 100
    ) -> Sequence[MergeJob]:
        """Newest first. `topic_id`: with an L1+ input (live jobs) or a forced partition of it; `result` has a name."""
        ...

    async def job(self, job_id: int) -> MergeJob | None: ...

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        """Ask for a pass over every partition of a compacted topic, up to its high watermark now (or the stable
        offset, or what `min.compaction.lag.ms` leaves cleanable now). Returns the offset per partition id; the planner
        acts on it at once. A partition that is cleaned through there gets another pass only where it may do something:
        it holds tombstones, which may have had their time, or its keys overflowed the buffer. Raises UnknownTopicError,
        NotCompactedError."""
        ...

    async def system_view(self) -> SystemView:
        """Everything the invariants judge, at one instant."""
        ...

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        """Of one topic of either class, by partition number."""
        ...

    # -- reading L1 and L2
    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        """Live L1+ extents whose last offset is at or above `offset`, in offset order. One indexed read."""
        ...

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        """Live L1+ extents with a largest timestamp at or above `timestamp_ms` and last offset at or above
        `from_offset`, in offset order."""
        ...

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        """The live L1+ extent with the largest timestamp; of several the lowest."""
        ...

    # -- retention and deletion
    async def delete_records(self, partition_id: int, offset: int) -> int:
        """Move the log start to `offset` (-1 = high watermark), kill extents wholly below; the new low watermark. Below
        the log start: no-op. Raises InvalidOffsetError, UnknownTopicError."""
        ...

    async def expire(self, *, limit: int = 10_000) -> Expired:
        """One round of retention by time and size over L1+ extents of topics whose policy holds `delete`, oldest
        first per partition, stopping at the first that stays; moves log starts; appends LOG_START_MOVED. It may stop
        short of `limit`: nothing more expires when a round takes nothing. Partitions with the oldest go first."""
        ...

    async def expire_producers(self) -> int:
        """Drop producers silent for longer than `producer.id.expiration.ms`; how many."""
        ...

    async def forget_rows(self, *, before_ms: int) -> int: ...

    async def now_ms(self) -> int: ...

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        """Dead for at least `grace_ms`, input of no live job, and protected by no pin, oldest first."""
        ...

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        """The store confirmed that these objects are gone: dead -> deleted; their extents' rows go."""
        ...

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        """Those with a row of state live or dead (an object that should be there)."""
        ...

    async def writers_at_work(self) -> Mapping[int, int]:
        """Node ids of compactors that hold running jobs -> for how long, in ms, the longest: what they wrote in that
        time they may yet commit, what they wrote before they never will."""
        ...

    async def abort_file(self, key: str) -> bool: ...

    async def history(self) -> History:
        """While `halts` says something, nothing may be deleted: see `metadata/rules/history.py`."""
        ...

    async def adopt_history(self, present: ServerHistory) -> None:
        """Somebody vouches for it. Idempotent. Raises HistoryMovedError when it is not the present one any more."""
        ...

    # -- pins
    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        """Protect every file that is live now from deletion until `ttl_ms` from now or `unpin`; the pin id. Take it
        first, then look at what lives: a file that dies at or after the pin's creation is protected."""
        ...

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        """False when the pin has run out: files may be gone."""
        ...

    async def unpin(self, pin_id: int) -> None: ...

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        """(pin id, holder, created ms, expires ms) of live pins."""
        ...


class Metadata(MetadataService, CompactionMetadata, GroupMetadata, AdminMetadata, ScanMetadata, Protocol):
    """All contracts, as both implementations keep them."""
