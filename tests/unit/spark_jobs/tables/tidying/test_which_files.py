"""The decision to rewrite files of a table."""

from __future__ import annotations

import random

from spark_jobs.tables.file_writer import INDEXED_ROWS
from spark_jobs.tables.tidying.decide import DEAD_SHARE, FANOUT, REWRITE_BYTES, FileFacts, are_to_tidy, to_rewrite


def small(first_offset: int, size_bytes: int = 1_000, *, partition: int = 0, dead: int = 0) -> FileFacts:
    return FileFacts(partition, first_offset, rows=100, dead=dead, size_bytes=size_bytes)


def test_neighbours_of_one_size_are_merged_and_others_are_left() -> None:
    seven = [small(number) for number in range(FANOUT - 1)]
    assert to_rewrite(seven) == []
    assert to_rewrite([*seven, small(9)]) == [list(range(FANOUT))]
    assert to_rewrite([*seven, small(9, partition=1)]) == []
    # a large file between them keeps them apart
    apart = [*(small(number) for number in range(4)), small(4, 100 << 20), *(small(number) for number in range(5, 9))]
    assert to_rewrite(apart) == []


def test_files_of_other_sections_are_no_neighbours() -> None:
    mixed = [small(number)._replace(section="ab"[number % 2]) for number in range(2 * FANOUT - 1)]
    assert to_rewrite(mixed) == [list(range(0, 2 * FANOUT, 2))]


def test_files_that_are_full_of_small_rows_stay() -> None:
    full = [FileFacts(0, number * INDEXED_ROWS, INDEXED_ROWS, 0, 20 << 20) for number in range(2 * FANOUT)]
    assert to_rewrite(full) == []


def test_files_with_many_dead_rows_are_rewritten_alone() -> None:
    files = [small(0, 100 << 20, dead=25), small(1, 100 << 20, dead=26), small(2, 100 << 20)]
    assert to_rewrite(files) == [[1]]


def test_a_run_rewrites_so_many_bytes_or_one_group() -> None:
    large = [small(number, REWRITE_BYTES // 2 + 1, dead=90) for number in range(3)]
    assert len(to_rewrite(large)) == 1
    assert to_rewrite([small(0, 2 * REWRITE_BYTES, dead=90)]) == [[0]]


def test_many_rounds_leave_few_files_and_rewrite_each_row_a_few_times() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    files: list[FileFacts] = []
    written = rewritten = most = 0
    for number in range(5_000):
        rows = chance.randrange(50, 150)
        files.append(FileFacts(0, number, rows, 0, rows * 100))
        written += rows
        # old rows die, as new ones supersede them
        at = chance.randrange(len(files))
        files[at] = files[at]._replace(dead=min(files[at].rows, files[at].dead + rows // 4))
        for group in to_rewrite(files):
            held = [files[each] for each in group]
            live = sum(each.rows - each.dead for each in held)
            rewritten += live
            files[group[0]] = FileFacts(0, held[0].first_offset, live, 0, live * 100)
            for each in group[1:]:
                files[each] = files[each]._replace(rows=0)
        files = [each for each in files if each.rows > each.dead]
        most = max(most, len(files))
    assert most <= 5 * FANOUT
    assert rewritten <= 6 * written
    assert DEAD_SHARE < 1


def test_a_logs_files_are_looked_at_once_for_some_of_each_partition() -> None:
    assert [after for after in range(1, 50) if are_to_tidy(after - 1, after, 2)] == [16, 32, 48]
    assert are_to_tidy(14, 18, 2) and not are_to_tidy(16, 16, 2)
