"""Commands tell their user where a transaction holds up readers of committed records."""

from __future__ import annotations

import pytest

from runtime.clock import ManualClock
from siltstone.kafka.consuming import Reach
from siltstone.kafka.held_back import SHOWN_MAX, STILL_MS, StandstillNotes, held_back, held_lines


def reach(position: int, stable: int, end: int, *, until: int | None = None, wanted: int | None = None) -> Reach:
    return Reach(position, until, wanted, stable, end)


@pytest.mark.parametrize(
    ("read", "held"),
    [
        (reach(5, 5, 9), 4),
        (reach(5, 5, 9, until=5), 4),
        (reach(3, 5, 9), 0),  # there is more to read first
        (reach(9, 9, 9), 0),
        (reach(7, 5, 9), 2),  # it began behind the first record of the transaction
        (reach(5, 5, 9, until=5, wanted=7), 2),
        (reach(5, 5, 9, until=5, wanted=5), 0),  # all of the range is read
        (reach(9, 5, 9), 0),
        (Reach(5, 5), 0),
    ],
)
def test_what_is_written_behind_the_place_of_a_reader_is_held_from_it(read: Reach, held: int) -> None:
    assert read.held == held
    assert [(each.offset, each.count) for each in held_back({("t", 0): read})] == (
        [(read.position, held)] if held else []
    )


def test_a_few_partitions_are_told_one_by_one_and_the_rest_is_counted() -> None:
    held = held_back({("t", number): reach(5, 5, 6 + number) for number in reversed(range(SHOWN_MAX + 2))})
    lines = held_lines(held, "stopped at")
    assert (
        lines[0]
        == "t partition 0: stopped at offset 5; 1 offset from there on waits for the end of an open transaction"
    )
    assert (
        lines[1]
        == "t partition 1: stopped at offset 5; 2 offsets from there on wait for the end of an open transaction"
    )
    assert len(lines) == SHOWN_MAX + 1 and lines[-1] == "and 2 more partitions"
    assert len(held_lines(held[:SHOWN_MAX], "stopped at")) == SHOWN_MAX


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.notes = StandstillNotes(self.clock, self.told.append, remedy="wait")

    def look(self, after_ms: int, *reaches: Reach) -> list[str]:
        """Look at these partitions of t, so long after the last look. Returns the lines without their remedy."""
        self.clock.advance_ms(after_ms)
        self.told.clear()
        self.notes.look({("t", number): each for number, each in enumerate(reaches)})
        assert self.told == [] or self.told.pop() == "remedy: wait"
        return [each.split(";")[0] for each in self.told]


def test_a_standstill_is_told_once_when_it_has_lasted() -> None:
    watched, held = Watched(), reach(5, 5, 9)
    assert watched.look(0, held) == []
    assert watched.look(STILL_MS - 1, held) == []
    assert watched.look(1, held) == ["t partition 0: stands still at offset 5"]
    assert watched.look(100 * STILL_MS, reach(5, 5, 20)) == []


def test_a_transaction_that_ends_in_time_is_not_told_nor_one_that_others_follow_quickly() -> None:
    watched = Watched()
    for stable in range(5, 50):
        assert watched.look(STILL_MS - 1, reach(stable, stable, 60)) == []
    assert watched.look(STILL_MS - 1, reach(60, 60, 60)) == []
    # the count begins anew
    assert watched.look(STILL_MS, reach(60, 60, 61)) == []
    assert watched.look(STILL_MS, reach(60, 60, 61)) != []


def test_partitions_that_stand_still_together_are_told_together_and_later_ones_later() -> None:
    watched, held = Watched(), reach(5, 5, 9)
    free = reach(3, 3, 3)
    assert watched.look(0, held, free, free) == []
    assert watched.look(STILL_MS - 1, held, held, free) == []
    assert len(watched.look(1, held, held, free)) == 2
    assert watched.look(0, held, held, held) == []
    # the second standstill takes twice as long to be told
    assert watched.look(2 * STILL_MS - 1, held, held, held) == []
    assert watched.look(1, held, held, held) == ["t partition 2: stands still at offset 5"]


def test_the_end_tells_what_was_not_read_and_whether_there_is_any() -> None:
    watched = Watched()
    assert not watched.notes.end({("t", 0): reach(9, 9, 9, until=9)}) and watched.told == []
    assert watched.notes.end({("t", 0): reach(9, 9, 9, until=9), ("u", 1): reach(0, 0, 4, until=0)})
    assert watched.told == [
        "u partition 1: stopped at offset 0; 4 offsets from there on wait for the end of an open transaction",
        "remedy: wait",
    ]
