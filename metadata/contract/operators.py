"""The calls of operators: commands, `fsck` and the metrics of the whole cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileInfo, L0File
from metadata.contract.groups import GroupRecord, GroupSummary, OffsetPlace
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Watermarks
from metadata.rules.history import ServerHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group and a topic that it committed offsets of."""

    group_id: str
    topic: str
    lag: int
    """Offsets from the committed one to the end, over the partitions that have one: as Kafka's tools count."""
    newest_commit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLags:
    largest: Sequence[GroupLag]
    """The largest first; equal ones by group and topic."""
    pairs: int
    """How many there are in all."""
    total_lag: int
    """Of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """A table of ours, by Postgres's own counts, which lag behind by some seconds."""

    name: str
    live_rows: int
    dead_rows: int
    size_bytes: int
    """With its indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFigures:
    """What a Postgres says of itself. Sessions of other roles hide their age from a role that may not read all
    statistics (`pg_read_all_stats`); they count as `hidden`."""

    oldest_xmin_transactions: Mapping[str, int]
    """By holder: `session`, `slot`, `prepared`. How far back the oldest snapshot lies that vacuum must respect."""
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
    """With a running lease, by state: `serving`, `draining`."""
    compactors: int
    """With a running lease."""
    lags: GroupLags
    postgres: PostgresFigures | None
    """None: there is no Postgres."""


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


class StrayOffset(NamedTuple):
    """A committed offset of a group or a partition that does not exist."""

    group_id: str
    place: OffsetPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """All groups at one instant, as the invariants read them (`metadata/rules/invariants_groups.py`)."""

    groups: Sequence[tuple[GroupSummary, GroupRecord]]
    """By group id."""
    last_epoch: int
    """The last that was given; read after the groups."""
    stray_offsets: Sequence[StrayOffset]
    """At most 1,000."""


class OperatorMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`."""

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        """Pages of file rows of any state, by file id."""
        ...

    async def jobs(
        self, *, states: Sequence[JobState] = (), topic_id: uuid.UUID | None = None, result: str = "", limit: int = 100
    ) -> Sequence[MergeJob]:
        """Newest first. `topic_id`: with an L1+ input (live jobs) or a forced partition of it; `result` has a name."""
        ...

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        """Of one topic of either class, by partition number."""
        ...

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

    async def groups_view(self) -> GroupsView: ...

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        """(pin id, holder, created ms, expires ms) of live pins."""
        ...

    async def observe(self, *, lags_max: int) -> Observation:
        """What metrics tell of the whole: who lives, the `lags_max` largest lags, how Postgres fares."""
        ...

    async def adopt_history(self, present: ServerHistory) -> None:
        """Somebody vouches for it. Idempotent. Raises HistoryMovedError when it is not the present one any more."""
        ...
