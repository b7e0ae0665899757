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
    """The range [lo, hi] of L0 file ids that the file stands for; (file_id, file_id) for L0."""
    run_id: int
    """The id of the job that wrote the file (the files of one merge are one run); for L0 the file id."""
    size_bytes: int
    live_bytes: int
    """Bytes of its live extents; for L0 `size_bytes`."""
    oldest_dead_ms: int | None
    """When the first of its dead extents died; None = all extents are live."""
    max_timestamp_ms: int
    expires_ms: int | None
    """When retention by time will have killed all its extents; None = an extent never expires, or unknown (L0)."""
    created_ms: int
    trouble_until_ms: int = 0
    """A merge of this file failed with the error `trouble`; plan no merge of it before this time."""
    trouble: str = ""
    uncompressed_bytes: int = 0
    """`cap_bytes` of its live extents, added up; 0 for L0."""
    is_inline: bool = False
    """No object holds it (`metadata.contract.files.L0File.inline`): a merge reads it for nothing."""

    @property
    def cap_bytes(self) -> int:
        """Its size for the cap of a merge, which counts records uncompressed."""
        return max(self.uncompressed_bytes, self.live_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition of a topic with `compact` in its cleanup.policy, as the planner sees it. Other partitions need no
    view."""

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
    """Exclusive: a dedupe pass from the log start has reached this offset."""
    last_cleaned_ms: int | None
    last_forced_ms: int | None
    passes_needed: int
    """Above 1: the keys overflowed the buffer of the last dedupe, so the next one is deep, with this many passes."""
    requested_through_offset: int | None
    """An operator asked for compaction up to this offset, now; None = no request."""
    extents: Sequence[LeveledExtent]
    """Live L1+ extents in offset order, including the inputs of live jobs."""
    last_pass_took_ms: int | None = None
    """How long its last forced pass took, from the claim to the commit; None = not known."""
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the marker) of each aborted transaction whose first offset lies below the
    last stable offset, by first offset. The marker may lie above it, while an older transaction is open: the records
    below it are aborted all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionView:
    """Everything the planner needs, at one instant."""

    now_ms: int
    files: Sequence[FileView]
    partitions: Sequence[PartitionView]
    busy_files: frozenset[int]
    """L0 files that are inputs of a live job, and L1+ files with at least one extent that is."""
    busy_extents: frozenset[int]
    live_jobs: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """The planned input bytes of each ready or running job, by kind."""
    retention_check_ms: int | None = None
    """As `DeletionMetadata.retention_check_ms`."""
    last_daily_ms: int | None = None
    """When the newest `daily` job that did not fail was created; None = no such job is known."""
    erasing_files: Mapping[int, int] = field(default_factory=dict[int, int])
    """Live L1+ files that erasures in the stage `erasing` have to rewrite -> when the first of them begins (ms). A file
    whose pending extents are all live and flagged is left out, because no merge can erase anything from these."""


class CompactorMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`. A method that changes something may also raise
    `MetadataInDoubtError`; after it, every method except `create_job` may simply be called again."""

    # -- compactors and their duties

    async def register_compactor(self, host: str) -> WriterLease:
        """A fresh node id (epoch 0) from the agents' sequence, with a lease of JOB_LEASE_MS."""
        ...

    async def beat_compactor(self, lease: WriterLease) -> None:
        """Extend the lease. A lease that only ran out is revived. Raises WriterFencedError when it was ended."""
        ...

    async def unregister_compactor(self, lease: WriterLease) -> None:
        """End the lease. The running jobs of this compactor become ready again."""
        ...

    async def live_compactors(self) -> Sequence[tuple[int, str]]:
        """(node id, host) of each compactor with a running lease."""
        ...

    async def take_duty(self, name: str, lease: WriterLease, *, ttl_ms: int) -> bool:
        """Take the duty `name` for `ttl_ms` from now. False when another live compactor has it. A duty only saves
        double work; nothing relies on it for correctness."""
        ...

    # -- planning and jobs

    async def compaction_view(self) -> CompactionView: ...

    async def create_job(self, job: NewJob) -> int:
        """Store the job as ready. Returns its id. Raises InputsBusyError."""
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
        """Claim the oldest job that is ready, or running with an expired lease; None when there is none.

        The job has one of these kinds (empty = any), and its planned `input_bytes` are at least `bytes_min` and below
        `bytes_below`. Its epoch grows by 1 and its deadline is now + its limit. With `job_id`, only that job is
        claimed, even while it rests.
        """
        ...

    async def beat_job(self, job_id: int, epoch: int, *, progress: Mapping[str, Any] | None = None) -> None:
        """Extend the job's lease. Raises JobLostError."""
        ...

    async def give_back_job(self, job_id: int, epoch: int, *, trouble: str = "", file_ids: Sequence[int] = ()) -> None:
        """Make the job ready again, if it is still ours.

        `trouble` describes the trouble of a store. With it, the job rests before it can be claimed, and after several
        times it fails. `file_ids` are the files to blame, if any. See `metadata/rules/jobs.py`.
        """
        ...

    async def fail_job(
        self, job_id: int, epoch: int, *, error: str, file_ids: Sequence[int] = (), retry_after_ms: int = 60_000
    ) -> None:
        """End the job as failed, if it is still ours, and free its inputs. The planner leaves `file_ids` alone for
        `retry_after_ms`."""
        ...

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        """Commit the outputs of a merge; `metadata/contract/jobs.py` has the rules.

        Idempotent: a repeat under the same epoch after a lost answer returns the same answer. The commit moves
        `cleaned_through_offset` (never back), `last_cleaned_ms` and `passes_needed`, and clears a fulfilled request.
        It appends one MERGED change that names the L0 files it killed. Raises JobLostError, MergeRefusedError.
        """
        ...

    async def job(self, job_id: int) -> MergeJob | None: ...

    async def notify(self) -> None:
        """Hint to agents that a merge was committed, as `AgentMetadata.notify` does."""
        ...
