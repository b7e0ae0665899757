"""The unreadable batches of a partition: added in any order, kept as stretches."""

from __future__ import annotations

import itertools
import random

import pytest

from compactor.cleaning.unreadable import STRETCHES_END, UnreadableBatches
from runtime.errors import BugError


def told(*spans: tuple[int, int]) -> UnreadableBatches:
    """Base offsets are ten times the number."""
    known = UnreadableBatches()
    for first, stop in spans:
        known.add(first, stop, first * 10, f"batch {first}")
    return known


@pytest.mark.parametrize("spans", list(itertools.permutations([(2, 3), (7, 9), (4, 5)])))
def test_the_order_in_which_they_are_found_changes_nothing(spans: tuple[tuple[int, int], ...]) -> None:
    known = told(*spans)
    assert (known.count, known.first_offset, known.first_reason) == (4, 20, "batch 2")
    assert [known.stretch(number) for number in (0, 2, 3, 8, 9)] == [
        (False, 2),
        (True, 3),
        (False, 4),
        (True, 9),
        (False, STRETCHES_END),
    ]


def test_those_that_overlap_or_touch_are_one_stretch_and_counted_once() -> None:
    known = told((4, 6), (8, 9), (2, 3), (5, 8))
    assert known.count == 6 and known.stretch(4) == (True, 9)
    known.add(3, 4, 30, "fills the gap")
    assert known.count == 7 and known.stretch(2) == (True, 9)
    assert (known.first_offset, known.first_reason) == (20, "batch 2")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_remembered_is_the_set_of_what_was_told(seed: int) -> None:
    r = random.Random(seed)
    numbers: set[int] = set()
    known = UnreadableBatches()
    for _ in range(40):
        first = r.randrange(100)
        stop = first + r.choice([1, 1, 2, 10])
        numbers |= set(range(first, stop))
        known.add(first, stop, first, "")
        assert known.count == len(numbers) and known.first_offset == min(numbers)
        for number in range(120):
            is_unreadable, until = known.stretch(number)
            assert is_unreadable == (number in numbers)
            same = [other for other in range(number, min(until, 120)) if (other in numbers) == is_unreadable]
            assert same == list(range(number, min(until, 120)))
            assert until == STRETCHES_END or (until in numbers) != is_unreadable


@pytest.mark.parametrize("span", [(3, 3), (3, 2)])
def test_a_stretch_of_nothing_is_a_fault_of_ours(span: tuple[int, int]) -> None:
    with pytest.raises(BugError):
        told(span)
