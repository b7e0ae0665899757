"""SyncGroup, the record that is stored before the answer, and everything that ends with time."""

from __future__ import annotations

import pytest

from agents.groups.events import GroupState, Woke
from metadata.groups.contract import GroupRecord
from tests.fixtures.group_machine import REBALANCE_MS, SESSION_MS, Machine, described, subscription
from wire.error_codes import ErrorCode

# ---- SyncGroup


@pytest.mark.parametrize(
    ("what", "arguments", "error"),
    [
        ("an unknown member", {"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown instance", {"instance": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("another's instance", {"instance": "b"}, ErrorCode.FENCED_INSTANCE_ID),
        ("another generation", {"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ("another generation comes first", {"generation": 2, "protocol": "x"}, ErrorCode.ILLEGAL_GENERATION),
        ("another protocol type", {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("another protocol", {"protocol": "x"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("all of it right", {"protocol_type": "consumer", "protocol": "range"}, ErrorCode.NONE),
        ("no protocol named", {}, ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("state", [GroupState.STABLE, GroupState.COMPLETING_REBALANCE])
def test_a_sync_is_checked(what: str, arguments: dict[str, object], error: ErrorCode, state: GroupState) -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, "b")
    if state is GroupState.STABLE:
        machine.complete(leader, follower)
    request = machine.sync(**{"member_id": leader, **arguments})  # type: ignore[arg-type]
    if error is ErrorCode.NONE and state is GroupState.COMPLETING_REBALANCE:
        assert machine.waits(request)
    else:
        assert machine.error(request) is error, what


def test_nobody_syncs_with_an_empty_group() -> None:
    machine = Machine()
    assert machine.error(machine.sync("x", generation=0)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_while_members_gather_is_told_to_join() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None)
    machine.join(leader)
    assert machine.error(machine.sync(follower)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_nobody_is_told_an_assignment_before_it_is_stored() -> None:
    # given a follower whose sync waits for the leader's
    machine = Machine()
    leader, follower = machine.become_completing(None, "b")
    of_follower = machine.sync(follower, instance="b", assignments={follower: b"mine!"})
    assert machine.waits(of_follower)
    assert machine.saves == []
    # when the leader syncs
    of_leader = machine.sync(leader, assignments={leader: b"1", follower: b"2", "nobody": b"3"})
    # then the record is to be stored, and no member is answered
    assert machine.waits(of_leader)
    assert machine.waits(of_follower)
    assert machine.state is GroupState.COMPLETING_REBALANCE
    record = machine.saves[-1].record
    assert (record.generation, record.leader, record.protocol, record.protocol_type) == (1, leader, "range", "consumer")
    assert [(each.member_id, each.instance_id, each.assignment) for each in record.members] == [
        (leader, None, b"1"),
        (follower, "b", b"2"),
    ]
    # until it is stored
    machine.saved()
    assert (machine.synced(of_leader).assignment, machine.synced(of_follower).assignment) == (b"1", b"2")
    assert machine.synced(of_follower).protocol == "range"
    assert machine.state is GroupState.STABLE


def test_a_follower_that_syncs_late_is_answered_from_what_was_stored() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None)
    machine.sync(leader, assignments={follower: b"2"})
    machine.saved()
    assert machine.synced(machine.sync(follower)).assignment == b"2"


def test_who_is_assigned_nothing_gets_nothing() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None)
    requests = [machine.sync(leader), machine.sync(follower)]
    machine.saved()
    assert [machine.synced(request).assignment for request in requests] == [b"", b""]


def test_a_leader_that_syncs_again_does_not_change_what_is_being_stored() -> None:
    machine = Machine()
    (leader,) = machine.become_completing(None)
    first = machine.sync(leader, assignments={leader: b"1"})
    second = machine.sync(leader, assignments={leader: b"2"})
    assert machine.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(machine.saves) == 1
    machine.saved()
    assert machine.synced(second).assignment == b"1"


def test_an_assignment_that_cannot_be_stored_is_told_nobody_and_all_gather_again() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None)
    requests = [machine.sync(follower), machine.sync(leader, assignments={leader: b"1"})]
    machine.save_failed()
    assert {machine.error(request) for request in requests} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert {machine.synced(request).assignment for request in requests} == {b""}
    assert machine.state is GroupState.PREPARING_REBALANCE
    joins = [machine.join(leader), machine.join(follower)]
    assert {machine.joined(request).generation for request in joins} == {2}


@pytest.mark.parametrize("stored", [True, False])
def test_what_came_of_an_older_generations_save_changes_nothing(stored: bool) -> None:
    # given a generation whose save is slow, and another one after it
    machine = Machine()
    (leader,) = machine.become_completing(None)
    old_sync = machine.sync(leader, assignments={leader: b"old"})
    old = machine.saves[-1]
    newcomer_id, newcomer = machine.known_join()
    assert machine.error(old_sync) is ErrorCode.REBALANCE_IN_PROGRESS
    again = machine.join(leader)
    assert machine.joined(again).generation == machine.joined(newcomer).generation == 2
    sync = machine.sync(leader, assignments={leader: b"new"})
    # when the old save ends
    (machine.saved if stored else machine.save_failed)(old)
    # then only the new one's end counts
    assert machine.waits(sync)
    assert machine.state is GroupState.COMPLETING_REBALANCE
    machine.saved()
    assert machine.synced(sync).assignment == b"new"
    assert machine.synced(machine.sync(newcomer_id)).assignment == b""


def test_a_save_that_is_told_twice_changes_nothing_the_second_time() -> None:
    machine = Machine()
    machine.become_stable(None)
    machine.save_failed()
    assert machine.state is GroupState.STABLE


# ---- loading


def test_a_loaded_group_goes_on_with_its_members_and_generation() -> None:
    before = Machine()
    leader, follower = before.become_stable(None, "b", protocols=(("range", subscription("t")),))
    machine = Machine(record=before.saves[-1].record, now_ms=5.0)
    assert machine.state is GroupState.STABLE
    assert described(machine) == [(leader, leader.encode()), (follower, follower.encode())]
    assert machine.group.view().subscribed_topics == {"t"}
    assert [machine.heartbeat(leader, 1), machine.heartbeat(follower, 1, "b")] == [ErrorCode.NONE, ErrorCode.NONE]
    assert machine.synced(machine.sync(follower, instance="b")).assignment == follower.encode()
    assert machine.commit(leader) is ErrorCode.NONE


def test_sessions_of_a_loaded_group_start_anew() -> None:
    before = Machine()
    leader, _ = before.become_stable(None, None)
    machine = Machine(record=before.saves[-1].record, now_ms=5.0)
    assert machine.group.wake_at_ms == 5.0 + SESSION_MS
    machine.sleep(SESSION_MS - 1)
    assert machine.state is GroupState.STABLE
    machine.heartbeat(leader)
    machine.sleep(1)
    assert machine.member_ids == [leader]


def test_an_empty_record_goes_on_with_its_generation() -> None:
    machine = Machine(record=GroupRecord(protocol_type="connect", generation=41))
    assert machine.state is GroupState.EMPTY
    assert machine.group.is_forgettable
    assert machine.group.wake_at_ms is None
    machine.become_stable(None)
    assert machine.generation == 42
    assert machine.group.view().protocol_type == "consumer"


# ---- becoming empty


def test_when_the_last_member_leaves_that_is_stored() -> None:
    machine = Machine()
    (member,) = machine.become_stable(None)
    assert machine.leave((member, None)) == [ErrorCode.NONE]
    assert machine.state is GroupState.EMPTY
    assert machine.saves[-1].record == GroupRecord(protocol_type="consumer", generation=2)
    assert not machine.group.is_forgettable
    machine.saved()
    assert machine.group.is_forgettable


def test_when_the_last_sessions_end_that_is_stored() -> None:
    machine = Machine()
    machine.become_stable(None, "b")
    machine.sleep(SESSION_MS)
    assert machine.state is GroupState.EMPTY
    assert machine.saves[-1].record == GroupRecord(protocol_type="consumer", generation=2)


def test_a_group_that_became_empty_is_stored_again_until_that_succeeds() -> None:
    machine = Machine()
    (member,) = machine.become_stable(None)
    machine.leave((member, None))
    for _ in range(3):
        saves = len(machine.saves)
        machine.save_failed()
        assert not machine.group.is_forgettable
        machine.sleep(5_000)
        assert len(machine.saves) == saves + 1
    machine.saved()
    assert machine.group.is_forgettable
    assert machine.group.wake_at_ms is None


def test_a_group_with_members_again_is_not_stored_as_empty() -> None:
    machine = Machine()
    (member,) = machine.become_stable(None)
    machine.leave((member, None))
    machine.save_failed()
    saves = len(machine.saves)
    machine.become_completing(None)
    machine.sleep_alive(8_000, machine.member_ids)
    assert len(machine.saves) == saves


# ---- time


def test_dynamic_members_that_do_not_join_in_time_are_removed() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None, session_ms=60_000)
    request = machine.join(leader, session_ms=60_000)
    machine.sleep(REBALANCE_MS - 1)
    assert machine.waits(request)
    machine.sleep(1)
    assert machine.joined(request).generation == 2
    assert machine.member_ids == [leader]
    assert machine.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_all_counts() -> None:
    machine = Machine()
    joins = [machine.known_join(rebalance_ms=each, session_ms=60_000) for each in (20_000, 40_000)]
    machine.sleep(6_000)
    machine.complete(*[member for member, _ in joins])
    request = machine.join(joins[0][0], rebalance_ms=20_000, session_ms=60_000)
    machine.sleep(39_999)
    assert machine.waits(request)
    machine.sleep(1)
    assert not machine.waits(request)


def test_members_that_do_not_sync_in_time_are_removed_and_the_rest_gather() -> None:
    machine = Machine()
    leader, follower, lazy = machine.become_completing(None, None, None, session_ms=60_000)
    machine.complete(leader, follower)
    machine.sleep_alive(REBALANCE_MS - 1, [leader, follower, lazy])
    assert machine.state is GroupState.STABLE
    machine.sleep(1)
    assert machine.state is GroupState.PREPARING_REBALANCE
    assert machine.member_ids == [leader, follower]


def test_a_leader_that_does_not_sync_is_removed_and_parked_syncs_are_told() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None, session_ms=60_000)
    request = machine.sync(follower)
    machine.sleep_alive(REBALANCE_MS, [leader])
    assert machine.error(request) is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.member_ids == [follower]
    assert machine.joined(machine.join(follower)).leader == follower


def test_nobody_is_removed_when_all_have_synced() -> None:
    machine = Machine()
    members = machine.become_stable(None, None)
    machine.sleep_alive(5 * REBALANCE_MS, members)
    assert (machine.state, machine.generation, machine.member_ids) == (GroupState.STABLE, 1, members)


def test_when_nobody_syncs_the_group_becomes_empty() -> None:
    machine = Machine()
    machine.become_completing(None, None, session_ms=60_000)
    machine.sleep(REBALANCE_MS)
    assert machine.state is GroupState.EMPTY


def test_a_silent_member_is_removed_and_the_rest_gather() -> None:
    machine = Machine()
    leader, silent = machine.become_stable(None, "b")
    machine.sleep_alive(SESSION_MS, [leader])
    assert machine.member_ids == [leader]
    assert machine.state is GroupState.PREPARING_REBALANCE
    assert machine.heartbeat(silent, instance="b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_while_others_gather_is_not_waited_for() -> None:
    machine = Machine()
    leader, _ = machine.become_stable(None, None, rebalance_ms=600_000)
    request = machine.join(leader, rebalance_ms=600_000)
    machine.sleep(SESSION_MS)
    assert machine.joined(request).generation == 2


def test_a_parked_member_needs_no_heartbeats_and_its_session_starts_with_the_answer() -> None:
    # given a leader whose join waits for a member that stays alive but does not come
    machine = Machine()
    leader, follower = machine.become_stable(None, None, rebalance_ms=10 * SESSION_MS)
    request = machine.join(leader, rebalance_ms=10 * SESSION_MS)
    machine.sleep_alive(9 * SESSION_MS, [follower])
    assert machine.waits(request)
    # when it is answered
    answered = machine.join(follower)
    assert not machine.waits(answered)
    # then its session runs
    machine.sleep(SESSION_MS - 1)
    assert leader in machine.member_ids
    machine.sleep(1)
    assert leader not in machine.member_ids


def test_a_member_whose_sync_is_parked_needs_no_heartbeats() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None)
    request = machine.sync(follower)
    machine.sleep_alive(REBALANCE_MS - 1, [leader])
    assert machine.waits(request)
    assert follower in machine.member_ids


@pytest.mark.parametrize("sign", ["heartbeat", "commit", "sync", "join"])
def test_a_session_starts_over_with_every_sign_of_life(sign: str) -> None:
    machine = Machine()
    _, follower = machine.become_stable(None, None)
    machine.sleep(SESSION_MS - 1)
    signs = {"heartbeat": machine.heartbeat, "commit": machine.commit, "sync": machine.sync, "join": machine.join}
    signs[sign](follower)
    machine.sleep(SESSION_MS - 1)
    assert machine.member_ids == [follower]


def test_a_wake_that_comes_early_changes_nothing() -> None:
    machine = Machine()
    machine.become_stable(None, "b")
    view, wake_at_ms = machine.group.view(), machine.group.wake_at_ms
    machine.now_ms += 1
    machine.tell(Woke())
    assert (machine.group.view(), machine.group.wake_at_ms) == (view, wake_at_ms)
