"""The data of one consumer group, and the only operations that change it.

Other modules read its properties and call its operations; none of them assigns an attribute. `joining.py` and
`rebalance.py` decide which operation comes next. The operations keep the parts consistent with each other: the leader
is a member, sessions run for members that do not wait, sums follow the members.

Rules of Kafka's ClassicGroup. One difference: requests of a member that has gone, or that asks again, are always
answered.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from agents.groups.deadlines import Deadlines, InitialDelay
from agents.groups.events import (
    Answer,
    GroupOptions,
    GroupState,
    Instruction,
    JoinAnswer,
    JoinedMember,
    LeaveAnswer,
    PlainAnswer,
    Save,
    SyncAnswer,
)
from agents.groups.members import Member, Members, member_of
from agents.groups.subscription import PROTOCOL_TYPE
from metadata.groups.contract import GroupRecord
from wire.error_codes import ErrorCode

SAVE_AGAIN_AFTER_MS = 5_000
"""Pause after the record of an emptied group could not be stored."""
TOPIC_BYTES = 64
"""Approximate memory of a place in a set."""
PENDING_MIN = 1_000
PENDING_PER_MEMBER = 2
"""Ids that may be out at once: PENDING_MIN, or this many for each member if that is more."""
PENDING_BYTES = 500
"""Approximate memory of one id that was given out, without its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSave:
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementSave:
    """A static member came back under a new id, and nothing else changes."""

    generation: int
    request: int
    member: Member
    before: Member
    leader_before: str
    skips_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptySave:
    generation: int


SaveReason: TypeAlias = AssignmentSave | ReplacementSave | EmptySave


class GroupData:
    """Times are monotonic ms; "now" is the time of the event that is being handled (`begin_event`)."""

    def __init__(self, options: GroupOptions, record: GroupRecord, now_ms: float) -> None:
        """The group as its record stores it: Stable if it has members, whose sessions start again."""
        self._options = options
        self._now_ms = now_ms
        self._state = GroupState.STABLE if record.members else GroupState.EMPTY
        self._generation = record.generation
        self._protocol_type = record.protocol_type
        self._protocol = record.protocol
        self._leader: str | None = None
        self._members = Members()
        self._pending: set[str] = set()
        self._pending_bytes = 0
        self._pending_syncs: set[str] = set()
        self._sessions = Deadlines()
        """The sessions of members that do not wait, of new members, and of pending ids."""
        self._join_deadline_ms: float | None = None
        self._sync_deadline_ms: float | None = None
        self._save_again_ms: float | None = None
        self._initial: InitialDelay | None = None
        self._saves: dict[int, SaveReason] = {}
        self._saves_made = 0
        self._subscribed_topics: frozenset[str] | None = None
        self._subscribed_bytes = 0
        self._instructions: list[Instruction] = []
        self._load_members(record)

    def _load_members(self, record: GroupRecord) -> None:
        for each in record.members:
            member = member_of(each)
            self._members.add(member)
            self.touch(member)
        if self._members:
            leads = record.leader is not None and record.leader in self._members
            self._leader = record.leader if leads else next(iter(self._members)).member_id
        self.note_subscriptions()

    # ---- reading

    @property
    def options(self) -> GroupOptions:
        return self._options

    @property
    def state(self) -> GroupState:
        return self._state

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def protocol_type(self) -> str:
        return self._protocol_type

    @property
    def protocol(self) -> str | None:
        return self._protocol

    @property
    def leader(self) -> str | None:
        return self._leader

    @property
    def members(self) -> Members:
        """For reading only: a member comes, changes and goes through the operations of this class."""
        return self._members

    @property
    def pending(self) -> AbstractSet[str]:
        """Ids that were given out and that no member has joined with yet."""
        return self._pending

    @property
    def bytes(self) -> int:
        """Approximate memory of the protocol type, the members and the pending ids, without a walk over the members."""
        own = sys.getsizeof(self._protocol_type) + self._subscribed_bytes
        return own + self._members.bytes + self._pending_bytes

    @property
    def pending_syncs(self) -> AbstractSet[str]:
        """Members that have not synced yet in CompletingRebalance."""
        return self._pending_syncs

    @property
    def saves(self) -> Mapping[int, SaveReason]:
        """Saves whose outcome is not known yet, by number."""
        return self._saves

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        return self._subscribed_topics

    @property
    def all_came(self) -> bool:
        return self._members.all_wait_to_join and not self._pending

    @property
    def may_give_ids(self) -> bool:
        """Bounds the ids that are out: clients that ask for ids and never come back cost memory."""
        return len(self._pending) < max(PENDING_MIN, PENDING_PER_MEMBER * len(self._members))

    @property
    def joins_are_complete(self) -> bool:
        """The initial rebalance waits for its delay even if all have come."""
        return self._state is GroupState.PREPARING_REBALANCE and self._initial is None and self.all_came

    @property
    def wake_at_ms(self) -> float | None:
        # A plain loop: this is read after every heartbeat.
        soonest_ms = self._sessions.soonest_ms
        for time_ms in (self._join_deadline_ms, self._sync_deadline_ms, self._save_again_ms):
            if time_ms is not None and (soonest_ms is None or time_ms < soonest_ms):
                soonest_ms = time_ms
        return soonest_ms

    @property
    def waits_to_save_again(self) -> bool:
        return self._save_again_ms is not None

    @property
    def join_deadline_came(self) -> bool:
        return self._due(self._join_deadline_ms)

    @property
    def sync_deadline_came(self) -> bool:
        return self._due(self._sync_deadline_ms)

    def _due(self, deadline_ms: float | None) -> bool:
        return deadline_ms is not None and deadline_ms <= self._now_ms

    # ---- one event

    def begin_event(self, now_ms: float) -> GroupState:
        """Returns the state before the event."""
        self._now_ms = now_ms
        return self._state

    def take_instructions(self) -> list[Instruction]:
        """The instructions since the last call."""
        instructions, self._instructions = self._instructions, []
        return instructions

    # ---- answers

    def answer(self, request: int, answer: JoinAnswer | SyncAnswer | LeaveAnswer | PlainAnswer) -> None:
        self._instructions.append(Answer(request=request, answer=answer))

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        """If the member waits for a join, answer it; its session runs from now on."""
        request = self._members.unpark_join(member)
        if request is not None:
            member.end_first_join()
            self.answer(request, answer)
            self.touch(member)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        """If the member waits for a sync, answer it; its session runs from now on."""
        request = member.unpark_sync()
        if request is not None:
            self.answer(request, answer)
            self.touch(member)

    def joined(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        """Only the leader gets the list of members; `leader` overrides the id that is named as leader."""
        named = leader if leader is not None else self._leader
        return JoinAnswer(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self._generation,
            protocol_type=self._protocol_type,
            protocol=self._protocol,
            leader=named or "",
            skip_assignment=skip_assignment,
            members=self._joined_members() if named == member.member_id else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(self._protocol)) for m in self._members)

    def synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            error=ErrorCode.NONE,
            protocol_type=self._protocol_type,
            protocol=self._protocol,
            assignment=member.assignment,
        )

    # ---- waiting requests and sessions

    def park_join(self, member: Member, request: int) -> None:
        older = self._members.park_join(member, request)
        if older is not None:
            self.answer(older, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        if not member.is_new:
            self._sessions.drop(member.member_id)

    def park_sync(self, member: Member, request: int) -> None:
        self.answer_sync(member, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.park_sync(request)
        self._sessions.drop(member.member_id)
        self.note_sync(member)

    def note_sync(self, member: Member) -> None:
        """Once all have synced, the group waits for nobody."""
        self._pending_syncs.discard(member.member_id)
        if not self._pending_syncs:
            self._sync_deadline_ms = None

    def touch(self, member: Member) -> None:
        """A sign of life. A member that waits for an answer is not expected to give one."""
        if not member.waits:
            self._sessions.set(member.member_id, self._now_ms + member.session_timeout_ms)

    def take_ended_session(self) -> str | None:
        """The id of a member whose session has ended, or a pending id whose time is up. The id is pending no longer;
        the caller must remove the member."""
        member_id = self._sessions.take_due(self._now_ms)
        if member_id is not None:
            self._end_pending(member_id)
        return member_id

    # ---- members

    def add(self, member: Member, request: int, protocol_type: str) -> None:
        """A new member. Its first join is parked for `new_member_join_ms_max` at most."""
        if not self._members:
            self._protocol_type = protocol_type
        if self._initial is not None:
            self._initial.note_join()
        self._end_pending(member.member_id)
        self._members.add(member)
        if self._leader is None:
            self._leader = member.member_id
        self.park_join(member, request)
        self._sessions.set(member.member_id, self._now_ms + self._options.new_member_join_ms_max)

    def remove(self, member: Member) -> None:
        """Answer its parked requests with UNKNOWN_MEMBER_ID."""
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer_join(member, JoinAnswer(error=unknown))
        self.answer_sync(member, SyncAnswer(error=unknown))
        self._members.remove(member)
        self._pending_syncs.discard(member.member_id)
        self._sessions.drop(member.member_id)
        if self._leader == member.member_id:
            self._leader = next((other.member_id for other in self._members), None)

    def replace(self, old: Member, new: Member) -> None:
        """`new` has the same instance id. Waiting requests of the old member are fenced at once."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(old, JoinAnswer(error=fenced, member_id=old.member_id))
        self.answer_sync(old, SyncAnswer(error=fenced))
        self._members.remove(old)
        self._sessions.drop(old.member_id)
        self._members.add(new)
        self.touch(new)
        if self._leader == old.member_id:
            self._leader = new.member_id
        if old.member_id in self._pending_syncs:
            self._pending_syncs.discard(old.member_id)
            self._pending_syncs.add(new.member_id)

    def change(
        self,
        member: Member,
        *,
        protocols: tuple[tuple[str, bytes], ...],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        """The member joins again with these."""
        self._members.change_protocols(member, protocols)
        member.change_timeouts(session_timeout_ms, rebalance_timeout_ms)

    def note_subscriptions(self) -> None:
        """Read the topics that the members subscribe to again."""
        consumers = self._protocol_type == PROTOCOL_TYPE
        topics = self._members.subscribed_topics(self._protocol) if consumers else None
        self._subscribed_topics = topics
        self._subscribed_bytes = sum(TOPIC_BYTES + sys.getsizeof(name) for name in topics or ())

    def elect_leader(self) -> bool:
        """The leader stays if it came; otherwise the first member that came leads. False: no member came."""
        leader = self._members.get(self._leader or "")
        if leader is None or leader.parked_join is None:
            came = next((member.member_id for member in self._members if member.parked_join is not None), None)
            if came is None:
                return False
            self._leader = came
        return True

    # ---- ids that were given out

    def give_id(self, member_id: str, session_timeout_ms: int) -> None:
        """The id is forgotten if no member joins with it in that time."""
        self._pending.add(member_id)
        self._pending_bytes += _pending_bytes(member_id)
        self._sessions.set(member_id, self._now_ms + session_timeout_ms)

    def forget_pending(self, member_id: str) -> None:
        self._end_pending(member_id)
        self._sessions.drop(member_id)

    def _end_pending(self, member_id: str) -> None:
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._pending_bytes -= _pending_bytes(member_id)

    # ---- states

    def begin_joins(self) -> None:
        """Becomes PreparingRebalance. The caller sets a deadline (`start_initial_delay`, `await_joins`) or ends this
        half at once."""
        if self._state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        self._pending_syncs.clear()
        self._sync_deadline_ms = None
        self._save_again_ms = None
        self._state = GroupState.PREPARING_REBALANCE

    def start_initial_delay(self) -> None:
        delay_ms = self._options.initial_rebalance_delay_ms
        remaining_ms = max(self._members.rebalance_timeout_ms - delay_ms, 0)
        self._initial = InitialDelay(delay_ms, remaining_ms)
        self.await_joins(delay_ms)

    def prolong_initial_delay(self) -> bool:
        """False: the group is in no initial delay, or has waited long enough."""
        delay_ms = None if self._initial is None else self._initial.prolong(self._options.initial_rebalance_delay_ms)
        if delay_ms is None:
            return False
        self.await_joins(delay_ms)
        return True

    def await_joins(self, timeout_ms: float) -> None:
        self._join_deadline_ms = self._now_ms + timeout_ms

    def end_joins(self) -> None:
        """The joins are waited for no longer, neither those of the initial delay."""
        self._join_deadline_ms = None
        self._initial = None

    def begin_generation(self) -> None:
        """The present members make up the next generation. It is Empty without members; otherwise it is
        CompletingRebalance, and a sync of each member is awaited."""
        self._generation += 1
        self._protocol = self._members.voted_protocol()
        self.note_subscriptions()
        if not self._members:
            self._leader = None
            self._state = GroupState.EMPTY
            return
        self._state = GroupState.COMPLETING_REBALANCE
        self._pending_syncs = {member.member_id for member in self._members}
        self._sync_deadline_ms = self._now_ms + self._members.rebalance_timeout_ms

    def reset_assignments(self, error: ErrorCode) -> None:
        for member in self._members:
            self._members.assign(member, b"")
            self.answer_sync(member, SyncAnswer(error=error))

    def become_stable(self, assignments: Mapping[str, bytes]) -> None:
        """Tell each member that waits its assignment. It must be stored by now."""
        self._state = GroupState.STABLE
        for member in self._members:
            self._members.assign(member, assignments.get(member.member_id, b""))
            self.answer_sync(member, self.synced(member))

    def unload(self, error: ErrorCode) -> None:
        """Becomes Dead: all waiting requests are answered `error`, and nothing is held any longer."""
        for member in self._members:
            self.answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
            self.answer_sync(member, SyncAnswer(error=error))
        self._state = GroupState.DEAD
        self._members.clear()
        self._pending.clear()
        self._pending_bytes = 0
        self._pending_syncs.clear()
        self._sessions.clear()
        self._saves.clear()
        self._initial = None
        self._leader = None
        self._subscribed_topics = None
        self._subscribed_bytes = 0
        self._join_deadline_ms = self._sync_deadline_ms = self._save_again_ms = None

    # ---- saves

    def save(self, reason: SaveReason) -> None:
        assignments = reason.assignments if isinstance(reason, AssignmentSave) else None
        self._saves_made += 1
        self._saves[self._saves_made] = reason
        self._instructions.append(Save(save=self._saves_made, record=self._record(assignments)))

    def take_save(self, save: int) -> SaveReason | None:
        """The reason of a save whose outcome came; None if the group was unloaded since."""
        return self._saves.pop(save, None)

    def save_again_later(self) -> None:
        self._save_again_ms = self._now_ms + SAVE_AGAIN_AFTER_MS

    def take_due_save_again(self) -> bool:
        """Whether the time of `save_again_later` has come; then it is forgotten."""
        if not self._due(self._save_again_ms):
            return False
        self._save_again_ms = None
        return True

    def _record(self, assignments: Mapping[str, bytes] | None) -> GroupRecord:
        return GroupRecord(
            protocol_type=self._protocol_type,
            generation=self._generation,
            protocol=self._protocol,
            leader=self._leader,
            members=tuple(
                member.record(member.assignment if assignments is None else assignments.get(member.member_id, b""))
                for member in self._members
            ),
            subscribed_topics=self._subscribed_topics,
        )


def _pending_bytes(member_id: str) -> int:
    return PENDING_BYTES + sys.getsizeof(member_id)
