"""The soonest of many deadlines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.groups.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcdef"), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.sampled_from("abcdef"), st.just(0)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_agrees_with_a_plain_dictionary(steps: list[tuple[str, str, int]]) -> None:
    deadlines, plain = Deadlines(), dict[str, float]()
    for what, key, at_ms in steps:
        if what == "set":
            deadlines.set(key, at_ms)
            plain[key] = at_ms
        elif what == "drop":
            deadlines.drop(key)
            plain.pop(key, None)
        else:
            taken = deadlines.take_due(at_ms)
            if taken is None:
                assert all(each > at_ms for each in plain.values())
            else:
                assert plain[taken] == min(plain.values())
                assert plain.pop(taken) <= at_ms
        assert deadlines.soonest_ms == min(plain.values(), default=None)
        assert len(deadlines) == len(plain)
        assert all((key in deadlines) == (key in plain) for key in "abcdef")


def test_the_soonest_is_taken_first() -> None:
    deadlines = Deadlines()
    for key, at_ms in (("b", 2), ("a", 1), ("c", 3)):
        deadlines.set(key, at_ms)
    assert [deadlines.take_due(2), deadlines.take_due(2), deadlines.take_due(2)] == ["a", "b", None]


def test_memory_follows_the_living_not_those_that_were() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.set(str(number), 1e9 + number)
        if number >= 5:
            deadlines.drop(str(number - 5))
    assert len(deadlines) == 5
    assert len(deadlines._heap) < 200
    assert len(deadlines._queued) < 200
