"""The file build benchmark at a tiny size: it runs and measures whole files."""

from __future__ import annotations

from agents.write.seal import seal
from bench.cases.file_build import NOW_MS, measure, some_submissions
from storage.format.file_format import read_file


def test_it_gives_a_row_for_each_shape() -> None:
    table = measure([(1, 1), (3, 2)], repeats=1, bytes_count=1 << 14)
    assert [list(row[:2]) for row in table.rows] == [[1, 1], [3, 2]]
    assert all(isinstance(cell, int | float) and cell >= 0 for row in table.rows for cell in row)


def test_what_it_builds_is_a_file_of_about_the_size_asked_for() -> None:
    sealed = seal(some_submissions(10, 8, bytes_count=1 << 18), now_ms=NOW_MS)
    extents = read_file(sealed.file.body).extents
    assert len(extents) == 10
    assert len(sealed.batches) == 80
    assert 0.9 * (1 << 18) < sum(extent.length for extent in extents) <= 1 << 18
