"""JoinGroup: who may join, who is given an id first, and which members that come back need a rebalance.

Rules and the order of checks are those of GroupMetadataManager.classicGroupJoinToClassicGroup. One difference: a static
member that is replaced while Stable and drawn into a rebalance before its record is stored waits for the rebalance.
"""

from __future__ import annotations

from agents.groups.events import GroupState, JoinAnswer, JoinRequested
from agents.groups.group_data import GroupData, ReplacementSave
from agents.groups.members import Member
from agents.groups.rebalance import complete_join_if_all_came, rebalance
from wire.error_codes import ErrorCode

PROTOCOLS_MAX = 100
"""Protocols that one member may name; clients name one to four."""


def join(group: GroupData, event: JoinRequested) -> None:
    options = group.options
    if not options.session_timeout_ms_min <= event.session_timeout_ms <= options.session_timeout_ms_max:
        _refuse(group, event, ErrorCode.INVALID_SESSION_TIMEOUT)
    elif group.state is GroupState.DEAD:
        _refuse(group, event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    # As in Kafka, room is checked before fit: an unfit member of a full group hears that the group is full.
    elif not _has_room(group, event.member_id):
        _turn_away(group, event)
    elif not _fits(group, event):
        _refuse(group, event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not event.member_id:
        _join_without_id(group, event)
    elif event.member_id in group.pending and event.instance_id is None:
        _add(group, event, event.member_id)
    else:
        known = group.members.known(event.member_id, event.instance_id)
        if isinstance(known, ErrorCode):
            _refuse(group, event, known)
        else:
            _rejoin(group, event, known)


def _refuse(group: GroupData, event: JoinRequested, error: ErrorCode) -> None:
    group.answer(event.request, JoinAnswer(error=error, member_id=event.member_id))


def _has_room(group: GroupData, member_id: str) -> bool:
    """While members gather, only those that have come count: if the limit was lowered, the last ones stay outside
    (GroupMetadataManager.acceptJoiningMember)."""
    state, members = group.state, group.members
    if state is GroupState.EMPTY:
        return True
    member = members.get(member_id)
    if state is GroupState.PREPARING_REBALANCE:
        came = member is not None and member.parked_join is not None
        return came or members.joins_parked < group.options.max_size
    return member is not None or len(members) < group.options.max_size


def _turn_away(group: GroupData, event: JoinRequested) -> None:
    member = group.members.get(event.member_id)
    if member is not None:
        group.remove(member)
    elif event.member_id in group.pending:
        group.forget_pending(event.member_id)
    group.answer(event.request, JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
    complete_join_if_all_came(group)


def _fits(group: GroupData, event: JoinRequested) -> bool:
    # Kafka has no such bound. A vote looks at each protocol of each member, in one turn of the event loop.
    if len(event.protocols) > PROTOCOLS_MAX:
        return False
    if group.state is GroupState.EMPTY:
        return bool(event.protocol_type and event.protocols)
    return event.protocol_type == group.protocol_type and group.members.share_one_of(event.protocols)


def _join_without_id(group: GroupData, event: JoinRequested) -> None:
    if event.instance_id is not None:
        old = group.members.of_instance(event.instance_id)
        if old is not None:
            _replace(group, event, old)
            return
    # KIP-394: a client that retries a lost first join would leave one more ghost member behind each time.
    elif event.id_required:
        if not group.may_give_ids:
            _refuse(group, event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        group.give_id(event.new_member_id, event.session_timeout_ms)
        required = JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=event.new_member_id)
        group.answer(event.request, required)
        return
    _add(group, event, event.new_member_id)


def _member(event: JoinRequested, member_id: str, *, assignment: bytes = b"", is_new: bool = False) -> Member:
    return Member(
        member_id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        assignment=assignment,
        is_new=is_new,
    )


def _add(group: GroupData, event: JoinRequested, member_id: str) -> None:
    group.add(_member(event, member_id, is_new=True), event.request, event.protocol_type)
    rebalance(group)


def _rejoin(group: GroupData, event: JoinRequested, member: Member) -> None:
    """A member joins again under its own id. If it brings nothing new, it has lost an answer and gets it again. But a
    leader that joins a Stable group wants a rebalance: something beyond its own subscription has changed."""
    unchanged = member.protocols == event.protocols
    leads_stable = group.state is GroupState.STABLE and member.member_id == group.leader
    if group.state is not GroupState.PREPARING_REBALANCE and unchanged and not leads_stable:
        group.touch(member)
        group.answer(event.request, group.joined(member))
        return
    group.change(
        member,
        protocols=event.protocols,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
    )
    group.park_join(member, event.request)
    rebalance(group)


def _replace(group: GroupData, event: JoinRequested, old: Member) -> None:
    """A static member's process is back, without its id. (updateStaticMemberThenRebalanceOrCompleteJoin)"""
    leader_before = group.leader or ""
    new = _member(event, event.new_member_id, assignment=old.assignment)
    group.replace(old, new)
    group.park_join(new, event.request)
    if group.state is not GroupState.STABLE:
        # In CompletingRebalance the leader may know the old id and assign to it, and that would reach no member.
        rebalance(group)
    # Its new subscription changed the vote: the stored assignment was made under another protocol.
    elif group.members.voted_protocol() != group.protocol:
        rebalance(group)
    else:
        group.note_subscriptions()
        group.save(
            ReplacementSave(
                generation=group.generation,
                request=event.request,
                member=new,
                before=old,
                leader_before=leader_before,
                skips_assignment=event.skips_assignment,
            )
        )


def replacement_settled(group: GroupData, save: ReplacementSave, *, stored: bool) -> None:
    """Does nothing if the member was meanwhile drawn into a rebalance, left, or was replaced again.

    Below v9 a leader cannot be told that no assignment is wanted. So it is told that the old id leads, and takes itself
    for a follower.
    """
    member = save.member
    stands = group.state is GroupState.STABLE and group.generation == save.generation
    if not stands or group.members.get(member.member_id) is not member or member.parked_join != save.request:
        return
    if not stored:
        failed = JoinAnswer(
            error=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=save.leader_before,
        )
        group.answer_join(member, failed)
        # The store still has the old id, and the next owner would load it: this agent must agree with it.
        group.replace(member, save.before)
        group.note_subscriptions()
    elif save.skips_assignment:
        leads = group.leader == member.member_id
        group.answer_join(member, group.joined(member, skip_assignment=leads))
    else:
        group.answer_join(member, group.joined(member, leader=save.leader_before))
