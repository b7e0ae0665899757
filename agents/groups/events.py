"""Events of a consumer group and the instructions that follow: the values between the state machine and its shell.

`agents/groups/group.py` (pure) takes events and the time and returns instructions. `agents/groups/coordinator.py` turns
requests into events, carries the instructions out, and reports the outcome of each save. Times are monotonic ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from metadata.groups.contract import GroupRecord
from wire.error_codes import ErrorCode


class GroupState(StrEnum):
    """Kafka's names, as clients see them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Settings of a coordinator, by Kafka's names with units."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    new_member_join_ms_max: int = 300_000
    """How long the first join of a new member may be held."""


# ---- events: requests carry a number of the shell's choosing, by which they are answered


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    request: int
    member_id: str
    """"" from a member that has no id yet."""
    new_member_id: str
    """The id for the member if it needs one; the shell draws it (`<client id>-<uuid>`)."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The session timeout in versions that have no rebalance timeout (v0)."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """In the client's order of preference."""
    id_required: bool
    """v4+: a dynamic member without an id is given one and told to come again."""
    skips_assignment: bool
    """v9+: a leader may be told that no assignment is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequested:
    request: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    """Both from v5 on; None is not checked."""
    assignments: Mapping[str, bytes]
    """By member id; only the leader's counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequested:
    request: int
    member_id: str
    instance_id: str | None
    generation: int


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    request: int
    members: Sequence[LeavingMember]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducer:
    """The producer whose transaction commits offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    """The group enters the transaction with the offsets (the second protocol, KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequested:
    """May these offsets be committed? The machine only judges; the shell writes them."""

    request: int
    member_id: str
    instance_id: str | None
    generation: int
    """-1 from a consumer outside of any generation."""
    producer: TransactionalProducer | None = None
    """The offsets count when its transaction commits; None: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequested:
    """DeleteGroups: answered NONE if the group may go; the group is Dead then and the shell deletes it."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """The record was not stored, or the outcome is unknown. A fenced group does not get this event: the shell unloads
    it."""

    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """Another agent owns the group, or this agent stops: all waiting requests are answered `error`. The last event."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Woke:
    """A deadline has come: a session, a join phase, a sync phase, or a repeated save.

    Early or late, it does no harm.
    """


Event: TypeAlias = (
    JoinRequested
    | SyncRequested
    | HeartbeatRequested
    | LeaveRequested
    | CommitRequested
    | DeleteRequested
    | Saved
    | SaveFailed
    | Unloaded
    | Woke
)


# ---- instructions


class JoinedMember(NamedTuple):
    """One member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAnswer:
    error: ErrorCode
    members: Sequence[tuple[LeavingMember, ErrorCode]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """The answer to a heartbeat, a commit or a deletion."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    request: int
    answer: JoinAnswer | SyncAnswer | LeaveAnswer | PlainAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Store this record, under the group's lease; then report `Saved` or `SaveFailed`. Saves of a group never overlap:
    the shell stores them in order. It may leave out one that a later one replaces, and then reports `Saved` for
    both."""

    save: int
    record: GroupRecord


Instruction: TypeAlias = Answer | Save


# ---- what DescribeGroups shows


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """For the chosen protocol. Empty unless the group is Stable; so is the assignment."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    group_id: str
    state: GroupState
    generation: int
    protocol_type: str
    protocol: str
    members: Sequence[MemberView] = field(default_factory=tuple)
    subscribed_topics: frozenset[str] | None = None
    """Known for a group of type "consumer" with members; None if it cannot be known."""
