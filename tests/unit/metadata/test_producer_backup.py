"""Rows of producers on their way into a backup and out of it."""

from __future__ import annotations

import pytest

from metadata.postgres.backup.producers import KEPT, backed_up, restored
from metadata.rules.producer_state import SEQUENCES

VIEW = (
    *("partition_id", "producer_id", "epoch", "first_sequences", "last_sequences", "base_offsets"),
    *("log_append_times_ms", "last_seen_ms"),
)


@pytest.mark.parametrize(
    ("firsts", "lasts", "next_sequence"),
    [
        ([0, 3], [2, 3], 4),
        ([7], [SEQUENCES - 1], 0),
        ([SEQUENCES - 5, SEQUENCES - 2], [SEQUENCES - 3, 1], 2),
    ],
    ids=["in the middle", "up to the last sequence", "beyond the last sequence"],
)
def test_a_restored_producer_goes_on_where_it_was(firsts: list[int], lasts: list[int], next_sequence: int) -> None:
    # given
    row = (4, 2**40, 32_767, firsts, lasts, [2**33 + at for at in range(len(firsts))], [-1] * len(firsts), 99)
    # when
    kept = restored(dict(zip(VIEW, row, strict=True)))
    # then
    assert kept["next_sequence"] == next_sequence
    assert backed_up([kept[column] for column in KEPT]) == row
