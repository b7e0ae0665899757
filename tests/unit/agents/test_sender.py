"""Which connections wait for us, judged event by event; `write/test_early_seals.py` runs whole loops."""

from __future__ import annotations

import pytest

from agents.sender import PROOF_AGE_MS, QUIET_MS, RETURN_MS, Sender


def waits(sender: Sender, at_ms: float, *, requests: int = 1, held_ms: float = 250.0, back_ms: float = 1.0) -> float:
    """One round: its requests, a file that is held, the answers. Returns when its next request is to come."""
    for _ in range(requests):
        sender.sent(at_ms)
    sender.sealed(at_ms + held_ms)
    for _ in range(requests):
        sender.answered(at_ms + held_ms + 5)
    return at_ms + held_ms + 5 + back_ms


def blocked(requests: int = 1) -> tuple[Sender, float]:
    """A connection that has proved that it waits, and when its next request is to come."""
    sender, at_ms = Sender(), 0.0
    for _ in range(2):
        at_ms = waits(sender, at_ms, requests=requests)
    return sender, at_ms


def test_two_proofs_make_a_connection_blocked_and_one_does_not() -> None:
    sender = Sender()
    at_ms = waits(sender, 0.0)
    sender.sent(at_ms)
    assert not sender.is_blocked
    sender, at_ms = blocked()
    sender.sent(at_ms)
    assert sender.is_blocked


@pytest.mark.parametrize(("held_ms", "back_ms"), [(QUIET_MS - 1, 1), (250, RETURN_MS + 1)])
def test_a_short_silence_or_a_late_return_proves_nothing(held_ms: float, back_ms: float) -> None:
    sender, at_ms = Sender(), 0.0
    for _ in range(5):
        at_ms = waits(sender, at_ms, held_ms=held_ms, back_ms=back_ms)
    # and five quick rounds that are too short to tell add nothing
    for _ in range(5):
        at_ms = waits(sender, at_ms, held_ms=0)
    sender.sent(at_ms)
    assert not sender.is_blocked


def test_a_few_late_returns_change_nothing_and_most_of_them_do() -> None:
    sender, at_ms = blocked()
    for late in range(8):
        at_ms = waits(sender, at_ms, held_ms=0, back_ms=RETURN_MS + 1)
        assert sender.is_blocked == (late < 2), f"{late} late and 2 in time"


def test_requests_that_keep_coming_while_a_file_is_held_prove_that_nobody_waits() -> None:
    sender, at_ms = blocked()
    held_ms = 2 * QUIET_MS
    for step in range(20):
        sender.sent(at_ms + held_ms / 20 * step)
    sender.sealed(at_ms + held_ms)
    for _ in range(20):
        sender.answered(at_ms + held_ms + 5)
    sender.sent(at_ms + held_ms + 8)
    assert not sender.is_blocked


def test_at_its_window_no_more_can_come() -> None:
    sender, at_ms = blocked(requests=3)
    for _ in range(2):
        sender.sent(at_ms)
        assert sender.complete_ms(3) == at_ms + 3, "more may come, until it falls silent"
    sender.sent(at_ms)
    assert sender.complete_ms(3) == at_ms


def test_a_window_that_grows_is_believed_at_once() -> None:
    sender, at_ms = blocked(requests=1)
    at_ms = waits(sender, at_ms, requests=5, held_ms=0)
    sender.sent(at_ms)
    assert sender.complete_ms(3) == at_ms + 3


def test_a_connection_with_pauses_falls_silent_later() -> None:
    sender, at_ms = blocked(requests=9)
    for step in range(8):
        sender.sent(at_ms + 10 * step)
    last_ms = at_ms + 70
    assert last_ms + 15 < sender.complete_ms(3) <= last_ms + 20


def test_a_request_that_is_still_coming_is_waited_for() -> None:
    sender, at_ms = blocked()
    sender.sent(at_ms)
    sender.arriving(at_ms + 2)
    assert sender.complete_ms(3) == at_ms + 5


def test_an_old_proof_is_renewed_by_a_longer_hold() -> None:
    sender, at_ms = blocked()
    sender.sent(at_ms)
    assert sender.complete_ms(3) == at_ms
    at_ms += PROOF_AGE_MS + 1
    sender.sent(at_ms)
    assert sender.complete_ms(3) == at_ms + QUIET_MS


def test_others_wait_only_for_a_client_that_is_usually_back_soon() -> None:
    sender, at_ms = blocked()
    for _ in range(9):
        at_ms = waits(sender, at_ms, held_ms=0, back_ms=2.0)
    answered_ms = at_ms - 2
    assert answered_ms + 2 < sender.back_ms() < answered_ms + 8
    for _ in range(9):
        at_ms = waits(sender, at_ms, held_ms=0, back_ms=30.0)
    assert sender.back_ms() == at_ms - 30
