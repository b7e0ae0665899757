"""Heartbeat, OffsetCommit, LeaveGroup, DeleteGroups, DescribeGroups and unloading: tables of state and answer."""

from __future__ import annotations

import pytest

from agents.groups.events import GroupState, MemberView, TransactionalProducer
from tests.fixtures.group_machine import DELAY_MS, SESSION_MS, Machine
from wire.error_codes import ErrorCode

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
)


def machine_in(state: GroupState) -> tuple[Machine, str, str]:
    """A group in that state, with a dynamic leader and a static follower of instance "b", if the state has members."""
    machine = Machine()
    if state is EMPTY:
        return machine, "m1", "m2"
    if state is DEAD:
        machine.unload()
        return machine, "m1", "m2"
    leader, follower = machine.become_completing(None, "b")
    if state is not COMPLETING:
        machine.complete(leader, follower)
    if state is PREPARING:
        machine.known_join()
    assert machine.state is state
    return machine, leader, follower


# ---- Heartbeat


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (EMPTY, ErrorCode.UNKNOWN_MEMBER_ID),
        (PREPARING, ErrorCode.REBALANCE_IN_PROGRESS),
        (COMPLETING, ErrorCode.NONE),
        (STABLE, ErrorCode.NONE),
        (DEAD, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_heartbeat_is_told_the_state(state: GroupState, error: ErrorCode) -> None:
    machine, leader, _ = machine_in(state)
    assert machine.heartbeat(leader) is error


@pytest.mark.parametrize(
    ("what", "member", "instance", "generation", "error"),
    [
        ("another's instance, whatever else", "x", "b", 7, ErrorCode.FENCED_INSTANCE_ID),
        ("an unknown instance", "leader", "x", 7, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown member, whatever its generation", "x", None, 7, ErrorCode.UNKNOWN_MEMBER_ID),
        ("no member", "", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a generation to come", "leader", None, 2, ErrorCode.ILLEGAL_GENERATION),
        ("a generation that was", "leader", None, 0, ErrorCode.ILLEGAL_GENERATION),
        ("a static member without its instance", "follower", None, 1, ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("state", [COMPLETING, STABLE])
def test_heartbeats_are_checked_in_order(
    what: str, member: str, instance: str | None, generation: int, error: ErrorCode, state: GroupState
) -> None:
    machine, leader, follower = machine_in(state)
    member_id = {"leader": leader, "follower": follower}.get(member, member)
    assert machine.heartbeat(member_id, generation, instance) is error, what


def test_a_heartbeat_keeps_the_session_even_when_it_is_told_to_join() -> None:
    machine, leader, _ = machine_in(PREPARING)
    machine.sleep(SESSION_MS - 1)
    assert machine.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    machine.sleep(SESSION_MS - 1)
    assert leader in machine.member_ids


# ---- OffsetCommit


@pytest.mark.parametrize(
    ("state", "of_member", "of_nobody"),
    [
        (EMPTY, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE),
        (PREPARING, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID),
        (COMPLETING, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID),
        (STABLE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID),
        (DEAD, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_commit_is_judged_by_the_state(state: GroupState, of_member: ErrorCode, of_nobody: ErrorCode) -> None:
    machine, leader, _ = machine_in(state)
    assert machine.commit(leader, generation=max(machine.generation, 0)) is of_member
    assert machine.commit("", generation=-1) is of_nobody


@pytest.mark.parametrize(
    ("what", "member", "instance", "generation", "error"),
    [
        ("another's instance, whatever else", "x", "b", 7, ErrorCode.FENCED_INSTANCE_ID),
        ("an unknown instance", "", "x", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown member", "x", None, 7, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a generation but no member", "", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("another generation", "leader", None, 7, ErrorCode.ILLEGAL_GENERATION),
        ("a member outside of generations", "leader", None, -1, ErrorCode.ILLEGAL_GENERATION),
        ("its instance", "follower", "b", 1, ErrorCode.NONE),
    ],
)
def test_commits_are_checked_in_order(
    what: str, member: str, instance: str | None, generation: int, error: ErrorCode
) -> None:
    machine, leader, follower = machine_in(STABLE)
    member_id = {"leader": leader, "follower": follower}.get(member, member)
    assert machine.commit(member_id, generation, instance) is error, what


def test_checks_of_a_commit_come_before_the_state() -> None:
    machine, leader, _ = machine_in(COMPLETING)
    assert machine.commit(leader, generation=0) is ErrorCode.ILLEGAL_GENERATION


def test_an_empty_group_takes_commits_from_outside_whoever_they_say_they_are() -> None:
    assert Machine().commit("somebody", generation=-1, instance="i") is ErrorCode.NONE


# ---- TxnOffsetCommit

PRODUCER = TransactionalProducer(transactional_id="t", producer_id=1, producer_epoch=0, adds=True)


@pytest.mark.parametrize(
    ("state", "of_member", "of_nobody"),
    [
        (EMPTY, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE),
        (PREPARING, ErrorCode.NONE, ErrorCode.NONE),
        (COMPLETING, ErrorCode.NONE, ErrorCode.NONE),
        (STABLE, ErrorCode.NONE, ErrorCode.NONE),
        (DEAD, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_the_state_of_a_group_stops_no_transaction(
    state: GroupState, of_member: ErrorCode, of_nobody: ErrorCode
) -> None:
    machine, leader, _ = machine_in(state)
    assert machine.commit(leader, generation=max(machine.generation, 0), producer=PRODUCER) is of_member
    assert machine.commit("", generation=-1, producer=PRODUCER) is of_nobody


@pytest.mark.parametrize(
    ("what", "member", "instance", "generation", "error"),
    [
        ("another's instance, whatever else", "x", "b", 7, ErrorCode.FENCED_INSTANCE_ID),
        ("an unknown instance", "", "x", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown member", "x", None, 7, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a generation but no member", "", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("another generation", "leader", None, 7, ErrorCode.ILLEGAL_GENERATION),
        ("a member outside of generations", "leader", None, -1, ErrorCode.ILLEGAL_GENERATION),
        ("its instance", "follower", "b", 1, ErrorCode.NONE),
    ],
)
def test_who_says_which_member_it_is_is_checked_in_transactions_too(
    what: str, member: str, instance: str | None, generation: int, error: ErrorCode
) -> None:
    machine, leader, follower = machine_in(STABLE)
    member_id = {"leader": leader, "follower": follower}.get(member, member)
    assert machine.commit(member_id, generation, instance, PRODUCER) is error, what


def test_a_zombie_commits_nothing_once_the_next_generation_has_begun() -> None:
    machine, leader, _ = machine_in(STABLE)
    generation = machine.generation
    machine.known_join()
    assert machine.commit(leader, generation, producer=PRODUCER) is ErrorCode.NONE
    for member_id in machine.member_ids:
        machine.join(member_id, instance="b" if member_id != leader else None)
    machine.sleep(DELAY_MS)
    assert machine.generation == generation + 1
    assert machine.commit(leader, generation, producer=PRODUCER) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(("producer", "stays"), [(None, True), (PRODUCER, False)])
def test_a_commit_of_a_member_keeps_its_session_and_one_of_a_producer_does_not(
    producer: TransactionalProducer | None, stays: bool
) -> None:
    machine, leader, _ = machine_in(STABLE)
    machine.sleep(SESSION_MS - 1)
    assert machine.commit(leader, producer=producer) is ErrorCode.NONE
    machine.sleep(2)
    assert (leader in machine.member_ids) is stays


# ---- LeaveGroup


@pytest.mark.parametrize(
    ("what", "leaving", "error"),
    [
        ("a dynamic member", ("leader", None), ErrorCode.NONE),
        ("a static member by both", ("follower", "b"), ErrorCode.NONE),
        ("a static member by its id", ("follower", None), ErrorCode.NONE),
        ("a static member by its instance alone", ("", "b"), ErrorCode.NONE),
        ("an instance of another id", ("x", "b"), ErrorCode.FENCED_INSTANCE_ID),
        ("an unknown instance", ("", "x"), ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown instance of a member", ("leader", "x"), ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown member", ("x", None), ErrorCode.UNKNOWN_MEMBER_ID),
        ("nobody", ("", None), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_leaving(what: str, leaving: tuple[str, str | None], error: ErrorCode, state: GroupState) -> None:
    machine, leader, follower = machine_in(state)
    members = len(machine.member_ids)
    member_id = {"leader": leader, "follower": follower}.get(leaving[0], leaving[0])
    assert machine.leave((member_id, leaving[1])) == [error], what
    assert len(machine.member_ids) == members - (error is ErrorCode.NONE)
    assert machine.state is (PREPARING if error is ErrorCode.NONE else state)


def test_many_leave_at_once_and_each_has_its_answer() -> None:
    machine, leader, _ = machine_in(STABLE)
    assert machine.leave((leader, None), ("x", None), ("", "b"), ("", "b")) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert machine.state is EMPTY
    assert len(machine.saves) == 2


def test_nobody_leaves_an_empty_or_a_dead_group() -> None:
    assert machine_in(EMPTY)[0].leave(("x", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    dead, _, _ = machine_in(DEAD)
    assert dead.leave() == []
    assert list(dead.answers.values())[-1].error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_id_that_was_given_out_leaves_without_a_rebalance() -> None:
    machine, _, _ = machine_in(STABLE)
    given = machine.joined(machine.join()).member_id
    assert machine.leave((given, None)) == [ErrorCode.NONE]
    assert machine.state is STABLE
    assert machine.error(machine.join(given)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_leaves_is_not_waited_for() -> None:
    machine = Machine()
    (leader,) = machine.become_stable(None)
    given = machine.joined(machine.join()).member_id
    request = machine.join(leader)
    assert machine.waits(request)
    machine.leave((given, None))
    assert machine.joined(request).generation == 2


def test_a_member_that_leaves_is_not_waited_for() -> None:
    machine, leader, _ = machine_in(PREPARING)
    request = machine.join(leader)
    assert machine.waits(request)
    machine.leave(("", "b"))
    assert machine.joined(request).generation == 2


def test_requests_of_a_member_that_is_removed_are_answered() -> None:
    machine, _, follower = machine_in(COMPLETING)
    sync = machine.sync(follower)
    machine.leave(("", "b"))
    assert machine.error(sync) is ErrorCode.UNKNOWN_MEMBER_ID
    join_id, join = machine.known_join()
    machine.leave((join_id, None))
    assert machine.error(join) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- DeleteGroups


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (EMPTY, ErrorCode.NONE),
        (PREPARING, ErrorCode.NON_EMPTY_GROUP),
        (COMPLETING, ErrorCode.NON_EMPTY_GROUP),
        (STABLE, ErrorCode.NON_EMPTY_GROUP),
        (DEAD, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_may_be_deleted_when_it_is_empty(state: GroupState, error: ErrorCode) -> None:
    machine, _, _ = machine_in(state)
    assert machine.delete() is error
    assert machine.state is (DEAD if error is ErrorCode.NONE else state)


def test_a_deleted_group_sends_everybody_away() -> None:
    machine = Machine()
    given = machine.joined(machine.join()).member_id
    assert machine.delete() is ErrorCode.NONE
    assert machine.error(machine.join(given)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.error(machine.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.error(machine.sync(given)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.group.is_forgettable
    assert machine.group.wake_at_ms is None


# ---- unloading


def test_unloading_answers_all_that_wait() -> None:
    machine, leader, _ = machine_in(PREPARING)
    join = machine.join(leader)
    machine.unload()
    assert machine.error(join) is ErrorCode.NOT_COORDINATOR
    assert machine.joined(join).member_id == leader
    assert [request for request in range(1, machine.requests + 1) if machine.waits(request)] == []
    machine, leader, _ = machine_in(COMPLETING)
    sync = machine.sync(leader)
    machine.unload()
    assert machine.error(sync) is ErrorCode.NOT_COORDINATOR
    machine.saved()
    assert machine.state is DEAD
    assert machine.group.is_forgettable
    assert machine.group.wake_at_ms is None
    assert machine.group.size == 0


# ---- DescribeGroups


def test_what_members_do_is_shown_in_stable_alone() -> None:
    machine, leader, follower = machine_in(COMPLETING)
    shown = machine.group.view()
    assert (shown.group_id, shown.state, shown.generation, shown.protocol_type, shown.protocol) == (
        "g",
        COMPLETING,
        1,
        "consumer",
        "",
    )
    assert {(member.metadata, member.assignment) for member in shown.members} == {(b"", b"")}
    machine.complete(leader, follower)
    shown = machine.group.view()
    assert (shown.state, shown.protocol) == (STABLE, "range")
    assert list(shown.members) == [
        MemberView(
            member_id=leader,
            instance_id=None,
            client_id="client",
            client_host="/127.0.0.1",
            metadata=b"r",
            assignment=leader.encode(),
        ),
        MemberView(
            member_id=follower,
            instance_id="b",
            client_id="client",
            client_host="/127.0.0.1",
            metadata=b"r",
            assignment=follower.encode(),
        ),
    ]


def test_a_group_that_nobody_joined_shows_nothing() -> None:
    shown = Machine().group.view()
    assert (shown.state, shown.protocol_type, shown.protocol, shown.members) == (EMPTY, "", "", ())
    assert shown.subscribed_topics is None


def test_nothing_is_woken_for_after_everybody_has_gone() -> None:
    machine, leader, _ = machine_in(STABLE)
    machine.leave((leader, None), ("", "b"))
    machine.saved()
    machine.sleep(DELAY_MS)
    assert machine.group.wake_at_ms is None
    assert machine.group.is_forgettable
