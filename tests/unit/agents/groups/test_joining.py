"""JoinGroup, one rule per test, as in classicGroupJoin of GroupMetadataManager."""

from __future__ import annotations

import pytest

from agents.groups.events import GroupOptions, GroupState, JoinedMember
from agents.groups.joining import PROTOCOLS_MAX
from tests.fixtures.group_machine import DELAY_MS, REBALANCE_MS, SESSION_MS, Machine, subscription
from wire.error_codes import ErrorCode

NAMED = (("range", b"r"), ("sticky", b"s"))


def limited(max_size: int) -> Machine:
    return Machine(options=GroupOptions(max_size=max_size))


# ---- refusals


@pytest.mark.parametrize(
    ("what", "arguments", "error"),
    [
        ("session below the least", {"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("session above the most", {"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("no protocol type", {"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("no protocols", {"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("an id nobody was given", {"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an id and an instance", {"member_id": "x", "instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("protocols come before ids", {"member_id": "x", "protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("sessions before protocols", {"session_ms": 1, "protocols": ()}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_an_empty_group_refuses(what: str, arguments: dict[str, object], error: ErrorCode) -> None:
    machine = Machine()
    request = machine.join(**arguments)  # type: ignore[arg-type]
    assert machine.error(request) is error, what
    assert machine.joined(request).member_id == arguments.get("member_id", "")
    assert machine.joined(request).protocol_type is None
    assert machine.group.is_forgettable


@pytest.mark.parametrize(
    ("what", "arguments", "error"),
    [
        ("another protocol type", {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("no protocol in common", {"protocols": (("other", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("no protocols", {"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("an unknown id", {"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("an unknown instance", {"member_id": "x", "instance": "new"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("another's instance", {"member_id": "x", "instance": "i"}, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_stable_group_refuses(what: str, arguments: dict[str, object], error: ErrorCode) -> None:
    machine = Machine()
    machine.become_stable("i", None)
    request = machine.join(**arguments)  # type: ignore[arg-type]
    assert machine.error(request) is error, what
    assert machine.state is GroupState.STABLE


def test_a_member_cannot_change_to_what_the_others_do_not_support() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None)
    assert machine.error(machine.join(follower, protocols=(("other", b""),))) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert machine.member_ids == [leader, follower]


# ---- ids


@pytest.mark.parametrize("version", [4, 5, 9])
def test_a_dynamic_member_is_given_an_id_first_and_joins_with_it(version: int) -> None:
    machine = Machine()
    first = machine.join(version=version, name="client-1")
    assert machine.error(first) is ErrorCode.MEMBER_ID_REQUIRED
    assert machine.joined(first).member_id == "client-1"
    assert machine.state is GroupState.EMPTY
    assert not machine.group.is_forgettable
    second = machine.join("client-1", version=version)
    machine.sleep(DELAY_MS)
    assert machine.joined(second).member_id == "client-1"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_before_version_4_a_member_joins_at_once(version: int) -> None:
    machine = Machine()
    request = machine.join(version=version, name="client-1")
    assert machine.waits(request)
    machine.sleep(DELAY_MS)
    assert machine.joined(request).member_id == "client-1"


def test_a_static_member_is_not_sent_back_for_an_id() -> None:
    machine = Machine()
    request = machine.join(instance="i", name="i-1")
    machine.sleep(DELAY_MS)
    assert machine.joined(request).member_id == "i-1"


def test_an_id_that_nobody_joins_with_ends_with_the_session() -> None:
    machine = Machine()
    machine.join(name="client-1")
    machine.sleep(SESSION_MS)
    assert machine.group.is_forgettable
    assert machine.error(machine.join("client-1")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_is_of_no_static_member() -> None:
    machine = Machine()
    machine.join(name="client-1")
    assert machine.error(machine.join("client-1", instance="i")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_given_out_and_goes_on_when_they_end() -> None:
    # given a rebalance that all have joined except one that was given its id
    machine = Machine()
    (leader,) = machine.become_stable(None)
    machine.join(name="late")
    request = machine.join(leader)
    assert machine.waits(request)
    # when the session of that one ends
    machine.sleep(SESSION_MS)
    # then the rebalance waits for no member any more
    assert machine.joined(request).generation == 2
    assert machine.member_ids == [leader]


def test_a_rebalance_ends_when_the_one_with_the_new_id_joins() -> None:
    machine = Machine()
    (leader,) = machine.become_stable(None)
    machine.join(name="late")
    request = machine.join(leader)
    late = machine.join("late")
    assert [machine.error(request), machine.error(late)] == [ErrorCode.NONE, ErrorCode.NONE]


# ---- the initial rebalance


def test_the_first_member_waits_for_others_once() -> None:
    machine = Machine()
    _, request = machine.known_join()
    machine.sleep(DELAY_MS - 1)
    assert machine.waits(request)
    machine.sleep(1)
    assert machine.joined(request).generation == 1


def test_the_wait_grows_while_others_come_up_to_the_rebalance_timeout() -> None:
    # given a member that joined at 0
    machine = Machine()
    begun_ms = machine.now_ms
    _, first = machine.known_join()
    # when another comes every second
    others: list[int] = []
    while machine.waits(first):
        machine.sleep(1_000)
        if machine.waits(first):
            others.append(machine.known_join()[1])
    # then the rebalance waited for all of them, but not beyond the rebalance timeout
    assert REBALANCE_MS - DELAY_MS < machine.now_ms - begun_ms <= REBALANCE_MS
    assert len(machine.member_ids) == len(others) + 1
    assert {machine.joined(request).generation for request in others} == {1}


def test_the_wait_does_not_grow_when_nobody_comes_in_its_second_part() -> None:
    machine = Machine()
    _, first = machine.known_join()
    machine.sleep(1_000)
    machine.known_join()
    machine.sleep(2 * DELAY_MS - 1_000 - 1)
    assert machine.waits(first)
    machine.sleep(1)
    assert not machine.waits(first)


def test_without_a_delay_the_first_rebalance_ends_at_once() -> None:
    machine = Machine(options=GroupOptions(initial_rebalance_delay_ms=0))
    _, request = machine.known_join()
    machine.sleep(0)
    assert machine.joined(request).generation == 1


def test_a_group_whose_members_all_left_while_it_waited_becomes_empty() -> None:
    machine = Machine()
    member, request = machine.known_join()
    assert machine.leave((member, None)) == [ErrorCode.NONE]
    assert machine.error(request) is ErrorCode.UNKNOWN_MEMBER_ID
    machine.sleep(DELAY_MS)
    assert machine.state is GroupState.EMPTY
    assert not machine.group.is_forgettable, "its record is being stored"
    machine.saved()
    assert machine.group.is_forgettable


# ---- what members are told


def test_only_the_leader_is_told_who_the_members_are() -> None:
    machine = Machine()
    _, first = machine.known_join(protocols=(("range", b"1"),))
    second = machine.join(instance="i", protocols=(("range", b"2"),))
    machine.sleep(2 * DELAY_MS)
    leader, follower = machine.joined(first), machine.joined(second)
    assert leader.leader == follower.leader == leader.member_id
    assert list(leader.members) == [
        JoinedMember(leader.member_id, None, b"1"),
        JoinedMember(follower.member_id, "i", b"2"),
    ]
    assert list(follower.members) == []
    assert (follower.protocol_type, follower.protocol, follower.generation) == ("consumer", "range", 1)
    assert not leader.skip_assignment
    assert not follower.skip_assignment


@pytest.mark.parametrize(
    ("what", "preferences", "chosen"),
    [
        ("one for all", ["ab", "ab"], "a"),
        ("the majority's", ["ab", "ba", "ba"], "b"),
        ("only what all support counts", ["abc", "bc", "cb"], "b"),
        ("of equals the first voter's", ["ab", "ba"], "a"),
        ("nobody's first choice, but all support it", ["ac", "bc"], "c"),
    ],
)
def test_the_protocol_is_chosen_by_votes(what: str, preferences: list[str], chosen: str) -> None:
    machine = Machine()
    requests = [machine.known_join(protocols=tuple((name, name.encode()) for name in each))[1] for each in preferences]
    machine.sleep(3 * DELAY_MS)
    assert {machine.joined(request).protocol for request in requests} == {chosen}, what


def test_a_member_that_joins_a_stable_group_starts_a_rebalance() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None)
    _, newcomer = machine.known_join()
    assert machine.state is GroupState.PREPARING_REBALANCE
    requests = [newcomer, machine.join(follower), machine.join(leader)]
    assert {machine.joined(request).generation for request in requests} == {2}
    assert {machine.joined(request).leader for request in requests} == {leader}, "the leader came: it stays"


def test_a_leader_that_did_not_come_is_replaced_by_one_that_did() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None)
    newcomer_id, newcomer = machine.known_join()
    request = machine.join(follower)
    machine.sleep(SESSION_MS)
    assert machine.joined(newcomer).leader == follower, "of those that came it joined the group first"
    assert machine.joined(request).members
    assert machine.member_ids == [follower, newcomer_id]
    assert machine.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unchanged_follower_is_told_the_generation_that_runs() -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None)
    answer = machine.joined(machine.join(follower))
    assert (answer.error, answer.generation, answer.leader, answer.members) == (ErrorCode.NONE, 1, leader, ())
    assert machine.state is GroupState.STABLE


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_a_join_in_stable_begins_a_rebalance_of(who: str) -> None:
    machine = Machine()
    leader, follower = machine.become_stable(None, None, protocols=NAMED)
    changed = (("range", b"changed"), ("sticky", b"s"))
    request = machine.join(leader, protocols=NAMED) if who == "leader" else machine.join(follower, protocols=changed)
    assert machine.waits(request)
    assert machine.state is GroupState.PREPARING_REBALANCE


def test_while_assignments_are_made_an_unchanged_member_is_told_again() -> None:
    machine = Machine()
    leader, follower = machine.become_completing(None, None)
    again, of_follower = machine.joined(machine.join(leader)), machine.joined(machine.join(follower))
    assert (again.generation, len(again.members)) == (1, 2)
    assert (of_follower.generation, len(of_follower.members)) == (1, 0)
    assert machine.state is GroupState.COMPLETING_REBALANCE


def test_while_assignments_are_made_a_changed_member_starts_over_and_parked_syncs_are_told() -> None:
    machine = Machine()
    _leader, follower, changed = machine.become_completing(None, None, None)
    sync = machine.sync(follower)
    machine.join(changed, protocols=(("range", b"new"),))
    assert machine.error(sync) is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_asks_twice_is_answered_twice() -> None:
    # given a member that waits, and that asks again (its connection broke)
    machine = Machine()
    member, first = machine.known_join()
    second = machine.join(member)
    # then the first request ends, and the second one counts
    assert machine.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    machine.sleep(2 * DELAY_MS)
    assert machine.joined(second).generation == 1
    assert machine.member_ids == [member]


def test_a_new_member_that_waits_for_five_minutes_is_given_up() -> None:
    # given a rebalance that cannot end for ten minutes
    machine = Machine()
    (leader,) = machine.become_stable(None, rebalance_ms=600_000)
    newcomer_id, newcomer = machine.known_join()
    # when the earlier member keeps its session but does not join
    machine.sleep_alive(299_999, [leader])
    assert machine.waits(newcomer)
    machine.sleep_alive(1, [leader])
    # then the newcomer, which may be dead, is out
    assert machine.error(newcomer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.joined(newcomer).member_id == ""
    assert machine.member_ids == [leader]
    assert newcomer_id not in machine.member_ids


def test_subscribed_topics_are_those_of_all_members_under_the_chosen_protocol() -> None:
    machine = Machine()
    for topics in (("a", "b"), ("b", "c")):
        machine.known_join(protocols=(("range", subscription(*topics)), ("junk", b"?")))
    machine.sleep(2 * DELAY_MS)
    assert machine.group.view().subscribed_topics == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("protocol_type", "metadata"), [("consumer", b"junk"), ("connect", subscription("a"))], ids=["junk", "not ours"]
)
def test_where_subscriptions_cannot_be_read_topics_are_unknown(protocol_type: str, metadata: bytes) -> None:
    machine = Machine()
    machine.known_join(protocols=(("range", metadata),), protocol_type=protocol_type)
    machine.sleep(DELAY_MS)
    assert machine.group.view().subscribed_topics is None


# ---- group.max.size


def test_a_full_group_turns_newcomers_away_and_lets_members_rejoin() -> None:
    machine = limited(2)
    leader, follower = machine.become_stable(None, None)
    refused = machine.join()
    assert machine.error(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert machine.joined(refused).member_id == ""
    rejoined = [machine.join(leader), machine.join(follower)]
    assert [machine.error(request) for request in rejoined] == [ErrorCode.NONE, ErrorCode.NONE]


def test_while_members_gather_those_that_came_are_counted() -> None:
    machine = limited(2)
    ids = [machine.joined(machine.join()).member_id for _ in range(3)]
    requests = [machine.join(member_id) for member_id in ids]
    assert machine.error(requests[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    machine.sleep(2 * DELAY_MS)
    assert machine.member_ids == ids[:2]
    assert machine.group.size == 2, "the id that was given out is gone too"


def test_a_loaded_group_above_the_limit_gathers_again_and_loses_its_last() -> None:
    # given a stored group of three, and a limit that is now two
    before = Machine()
    members = before.become_stable(None, None, None)
    machine = Machine(options=GroupOptions(max_size=2), record=before.saves[-1].record)
    # when all come
    assert machine.state is GroupState.PREPARING_REBALANCE
    requests = [machine.join(member) for member in members]
    # then the last one stays outside, and the others need not wait for it
    assert [machine.error(request) for request in requests] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert machine.member_ids == members[:2]


# ---- members that make themselves costly


def test_a_member_with_more_protocols_than_any_client_has_is_refused() -> None:
    machine = Machine()
    few, many = (tuple((f"p{n}", b"") for n in range(count)) for count in (PROTOCOLS_MAX, PROTOCOLS_MAX + 1))
    assert machine.error(machine.join(protocols=many)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert machine.error(machine.join(protocols=few)) is not ErrorCode.INCONSISTENT_GROUP_PROTOCOL
