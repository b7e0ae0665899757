"""A storm of equal lines is cut short, and the log reports the number of lines left out."""

from __future__ import annotations

from runtime.log_bursts import KINDS_MAX, WINDOW_MS, Bursts

STORM = ("agents.write.path", "file given up")


def admitted(bursts: Bursts, count: int, now_ms: float = 0.0) -> list[int | None]:
    return [bursts.admit(STORM, now_ms) for _ in range(count)]


def test_the_first_lines_of_a_window_are_shown_and_the_rest_left_out() -> None:
    assert admitted(Bursts(2), 4) == [0, 0, None, None]


def test_the_next_line_that_is_shown_says_how_many_were_left_out_and_once() -> None:
    bursts = Bursts(2)
    admitted(bursts, 5)
    assert admitted(bursts, 3, WINDOW_MS) == [3, 0, None]


def test_kinds_do_not_count_for_each_other() -> None:
    bursts = Bursts(1)
    admitted(bursts, 9)
    assert bursts.admit((STORM[0], "another text"), 0.0) == 0
    assert bursts.admit(("another module", STORM[1]), 0.0) == 0


def test_a_storm_that_is_over_is_told_of_once() -> None:
    bursts = Bursts(2)
    admitted(bursts, 5)
    assert bursts.ended(WINDOW_MS - 1) == []
    assert bursts.ended(WINDOW_MS) == [(STORM, 3)]
    assert bursts.ended(WINDOW_MS) == []
    assert admitted(bursts, 1, WINDOW_MS) == [0], "what was told is not told again"


def test_at_the_end_all_are_told_of_whatever_the_time() -> None:
    bursts = Bursts(2)
    admitted(bursts, 3)
    assert bursts.ended(1, all_of_them=True) == [(STORM, 1)]


def test_without_a_bound_all_lines_are_shown() -> None:
    assert admitted(Bursts(0), 500) == [0] * 500


def test_kinds_without_end_take_no_memory_without_end() -> None:
    bursts = Bursts(1)
    admitted(bursts, 2)
    for number in range(3 * KINDS_MAX):
        bursts.admit(("library", f"text {number}"), 0.0)
    assert len(bursts._windows) <= KINDS_MAX
    assert bursts.ended(0, all_of_them=True) == [(STORM, 1)], "what is still to be told is kept"
