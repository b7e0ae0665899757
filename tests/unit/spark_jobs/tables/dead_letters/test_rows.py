"""The records of a batch that become dead letters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from spark_jobs.tables.dead_letters.rows import UNJUDGED, Judged, part_rows

offsets = some.sets(some.integers(0, 60)).map(sorted)


def array(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


@given(batch=offsets, wrong=some.sets(some.integers(0, 60)), below=some.integers(0, 70), dead=offsets)
def test_a_record_is_kept_or_dead_or_was_dead_before(
    batch: list[int], wrong: set[int], below: int, dead: list[int]
) -> None:
    dead = [each for each in dead if each < below]
    parted = part_rows(array(batch), np.array([each in wrong for each in batch], dtype=bool), below, array(dead))
    for at, offset in enumerate(batch):
        expected = (offset not in dead, False) if offset < below else (offset not in wrong, offset in wrong)
        assert (bool(parted.kept[at]), bool(parted.dead[at])) == expected, offset


@given(dead=some.sets(some.integers(0, 2**62)).map(sorted), below=some.integers(0, 2**62))
def test_judgements_come_back_as_they_were_packed(dead: list[int], below: int) -> None:
    assert Judged.of(below, array(dead)).dead.tolist() == dead


def test_judgements_of_neighbours_take_little_room() -> None:
    assert len(Judged.of(2**40, np.arange(2**40 - 100_000, 2**40, dtype=np.int64)).packed) < 2_000
    assert UNJUDGED.dead.tolist() == [] and Judged.of(7, array([])) == Judged(7)
