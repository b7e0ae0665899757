"""Consumer groups and their committed offsets: the contract between coordinators and the metadata store.

A group belongs to one agent at a time. The agent that takes a group gets an *epoch*, a number never given before, and
all its writes for the group carry that epoch. A write under an older epoch changes nothing and raises
`GroupFencedError`. So an agent that wrongly believes it owns a group can do no harm, even if it still answers
heartbeats.

The owner stores the record of a group (generation, members, assignments) before members learn their assignment, so that
the next owner continues with the same members and generation. No process keeps offsets in memory: they are read from
here. A crash between two calls leaves the state that the last call wrote.

Two implementations: `metadata/postgres/groups/groups.py`, `metadata/memory/groups.py`; one contract suite,
`tests/contract/test_groups.py`. All times are those of the store's clock.

Texts from clients (group, member and instance ids, protocols, subscribed topics, offset metadata) may be any `str`. NUL
characters and lone surrogates are kept as they are. Only the length of a group id is limited. The order "by group id"
compares code points.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metadata.contract.leases import WriterLease
from runtime.errors import BadInputError, FencedError

GROUP_ID_BYTES_MAX = 2_000
"""The longest group id, in bytes of UTF-8. An index row of Postgres holds at most 2,704 bytes."""


class GroupIdTooLongError(BadInputError):
    """The group id is longer than `GROUP_ID_BYTES_MAX`. Answer INVALID_GROUP_ID(24)."""


class GroupFencedError(FencedError):
    """The group has another owner by now, or was deleted. Nothing was written. Forget the group and answer
    NOT_COORDINATOR(16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLease:
    group_id: str
    epoch: int
    """From one sequence for all groups: no epoch is given twice, not even after the group was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, subscription), in the client's order of preference."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The state of a group that survives a change of owner."""

    protocol_type: str = ""
    """"" until a member has joined; a group that only keeps offsets never has a type."""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberRecord, ...] = ()
    """In the order in which they joined."""
    subscribed_topics: frozenset[str] | None = None
    """Topic names; None when they are unknown (no members, or a protocol type other than "consumer")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenGroup:
    lease: GroupLease
    record: GroupRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    group_id: str
    epoch: int
    owner_id: int
    """Writer id of the agent that took it last."""
    protocol_type: str
    generation: int
    members: int
    empty_since_ms: int | None
    """When the record without members was stored; None while it has members."""
    offsets: int
    """How many partitions it has a committed offset for."""


class OffsetPlace(NamedTuple):
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    place: OffsetPlace
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitBatch:
    """The offsets that one request commits."""

    lease: GroupLease
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResult:
    fenced: bool
    """True: nothing of this batch was written."""
    unknown: frozenset[OffsetPlace]
    """Partitions that do not exist (any more); the other offsets of the batch were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


class StableOffsets(NamedTuple):
    offsets: Mapping[OffsetPlace, CommittedOffset]
    """Those of pending places too."""
    pending: frozenset[OffsetPlace]
    """An ongoing transaction holds an offset for these: whether it counts is known when the transaction ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredGroups:
    offsets: int
    groups: int


def check_group_id(group_id: str) -> None:
    """Raises GroupIdTooLongError."""
    size = len(group_id.encode("utf-8", "surrogatepass"))
    if size > GROUP_ID_BYTES_MAX:
        raise GroupIdTooLongError(f"the group id has {size} bytes; at most {GROUP_ID_BYTES_MAX} are allowed")


class GroupMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`. A write may then have happened; it may be repeated unchanged,
    because each write is idempotent under its epoch."""

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> TakenGroup | None:
        """Become the owner under a new epoch, which fences the previous owner. The call waits for a write of that owner
        that is under way. None when the group does not exist and `create` is False.

        Raises GroupIdTooLongError, and WriterFencedError when `owner` is not among `live_agents`. An agent that was
        taken for dead may take no group. Neither may an agent that drains: the other agents already hash the group to
        one of themselves, and a late take would fence that agent and send its clients away again. A draining agent may
        still save and commit the groups it owns, until the next owner takes them.
        """
        ...

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        """Replace the record of the group. Raises GroupFencedError."""
        ...

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        """Commit all batches in one round trip and one transaction. A fenced batch does not affect the others.

        Returns one result per batch, in order. If a batch names a place twice, the last offset counts. A call that was
        given up (its answer was lost or its caller was cancelled) is ended before a later call of this store begins, so
        it cannot overwrite newer offsets.
        """
        ...

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        """Those of the leases that can no longer write, because their group was taken since, or deleted."""
        ...

    async def offsets(
        self, group_id: str, places: Sequence[OffsetPlace] | None = None
    ) -> Mapping[OffsetPlace, CommittedOffset]:
        """The committed offsets of the group, all or at these places. Places without an offset are absent. An unknown
        group has no offsets."""
        ...

    async def stable_offsets(self, group_id: str, places: Sequence[OffsetPlace] | None = None) -> StableOffsets:
        """As `offsets`, with the places among these that are pending. Both are read at one instant: an offset of a
        transaction is either pending or has been decided about."""
        ...

    async def delete_offsets(self, lease: GroupLease, places: Sequence[OffsetPlace]) -> None:
        """Delete the offsets at these places, also those that ongoing transactions hold. Places without an offset are
        no error. Raises GroupFencedError."""
        ...

    async def delete_group(self, lease: GroupLease) -> None:
        """Delete the record and all offsets, also those that ongoing transactions hold. Raises GroupFencedError."""
        ...

    async def list_groups(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[GroupSummary]:
        """A page of groups by group id: the first `limit` whose id is above `after` (None: from the start)."""
        ...

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        """A page of the ids of groups with members, by id, paged as `list_groups`. It is cheaper, because it counts no
        offsets."""
        ...

    async def group(self, group_id: str) -> GroupRecord | None:
        """The record that an owner stored last; None when the group does not exist."""
        ...

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        """Those of these groups that exist."""
        ...

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        """Delete the offsets that Kafka's rules no longer keep (KIP-211), and groups that hold nothing any more.

        An offset expires `offsets_retention_ms` after

        - the group became empty, or the offset's own commit if that is later, when the group once had members and has
          none now;
        - its commit, when the group never had members, or when the group has members and none of them subscribes to the
          topic (`subscribed_topics`).

        An offset stays while an ongoing transaction holds one for the same place. A group without members and offsets,
        those of transactions included, expires `idle_group_ms` after it became empty. Offsets of deleted topics
        were deleted with the topics. Groups that are being written to are left for the next call. A call deletes at
        most 10,000 offsets and 10,000 groups; repeat until both together are fewer than 10,000. Any number of agents
        may call this at once.
        """
        ...
