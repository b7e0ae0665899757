"""A neighbour that fails is left alone for a while, then tried once."""

from __future__ import annotations

from agents.zone.circuit import SHUT_MS, SHUT_MS_MAX, Circuit


def test_a_failure_shuts_it_for_a_while_and_one_trial_opens_it() -> None:
    circuit = Circuit()
    assert circuit.may_ask(0) and circuit.may_ask(0)
    circuit.failed(0, 100)
    assert not circuit.may_ask(100 + SHUT_MS - 1)
    # when the time is over, one asks and the others wait for its outcome
    assert circuit.may_ask(100 + SHUT_MS)
    assert not circuit.may_ask(100 + SHUT_MS)
    circuit.gave_up()
    assert circuit.may_ask(100 + SHUT_MS)
    circuit.worked()
    assert circuit.may_ask(100 + SHUT_MS) and circuit.may_ask(100 + SHUT_MS)


def test_requests_that_fail_together_are_one_failure() -> None:
    circuit = Circuit()
    for _ in range(10):
        circuit.failed(0, 50)
    assert circuit.may_ask(50 + SHUT_MS)


def test_each_failed_trial_doubles_the_time_up_to_a_bound() -> None:
    circuit = Circuit()
    now_ms, expected_ms = 0.0, SHUT_MS
    circuit.failed(now_ms, now_ms)
    for _ in range(8):
        assert not circuit.may_ask(now_ms + expected_ms - 1)
        now_ms += expected_ms
        assert circuit.may_ask(now_ms)
        now_ms += 150
        circuit.failed(now_ms - 150, now_ms)
        expected_ms = min(expected_ms * 2, SHUT_MS_MAX)
    assert circuit.may_ask(now_ms + SHUT_MS_MAX)
    circuit.worked()
    circuit.failed(now_ms + 1, now_ms + 1)
    assert circuit.may_ask(now_ms + 1 + SHUT_MS)
