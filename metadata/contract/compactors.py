"""The calls of a compactor: its lease and duties, the planner's view, and merge jobs (`metadata/contract/jobs.py`).

Each call is one transaction, and both implementations decide by the same pure functions (`metadata/rules/`). All times
are those of the store's clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from metadata.contract.jobs import ClaimedJob, CommitMerge, MergeCommitted, MergeJob, NewJob
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass, LeveledExtent


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


class CompactorMetadata(Protocol):
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

    async def job(self, job_id: int) -> MergeJob | None: ...

    async def notify(self) -> None:
        """Tell agents that a merge was committed, as `AgentMetadata.notify` does."""
        ...
