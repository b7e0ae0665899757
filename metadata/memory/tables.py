"""The data of the memory store: plain rows, which the other modules of `metadata/memory/` change in place."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metadata.configs.broker import topic_defaults
from metadata.contract.files import FileInfo, FileState
from metadata.contract.jobs import JobState, MergeCommitted, MergeJob, NewJob
from metadata.contract.l0_commit import BatchResult
from metadata.contract.leases import AgentAddress
from metadata.contract.leveled import LeveledExtent
from metadata.contract.tail import Change, ChangeKind
from metadata.contract.topics import Topic
from metadata.erasures.contract import Erasure, ErasureStage, KeyMark
from metadata.groups.contract import CommittedOffset, GroupRecord, OffsetPlace
from metadata.memory.hints import Hint
from metadata.memory.transaction_tables import TransactionTables
from metadata.rules.history import ServerHistory
from metadata.rules.merge_commit import CleanedState
from metadata.rules.producer_state import Producer
from metadata.transactions.contract import TransactionEnded
from security.acls.values import Acl
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential

FIRST_SERVER = ServerHistory(system_identifier=1, timeline=1, database_oid=1)


@dataclass(slots=True)
class Writer:
    address: AgentAddress
    epoch: int = 0
    last_seq: int = -1
    lease_until_ms: int | None = None
    """None: the lease was ended."""
    draining: bool = False
    forgotten: tuple[int, int] = (-1, -1)
    """The highest (epoch, seq) whose row was forgotten, or whose index was given back."""
    files: list[int] = field(default_factory=list[int])
    seen_change: int = 0
    """The last change of users and ACLs that the holder of the lease has applied."""
    former_until_ms: int = 0
    """Until when a process may act that was here before and gave no lease back."""


@dataclass(frozen=True, slots=True)
class DemandReport:
    epoch: int
    until_ms: int
    demands: bytes


@dataclass(slots=True)
class File:
    info: FileInfo
    """Replaced when the file's state, dead_ms or live_extents change."""
    results: tuple[BatchResult, ...] = ()
    ended: tuple[TransactionEnded, ...] = ()
    """Of a file of markers."""
    lo: int = 0
    hi: int = 0
    max_timestamp_ms: int = -1
    trouble_until_ms: int = 0
    trouble: str = ""
    extents: list[int] = field(default_factory=list[int])
    """Ids of its extents, dead ones too; none in L0."""

    @property
    def is_live(self) -> bool:
        return self.info.state is FileState.LIVE

    def dies(self, now_ms: int) -> None:
        self.info = replace(self.info, state=FileState.DEAD, dead_ms=now_ms, live_extents=0)

    def deleted(self) -> None:
        self.info = replace(self.info, state=FileState.DELETED, inline=b"")


@dataclass(slots=True)
class Extent:
    row: LeveledExtent
    dead_ms: int | None = None
    """None: live."""


@dataclass(slots=True)
class Partition:
    topic_id: uuid.UUID
    predecessor_deleted_ms: int | None = None
    """When the last topic of this name was deleted; None: no such topic was deleted."""
    next_offset: int = 0
    log_start_offset: int = 0
    cleaned: CleanedState = field(default_factory=CleanedState)
    last_forced_ms: int | None = None
    extents: list[int] = field(default_factory=list[int])
    """Ids of live L1+ extents, in any order."""


@dataclass(slots=True)
class Job:
    row: MergeJob
    asked: NewJob
    l0_files: tuple[int, ...]
    extents: tuple[int, ...]
    """Ids of the input extents; kept after the job ends."""
    committed: MergeCommitted | None = None
    give_backs: int = 0
    """How often the job was given back with trouble."""

    @property
    def is_live(self) -> bool:
        return self.row.state in (JobState.READY, JobState.RUNNING)


@dataclass(slots=True)
class StoredErasure:
    row: Erasure
    marks: Mapping[int, tuple[KeyMark, ...]]
    """By partition number."""
    ends: Mapping[int, int]
    """The end of the offsets that the marks may touch, by partition id."""
    l0_through: int
    """The newest file at the request: every L0 file up to it was committed before."""
    rest_ms: int

    @property
    def is_open(self) -> bool:
        return self.row.stage is not ErasureStage.DONE


@dataclass(slots=True)
class Compactor:
    host: str
    lease_until_ms: int


@dataclass(slots=True)
class Pin:
    holder: str
    created_ms: int
    expires_ms: int


@dataclass(slots=True)
class StoredGroup:
    epoch: int = 0
    owner_id: int = 0
    record: GroupRecord = field(default_factory=GroupRecord)
    empty_since_ms: int | None = None
    """None: the group has members."""
    offsets: dict[OffsetPlace, CommittedOffset] = field(default_factory=dict[OffsetPlace, CommittedOffset])


@dataclass(slots=True)
class MemoryDatabase:
    """All tables of one database."""

    cluster_id: str
    store_bound: bool = False
    server: ServerHistory = FIRST_SERVER
    """The present history of the server; tests change it."""
    adopted: ServerHistory = FIRST_SERVER
    next_node_id: int = 1
    next_partition_id: int = 1
    next_file_id: int = 1
    next_change_id: int = 1
    next_producer_id: int = 0
    next_extent_id: int = 1
    next_job_id: int = 1
    next_pin_id: int = 1
    next_erasure_id: int = 1
    last_group_epoch: int = 0
    forgotten_key_hour: int = 0
    forgotten_change_id: int = 0
    writers: dict[int, Writer] = field(default_factory=dict[int, Writer])
    topics: dict[uuid.UUID, Topic] = field(default_factory=dict[uuid.UUID, Topic])
    config_versions: dict[uuid.UUID, int] = field(default_factory=dict[uuid.UUID, int])
    """By topic id; 1 if absent."""
    broker_configs: dict[str, str] = field(default_factory=dict[str, str])
    deleted_topics: dict[str, int] = field(default_factory=dict[str, int])
    """The time of the last deletion, by topic name."""
    partitions: dict[int, Partition] = field(default_factory=dict[int, Partition])
    files: dict[int, File] = field(default_factory=dict[int, File])
    file_ids: dict[str, int] = field(default_factory=dict[str, int])
    """File id by object key."""
    extents: dict[int, Extent] = field(default_factory=dict[int, Extent])
    jobs: dict[int, Job] = field(default_factory=dict[int, Job])
    erasures: dict[int, StoredErasure] = field(default_factory=dict[int, StoredErasure])
    compactors: dict[int, Compactor] = field(default_factory=dict[int, Compactor])
    transactions: TransactionTables = field(default_factory=TransactionTables)
    duties: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """(holder, until ms) by name of the duty."""
    pins: dict[int, Pin] = field(default_factory=dict[int, Pin])
    producers: dict[tuple[int, int], Producer] = field(default_factory=dict[tuple[int, int], Producer])
    producers_seen_ms: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    producer_id_blocks: list[tuple[range, int]] = field(default_factory=list[tuple[range, int]])
    groups: dict[str, StoredGroup] = field(default_factory=dict[str, StoredGroup])
    users: dict[str, dict[Mechanism, ScramCredential]] = field(
        default_factory=dict[str, dict[Mechanism, ScramCredential]], repr=False
    )
    acls: dict[Acl, None] = field(default_factory=dict[Acl, None])
    """A set that keeps the order of creation."""
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict[QuotaEntity, dict[str, float]])
    demands: dict[int, DemandReport] = field(default_factory=dict[int, DemandReport])
    """By writer id."""
    secrets: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    changes: list[tuple[Change, int]] = field(default_factory=list[tuple[Change, int]])
    """Each change with the time at which it was made."""
    news: list[Hint] = field(default_factory=list[Hint])
    agents_changed: list[Hint] = field(default_factory=list[Hint])

    # -- shared by several parts

    def append_change(
        self, kind: ChangeKind, topic_id: uuid.UUID | None, detail: Mapping[str, Any], *, now_ms: int
    ) -> int:
        """Returns the change's id."""
        change = Change(change_id=self.next_change_id, kind=kind, topic_id=topic_id, detail=detail)
        self.changes.append((change, now_ms))
        self.next_change_id += 1
        return change.change_id

    def in_force(self, topic: Topic) -> Mapping[str, str]:
        """A topic's overrides over the cluster-wide defaults."""
        return {**topic_defaults(self.broker_configs), **topic.configs}

    def leveled(self, partition_id: int) -> list[LeveledExtent]:
        """The live L1+ extents of a partition, by offset."""
        partition = self.partitions.get(partition_id)
        ids = () if partition is None else partition.extents
        return sorted((self.extents[id_].row for id_ in ids), key=lambda row: row.base_offset)

    def kill_extents(self, extent_ids: Iterable[int], *, now_ms: int) -> int:
        """Mark the live ones of these extents as dead. A file dies with its last live extent. Returns how many bytes
        died."""
        killed_bytes = 0
        for extent_id in extent_ids:
            extent = self.extents[extent_id]
            # Killed already, by retention or another merge: it must not be counted down twice.
            if extent.dead_ms is not None:
                continue
            extent.dead_ms = now_ms
            killed_bytes += extent.row.length
            if extent.row.partition_id in self.partitions:
                self.partitions[extent.row.partition_id].extents.remove(extent_id)
            file = self.files[extent.row.file_id]
            file.info = replace(file.info, live_extents=file.info.live_extents - 1)
            if file.info.live_extents == 0:
                file.dies(now_ms)
        return killed_bytes

    def log_starts(self) -> Mapping[int, int]:
        return {id_: partition.log_start_offset for id_, partition in self.partitions.items()}

    def move_log_start(self, partition_id: int, offset: int) -> None:
        partition = self.partitions[partition_id]
        partition.log_start_offset = max(partition.log_start_offset, offset)
        self.transactions.move_log_start(partition_id, partition.log_start_offset)
        # A request for compaction below the new log start has nothing left to do.
        requested = partition.cleaned.requested_through_offset
        if requested is not None and requested <= offset:
            partition.cleaned = replace(partition.cleaned, requested_through_offset=None)

    def last_stable_offset(self, partition_id: int) -> int:
        partition = self.partitions[partition_id]
        first_open = self.transactions.first_open_offset(partition_id)
        return partition.next_offset if first_open is None else max(first_open, partition.log_start_offset)

    def has_partition(self, place: OffsetPlace) -> bool:
        topic = self.topics.get(place.topic_id)
        return topic is not None and 0 <= place.partition < len(topic.partition_ids)

    def give_news(self) -> None:
        for hint in self.news:
            hint.give()

    def live_jobs(self) -> list[Job]:
        """The ready and running jobs, oldest first."""
        return [job for _, job in sorted(self.jobs.items()) if job.is_live]

    def busy(self) -> tuple[set[int], set[int]]:
        """(ids of L0 files, ids of extents) that are inputs of a live job."""
        jobs = self.live_jobs()
        return {id_ for job in jobs for id_ in job.l0_files}, {id_ for job in jobs for id_ in job.extents}
