"""How one limit is shared: the rules of a single beat. What comes of them over time: tests/property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security.quotas.precedence import Share
from security.quotas.sharing import (
    DEMAND_MIN,
    HEADROOM,
    REPORTED_MAX,
    busiest,
    demand_after,
    number_of,
    part_of,
)
from security.quotas.values import QuotaKey

SECRET = bytes(range(32))


def parts(*demands: float, agents: int | None = None) -> list[float]:
    """The part of each agent when all know the same."""
    return [part_of(own, [*demands[:at], *demands[at + 1 :]], agents or len(demands)) for at, own in enumerate(demands)]


def test_an_agent_alone_has_all() -> None:
    assert [part_of(own, [], 1) for own in (0.0, 1e-6, 0.3, 1.0)] == [1.0] * 4


def test_who_asks_at_one_agent_alone_has_all_there() -> None:
    assert parts(0.01, 0.0, 0.0) == [1.0, 1 / 6, 1 / 6]
    assert parts(1.0, 0.0, 0.0) == [1.0, 1 / 6, 1 / 6]


def test_without_demand_all_have_the_same() -> None:
    assert parts(0.0, 0.0, 0.0, 0.0) == [0.25] * 4


def test_small_demands_are_met_and_large_ones_share_the_rest() -> None:
    assert parts(1.0, 1.0, 1.0) == pytest.approx([1 / 3] * 3)
    assert parts(1.0, 0.2, 0.1, 1.0) == pytest.approx([0.35, 0.25, 0.125, 0.35])
    assert parts(1.0, 0.3) == pytest.approx([0.7, 0.3 * HEADROOM])


def test_what_nobody_asks_for_is_shared_in_proportion() -> None:
    assert parts(0.1, 0.3) == pytest.approx([0.25, 0.75])
    # demands that fade together keep their proportion
    assert parts(1e-5, 3e-5) == pytest.approx([0.25, 0.75])


demands = st.lists(st.floats(0, 1).map(lambda demand: demand if demand >= DEMAND_MIN else 0.0), min_size=1, max_size=12)


@given(demands, st.integers(0, 5))
def test_what_is_used_never_exceeds_the_limit_and_all_of_it_may_be_used(known: list[float], silent: int) -> None:
    agents = len(known) + silent
    found = parts(*known, agents=agents)
    assert all(1 / (2 * agents) <= part <= 1 for part in found)
    used = [min(part, demand) for part, demand in zip(found, known, strict=True)]
    assert sum(used) == pytest.approx(min(1.0, sum(known)))
    # what the parts allow in all: the limit, room for what is met to grow, and the floors
    assert sum(found) <= HEADROOM + 0.5 + 1e-9 or not any(known)


@given(demands)
def test_who_asks_for_more_never_has_less(known: list[float]) -> None:
    found = parts(*known)
    ranked = sorted(zip(known, found, strict=True))
    assert all(low <= high + 1e-9 for (_, low), (_, high) in pairwise(ranked))


def test_who_waits_wants_all_and_what_is_seen_fades() -> None:
    assert demand_after(0.0, 0.1, is_short=True) == 1.0
    assert demand_after(1.0, 0.2, is_short=False) == pytest.approx(0.6)
    assert demand_after(0.5, 9.0, is_short=False) == 1.0
    demand, beats = 1.0, 0
    while demand:
        demand, beats = demand_after(demand, 0.0, is_short=False), beats + 1
    assert beats == 20


def test_the_largest_demands_are_reported() -> None:
    few = {1: 0.1, 2: 1.0}
    assert busiest(few) == few
    many = {number: number / 5_000 for number in range(5_000)}
    assert busiest(many) == {number: many[number] for number in range(5_000 - REPORTED_MAX, 5_000)}


def test_a_share_has_a_number_of_its_own_that_tells_nothing() -> None:
    odd = ["", "a", "b", "ab", "a\0b", "\ud800", "\U0001f600"]
    shares = [Share(user=user, client_id=client_id) for user in odd for client_id in odd] + [Share(ip="10.0.0.1")]
    numbers = {number_of(key, share, SECRET) for key in QuotaKey for share in shares}
    assert len(numbers) == len(QuotaKey) * len(shares)
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    ann = Share(user="ann")
    assert number_of(QuotaKey.PRODUCER_BYTE_RATE, ann, SECRET) == number_of(QuotaKey.PRODUCER_BYTE_RATE, ann, SECRET)
    assert number_of(QuotaKey.PRODUCER_BYTE_RATE, ann, SECRET) != number_of(QuotaKey.PRODUCER_BYTE_RATE, ann, b"other")
