"""The table of a group's transitions compared with the machine: only its entries occur, and each of them occurs."""

from __future__ import annotations

import random

import pytest

from agents.groups.events import (
    Event,
    GroupOptions,
    GroupState,
    Instruction,
    LeaveRequested,
    LeavingMember,
    SyncRequested,
    Woke,
)
from agents.groups.group import Group
from agents.groups.transitions import TRANSITIONS, check_transition
from runtime.errors import BugError
from tests.fixtures.group_machine import Machine
from wire.error_codes import ErrorCode

HISTORIES = 300
STEPS = 60
INSTANCES = ("i1", "i2")
Seen = set[tuple[GroupState, type[Event], GroupState]]


class Watched(Group):
    """A group that records each of its transitions."""

    seen: Seen

    def handle(self, event: Event, now_ms: float) -> list[Instruction]:
        before = self.state
        instructions = super().handle(event, now_ms)
        self.seen.add((before, type(event), self.state))
        return instructions


class History:
    """Random requests of a few members, some of them static, with saves that are answered late."""

    def __init__(self, seed: int, seen: Seen) -> None:
        self.random = random.Random(seed)
        self.machine = Machine(GroupOptions(initial_rebalance_delay_ms=self.random.choice([0, 3_000])))
        self.machine.group = Watched("g", self.machine.options, self.machine.record, self.machine.now_ms)
        self.machine.group.seen = seen
        self.known: list[tuple[str, str | None]] = []
        self.settled = 0

    def run(self) -> None:
        if self.random.random() < 0.7:
            self.machine.become_stable(*self.random.choice([(None,), (None, None), ("i1", None), INSTANCES]))
        actions = [self.join] * 2 + [self.rejoin] * 2 + [self.sync] * 6 + [self.settle] * 4 + [self.all_rejoin] * 2
        actions += [self.heartbeat, self.leave, self.commit, self.sleep, self.outlive, self.wake, self.machine.delete]
        for _ in range(self.random.randrange(1, STEPS)):
            self.random.choice(actions)()
        if self.random.random() < 0.3:
            self.machine.unload()
            for _ in range(20):
                self.random.choice([*actions, self.machine.delete, self.machine.unload])()

    def some_member(self) -> tuple[str, str | None]:
        members = [(each.member_id, each.instance_id) for each in self.machine.group.view().members]
        return self.random.choice([*members, *members, *self.known[-3:], ("nobody", None)])

    def join(self) -> None:
        instance = self.random.choice([None, *INSTANCES])
        request = self.machine.join(instance=instance, version=self.random.choice([3, 5, 9]))
        answer = self.machine.answers.get(request)
        if answer is not None and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.known.append((self.machine.joined(request).member_id, None))

    def rejoin(self) -> None:
        member_id, instance = self.some_member()
        protocols = self.random.choice([(("range", b"r"),), (("range", b"other"),)])
        self.machine.join(member_id, instance=instance, protocols=protocols)

    def all_rejoin(self) -> None:
        for member in self.machine.group.view().members:
            self.machine.join(member.member_id, instance=member.instance_id)

    def sync(self) -> None:
        member_id, instance = self.some_member()
        self.machine.sync(member_id, instance=instance)

    def heartbeat(self) -> None:
        member_id, instance = self.some_member()
        self.machine.heartbeat(member_id, instance=instance)

    def commit(self) -> None:
        member_id, instance = self.some_member()
        self.machine.commit(member_id, instance=instance)

    def leave(self) -> None:
        leaving = [LeavingMember(*self.some_member()) for _ in range(self.random.randrange(1, 3))]
        self.machine.tell(LeaveRequested(request=self.machine.number(), members=leaving))

    def settle(self) -> None:
        for save in self.machine.saves[self.settled :]:
            (self.machine.save_failed if self.random.random() < 0.3 else self.machine.saved)(save)
        self.settled = len(self.machine.saves)

    def sleep(self) -> None:
        self.machine.sleep(self.random.choice([100, 3_000, 9_000, 30_000]))

    def outlive(self) -> None:
        """One member goes silent; the others send heartbeats."""
        members = [(each.member_id, each.instance_id) for each in self.machine.group.view().members]
        for _ in range(6):
            self.machine.sleep(2_000)
            for member_id, instance in members[1:]:
                self.machine.heartbeat(member_id, instance=instance)

    def wake(self) -> None:
        self.machine.tell(Woke())


def test_random_histories_see_each_transition_of_the_table_and_no_other() -> None:
    seen: Seen = set()
    for seed in range(HISTORIES):
        History(seed, seen).run()
    table = {(before, event, after) for before, row in TRANSITIONS.items() for event, to in row.items() for after in to}
    assert seen - table == set()
    assert table - seen == set()


def test_every_state_has_a_row_for_every_event() -> None:
    events = {event for row in TRANSITIONS.values() for event in row}
    assert set(TRANSITIONS) == set(GroupState)
    assert all(set(row) == events for row in TRANSITIONS.values())


def test_a_transition_that_the_table_lacks_is_a_bug() -> None:
    sync = SyncRequested(
        request=1, member_id="m", instance_id=None, generation=1, protocol_type=None, protocol=None, assignments={}
    )
    with pytest.raises(BugError, match="from Empty to Stable at SyncRequested"):
        check_transition(GroupState.EMPTY, sync, GroupState.STABLE)
