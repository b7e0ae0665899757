"""The calls of operators: commands, `fsck` and the metrics of the whole cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileInfo, L0File
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Topic, Watermarks
from metadata.groups.contract import GroupRecord, GroupSummary, OffsetPlace
from metadata.rules.history import ServerHistory
from metadata.transactions.contract import AbortedTransaction, TransactionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group on a topic that it committed offsets for."""

    group_id: str
    topic: str
    lag: int
    """Offsets from the committed offset to the end, summed over the partitions that have one, as Kafka's tools
    count."""
    newest_commit_ms: int
    oldest_unread_ms: int | None
    """The time of the oldest record that the group has not read, or a later one that is known to be near: the newest
    timestamp of the extent or L0 file that holds it. None: there is none, or it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLags:
    largest: Sequence[GroupLag]
    """The largest lags, largest first; equal lags by group and topic."""
    pairs: int
    """How many pairs of group and topic there are in all."""
    total_lag: int
    """The sum over all pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """A table of Siltstone, by the counts of Postgres, which are some seconds old."""

    name: str
    live_rows: int
    dead_rows: int
    size_bytes: int
    """Including its indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFigures:
    """The statistics that Postgres reports about itself. A role without `pg_read_all_stats` cannot see the age of other
    roles' sessions; these count as `hidden`."""

    oldest_xmin_transactions: Mapping[str, int]
    """The age of the oldest snapshot that vacuum must respect, by holder: `session`, `slot`, `prepared`."""
    longest_transaction_seconds: float
    connections: Mapping[str, int]
    """By state: `active`, `idle`, `idle_in_transaction`, `other`, `hidden`."""
    connections_max: int
    xid_age_transactions: int
    wal_position_bytes: int
    slot_retained_bytes: int
    tables: Sequence[TableFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    now_ms: int
    agents: Mapping[str, int]
    """The number with a running lease, by state: `serving`, `draining`."""
    compactors: int
    """The number with a running lease."""
    lags: GroupLags
    postgres: PostgresFigures | None
    """None: the store is not Postgres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """The input of the invariants of L1 and above, at one instant."""

    now_ms: int
    watermarks: Sequence[Watermarks]
    l0_files: Sequence[L0File]
    """Live ones, by file id."""
    extents: Sequence[LeveledExtent]
    """Live ones, by partition and offset."""
    live_extents: Mapping[int, int]
    """Live L1+ file id -> the number of live extents that its row states."""
    job_inputs: Sequence[tuple[int, int, int | None]]
    """The inputs of live jobs: (job id, file id, extent id); extent id None = a whole L0 file."""
    pins: Sequence[int]
    """Creation times of live pins, by pin id."""
    wrong_sums: Sequence[str] = ()
    """A line for each sum that the store keeps and that is not the sum of its live extents; not all, if they are
    many. Always empty for a store that keeps none."""


class HeldBytes(NamedTuple):
    """Bytes of one partition in a file whose object may exist: an extent, or a row of an L0 file's index."""

    partition_id: int
    base_offset: int
    last_offset: int
    file_id: int
    key: str
    level: int
    position: int
    length: int
    block_index_position: int
    block_index_length: int
    is_flagged: bool
    """The bytes are no sound batches; merges copy them as they are."""
    dead_ms: int | None
    """When these bytes died; None: they live."""
    file_dead_ms: int | None
    """When the whole file died; None: it lives, so a dead extent stays in it until the file is rewritten."""


class StrayOffset(NamedTuple):
    """A committed offset whose group or partition does not exist."""

    group_id: str
    place: OffsetPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """All groups at one instant, as the invariants read them (`metadata/rules/invariants/groups.py`)."""

    groups: Sequence[tuple[GroupSummary, GroupRecord]]
    """By group id."""
    last_epoch: int
    """The last epoch that was given; read after the groups, so that no group can be above it."""
    stray_offsets: Sequence[StrayOffset]
    """At most 1,000."""


class OngoingTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_seq: int


class EnteredPartition(NamedTuple):
    """A partition that a transaction entered."""

    partition_id: int
    producer_id: int
    epoch: int
    txn_seq: int
    first_offset: int | None
    """None until the transaction has records there."""


class AbortedRow(NamedTuple):
    transaction: AbortedTransaction
    stable_offset: int | None
    """No transaction that ended later begins below it; None: the store needs no such bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsView:
    """The transactions at one instant, as the invariants read them (`metadata/rules/invariants/transactions.py`)."""

    watermarks: Sequence[Watermarks]
    ongoing: Sequence[OngoingTransaction]
    """By transactional id."""
    entered: Sequence[EnteredPartition]
    """By partition and producer id."""
    aborted: Sequence[AbortedRow]
    """By partition and marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldView:
    """Transactions and the offsets that they hold back, at one instant, for `siltstone transactions`."""

    now_ms: int
    infos: Sequence[TransactionInfo]
    """Those that are ongoing, and the ids that were asked for, by id."""
    entered: Sequence[EnteredPartition]
    """All, by partition and producer id."""
    watermarks: Sequence[Watermarks]
    """Of the partitions that were entered, by partition id. A deleted partition has none."""
    topics: Sequence[Topic]
    """All, by name."""


class OperatorMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`."""

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        """A page of file rows of any state, by file id."""
        ...

    async def jobs(
        self, *, states: Sequence[JobState] = (), topic_id: uuid.UUID | None = None, result: str = "", limit: int = 100
    ) -> Sequence[MergeJob]:
        """Jobs in these states (empty = any), newest first.

        `topic_id`: only jobs with a forced partition of this topic, and live jobs with an L1+ input of it.
        `result`: only jobs whose result has this key.
        """
        ...

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        """The partitions of one topic, compacted or not, by partition number."""
        ...

    async def held_bytes(self, partition_ids: Sequence[int]) -> Sequence[HeldBytes]:
        """The bytes of these partitions, of deleted ones too, in all files that are live or dead, by partition and
        offset. An object without a row, and a batch that its L0 commit refused, may hold more. Inline files are left
        out: no object holds them, and markers alone are in them."""
        ...

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        """Request a dedupe pass over every partition of a compacted topic. Returns the end offset by partition id.

        The end is the present high watermark, or less: the stable offset, or the first offset that
        `min.compaction.lag.ms` protects. The planner acts on the request at once. A partition that is already cleaned
        through its end gets another pass only if the pass may have an effect: the partition holds tombstones, which may
        be due for removal, or its keys overflowed the buffer. Raises UnknownTopicError, NotCompactedError.
        """
        ...

    async def system_view(self) -> SystemView:
        """The input of the invariants of L1 and above, at one instant."""
        ...

    async def groups_view(self) -> GroupsView: ...

    async def transactions_view(self) -> TransactionsView: ...

    async def held_view(self, transactional_ids: Sequence[str] = ()) -> HeldView:
        """The ongoing transactions, and these ids whatever their state. Unknown ids are absent."""
        ...

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        """(pin id, holder, created ms, expires ms) of live pins."""
        ...

    async def observe(self, *, lags_max: int) -> Observation:
        """The facts for cluster-wide metrics: live processes, the `lags_max` largest lags, the state of Postgres."""
        ...

    async def adopt_history(self, present: ServerHistory) -> None:
        """Store `present` as the adopted history, because an operator vouches for it. Idempotent. Raises
        HistoryMovedError when the server's history is a different one by now."""
        ...
