"""The index of the places of records: contiguous per partition, in whatever order files come in."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from agents.tail.log_index import EXTENT_BYTES, FileRef, LogIndex
from metadata.rules.packed_index import IndexRow


def row(partition_id: int, base: int, last: int, *, position: int = 0, length: int = 100, stamp: int = 0) -> IndexRow:
    return IndexRow(partition_id, base, last, position, length, stamp, stamp)


def ref(file_id: int) -> FileRef:
    return FileRef(f"key-{file_id}", 1000, 1000 + file_id)


def opened(*partition_ids: int) -> LogIndex:
    index = LogIndex()
    for partition_id in partition_ids:
        index.open_partition(partition_id, start=0, end=0)
    return index


def test_extents_that_follow_each_other_move_the_end() -> None:
    index = opened(1)
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == [1]
    assert index.add_file(2, ref(2), [row(1, 10, 10)]) == [1]
    log = index.partition(1)
    assert log is not None
    assert log.end == 11
    assert [extent.base_offset for extent in index.extents_from(1, 9)] == [0, 10]
    assert [extent.base_offset for extent in index.extents_from(1, 10)] == [10]
    assert list(index.extents_from(1, 11)) == []


def test_a_gap_waits_and_is_never_served_early() -> None:
    index = opened(1)
    assert index.add_file(2, ref(2), [row(1, 5, 9)]) == []
    log = index.partition(1)
    assert log is not None
    assert log.end == 0
    assert list(index.extents_from(1, 0)) == []
    assert index.gaps == 1
    assert index.add_file(1, ref(1), [row(1, 0, 4)]) == [1]
    assert log.end == 10
    assert index.gaps == 0
    assert [extent.file_id for extent in index.extents_from(1, 0)] == [1, 2]


def test_a_file_that_comes_twice_is_taken_once() -> None:
    index = opened(1, 2)
    rows = [row(1, 0, 4), row(2, 0, 0)]
    assert index.add_file(1, ref(1), rows) == [1, 2]
    assert index.add_file(1, ref(1), rows) == []
    assert index.extents == 2
    assert index.bytes_used == 2 * EXTENT_BYTES


def test_a_hole_in_a_file_gives_two_extents_of_one_partition() -> None:
    index = opened(1)
    index.add_file(1, ref(1), [row(1, 0, 4, position=0), row(1, 5, 6, position=300)])
    assert [extent.position for extent in index.extents_from(1, 0)] == [0, 300]


def test_rows_of_unknown_partitions_are_left_out() -> None:
    index = opened(1)
    assert index.add_file(1, ref(1), [row(9, 0, 4)]) == []
    assert index.files == 0


def test_files_are_forgotten_with_their_last_extent() -> None:
    index = opened(1, 2)
    index.add_file(1, ref(1), [row(1, 0, 4), row(2, 0, 4)])
    index.add_file(2, ref(2), [row(1, 5, 9)])
    index.move_log_start(1, 5)
    assert index.files == 2
    index.drop_partition(2)
    assert index.files == 1
    assert index.file(2).key == "key-2"
    index.drop_partition(1)
    assert (index.files, index.extents, index.bytes_used) == (0, 0, 0)


def test_the_log_start_never_goes_back_and_keeps_the_extent_it_lies_in() -> None:
    index = opened(1)
    index.add_file(1, ref(1), [row(1, 0, 9)])
    index.add_file(2, ref(2), [row(1, 10, 19)])
    index.move_log_start(1, 15)
    index.move_log_start(1, 3)
    log = index.partition(1)
    assert log is not None
    assert (log.start, len(log)) == (15, 1)


def test_a_snapshot_begins_where_it_says_and_follows_on() -> None:
    index = LogIndex()
    index.open_partition(1, start=3, end=10)
    index.load_file(1, ref(1), [row(1, 0, 2)])
    index.load_file(2, ref(2), [row(1, 3, 9)])
    assert index.add_file(2, ref(2), [row(1, 3, 9)]) == []
    assert index.add_file(3, ref(3), [row(1, 10, 12)]) == [1]
    assert [extent.file_id for extent in index.extents_from(1, 0)] == [2, 3]


def test_a_file_below_a_log_start_that_was_heard_of_first_is_not_live() -> None:
    index = opened(1)
    # given: another agent wrote three files and deleted the first two; the news of all this comes at once
    index.move_log_start(1, 20)
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == [1]
    assert index.add_file(3, ref(3), [row(1, 20, 29)]) == []
    assert index.add_file(2, ref(2), [row(1, 10, 19)]) == [1]
    log = index.partition(1)
    assert log is not None
    assert (log.start, log.end) == (20, 30)
    assert [extent.file_id for extent in index.extents_from(1, 0)] == [3]
    assert (index.files, index.extents) == (1, 1)


def test_a_file_that_waits_and_falls_below_the_log_start_is_not_live() -> None:
    index = opened(1)
    assert index.add_file(2, ref(2), [row(1, 10, 19)]) == []
    index.move_log_start(1, 20)
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == [1]
    log = index.partition(1)
    assert log is not None
    assert (log.end, index.files, index.extents, index.gaps) == (20, 0, 0, 0)


def test_a_file_of_which_nothing_was_accepted_is_not_live() -> None:
    index = opened(1)
    assert index.add_file(1, ref(1), []) == []
    assert index.files == 0


def test_bytes_at_hand_are_counted_up_to_the_limit() -> None:
    index = opened(1)
    for number in range(4):
        index.add_file(number, ref(number), [row(1, number, number, length=100)])
    log = index.partition(1)
    assert log is not None
    assert log.bytes_from(1, 1000, log.end) == 300
    assert log.bytes_from(1, 150, log.end) == 150
    assert log.bytes_from(4, 1000, log.end) == 0


def test_timestamps_are_found_in_offset_order() -> None:
    index = opened(1)
    for number, stamp in enumerate([50, 200, 100, 200]):
        index.add_file(number, ref(number), [row(1, number, number, stamp=stamp)])
    log = index.partition(1)
    assert log is not None
    assert log.first_row_with_timestamp(60) == 1
    assert log.first_row_with_timestamp(60, 2) == 2
    assert log.first_row_with_timestamp(201) == 4
    assert log.row_of_largest_timestamp() == 1


def _cut(lengths: list[int]) -> Iterator[tuple[int, int]]:
    base = 0
    for length in lengths:
        yield base, base + length - 1
        base += length


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_of_arrival_ends_in_the_same_contiguous_log(lengths: list[int], chance: random.Random) -> None:
    files = [(number, row(1, base, last)) for number, (base, last) in enumerate(_cut(lengths))]
    again = [chance.choice(files) for _ in range(len(files) // 2)]
    shuffled = files + again
    chance.shuffle(shuffled)
    index = opened(1)
    log = index.partition(1)
    assert log is not None
    end = 0
    for file_id, each in shuffled:
        index.add_file(file_id, ref(file_id), [each])
        served = [(extent.base_offset, extent.last_offset) for extent in index.extents_from(1, 0)]
        assert served == list(_cut(lengths))[: len(served)], "the served records are always a prefix"
        assert log.end >= end
        end = log.end
    assert log.end == sum(lengths)
    assert index.extents == len(files)
    assert sum(index.file(file_id).extents for file_id, _ in files) == len(files)


# ---- files that merges replaced


def drop(index: LogIndex, *file_ids: int) -> None:
    for _ in index.drop_files(file_ids):
        pass


def served(index: LogIndex, partition_id: int = 1) -> list[int]:
    return [extent.file_id for extent in index.extents_from(partition_id, 0)]


def test_a_merged_file_leaves_a_hole_and_the_end_stays() -> None:
    index = opened(1, 2)
    for number in range(4):
        index.add_file(number, ref(number), [row(1, 10 * number, 10 * number + 9), row(2, number, number)])
    drop(index, 1, 2, 99)
    log = index.partition(1)
    assert log is not None
    assert (served(index), log.end, index.files, index.extents) == ([0, 3], 40, 2, 4)
    assert log.extent_at(5) is not None
    assert log.extent_at(15) is None
    assert log.extent_at(30) is not None
    drop(index, 0, 3)
    assert (index.files, index.extents, index.bytes_used, log.end) == (0, 0, 0, 40)
    assert index.add_file(4, ref(4), [row(1, 40, 41)]) == [1]


def test_what_lies_in_merged_files_counts_as_enough_bytes_at_hand() -> None:
    index = opened(1)
    for number in range(4):
        index.add_file(number, ref(number), [row(1, number, number, length=100)])
    drop(index, 1)
    log = index.partition(1)
    assert log is not None
    assert log.bytes_from(0, 150, log.end) == 150
    assert log.bytes_from(0, 100, log.end) == 100
    assert log.bytes_from(1, 1_000_000, log.end) == 1_000_000
    assert log.bytes_from(2, 1_000_000, log.end) == 200
    drop(index, 0, 2, 3)
    assert log.bytes_from(3, 1_000_000, log.end) == 1_000_000
    assert log.bytes_from(4, 1_000_000, log.end) == 0


def test_a_file_that_was_merged_before_it_was_heard_of_only_moves_the_end() -> None:
    index = opened(1)
    assert index.add_file(1, ref(1), [row(1, 0, 9)], live=False) == [1]
    log = index.partition(1)
    assert log is not None
    assert (log.end, index.files, index.extents) == (10, 0, 0)
    # and its own agent's late answer to the commit changes nothing
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == []
    assert (log.end, index.files) == (10, 0)


def test_a_dead_file_waits_its_turn_like_a_live_one() -> None:
    index = opened(1)
    assert index.add_file(2, ref(2), [row(1, 10, 19)], live=False) == []
    assert index.add_file(2, ref(2), [row(1, 10, 19)]) == [], "the own commit, late"
    assert (index.gaps, index.files) == (1, 0)
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == [1]
    log = index.partition(1)
    assert log is not None
    assert (log.end, served(index), index.gaps) == (20, [1], 0)


def test_a_file_that_is_merged_while_it_waits_keeps_its_place_in_the_line() -> None:
    index = opened(1)
    index.add_file(2, ref(2), [row(1, 10, 19)])
    index.add_file(3, ref(3), [row(1, 20, 29)])
    drop(index, 2)
    assert (index.files, index.gaps) == (1, 1)
    assert index.add_file(1, ref(1), [row(1, 0, 9)]) == [1]
    log = index.partition(1)
    assert log is not None
    assert (log.end, served(index)) == (30, [1, 3])
    index.drop_partition(1)
    assert (index.files, index.extents, index.gaps) == (0, 0, 0)


def test_log_starts_and_deletions_of_topics_may_cross_a_drop_that_is_under_way() -> None:
    index = opened(*range(200))
    for number in range(400):
        index.add_file(number, ref(number), [row(partition_id, number, number) for partition_id in range(200)])
    dropping = index.drop_files(range(300))
    pauses = 0
    for pauses, _ in enumerate(dropping, 1):
        index.move_log_start(pauses % 200, 350)
        index.drop_partition((pauses + 50) % 200)
        log = index.partition(100)
        assert log is not None
        assert log.end == 400
        # the remaining extents can be read: every extent still knows its file
        for extent in index.extents_from(100, 0):
            index.file(extent.file_id)
    assert pauses > 2
    for partition_id in range(200):
        if index.partition(partition_id) is not None:
            index.drop_partition(partition_id)
    assert (index.files, index.extents) == (0, 0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_any_order_of_commits_merges_and_own_answers_ends_in_the_same_index(
    lengths: list[int], chance: random.Random
) -> None:
    files = [(number, row(1, base, last)) for number, (base, last) in enumerate(_cut(lengths))]
    merged = {number for number, _ in files if chance.random() < 0.5}
    index = opened(1)
    log = index.partition(1)
    assert log is not None
    # Own answers come at any time. The tail first reports the extent live and later merged, or dead at once.
    steps = [(chance.random(), number) for number, _ in files for _ in range(2)]
    told: set[int] = set()
    for _, number in sorted(steps):
        index.add_file(number, ref(number), [files[number][1]], live=number not in merged or number not in told)
        told.add(number)
        if number in merged:
            drop(index, number)
    assert log.end == sum(lengths)
    assert served(index) == [number for number, _ in files if number not in merged]
    assert index.files == index.extents == len(files) - len(merged)
