"""The judge finds each kind of violation in a history that has it, and none in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.integration.faults.transactions.history import (
    Bounds,
    Kept,
    Log,
    Place,
    Position,
    Seen,
    Transaction,
    View,
    name_of,
)
from tests.integration.faults.transactions.judge import Kind, violations

LEFT, RIGHT = ("left", 0), ("right", 0)
COMMITTED_S, READ_S = 10.0, 11.0


@dataclass
class Case:
    """A history that a test spoils. Offsets 1, 3 and 5 of `left` hold markers, as 1 of `right` does."""

    transactions: dict[str, Transaction] = field(default_factory=dict[str, Transaction])
    kept: dict[Place, dict[int, Kept]] = field(default_factory=lambda: {LEFT: {}, RIGHT: {}})
    views: dict[Place, View] = field(default_factory=lambda: {at: View("reader", at) for at in (LEFT, RIGHT)})
    others: list[View] = field(default_factory=list[View])
    bounds: dict[tuple[str, Place], Bounds] = field(default_factory=dict[tuple[str, Place], Bounds])
    moved: dict[Place, int] = field(default_factory=dict[Place, int])

    def write(
        self, name: str, place: Place, offset: int, *, commits: bool, hops: int = 0, source: Position | None = None
    ) -> bytes:
        transaction = self.transactions.setdefault(name, Transaction(name))
        value = transaction.new_value(place, hops, source)
        transaction.offsets[value] = offset
        if commits:
            transaction.asked_s, transaction.is_committed = COMMITTED_S, True
            self.views[place].seen.append(Seen(offset, value, READ_S))
        self.kept[place][offset] = Kept(value, commits)
        return value

    def kinds(self) -> set[Kind]:
        log = Log(self.kept, self.bounds, self.moved)
        return {each.kind for each in violations(self.transactions, [*self.views.values(), *self.others], log)}


def good() -> Case:
    case = Case()
    case.write("a", LEFT, 0, commits=True, hops=1)
    case.write("b", LEFT, 2, commits=False)
    case.write("c", LEFT, 4, commits=True)
    case.write("c", RIGHT, 0, commits=True)
    case.write("d", RIGHT, 2, commits=True, source=Position(LEFT, 0))
    case.transactions["d"].read.append(Position(LEFT, 0))
    case.views[LEFT].end, case.views[RIGHT].end = 6, 4
    case.bounds = {("agent", LEFT): Bounds(6, 6), ("agent", RIGHT): Bounds(4, 4)}
    case.moved = {LEFT: 6, RIGHT: 4}
    return case


def test_a_good_history_has_no_violation() -> None:
    assert good().kinds() == set()


def test_a_name_is_read_as_it_was_written() -> None:
    case = good()
    names = [name_of(each.value) for kept in case.kept.values() for each in kept.values()]
    assert [(name.transaction, name.number, name.hops) for name in names] == [
        ("a", 0, 1),
        ("b", 0, 0),
        ("c", 0, 0),
        ("c", 1, 0),
        ("d", 0, 0),
    ]
    assert [name.source for name in names] == [None] * 4 + [Position(LEFT, 0)]


def aborted_read(case: Case) -> None:
    case.views[LEFT].seen.insert(1, Seen(2, case.kept[LEFT][2].value, READ_S))


def read_of_nothing(case: Case) -> None:
    case.views[LEFT].seen.append(Seen(9, b"a|7|0|", READ_S))


def early_read(case: Case) -> None:
    case.views[LEFT].seen[0] = case.views[LEFT].seen[0]._replace(at_s=COMMITTED_S - 1)


def changed(case: Case) -> None:
    """It was read before it was committed or aborted, which is no fault of its own."""
    seen = [Seen(0, case.kept[LEFT][0].value, 0.0), Seen(2, b"b|7|0|", 0.0)]
    case.others.append(View("reader of everything", LEFT, False, end=3, seen=seen))


def missed_by_a_reader_of_everything(case: Case) -> None:
    case.others.append(View("reader of everything", RIGHT, False, end=1))


def missed(case: Case) -> None:
    del case.views[LEFT].seen[0]


def shown_twice(case: Case) -> None:
    case.views[LEFT].seen.append(case.views[LEFT].seen[0])


def torn(case: Case) -> None:
    """The other part lies there as aborted, and the client was not told."""
    case.transactions["c"].is_committed = False
    case.kept[RIGHT][0] = case.kept[RIGHT][0]._replace(is_committed=False)
    del case.views[RIGHT].seen[0]


def torn_by_a_loss(case: Case) -> None:
    case.transactions["c"].is_committed = False
    del case.kept[RIGHT][0], case.views[RIGHT].seen[0]


def committed_without_being_asked(case: Case) -> None:
    case.kept[LEFT][2] = case.kept[LEFT][2]._replace(is_committed=True)
    case.views[LEFT].seen.insert(1, Seen(2, case.kept[LEFT][2].value, READ_S))


def lost(case: Case) -> None:
    del case.kept[LEFT][4], case.kept[RIGHT][0], case.views[LEFT].seen[1], case.views[RIGHT].seen[0]


def acknowledged_and_aborted(case: Case) -> None:
    for place, offset in ((LEFT, 4), (RIGHT, 0)):
        case.kept[place][offset] = case.kept[place][offset]._replace(is_committed=False)
    del case.views[LEFT].seen[1], case.views[RIGHT].seen[0]


def doubled(case: Case) -> None:
    """An aborted one lies there twice."""
    case.kept[LEFT][8] = case.kept[LEFT][2]


def elsewhere(case: Case) -> None:
    value = case.kept[LEFT][4].value
    case.transactions["c"].offsets[value] = 5


def strange(case: Case) -> None:
    case.kept[LEFT][8] = Kept(b"nobody|0|0|", False)


def in_a_wrong_partition(case: Case) -> None:
    case.transactions["b"].sent[case.kept[LEFT][2].value] = RIGHT


def cycle(case: Case) -> None:
    """`d` read of `a`, and `a` of `d`: one of them read what was not committed yet."""
    case.transactions["a"].read.append(Position(RIGHT, 2))


def read_of_itself(case: Case) -> None:
    case.transactions["c"].read.append(Position(LEFT, 4))


def not_moved_on(case: Case) -> None:
    del case.transactions["d"], case.kept[RIGHT][2], case.views[RIGHT].seen[1]


def moved_twice(case: Case) -> None:
    case.write("e", RIGHT, 4, commits=True, source=Position(LEFT, 0))
    case.moved[RIGHT] = 6


def moved_without_its_offsets(case: Case) -> None:
    case.moved[LEFT] = 0


def made_of_an_aborted_record(case: Case) -> None:
    case.write("e", RIGHT, 4, commits=True, source=Position(LEFT, 2))


def still_open(case: Case) -> None:
    case.kept[LEFT][2] = case.kept[LEFT][2]._replace(is_committed=None)


def stuck(case: Case) -> None:
    case.bounds["agent", LEFT] = Bounds(2, 6)


def lost_from_an_aborted_transaction(case: Case) -> None:
    """It was acknowledged, and has gone: what comes behind it would be refused as out of order."""
    del case.kept[LEFT][2]


BESIDE = {
    "committed_without_being_asked": {Kind.EARLY_READ},
    "torn_by_a_loss": {Kind.MOVED},
    "lost": {Kind.MOVED},
    "in_a_wrong_partition": {Kind.MOVED},
}
"""What else is wrong of a history then."""


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (aborted_read, Kind.ABORTED_READ),
        (read_of_nothing, Kind.ABORTED_READ),
        (made_of_an_aborted_record, Kind.ABORTED_READ),
        (early_read, Kind.EARLY_READ),
        (changed, Kind.CHANGED),
        (missed, Kind.MISSED),
        (missed_by_a_reader_of_everything, Kind.MISSED),
        (shown_twice, Kind.DISORDER),
        (torn, Kind.TORN),
        (torn_by_a_loss, Kind.TORN),
        (committed_without_being_asked, Kind.WRONG_END),
        (lost, Kind.LOST),
        (acknowledged_and_aborted, Kind.LOST),
        (doubled, Kind.DOUBLED),
        (elsewhere, Kind.MOVED),
        (lost_from_an_aborted_transaction, Kind.MOVED),
        (strange, Kind.STRANGE),
        (in_a_wrong_partition, Kind.STRANGE),
        (cycle, Kind.CYCLE),
        (read_of_itself, Kind.CYCLE),
        (not_moved_on, Kind.NOT_MOVED_ON),
        (moved_twice, Kind.MOVED_TWICE),
        (moved_without_its_offsets, Kind.MOVED_EARLY),
        (still_open, Kind.OPEN),
        (stuck, Kind.STUCK),
    ],
)
def test_a_violation_is_found_and_named(spoil: Callable[[Case], None], kind: Kind) -> None:
    case = good()
    spoil(case)
    assert case.kinds() == {kind} | BESIDE.get(spoil.__name__, set())


def test_every_kind_has_a_history_that_shows_it() -> None:
    marks: list[pytest.Mark] = test_a_violation_is_found_and_named.pytestmark  # type: ignore[attr-defined]
    assert {kind for _, kind in marks[0].args[1]} == set(Kind)


def test_a_transaction_in_doubt_may_be_committed_as_a_whole_or_not_at_all() -> None:
    whole, none = good(), good()
    whole.transactions["c"].is_committed = none.transactions["c"].is_committed = False
    acknowledged_and_aborted(none)
    assert (whole.kinds(), none.kinds()) == (set(), set())


def test_a_record_that_was_not_acknowledged_may_be_missing_from_what_was_aborted() -> None:
    case = good()
    case.transactions["b"].new_value(RIGHT, 0)
    assert case.kinds() == set()
