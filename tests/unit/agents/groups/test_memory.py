"""The memory of a group: everything that the group holds is counted, refused requests are not, and the number of ids
given out is bounded.
"""

from __future__ import annotations

import pytest

from agents.groups.events import GroupOptions, GroupState
from agents.groups.group import Group
from agents.groups.group_data import PENDING_MIN
from tests.fixtures.group_machine import SESSION_MS, Machine, subscription
from wire.error_codes import ErrorCode

LONG = 100_000


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("another protocol type", {"protocol_type": "connect", "protocols": (("p", b"x" * LONG),)}),
        ("no protocol in common", {"protocols": (("other", b"x" * LONG),)}),
        ("an unknown id", {"member_id": "x" * LONG}),
        ("another's instance", {"member_id": "x" * LONG, "instance": "i"}),
        ("too short a session", {"session_ms": 1, "protocols": (("range", b"x" * LONG),)}),
        ("no more room", {"protocols": (("range", b"x" * LONG),)}),
    ],
)
def test_a_join_that_is_refused_weighs_nothing(what: str, arguments: dict[str, object]) -> None:
    machine = Machine(options=GroupOptions(max_size=2))
    machine.become_stable("i", None)
    before = machine.group.bytes
    request = machine.join(**arguments)  # type: ignore[arg-type]
    assert machine.error(request) is not ErrorCode.NONE, what
    assert machine.group.bytes == before


def test_all_that_a_member_may_make_long_is_counted_and_is_gone_with_it() -> None:
    machine = Machine()
    leader, *_ = machine.become_stable(None)
    before = machine.group.bytes
    for arguments in (
        {"instance": "i" * LONG},
        {"protocols": (("range", b"x" * LONG),)},
        {"protocols": (("range", b"r"), ("p" * LONG, b""))},
    ):
        request = machine.join(version=3, **arguments)  # type: ignore[arg-type]
        assert before + LONG < machine.group.bytes < before + 3 * LONG
        machine.join(leader)
        machine.complete(leader, machine.joined(request).member_id)
        machine.leave((machine.joined(request).member_id, None))
        machine.join(leader)
        machine.complete(leader)
        assert machine.group.bytes == before
    # an assignment
    machine.join(leader)
    machine.sync(leader, assignments={leader: b"a" * LONG})
    machine.saved()
    assert before + LONG - 100 < machine.group.bytes < before + LONG + 100
    machine.leave((leader, None))
    assert machine.group.bytes == Group("g", machine.options, machine.saves[-1].record, 0).bytes


def test_ids_that_were_given_out_are_counted_until_they_are_forgotten_or_joined_with() -> None:
    machine = Machine()
    machine.become_stable(None)
    before = machine.group.bytes
    for _ in range(3):
        machine.join()
    assert machine.group.bytes > before + 3 * 100
    machine.sleep_alive(2 * SESSION_MS, machine.member_ids)
    assert machine.group.bytes == before


def test_no_more_ids_are_out_than_members_could_come_of() -> None:
    machine = Machine(options=GroupOptions(max_size=10))
    requests = [machine.join() for _ in range(PENDING_MIN + 1)]
    assert [machine.error(each) for each in requests[:-1]] == [ErrorCode.MEMBER_ID_REQUIRED] * PENDING_MIN
    assert machine.error(requests[-1]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # a client that has an id may join with it, which leaves room for another
    machine.join(machine.joined(requests[0]).member_id)
    assert machine.state is GroupState.PREPARING_REBALANCE
    assert machine.error(machine.join()) is ErrorCode.MEMBER_ID_REQUIRED
    assert machine.error(machine.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_members_that_are_loaded_weigh_what_they_weighed_before() -> None:
    machine = Machine()
    machine.become_stable("i", None)
    assert Group("g", machine.options, machine.saves[-1].record, 0).bytes == machine.group.bytes


def test_the_topics_of_subscriptions_are_counted() -> None:
    machine = Machine()
    names = [f"topic-{n}" for n in range(1_000)]
    metadata = subscription(*names)
    machine.known_join(protocols=(("range", metadata),))
    parked = machine.group.bytes
    machine.sleep(10_000)
    assert machine.group.view().subscribed_topics == set(names)
    assert machine.group.bytes - parked > 50 * len(names)
