"""When a connection last did anything."""

from __future__ import annotations

from agents.listeners.activity import PROGRESS_BYTES, Activity


def test_a_byte_at_a_time_is_silence_and_a_request_is_not() -> None:
    activity = Activity(0)
    for now_ms in range(1, 1_000):
        activity.last_bytes_ms = now_ms
        activity.part_came(now_ms)
    assert activity.is_silent(0)
    activity.requests_came()
    assert not activity.is_silent(998)
    assert activity.is_silent(999)


def test_a_large_request_makes_progress_piece_by_piece_and_the_next_one_begins_anew() -> None:
    activity = Activity(0)
    for number in (1, 2, 3):
        activity.last_bytes_ms = number
        activity.part_came(number * PROGRESS_BYTES)
        assert activity.progress_ms == number
        activity.last_bytes_ms = number + 0.5
        activity.part_came(number * PROGRESS_BYTES + 10)
        assert activity.progress_ms == number
    activity.requests_came()
    activity.last_bytes_ms = 9
    activity.part_came(PROGRESS_BYTES)
    assert activity.progress_ms == 9


def test_what_we_did_not_read_is_no_silence_of_the_clients() -> None:
    activity = Activity(0)
    activity.resumed(700)
    assert not activity.is_silent(600)
    activity.talked_ms = 900
    assert not activity.is_silent(800)
    assert activity.is_silent(900)
