"""Static members: a member that comes back under the same instance id takes the place of the earlier one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.groups.events import GroupState, JoinedMember
from tests.fixtures.group_machine import DELAY_MS, REBALANCE_MS, SESSION_MS, Machine, described
from wire.error_codes import ErrorCode

BOTH = (("range", b"r"), ("sticky", b"s"))
OTHER_FIRST = (("sticky", b"s"), ("range", b"r"))


# ---- coming back while Stable


def test_a_follower_that_comes_back_costs_no_rebalance_even_with_other_metadata() -> None:
    # given
    machine = Machine()
    leader, follower = machine.become_stable("a", "b")
    # when it joins without an id, and its new name is stored
    request = machine.join(instance="b", protocols=(("range", b"other"),), name="b-2")
    assert machine.waits(request), "it is told only what is stored"
    assert [member.member_id for member in machine.saves[-1].record.members] == [leader, "b-2"]
    machine.saved()
    # then it has the earlier member's assignment
    answer = machine.joined(request)
    assert (answer.error, answer.member_id, answer.generation, answer.leader) == (ErrorCode.NONE, "b-2", 1, leader)
    assert answer.members == ()
    assert machine.state is GroupState.STABLE
    assert machine.synced(machine.sync("b-2", instance="b")).assignment == follower.encode()


def test_a_leader_that_comes_back_from_v9_on_is_told_the_members_and_to_assign_nothing() -> None:
    machine = Machine()
    _leader, follower = machine.become_stable("a", "b")
    request = machine.join(instance="a", version=9, name="a-2")
    machine.saved()
    answer = machine.joined(request)
    assert (answer.leader, answer.skip_assignment) == ("a-2", True)
    assert sorted(answer.members) == [JoinedMember("a-2", "a", b"r"), JoinedMember(follower, "b", b"r")]


def test_a_follower_that_comes_back_from_v9_on_is_not_told_to_skip() -> None:
    machine = Machine()
    leader, _ = machine.become_stable("a", "b")
    request = machine.join(instance="b", version=9)
    machine.saved()
    assert (machine.joined(request).leader, machine.joined(request).skip_assignment) == (leader, False)


def test_a_leader_that_comes_back_below_v9_is_told_its_old_id_as_the_leaders() -> None:
    # given a leader below v9, which would assign if it took itself for the leader
    machine = Machine()
    leader, follower = machine.become_stable("a", "b")
    request = machine.join(instance="a", version=8, name="a-2")
    machine.saved()
    # then it is not told that it leads
    answer = machine.joined(request)
    assert (answer.member_id, answer.leader, answer.members, answer.skip_assignment) == ("a-2", leader, (), False)
    # but it is the leader, and remains the leader
    assert machine.joined(machine.join(follower, instance="b")).leader == "a-2"


def test_one_that_changes_what_the_group_votes_for_starts_a_rebalance() -> None:
    machine = Machine()
    leader, _follower = machine.become_stable("a", "b", protocols=BOTH)
    request = machine.join(instance="b", protocols=(("sticky", b"s"),), name="b-2")
    assert machine.state is GroupState.PREPARING_REBALANCE
    of_leader = machine.join(leader, instance="a", protocols=BOTH)
    assert machine.joined(request).protocol == machine.joined(of_leader).protocol == "sticky"


def test_one_that_only_changes_its_preference_in_a_minority_does_not() -> None:
    machine = Machine()
    machine.become_stable("a", "b", "c", protocols=BOTH)
    machine.join(instance="c", protocols=OTHER_FIRST)
    assert machine.state is GroupState.STABLE


def test_a_member_with_its_known_id_is_like_any_other() -> None:
    machine = Machine()
    leader, follower = machine.become_stable("a", "b")
    assert machine.joined(machine.join(follower, instance="b")).generation == 1
    assert machine.waits(machine.join(leader, instance="a")), "a leader that joins wants a rebalance"


# ---- fencing


@pytest.mark.parametrize("request_name", ["join", "sync", "heartbeat", "commit", "leave"])
def test_the_one_that_was_replaced_is_fenced(request_name: str) -> None:
    machine = Machine()
    _, old = machine.become_stable("a", "b")
    machine.join(instance="b")
    machine.saved()
    answers = {
        "join": lambda: machine.error(machine.join(old, instance="b")),
        "sync": lambda: machine.error(machine.sync(old, instance="b")),
        "heartbeat": lambda: machine.heartbeat(old, instance="b"),
        "commit": lambda: machine.commit(old, instance="b"),
        "leave": lambda: machine.leave((old, "b"))[0],
    }
    assert answers[request_name]() is ErrorCode.FENCED_INSTANCE_ID
    assert machine.heartbeat(old) is ErrorCode.UNKNOWN_MEMBER_ID, "without its instance id it is nobody"


def test_fencing_comes_before_an_old_generation() -> None:
    machine = Machine()
    machine.become_stable("a", "b")
    assert machine.heartbeat("x", generation=0, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert machine.heartbeat("x", generation=0) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- coming back while a rebalance runs


def test_coming_back_while_members_gather_fences_the_join_that_waits() -> None:
    machine = Machine()
    leader, follower = machine.become_stable("a", "b")
    of_leader = machine.join(leader, instance="a")
    machine.known_join()
    waiting = machine.join(follower, instance="b")
    assert not machine.waits(waiting), "with it all had come"
    machine.join(leader, instance="a", protocols=(("range", b"x"),))
    waiting = machine.join(follower, instance="b", protocols=(("range", b"x"),))
    back = machine.join(instance="b", name="b-2")
    assert machine.error(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert machine.joined(waiting).member_id == follower
    assert machine.waits(back)
    assert machine.error(of_leader) is ErrorCode.NONE


def test_coming_back_in_the_initial_rebalance_joins_it() -> None:
    machine = Machine()
    first = machine.join(instance="a", name="a-1")
    second = machine.join(instance="a", name="a-2")
    assert machine.error(first) is ErrorCode.FENCED_INSTANCE_ID
    machine.sleep(DELAY_MS)
    assert machine.joined(second).leader == "a-2"
    assert machine.member_ids == ["a-2"]


def test_coming_back_while_assignments_are_made_starts_over() -> None:
    # given a follower whose sync waits
    machine = Machine()
    leader, follower, third = machine.become_completing("a", "b", "c")
    parked, of_third = machine.sync(follower, instance="b"), machine.sync(third, instance="c")
    # when it comes back
    back = machine.join(instance="b", name="b-2")
    # then its old sync is fenced, the others are told, and all gather
    assert machine.error(parked) is ErrorCode.FENCED_INSTANCE_ID
    assert machine.error(of_third) is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.state is GroupState.PREPARING_REBALANCE
    requests = [back, machine.join(leader, instance="a"), machine.join(third, instance="c")]
    assert {machine.joined(request).generation for request in requests} == {2}


# ---- staying away


def test_static_members_that_do_not_come_stay_and_dynamic_ones_go() -> None:
    machine = Machine()
    leader, dynamic, static = machine.become_stable("a", None, "c", session_ms=60_000)
    newcomer_id, newcomer = machine.known_join()
    of_leader = machine.join(leader, instance="a")
    machine.sleep(REBALANCE_MS)
    assert machine.joined(newcomer).generation == machine.joined(of_leader).generation == 2
    assert sorted(machine.member_ids) == sorted([leader, static, newcomer_id])
    assert dynamic not in machine.member_ids


def test_a_static_leader_that_does_not_come_leads_no_more() -> None:
    machine = Machine()
    leader, follower = machine.become_stable("a", "b", session_ms=60_000)
    request = machine.join(follower, instance="b", protocols=(("range", b"x"),), session_ms=60_000)
    machine.sleep(REBALANCE_MS)
    assert machine.joined(request).leader == follower
    assert leader in machine.member_ids


def test_when_nobody_comes_static_members_are_waited_for_until_their_sessions_end() -> None:
    # given a rebalance that only one member started, which left again
    machine = Machine()
    members = machine.become_stable("a", "b", session_ms=60_000)
    newcomer_id, _ = machine.known_join()
    machine.leave((newcomer_id, None))
    # when time is up and no member has come
    machine.sleep(REBALANCE_MS)
    assert machine.state is GroupState.PREPARING_REBALANCE
    assert (machine.member_ids, machine.generation) == (members, 1)
    # then the rebalance waits for them, and goes on with the one that comes, at the end of the next wait
    request = machine.join(members[1], instance="b", session_ms=60_000)
    machine.sleep(REBALANCE_MS)
    assert machine.joined(request).generation == 2
    # or the sessions end
    machine.sleep(60_000)
    assert machine.state is GroupState.EMPTY


def test_waiting_for_members_that_allow_no_time_does_not_spin() -> None:
    # given a stored group whose static members allow no time for a rebalance
    before = Machine()
    before.become_stable("a", "b", session_ms=60_000)
    record = before.saves[-1].record
    record = replace(record, members=tuple(replace(member, rebalance_timeout_ms=0) for member in record.members))
    machine = Machine(record=record, names=100)
    # when a member comes and goes, and none joins
    newcomer_id, _ = machine.known_join(rebalance_ms=0)
    machine.leave((newcomer_id, None))
    machine.sleep(30_000)
    # then the group asks for the time once a second, not all the time
    assert machine.state is GroupState.PREPARING_REBALANCE
    assert 25 < machine.wakes < 35


def test_a_static_member_that_did_not_come_and_does_not_sync_is_removed() -> None:
    machine = Machine()
    leader, static = machine.become_stable("a", "b", session_ms=120_000)
    machine.join(leader, instance="a", session_ms=120_000)
    machine.sleep(REBALANCE_MS)
    assert machine.state is GroupState.COMPLETING_REBALANCE
    machine.complete(leader)
    machine.sleep(REBALANCE_MS)
    assert static not in machine.member_ids


# ---- the record of a member that came back is not stored


def test_a_failed_save_puts_the_one_before_back() -> None:
    machine = Machine()
    leader, old = machine.become_stable("a", "b")
    request = machine.join(instance="b", name="b-2", protocols=(("range", b"x"),))
    machine.save_failed()
    answer = machine.joined(request)
    assert (answer.error, answer.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert described(machine) == [(leader, leader.encode()), (old, old.encode())]
    assert machine.heartbeat(old, instance="b") is ErrorCode.NONE


def test_a_failed_save_puts_the_leader_back() -> None:
    machine = Machine()
    leader, follower = machine.become_stable("a", "b")
    machine.join(instance="a", name="a-2")
    machine.save_failed()
    assert machine.joined(machine.join(follower, instance="b")).leader == leader


def test_one_that_comes_back_twice_is_answered_for_its_last_save_alone() -> None:
    machine = Machine()
    machine.become_stable("a", "b")
    first = machine.join(instance="b", name="b-2")
    second = machine.join(instance="b", name="b-3")
    assert machine.error(first) is ErrorCode.FENCED_INSTANCE_ID
    machine.saved(machine.saves[-2])
    assert machine.waits(second)
    machine.saved()
    assert machine.joined(second).member_id == "b-3"


@pytest.mark.parametrize("stored", [True, False])
def test_one_that_a_rebalance_draws_in_before_its_save_ends_waits_for_the_rebalance(stored: bool) -> None:
    machine = Machine()
    leader, _ = machine.become_stable("a", "b")
    back = machine.join(instance="b", name="b-2")
    save = machine.saves[-1]
    of_leader = machine.join(leader, instance="a")
    assert {machine.joined(request).generation for request in (back, of_leader)} == {2}
    (machine.saved if stored else machine.save_failed)(save)
    assert sorted(machine.member_ids) == sorted([leader, "b-2"])


def test_one_that_is_removed_before_its_save_ends_is_answered() -> None:
    machine = Machine()
    machine.become_stable("a", "b")
    back = machine.join(instance="b", name="b-2")
    assert machine.leave(("", "b")) == [ErrorCode.NONE]
    assert machine.error(back) is ErrorCode.UNKNOWN_MEMBER_ID
    machine.saved()


def test_the_session_of_one_that_came_back_starts_with_its_answer() -> None:
    machine = Machine()
    leader, _ = machine.become_stable("a", "b")
    machine.join(instance="b", name="b-2")
    machine.sleep_alive(3 * SESSION_MS, [leader])
    assert "b-2" in machine.member_ids, "while it waits no sign of life is expected"
    machine.saved()
    machine.sleep_alive(SESSION_MS - 1, [leader])
    assert "b-2" in machine.member_ids
    machine.sleep(1)
    assert "b-2" not in machine.member_ids


def test_one_that_came_back_has_to_sync_like_the_one_before() -> None:
    # given a member that had not synced, when it comes back and syncs, then it stays
    machine = Machine()
    leader, _ = machine.become_completing("a", "b", session_ms=60_000)
    machine.complete(leader)
    machine.join(instance="b", name="b-2", session_ms=60_000)
    machine.saved()
    machine.sync("b-2", instance="b")
    machine.sleep_alive(2 * REBALANCE_MS, [leader, "b-2"])
    assert machine.state is GroupState.STABLE


def test_one_that_came_back_and_does_not_sync_is_removed_as_the_one_before_would_have_been() -> None:
    machine = Machine()
    leader, _ = machine.become_completing("a", "b", session_ms=60_000)
    machine.complete(leader)
    machine.join(instance="b", name="b-2", session_ms=60_000)
    machine.saved()
    machine.sleep_alive(REBALANCE_MS, [leader, "b-2"])
    assert machine.member_ids == [leader]
    assert machine.state is GroupState.PREPARING_REBALANCE
