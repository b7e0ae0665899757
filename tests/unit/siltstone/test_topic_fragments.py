"""The parts of a topic for a filter: what is joined, and what is never left out."""

from __future__ import annotations

from siltstone.reading.fragments import joined, stretches_of
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import Piece, Slice
from spark_jobs.scan.decode import TIMESTAMP_MS_LIMIT
from storage.memory import MemoryStore


def piece(first: int, last: int, latest_ms: int, flagged: str | None = None) -> Piece:
    return Piece("l1/a.silt", 1_000, 1, 0, 100, first, last, 5, 0, latest_ms, flagged_reason=flagged)


def part(start: int, end: int, *pieces: Piece, aborted: tuple[tuple[int, int, int], ...] = ()) -> Slice:
    return Slice(partition=0, partition_id=7, start=start, end=end, pieces=pieces, aborted=aborted)


def test_neighbours_are_joined_with_the_pieces_and_aborted_transactions_of_both() -> None:
    long = piece(0, 19, 5)
    one = part(0, 10, long, aborted=((1, 2, 12), (2, 3, 4)))
    two = part(10, 20, long, aborted=((1, 2, 12), (3, 14, 15)))
    far = part(30, 40, piece(30, 39, 5))
    assert list(joined([one, two, far])) == [part(0, 20, long, aborted=((1, 2, 12), (2, 3, 4), (3, 14, 15))), far]


def test_damaged_files_and_offsets_that_no_file_holds_count_as_new() -> None:
    whole = part(0, 60, piece(0, 9, 5), piece(20, 29, 6), piece(30, 39, 7, flagged="crc"), piece(40, 49, 8))
    with BlockingStore(MemoryStore()) as store:
        found = [(each.start, each.end, each.latest_ms) for each in stretches_of(store, whole)]
    new = TIMESTAMP_MS_LIMIT
    assert found == [(0, 10, 5), (10, 30, new), (30, 40, new), (40, 50, 8), (50, 60, new)]
