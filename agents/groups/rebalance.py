"""How a rebalance runs, and everything in a group that ends with time.

A rebalance has two halves. In PreparingRebalance each member's JoinGroup is parked until all have come or time is up;
then a new generation begins, and the joins are answered. In CompletingRebalance the leader sends the assignments, they
are **stored first**, then every parked SyncGroup is answered, and the group is Stable. The next owner of the group
loads the record that was stored last, so it knows every generation in which a member was told an assignment.

Rules of GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expirePendingSync). Differences: a join phase
ends at once when all remaining members have come; a failed save of a group that became empty is tried again.
"""

from __future__ import annotations

from agents.groups.events import GroupOptions, GroupState
from agents.groups.group_data import AssignmentSave, EmptySave, GroupData
from metadata.groups.contract import GroupRecord
from wire.error_codes import ErrorCode

POSTPONED_JOIN_MS_MIN = 1_000
"""No member came, and static members are waited for again: at least this long, whatever timeouts they asked for."""


def load(options: GroupOptions, record: GroupRecord, now_ms: float) -> GroupData:
    """The group as its record stores it. If it has more members than allowed by now, a rebalance begins."""
    group = GroupData(options, record, now_ms)
    if len(group.members) > options.max_size:
        _prepare(group)
    return group


def rebalance(group: GroupData) -> None:
    """Begin a rebalance; or, if one runs and all members have come, end its first half."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_all_came(group)
    else:
        _prepare(group)


def complete_join_if_all_came(group: GroupData) -> None:
    if group.joins_are_complete:
        _complete_join(group)


def _prepare(group: GroupData) -> None:
    was_empty = group.state is GroupState.EMPTY
    group.begin_joins()
    if was_empty:
        group.start_initial_delay()
    elif group.all_came or not group.members:
        _complete_join(group)
    else:
        group.await_joins(group.members.rebalance_timeout_ms)


def _complete_join(group: GroupData) -> None:
    """The members that came make up the next generation; static members that did not come stay in it."""
    group.end_joins()
    for member in [each for each in group.members if each.parked_join is None and each.instance_id is None]:
        group.remove(member)
    # Only static members are left, and none came: there is nobody to lead, so all are waited for again.
    if group.members and not group.elect_leader():
        group.await_joins(max(group.members.rebalance_timeout_ms, POSTPONED_JOIN_MS_MIN))
        return
    group.begin_generation()
    if not group.members:
        group.save(EmptySave(generation=group.generation))
        return
    for member in group.members:
        group.answer_join(member, group.joined(member))
        # Static members that did not come have no join to answer; their sessions start again here.
        group.touch(member)


# ---- outcomes of saves


def assignment_settled(group: GroupData, save: AssignmentSave, *, stored: bool) -> None:
    """A save of an older generation changes nothing (GroupMetadataManager.classicGroupSyncToClassicGroup)."""
    if group.state is not GroupState.COMPLETING_REBALANCE or save.generation != group.generation:
        return
    if not stored:
        group.reset_assignments(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        _prepare(group)
        return
    group.become_stable(save.assignments)


def empty_settled(group: GroupData, save: EmptySave, *, stored: bool) -> None:
    """The stored record still has members and could be loaded, so the empty record must be stored in the end."""
    if not stored and group.state is GroupState.EMPTY and save.generation == group.generation:
        group.save_again_later()


# ---- time


def wake(group: GroupData) -> None:
    """Only one half of a rebalance has a deadline at a time: one that is set in this call waits for the next."""
    if group.take_due_save_again():
        group.save(EmptySave(generation=group.generation))
    if group.join_deadline_came:
        if not group.prolong_initial_delay():
            _complete_join(group)
    elif group.sync_deadline_came:
        _end_syncs(group)
    # Sessions come after the phases: a phase that ends here answers its members, whose sessions then start again.
    while (member_id := group.take_ended_session()) is not None:
        _session_ended(group, member_id)


def _end_syncs(group: GroupData) -> None:
    """Members that have not synced in time go, and the others begin again."""
    # Sorted: a set has no order, and the same events must give the same instructions.
    for member_id in sorted(group.pending_syncs):
        member = group.members.get(member_id)
        if member is not None:
            group.remove(member)
    _prepare(group)


def _session_ended(group: GroupData, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is not None:
        group.remove(member)
        if group.state is not GroupState.PREPARING_REBALANCE:
            _prepare(group)
            return
    # A member that all others waited for has gone. Unlike elsewhere, the initial delay ends here too.
    if group.state is GroupState.PREPARING_REBALANCE and group.all_came:
        _complete_join(group)
