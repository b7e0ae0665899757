"""What lies where: the contract between the rooms and the metadata store.

Two implementations keep it, `metadata/postgres/store.py` (durable) and `metadata/memory/store.py` (one process,
tests), under one contract suite (`tests/contract/test_metadata.py`). No SQLAlchemy or asyncpg type crosses this line.

The heart is `commit_l0`. It gives offsets, and it decides in this order:

1. lock the writer's row, then the watermark rows of the file's partitions in id order;
2. insert the file row; if the key is there already, answer with the stored results (a repeat of a call whose
   answer was lost) - after the locks, because an unlocked answer could acknowledge what a standby does not have;
3. refuse an older writer epoch (`WriterFencedError`) or a seq not above the writer's last (`CommitRefusedError`);
4. *then* read producer state and judge every batch by itself, chaining the sequences of one producer in arrival order;
5. give offsets to the accepted batches, store results and packed index in the file row.

A crash before the commit leaves nothing; after it, everything. A caller that lost the answer makes the same call again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from metadata.configs.changes import Changes, TopicDecision
from runtime.errors import BadInputError, BugError, FencedError, Outcome, SiltstoneError, UnavailableError

LEASE_MS = 10_000
"""How long an agent is alive after its last beat, on Postgres's clock."""
BEAT_MS = 2_000
PRODUCER_BATCHES_KEPT = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: a retry of any of these is a duplicate."""
NO_PRODUCER = -1


# ---- errors -------------------------------------------------------------------------------------------------------


class MetadataUnavailableError(UnavailableError):
    """Postgres cannot be reached or refuses connections. Reads may be repeated."""


class RightsMissingError(SiltstoneError):
    """The role may not do what was asked; nothing was changed. Asked again, it is refused again until it may."""


class CommitInDoubtError(SiltstoneError):
    """The answer to `commit_l0` was lost. Make the *same call* again until it answers; commit nothing else before."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    retriable: ClassVar[bool] = True


class CommitRefusedError(SiltstoneError):
    """The commit certainly did not happen and never will as asked (aborted key, seq already used, impossible values).

    The object is an orphan; its batches must be answered with a retriable error.
    """


class WriterFencedError(FencedError):
    """A newer epoch of this writer exists. The commit did not happen. Register anew before writing again."""


class SchemaMismatchError(BadInputError):
    """The database has no schema, or another version of it. Run `siltstone migrate`."""


class TopicExistsError(BadInputError):
    pass


class UnknownTopicError(BadInputError):
    pass


class InvalidPartitionsError(BadInputError):
    """`create_partitions` to a count that is not above the present one."""


class WentBackError(BugError):
    """The database is older than what we have seen (failover or restore without RPO 0). Halt; do not write."""


# ---- topics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    topic_id: uuid.UUID
    name: str
    partition_ids: tuple[int, ...]
    """Surrogate ids by partition number: `partition_ids[3]` is the id of partition 3."""
    configs: Mapping[str, str]
    """Overrides only, by Kafka's names; defaults are in `metadata/configs/topic.py`."""
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Fresh from the store. `high_watermark` is the next offset to be given; `last_stable_offset` equals it until
    transactions exist."""

    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


# ---- agents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    host: str
    port: int
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLease:
    """A writer's identity: node id in Kafka's eyes, and the epoch that fences its predecessors."""

    writer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    writer_id: int
    epoch: int
    address: AgentAddress


# ---- the commit ---------------------------------------------------------------------------------------------------


class L0Batch(NamedTuple):
    """One record batch of an L0 file. A file's batches are listed by partition (one block of bytes each), and inside a
    partition in order of arrival; `position` is therefore ascending and batches of a partition touch each other."""

    partition_id: int
    position: int
    """Byte position in the object."""
    length: int
    """Bytes, batch header included."""
    record_count: int
    """Offsets it takes: lastOffsetDelta + 1."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_append_time_ms: int = -1
    """-1 for CreateTime."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    masked_error: int = 0
    """A Kafka error code that refuses this batch beforehand (the culprit of a definite refusal); 0 = judge it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitL0:
    lease: WriterLease
    seq: int
    """The writer's own number for this file, ascending within an epoch."""
    key: str
    """Object key, unique for ever: the idempotence key of this call."""
    size_bytes: int
    crc32c: int
    batches: Sequence[L0Batch]


class BatchResult(NamedTuple):
    error: int
    """Kafka error code; 0 = stored (or a duplicate of something stored)."""
    duplicate: bool
    base_offset: int
    """-1 when refused. For a duplicate: the original's."""
    log_append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    file_id: int
    results: Sequence[BatchResult]
    """One per batch, in the order of the call."""
    index: bytes
    """The packed index (`metadata/rules/packed_index.py`): the only truth about what the file holds."""
    created_ms: int


# ---- the tail -----------------------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    """What agents cache and must hear of. `Change.detail` is JSON-able; its keys are given here."""

    TOPIC_CREATED = "topic_created"  # name, partition_ids, configs, created_ms
    TOPIC_DELETED = "topic_deleted"  # name, partition_ids
    CONFIGS_CHANGED = "configs_changed"  # name, configs (all overrides, as they now are)
    PARTITIONS_ADDED = "partitions_added"  # name, partition_ids (all, as they now are)
    LOG_START_MOVED = "log_start_moved"  # offsets: {partition_id as text: log start offset}
    BROKER_CONFIGS_CHANGED = "broker_configs_changed"  # configs (all cluster-wide ones that are set, by Kafka's names)
    MERGED = "merged"  # job_id, l0_files: [ids of L0 files it replaced], deduped: [partition ids]; never both empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    change_id: int
    kind: ChangeKind
    topic_id: uuid.UUID | None
    detail: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a follower has seen: the highest (epoch, seq) per writer, and the last change."""

    writers: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    change_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    files: Sequence[L0File]
    """Live or dead, in file id order: a merge may have been quicker than the follower."""
    changes: Sequence[Change]
    cursor: Cursor
    cold: bool = False
    """The cursor is older than the rows kept: take a `snapshot()` and start from its cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything an agent needs to start, read at one instant."""

    topics: Sequence[Topic]
    watermarks: Sequence[Watermarks]
    files: Sequence[L0File]
    """Live L0 files in file id order."""
    cursor: Cursor
    broker_configs: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cluster-wide ones that are set, by Kafka's names."""


# ---- files, for people and for invariants -------------------------------------------------------------------------


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
    """A `metadata.contract.compaction.FileClass` from L1 up."""
    dead_ms: int | None = None
    live_extents: int = 0
    """L0: the rows of its index while it lives."""
    job_id: int | None = None
    """The merge that wrote it; None for L0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    cluster_id: str
    store_bound: bool
    """True once a process has seen or written `cluster.json` under the object prefix with this id."""


# ---- the contract -------------------------------------------------------------------------------------------------


class MetadataService(Protocol):
    """Every method may raise `MetadataUnavailableError`; what else it raises is said at the method."""

    async def open(self) -> None:
        """Connect and check the schema. Raises SchemaMismatchError; never migrates."""
        ...

    async def close(self) -> None: ...

    # -- cluster identity
    async def cluster_identity(self) -> ClusterIdentity: ...

    async def bind_store(self) -> None:
        """Remember that the object prefix carries our cluster id. Idempotent."""
        ...

    # -- agents
    async def register_agent(self, address: AgentAddress) -> WriterLease:
        """Take the identity kept for this (host, port), with a new epoch: fences whoever had it before.

        Node ids come from a sequence in int31 and are never reused for another address.
        """
        ...

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        """Extend the lease by LEASE_MS on the store's clock. A draining agent leaves `live_agents` at once.

        Returns the store's time. Raises WriterFencedError when a newer epoch exists or the lease was ended; a lease
        that merely ran out revives.
        """
        ...

    async def unregister_agent(self, lease: WriterLease) -> None:
        """End the lease now. No error when it is already ended or fenced."""
        ...

    async def live_agents(self) -> Sequence[AgentInfo]:
        """Agents with a running lease that do not drain, by writer id."""
        ...

    # -- topics
    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Raises TopicExistsError. Names and config values are validated by the caller."""
        ...

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        """Raises UnknownTopicError. Its name may be used again at once, under a new id. Its L1+ extents die.

        The time is remembered by name: on the next topic of that name, producers with an older id go on as they were.
        """
        ...

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        """Set overrides; None removes one. Changes were checked; a decision checks what it says, by what is set.

        Raises UnknownTopicError, and what the decision raises.
        """
        ...

    async def create_partitions(self, topic_id: uuid.UUID, count: int) -> Topic:
        """Grow to `count`. Raises UnknownTopicError, InvalidPartitionsError."""
        ...

    async def topics(self) -> Sequence[Topic]: ...

    # -- producers
    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids never given before.

        An id is as old as its block, and an id that looks older than the deletion of a topic may begin in the middle
        of its sequence on the next topic of that name. So a block must be handed out soon, and what is left over
        thrown away.
        """
        ...

    # -- the log
    async def commit_l0(self, request: CommitL0) -> Committed:
        """Give offsets to the batches of one L0 file. Idempotent by key. See the module's head.

        A repeat answers the same even when the writer was fenced or the file merged and deleted meanwhile.

        Per batch: 0; OUT_OF_ORDER_SEQUENCE_NUMBER(45); INVALID_PRODUCER_EPOCH(47);
        UNKNOWN_TOPIC_OR_PARTITION(3) when the partition is gone. A definite refusal by the database (SQLSTATE 22, 23,
        42) is narrowed to its culprit, which is masked with UNKNOWN_SERVER_ERROR(-1).

        Raises CommitInDoubtError, CommitRefusedError, WriterFencedError. MetadataUnavailableError only when the call
        certainly never reached the server.
        """
        ...

    async def abort_file(self, key: str) -> bool:
        """Insert an `aborted` row for a key that was never committed; True when the key is aborted, now or before.

        Waits for a commit of the same key that is in flight. Only after True may the object be deleted. May be
        repeated: who lost the first answer gets True again.
        """
        ...

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        """Fresh, in one statement. Unknown partitions are absent from the answer."""
        ...

    async def snapshot(self) -> Snapshot: ...

    async def tail(self, cursor: Cursor) -> Tail:
        """The L0 rows newer than the cursor, per writer and never waiting for a missing seq, and all newer changes,
        in one statement. At most 1,000 files per writer and call: a follower far behind calls again."""
        ...

    async def wait_for_news(self, timeout_ms: float) -> None:
        """Return when the store has hinted at news, or after `timeout_ms`. A hint only: it may be lost."""
        ...

    async def notify(self) -> None:
        """Hint to other followers that there is news, from a connection of its own, at most 20 times a second."""
        ...

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        """True as soon as somebody has hinted that `live_agents` changed, False after `timeout_ms`. May be lost."""
        ...

    async def announce_agents(self) -> None:
        """Hint to the other agents that `live_agents` has changed, as `notify` does."""
        ...

    # -- people and invariants
    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        """Pages of file rows of any state, by file id."""
        ...

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        """Of these partitions, or of all, by partition and producer id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """One producer on one partition, as the invariants read it: batches oldest first, at most PRODUCER_BATCHES_KEPT."""

    partition_id: int
    producer_id: int
    epoch: int
    batches: Sequence[tuple[int, int, int]]
    """(first sequence, last sequence, base offset)"""
    last_seen_ms: int
