"""A group's generation and members, and how a rebalance runs.

A rebalance has two halves. In PreparingRebalance each member's JoinGroup is parked until all have come or time is up;
then a new generation begins, and the joins are answered. In CompletingRebalance the leader sends the assignments, they
are **stored first**, then every parked SyncGroup is answered, and the group is Stable. The next owner of the group
loads the record that was stored last, so it knows every generation in which a member was told an assignment.

Rules of ClassicGroup and of GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expirePendingSync).
Differences: requests of a member that has gone, or that asks again, are always answered; a join phase ends at once when
all remaining members have come; a failed save of a group that became empty is tried again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agents.groups.deadlines import Deadlines
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
from metadata.contract.groups import GroupRecord
from wire.error_codes import ErrorCode

POSTPONED_JOIN_MS_MIN = 1_000
"""No member came, and static members are waited for again: at least this long, whatever timeouts they asked for."""
SAVE_AGAIN_AFTER_MS = 5_000
PENDING_MIN = 1_000
PENDING_PER_MEMBER = 2
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


@dataclass(slots=True, kw_only=True)
class InitialDelay:
    """The first members of a group wait for others, and longer while others keep coming."""

    delay_ms: float
    remaining_ms: float
    others_came: bool = False


class RebalancingGroup:
    """State and transitions; `now_ms` is the time of the event that is being handled."""

    def __init__(self, options: GroupOptions, record: GroupRecord, now_ms: float) -> None:
        self.options = options
        self.now_ms = now_ms
        self.state = GroupState.STABLE if record.members else GroupState.EMPTY
        self.generation = record.generation
        self.protocol_type = record.protocol_type
        self.protocol = record.protocol
        self.leader: str | None = None
        self.members = Members()
        self.pending: set[str] = set()
        """Ids that were given out and that no member has joined with yet."""
        self.pending_bytes = 0
        self.pending_syncs: set[str] = set()
        self.sessions = Deadlines()
        """The sessions of members that do not wait, of new members, and of pending ids."""
        self.join_deadline_ms: float | None = None
        self.sync_deadline_ms: float | None = None
        self.save_again_ms: float | None = None
        self.initial: InitialDelay | None = None
        self.saves: dict[int, SaveReason] = {}
        self.subscribed_topics: frozenset[str] | None = None
        self.instructions: list[Instruction] = []
        self._saves_made = 0
        self._load(record)

    def _load(self, record: GroupRecord) -> None:
        for each in record.members:
            member = member_of(each)
            self.members.add(member)
            self.touch(member)
        if self.members:
            leads = record.leader is not None and record.leader in self.members
            self.leader = record.leader if leads else next(iter(self.members)).member_id
        self.note_subscriptions()
        if len(self.members) > self.options.max_size:
            self.prepare()

    # ---- answers

    def answer(self, request: int, answer: JoinAnswer | SyncAnswer | LeaveAnswer | PlainAnswer) -> None:
        self.instructions.append(Answer(request=request, answer=answer))

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        """If the member waits for a join, answer it; its session runs from now on."""
        request = self.members.unpark_join(member)
        if request is not None:
            member.is_new = False
            self.answer(request, answer)
            self.touch(member)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        request, member.parked_sync = member.parked_sync, None
        if request is not None:
            self.answer(request, answer)
            self.touch(member)

    def park_join(self, member: Member, request: int) -> None:
        older = self.members.park_join(member, request)
        if older is not None:
            self.answer(older, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        if not member.is_new:
            self.sessions.drop(member.member_id)

    def park_sync(self, member: Member, request: int) -> None:
        self.answer_sync(member, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.parked_sync = request
        self.sessions.drop(member.member_id)
        self.note_sync(member)

    def note_sync(self, member: Member) -> None:
        """Once all have synced, the group waits for nobody."""
        self.pending_syncs.discard(member.member_id)
        if not self.pending_syncs:
            self.sync_deadline_ms = None

    def joined(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        """Only the leader gets the list of members; `leader` overrides the id that is named as leader."""
        named = leader if leader is not None else self.leader
        return JoinAnswer(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=named or "",
            skip_assignment=skip_assignment,
            members=self._joined_members() if named == member.member_id else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members)

    def touch(self, member: Member) -> None:
        """A sign of life. A member that waits for an answer is not expected to give one."""
        if not member.waits:
            self.sessions.set(member.member_id, self.now_ms + member.session_timeout_ms)

    # ---- members

    def add(self, member: Member, request: int, protocol_type: str) -> None:
        """A new member. Its first join is parked for `new_member_join_ms_max` at most."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.initial is not None:
            self.initial.others_came = True
        self._end_pending(member.member_id)
        self.members.add(member)
        if self.leader is None:
            self.leader = member.member_id
        self.park_join(member, request)
        self.sessions.set(member.member_id, self.now_ms + self.options.new_member_join_ms_max)

    def remove(self, member: Member) -> None:
        """Answer its parked requests with UNKNOWN_MEMBER_ID."""
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.answer_join(member, JoinAnswer(error=unknown))
        self.answer_sync(member, SyncAnswer(error=unknown))
        self.members.remove(member)
        self.pending_syncs.discard(member.member_id)
        self.sessions.drop(member.member_id)
        if self.leader == member.member_id:
            self.leader = next((other.member_id for other in self.members), None)

    @property
    def may_give_ids(self) -> bool:
        """Bounds the ids that are out: clients that ask for ids and never come back cost memory."""
        return len(self.pending) < max(PENDING_MIN, PENDING_PER_MEMBER * len(self.members))

    def give_id(self, member_id: str, session_timeout_ms: int) -> None:
        """The id is forgotten if no member joins with it in that time."""
        self.pending.add(member_id)
        self.pending_bytes += _pending_bytes(member_id)
        self.sessions.set(member_id, self.now_ms + session_timeout_ms)

    def forget_pending(self, member_id: str) -> None:
        self._end_pending(member_id)
        self.sessions.drop(member_id)

    def _end_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            self.pending.discard(member_id)
            self.pending_bytes -= _pending_bytes(member_id)

    def replace(self, old: Member, new: Member) -> None:
        """`new` has the same instance id. Waiting requests of the old member are fenced at once."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(old, JoinAnswer(error=fenced, member_id=old.member_id))
        self.answer_sync(old, SyncAnswer(error=fenced))
        self.members.remove(old)
        self.sessions.drop(old.member_id)
        self.members.add(new)
        self.touch(new)
        if self.leader == old.member_id:
            self.leader = new.member_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.discard(old.member_id)
            self.pending_syncs.add(new.member_id)

    def note_subscriptions(self) -> None:
        consumers = self.protocol_type == PROTOCOL_TYPE
        self.subscribed_topics = self.members.subscribed_topics(self.protocol) if consumers else None

    # ---- rebalances

    @property
    def all_came(self) -> bool:
        return self.members.all_wait_to_join and not self.pending

    def rebalance(self) -> None:
        """Begin a rebalance; or, if one runs and all members have come, end its first half."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_came()
        else:
            self.prepare()

    def prepare(self) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        self.pending_syncs.clear()
        self.sync_deadline_ms = None
        self.save_again_ms = None
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        timeout_ms = self.members.rebalance_timeout_ms
        if was_empty:
            delay_ms = self.options.initial_rebalance_delay_ms
            self.initial = InitialDelay(delay_ms=delay_ms, remaining_ms=max(timeout_ms - delay_ms, 0))
            self.join_deadline_ms = self.now_ms + delay_ms
        elif self.all_came or not self.members:
            self.complete_join()
        else:
            self.join_deadline_ms = self.now_ms + timeout_ms

    def complete_join_if_all_came(self) -> None:
        """The initial rebalance waits for its delay even if all have come."""
        if self.state is GroupState.PREPARING_REBALANCE and self.initial is None and self.all_came:
            self.complete_join()

    def complete_join(self) -> None:
        """The members that came make up the next generation; static members that did not come stay in it."""
        self.join_deadline_ms = None
        self.initial = None
        for member in [each for each in self.members if each.parked_join is None and each.instance_id is None]:
            self.remove(member)
        if self.members and not self._elect_leader():
            wait_ms = max(self.members.rebalance_timeout_ms, POSTPONED_JOIN_MS_MIN)
            self.join_deadline_ms = self.now_ms + wait_ms
            return
        self.generation += 1
        self.protocol = self.members.voted_protocol()
        self.note_subscriptions()
        if not self.members:
            self.leader = None
            self.state = GroupState.EMPTY
            self.save(EmptySave(generation=self.generation))
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.pending_syncs = {member.member_id for member in self.members}
        self.sync_deadline_ms = self.now_ms + self.members.rebalance_timeout_ms
        for member in self.members:
            self.answer_join(member, self.joined(member))
            self.touch(member)

    def _elect_leader(self) -> bool:
        """The leader stays if it came; otherwise the first member that came leads. False: no member came."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.parked_join is None:
            came = next((member.member_id for member in self.members if member.parked_join is not None), None)
            if came is None:
                return False
            self.leader = came
        return True

    def reset_assignments(self, error: ErrorCode) -> None:
        for member in self.members:
            self.members.assign(member, b"")
            self.answer_sync(member, SyncAnswer(error=error))

    # ---- what is stored

    def save(self, reason: SaveReason) -> None:
        assignments = reason.assignments if isinstance(reason, AssignmentSave) else None
        self._saves_made += 1
        self.saves[self._saves_made] = reason
        self.instructions.append(Save(save=self._saves_made, record=self._record(assignments)))

    def _record(self, assignments: Mapping[str, bytes] | None) -> GroupRecord:
        return GroupRecord(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            members=tuple(
                member.record(member.assignment if assignments is None else assignments.get(member.member_id, b""))
                for member in self.members
            ),
            subscribed_topics=self.subscribed_topics,
        )

    def assignment_settled(self, save: AssignmentSave, *, stored: bool) -> None:
        """A save of an older generation changes nothing (GroupMetadataManager.classicGroupSyncToClassicGroup)."""
        if self.state is not GroupState.COMPLETING_REBALANCE or save.generation != self.generation:
            return
        if not stored:
            self.reset_assignments(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.prepare()
            return
        self.state = GroupState.STABLE
        for member in self.members:
            self.members.assign(member, save.assignments.get(member.member_id, b""))
            self.answer_sync(member, self.synced(member))

    def synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            error=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def empty_settled(self, save: EmptySave, *, stored: bool) -> None:
        """The stored record still has members and could be loaded, so the empty record must be stored in the end."""
        if not stored and self.state is GroupState.EMPTY and save.generation == self.generation:
            self.save_again_ms = self.now_ms + SAVE_AGAIN_AFTER_MS

    # ---- time

    @property
    def wake_at_ms(self) -> float | None:
        times = (self.join_deadline_ms, self.sync_deadline_ms, self.save_again_ms, self.sessions.soonest_ms)
        return min((time for time in times if time is not None), default=None)

    def wake(self) -> None:
        """Only one half of a rebalance has a deadline at a time: one that is set in this call waits for the next."""
        if self._due(self.save_again_ms):
            self.save_again_ms = None
            self.save(EmptySave(generation=self.generation))
        if self._due(self.join_deadline_ms):
            self._join_deadline_came()
        elif self._due(self.sync_deadline_ms):
            self._sync_deadline_came()
        while (member_id := self.sessions.take_due(self.now_ms)) is not None:
            self._session_ended(member_id)

    def _due(self, deadline_ms: float | None) -> bool:
        return deadline_ms is not None and deadline_ms <= self.now_ms

    def _join_deadline_came(self) -> None:
        initial = self.initial
        if initial is None or not initial.others_came or not initial.remaining_ms:
            self.complete_join()
            return
        passed_ms = initial.delay_ms
        initial.others_came = False
        initial.delay_ms = min(self.options.initial_rebalance_delay_ms, initial.remaining_ms)
        initial.remaining_ms = max(initial.remaining_ms - passed_ms, 0)
        self.join_deadline_ms = self.now_ms + initial.delay_ms

    def _sync_deadline_came(self) -> None:
        for member_id in sorted(self.pending_syncs):
            member = self.members.get(member_id)
            if member is not None:
                self.remove(member)
        self.prepare()

    def _session_ended(self, member_id: str) -> None:
        member = self.members.get(member_id)
        self._end_pending(member_id)
        if member is not None:
            self.remove(member)
            if self.state is not GroupState.PREPARING_REBALANCE:
                self.prepare()
                return
        if self.state is GroupState.PREPARING_REBALANCE and self.all_came:
            self.complete_join()

    def unload(self, error: ErrorCode) -> None:
        for member in self.members:
            self.answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
            self.answer_sync(member, SyncAnswer(error=error))
        self.state = GroupState.DEAD
        self.members.clear()
        self.pending.clear()
        self.pending_bytes = 0
        self.pending_syncs.clear()
        self.sessions.clear()
        self.saves.clear()
        self.initial = None
        self.leader = None
        self.subscribed_topics = None
        self.join_deadline_ms = self.sync_deadline_ms = self.save_again_ms = None


def _pending_bytes(member_id: str) -> int:
    return PENDING_BYTES + sys.getsizeof(member_id)
