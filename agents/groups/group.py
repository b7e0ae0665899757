"""One consumer group: Kafka's classic group protocol as a machine without clock and I/O. Events in, instructions out.

`group_data.py` holds the group's data and the operations that change it, `members.py` the members. `joining.py` handles
JoinGroup, `rebalance.py` rebalances and everything that ends with time; this file handles the other requests.
`transitions.py` is the table of states.

Order: a record is stored before any member is told the assignments in it (`Save`, then answers at `Saved`), and when
the last member has gone. A crash leaves the record of the last stored generation: the next owner loads it, its members
continue, and members of a later generation join again.

Sessions end only at `Woke`: after a stall, heartbeats in the queue still count if they are handled first.
"""

from __future__ import annotations

import sys
from typing import assert_never

from agents.groups.events import (
    CommitRequested,
    DeleteRequested,
    Event,
    GroupOptions,
    GroupState,
    GroupView,
    HeartbeatRequested,
    Instruction,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    LeavingMember,
    MemberView,
    PlainAnswer,
    Saved,
    SaveFailed,
    SyncAnswer,
    SyncRequested,
    Unloaded,
    Woke,
)
from agents.groups.group_data import AssignmentSave, EmptySave, ReplacementSave
from agents.groups.joining import join, replacement_settled
from agents.groups.rebalance import (
    assignment_settled,
    complete_join_if_all_came,
    empty_settled,
    load,
    rebalance,
    wake,
)
from agents.groups.transitions import check_transition
from metadata.groups.contract import GroupRecord
from wire.error_codes import ErrorCode

GROUP_BYTES = 4_000
"""Approximate memory of one group without members."""


class Group:
    """Times are monotonic ms. `record` is the store's record: with members the group is Stable, and their sessions
    start again."""

    def __init__(self, group_id: str, options: GroupOptions, record: GroupRecord, now_ms: float) -> None:
        self.group_id = group_id
        self._group = load(options, record, now_ms)

    @property
    def state(self) -> GroupState:
        return self._group.state

    @property
    def wake_at_ms(self) -> float | None:
        """When the group wants the next `Woke`; None if nothing ends with time."""
        return self._group.wake_at_ms

    @property
    def size(self) -> int:
        """Members and ids given out: the measure of the group's size."""
        return len(self._group.members) + len(self._group.pending)

    @property
    def bytes(self) -> int:
        """Approximate memory of what the group holds, not of the requests it received. It does not walk over the
        members."""
        return GROUP_BYTES + sys.getsizeof(self.group_id) + self._group.bytes

    @property
    def is_forgettable(self) -> bool:
        """Nothing is lost if the group is loaded again from its record."""
        group = self._group
        at_rest = group.state in (GroupState.EMPTY, GroupState.DEAD) and not group.members
        return at_rest and not group.pending and not group.saves and not group.waits_to_save_again

    def handle(self, event: Event, now_ms: float) -> list[Instruction]:
        group = self._group
        before = group.begin_event(now_ms)
        match event:
            case JoinRequested():
                join(group, event)
            case SyncRequested():
                self._sync(event)
            case HeartbeatRequested():
                group.answer(event.request, PlainAnswer(error=self._heartbeat(event)))
            case LeaveRequested():
                self._leave(event)
            case CommitRequested():
                group.answer(event.request, PlainAnswer(error=self._commit(event)))
            case DeleteRequested():
                group.answer(event.request, PlainAnswer(error=self._delete()))
            case Saved():
                self._settled(event.save, stored=True)
            case SaveFailed():
                self._settled(event.save, stored=False)
            case Unloaded():
                group.unload(event.error)
            case Woke():
                wake(group)
            case _:
                assert_never(event)
        check_transition(before, event, group.state)
        return group.take_instructions()

    # ---- SyncGroup

    def _sync(self, event: SyncRequested) -> None:
        group = self._group
        error = self._sync_error(event)
        member = group.members.get(event.member_id)
        if error is not ErrorCode.NONE or member is None:
            group.answer(event.request, SyncAnswer(error=error))
        elif group.state is GroupState.STABLE:
            group.note_sync(member)
            group.touch(member)
            group.answer(event.request, group.synced(member))
        else:
            group.park_sync(member, event.request)
            # A leader that repeats its SyncGroup must not start a second save: members wait for the first.
            if group.leader == member.member_id and not self._assignment_is_saving():
                assigned = {each.member_id: event.assignments.get(each.member_id, b"") for each in group.members}
                group.save(AssignmentSave(generation=group.generation, assignments=assigned))

    def _sync_error(self, event: SyncRequested) -> ErrorCode:
        """(GroupMetadataManager.validateSyncGroup)"""
        group, state = self._group, self._group.state
        if state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        known = group.members.known(event.member_id, event.instance_id)
        if isinstance(known, ErrorCode):
            return known
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if event.protocol_type is not None and event.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if event.protocol is not None and event.protocol != group.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        preparing = state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def _assignment_is_saving(self) -> bool:
        """A leader that syncs again does not change an assignment that is being saved."""
        generation = self._group.generation
        saves = self._group.saves.values()
        return any(isinstance(save, AssignmentSave) and save.generation == generation for save in saves)

    # ---- Heartbeat, OffsetCommit

    def _heartbeat(self, event: HeartbeatRequested) -> ErrorCode:
        """An Empty group knows no members (GroupMetadataManager.validateClassicGroupHeartbeat)."""
        group, state = self._group, self._group.state
        if state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        known = group.members.known(event.member_id, event.instance_id)
        if isinstance(known, ErrorCode):
            return known
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        group.touch(known)
        preparing = state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def _commit(self, event: CommitRequested) -> ErrorCode:
        """A member of the generation may still commit while the next one gathers: it has to do so before it joins. A
        client outside of any generation may commit while there are no members. (ClassicGroup.validateOffsetCommit)

        In a transaction the state is not asked for, and a client that does not say which member it is may always commit
        (before KIP-447 none could say it): the epoch of the producer keeps zombies away. The members' sessions are not
        touched, because a producer sends the request, not the member.
        """
        group, state = self._group, self._group.state
        if state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if event.generation < 0 and state is GroupState.EMPTY:
            return ErrorCode.NONE
        # Offsets from outside of any generation would overwrite those of the members.
        if event.generation < 0 and not event.member_id and event.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID if event.producer is None else ErrorCode.NONE
        known = group.members.known(event.member_id, event.instance_id)
        if isinstance(known, ErrorCode):
            return known
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if event.producer is not None:
            return ErrorCode.NONE
        if state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        group.touch(known)
        return ErrorCode.NONE

    # ---- LeaveGroup, DeleteGroups

    def _leave(self, event: LeaveRequested) -> None:
        """All named members go first, then there is one rebalance. Ids that no member has joined with cause none."""
        group = self._group
        if group.state is GroupState.DEAD:
            group.answer(event.request, LeaveAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        members_before = len(group.members)
        outcomes = [(leaving, self._leave_one(leaving)) for leaving in event.members]
        group.answer(event.request, LeaveAnswer(error=ErrorCode.NONE, members=outcomes))
        if len(group.members) < members_before:
            rebalance(group)
        else:
            complete_join_if_all_came(group)

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        """An instance id without a member id stands for its current holder: administrators remove static members this
        way."""
        group = self._group
        if not leaving.member_id:
            holder = None if leaving.instance_id is None else group.members.of_instance(leaving.instance_id)
            known = ErrorCode.UNKNOWN_MEMBER_ID if holder is None else holder
        # An id that was given out and never used: it leaves without a rebalance, but others may wait for it.
        elif leaving.member_id in group.pending:
            group.forget_pending(leaving.member_id)
            return ErrorCode.NONE
        else:
            known = group.members.known(leaving.member_id, leaving.instance_id)
        if isinstance(known, ErrorCode):
            return known
        group.remove(known)
        return ErrorCode.NONE

    def _delete(self) -> ErrorCode:
        group = self._group
        if group.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        # The group is Dead before the store deletes it, so that nothing can join or commit meanwhile.
        group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ErrorCode.NONE

    # ---- saves, DescribeGroups

    def _settled(self, save: int, *, stored: bool) -> None:
        reason = self._group.take_save(save)
        match reason:
            case AssignmentSave():
                assignment_settled(self._group, reason, stored=stored)
            case ReplacementSave():
                replacement_settled(self._group, reason, stored=stored)
            case EmptySave():
                empty_settled(self._group, reason, stored=stored)
            case None:
                pass

    def view(self) -> GroupView:
        group = self._group
        stable = group.state is GroupState.STABLE
        return GroupView(
            group_id=self.group_id,
            state=group.state,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=(group.protocol or "") if stable else "",
            members=tuple(
                MemberView(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(group.protocol) if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in group.members
            ),
            subscribed_topics=group.subscribed_topics,
        )
