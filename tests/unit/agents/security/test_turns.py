"""Work that waits is done in turns by who asks for it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.listeners.neighbourhood import neighbourhood
from agents.security.turns import Turns
from tests.fixtures.chance import examples


def test_each_one_that_waits_has_a_piece_done_in_turn_and_its_own_in_order() -> None:
    turns: Turns[str] = Turns()
    for who, work in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        turns.put(who, work)
    assert [turns.take() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


@settings(max_examples=examples(400))
@given(st.lists(st.one_of(st.sampled_from("abcd"), st.none()), max_size=60))
def test_nobody_waits_for_more_than_one_piece_of_each_other(steps: list[str | None]) -> None:
    """A letter asks for one more piece; None: one is done."""
    turns: Turns[tuple[str, int]] = Turns()
    waiting: dict[str, list[int]] = {}
    passed: dict[tuple[str, int], list[str]] = {}
    for number, who in enumerate(steps):
        if who is not None:
            turns.put(who, (who, number))
            waiting.setdefault(who, []).append(number)
            continue
        work = turns.take()
        if work is None:
            assert not any(waiting.values())
            continue
        done, first = work
        assert waiting[done].pop(0) == first
        for each, numbers in waiting.items():
            if numbers and each != done:  # the one that is next of each other has seen one more go by
                by = passed.setdefault((each, numbers[0]), [])
                assert done not in by
                by.append(done)
    assert len(turns) == sum(map(len, waiting.values()))


def test_who_leaves_takes_the_work_away() -> None:
    turns: Turns[int] = Turns()
    for who, work in (("a", 1), ("a", 2), ("b", 3)):
        turns.put(who, work)
    turns.drop("a", 1)
    turns.drop("b", 3)
    turns.drop("b", 3)
    turns.drop("nobody", 1)
    assert (len(turns), turns.take(), turns.take()) == (1, 2, None)


def test_addresses_of_one_network_have_one_turn() -> None:
    assert neighbourhood("10.0.0.1") == "10.0.0.1" and neighbourhood("?") == "?"
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:0:2") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("::ffff:10.0.0.1") == "10.0.0.1"
    assert neighbourhood("fe80::1%eth0") == neighbourhood("fe80::2")
