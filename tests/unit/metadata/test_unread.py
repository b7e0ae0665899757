"""The times of unread records in L0: those of the rows that hold them, and never later than what was read allows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.rules.packed_index import IndexRow, encode_index
from metadata.rules.unread import FirstUnread, times_in_l0
from tests.fixtures.chance import examples

Files = list[tuple[int, bytes]]
FILE_MS = 1_000


def log_of(counts: list[list[int]]) -> Files:
    """Files from the newest on. File `n` is written at (n + 1) seconds, its records came up to 100 ms before."""
    ends = dict.fromkeys(range(3), 0)
    files: Files = []
    for number, of_file in enumerate(counts, 1):
        rows: list[IndexRow] = []
        for partition_id, count in enumerate(of_file):
            if count:
                base, ends[partition_id] = ends[partition_id], ends[partition_id] + count
                written_ms = number * FILE_MS - partition_id
                rows.append(IndexRow(partition_id, base, base + count - 1, 0, 1, written_ms - 100, written_ms))
        files.append((number * FILE_MS, encode_index(rows)))
    return files[::-1]


@settings(max_examples=examples(200))
@given(
    counts=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8),
    read=st.integers(1, 5),
    offset=st.integers(0, 9),
)
def test_a_time_is_exact_where_its_file_was_read_and_else_that_of_the_oldest_file_read(
    counts: list[list[int]], read: int, offset: int
) -> None:
    files = log_of(counts)
    is_cut = read < len(files)
    wanted = [FirstUnread(partition_id, offset) for partition_id in range(3)]
    times = times_in_l0(wanted, files[:read], is_cut=is_cut)
    for place in wanted:
        end, holder = 0, None
        for number, of_file in enumerate(counts, 1):
            end += of_file[place.partition_id]
            if end > offset:
                holder = number
                break
        if holder is None:
            # Beyond the end: no caller asks for it, and a cut answers for what it has not seen.
            assert times.get(place) == (files[:read][-1][0] if is_cut else None)
        elif holder > len(counts) - read:
            assert times[place] == holder * FILE_MS - place.partition_id
        else:
            assert holder * FILE_MS < times[place] <= files[:read][-1][0]


def test_of_several_rows_of_a_file_the_one_that_holds_it_counts_and_a_record_without_a_time_has_the_files() -> None:
    rows = [IndexRow(7, 20, 29, 0, 1, 5, 500), IndexRow(7, 30, 39, 2, 1, -1, -1), IndexRow(8, 0, 9, 1, 1, 5, 600)]
    wanted = [FirstUnread(7, 25), FirstUnread(7, 30), FirstUnread(9, 0)]
    found = times_in_l0(wanted, [(900, encode_index(rows))], is_cut=False)
    assert found == {FirstUnread(7, 25): 500, FirstUnread(7, 30): 900}
