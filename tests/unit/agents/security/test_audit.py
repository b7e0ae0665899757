"""Counting what is denied again and again, in bounded memory and without losing any."""

from __future__ import annotations

from agents.security.audit import Question, Repeats, Told
from security.acls.values import Operation, ResourceType


def question(name: str) -> Question:
    return Question("User:ann", "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)


def test_each_kind_is_told_once_in_a_window_and_the_rest_counted() -> None:
    repeats = Repeats(kinds_max=2)
    told = [repeats.take_in("denied", question(name)) for name in ("a", "b", "a", "c", "a", "d")]
    assert told == [Told.NOW, Told.NOW, Told.LATER, Told.AMONG_OTHERS, Told.LATER, Told.AMONG_OTHERS]
    assert repeats.take_in("would be denied", question("a")) is Told.AMONG_OTHERS
    times, others = repeats.take()
    assert (times, others) == ({("denied", question("a")): 2}, 3)
    assert repeats.is_empty
    assert repeats.take_in("denied", question("c")) is Told.NOW
