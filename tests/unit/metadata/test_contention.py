"""When a commit goes through the gate."""

from __future__ import annotations

from metadata.postgres.log.contention import GATED_MAX, GATED_MIN, Contention


def gated(contention: Contention) -> int:
    """Commits through the gate until one tries without it."""
    count = 0
    while contention.uses_gate:
        contention.passed()
        count += 1
    return count


def test_nobody_uses_the_gate_before_a_lock_was_met() -> None:
    contention = Contention()
    for _ in range(3):
        contention.passed()
        assert not contention.uses_gate


def test_the_commit_that_met_a_lock_goes_through_the_gate_and_so_do_the_next_ones() -> None:
    contention = Contention()
    contention.met_lock()
    assert gated(contention) == GATED_MIN


def test_the_more_often_a_lock_is_met_the_rarer_is_the_try_without_the_gate() -> None:
    contention, stretches = Contention(), list[int]()
    for _ in range(7):
        contention.met_lock()
        stretches.append(gated(contention))
    assert stretches == [4, 8, 16, 32, 64, 64, 64]
    assert stretches[-1] == GATED_MAX


def test_a_commit_that_met_no_lock_ends_it() -> None:
    contention = Contention()
    contention.met_lock()
    gated(contention)
    contention.passed()
    contention.met_lock()
    assert gated(contention) == GATED_MIN
