"""Consumer groups and their committed offsets: the contract between coordinators and the metadata store.

A group belongs to one agent at a time. Who takes it gets an *epoch*, a number never given before, and everything it
writes for the group carries that epoch: a write under an older one changes nothing and raises `GroupFencedError`. So
an agent that still believes it owns a group can do no harm, whatever it answers heartbeats.

The record of a group (generation, members, assignments) is stored before members learn their assignment, so that the
next owner goes on with the same members and generation. Offsets are not kept in memory anywhere: they are read from
here. A crash between two calls leaves what the last one wrote.

Two implementations: `metadata/postgres/groups/groups.py`, `metadata/memory/groups.py`; one contract suite,
`tests/contract/test_groups.py`. All times in the store are of its own clock.

What clients name (group, member and instance ids, protocols, subscribed topics, offset metadata) may be any `str`: NUL
characters and lone surrogates are kept as they are. Only the length of a group id is limited. "By group id" is by code
points.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metadata.contract.leases import WriterLease
from runtime.errors import BadInputError, FencedError

GROUP_ID_BYTES_MAX = 2_000
"""In UTF-8. A row of an index of Postgres takes 2,704 bytes."""


class GroupIdTooLongError(BadInputError):
    """The store takes no group id above `GROUP_ID_BYTES_MAX`; answer 24."""


class GroupFencedError(FencedError):
    """The group has another owner by now, or was deleted. Nothing was written. Forget the group and answer 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLease:
    group_id: str
    epoch: int
    """From a sequence of all groups: never given twice, not even after the group was deleted."""


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
    """What survives a change of owner."""

    protocol_type: str = ""
    """"" until somebody has joined: a group that only keeps offsets."""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: tuple[MemberRecord, ...] = ()
    """In the order in which they joined."""
    subscribed_topics: frozenset[str] | None = None
    """By name; None where it cannot be known (no members, or a protocol type other than "consumer")."""


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
    """Of one request."""

    lease: GroupLease
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResult:
    fenced: bool
    """Nothing of this batch was written."""
    unknown: frozenset[OffsetPlace]
    """Places that are gone or never were; the others of the batch are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredGroups:
    offsets: int
    groups: int


def check_group_id(group_id: str) -> None:
    """Raises GroupIdTooLongError."""
    size = len(group_id.encode("utf-8", "surrogatepass"))
    if size > GROUP_ID_BYTES_MAX:
        raise GroupIdTooLongError(f"a group id of {size} bytes is longer than {GROUP_ID_BYTES_MAX}")


class GroupMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`: then a write may have happened, and may be repeated as it
    was (each is idempotent under its epoch)."""

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> TakenGroup | None:
        """Become the owner, under a new epoch, which fences the owner before. A write of that owner which is under way
        is waited for. None when there is no such group and `create` is False.

        Raises GroupIdTooLongError; WriterFencedError when `owner` is not among `live_agents`: an agent that was thought
        dead takes nothing. Nor does one that drains: the others hash the group to one of them by now, and a late take
        would fence that one and send its clients away again. What it holds it may save and commit to the end, until
        the next owner takes it.
        """
        ...

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        """Raises GroupFencedError."""
        ...

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        """All in one round trip and one transaction; a batch that is fenced does not touch the others.

        A place named twice takes the last. One result per batch, in order. A call that was given up (its answer lost,
        its caller cancelled) is ended before a later one of this service begins: it cannot overwrite newer offsets.
        """
        ...

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        """Those of them under which nothing can be written any more: the group was taken since, or deleted."""
        ...

    async def offsets(
        self, group_id: str, places: Sequence[OffsetPlace] | None = None
    ) -> Mapping[OffsetPlace, CommittedOffset]:
        """All of the group's, or those at these places; absent where none is. An unknown group has none."""
        ...

    async def delete_offsets(self, lease: GroupLease, places: Sequence[OffsetPlace]) -> None:
        """Raises GroupFencedError. Places without an offset are no error."""
        ...

    async def delete_group(self, lease: GroupLease) -> None:
        """The record and all offsets. Raises GroupFencedError."""
        ...

    async def list_groups(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[GroupSummary]:
        """By group id, in pages: those whose id is above `after`, from the first when it is None."""
        ...

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        """Ids, by id, in pages as `groups`, of which it is the cheap part: no offsets are counted."""
        ...

    async def group(self, group_id: str) -> GroupRecord | None:
        """As it was last stored, by whoever owns it."""
        ...

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        """Those of these groups that there are."""
        ...

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        """Delete offsets that Kafka's rules no longer keep (KIP-211), and groups that have become nothing.

        An offset goes when it is older than `offsets_retention_ms` counted from: the group's becoming empty (or its
        own commit, if later), for a group that once had members and has none; its commit, for a group that never had
        any, and for a topic that a group with members no longer subscribes to (`subscribed_topics`). A group without
        members and offsets goes `idle_group_ms` after it became empty. Offsets of deleted topics went with these.
        Groups that somebody writes to at the moment are left for the next time. At most 10,000 offsets and 10,000
        groups a call; repeat until both together are fewer than 10,000. Any number of agents may do it at once.
        """
        ...
