"""The benchmark of the kernels at a tiny size: it runs, and its steps do the work that they time."""

from __future__ import annotations

from bench.cases.kernels import measure_hashes, measure_steps, measure_sums, measure_table, some_windows


def test_every_step_is_measured_over_all_records() -> None:
    windows = some_windows(700, window_records=300)
    assert [len(window.columns.key_lengths) for window in windows] == [300, 300, 100]
    assert [len(window.table.sizes) for window in windows] == [3, 3, 1]
    table = measure_steps(windows, repeats=1)
    assert len(table.rows) == 5
    assert all(isinstance(cell, float) and cell >= 0 for row in table.rows for cell in row[1:])


def test_the_table_of_keys_the_hashes_and_the_sums_are_measured() -> None:
    (window,) = some_windows(200)
    assert [row[0] for row in measure_table(1000, repeats=1).rows] == [1000] * 3
    assert [row[0] for row in measure_hashes(window, repeats=1).rows][1:] == ["one at a time", "hashlib"]
    assert len(measure_sums(repeats=1, bytes_count=100_000).rows) == 5
