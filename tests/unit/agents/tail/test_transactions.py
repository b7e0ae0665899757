"""The transactions of partitions in the index: what is stable, what was aborted, and when each becomes known."""

from __future__ import annotations

from collections.abc import Sequence

from agents.tail.log_index import ENTRY_BYTES, EXTENT_BYTES, INLINE_FILE_BYTES, FileRef
from agents.tail.transactions import aborted_in
from metadata.rules.packed_index import IndexRow
from metadata.transactions.contract import MARKER_BYTES, AbortedTransaction, OpenTransaction
from tests.unit.agents.tail.transactional_index import ABORT, COMMIT, Index, begin, end, opened


def test_the_last_stable_offset_is_the_first_of_the_oldest_open_transaction() -> None:
    index = opened()
    index.records(1, 0, 9)
    assert index.ends() == (10, 10)
    index.records(2, 10, 29, begin(7, 10), begin(8, 20))
    assert index.ends() == (10, 30)
    index.records(3, 30, 39)
    assert index.ends() == (10, 40)
    index.markers(4, end(COMMIT, 8, 20, 40))
    assert index.ends() == (10, 41), "the older one is still open"
    index.markers(5, end(ABORT, 7, 10, 41))
    assert (index.ends(), index.aborted()) == ((42, 42), [(7, 10, 41)])


def test_a_producer_goes_on_with_its_next_transaction() -> None:
    index = opened()
    for number in range(3):
        index.records(2 * number, 2 * number, 2 * number, begin(7, 2 * number))
        assert index.ends() == (2 * number, 2 * number + 1)
        index.markers(2 * number + 1, end(COMMIT, 7, 2 * number, 2 * number + 1))
    assert index.ends() == (6, 6)
    assert index.log().transactions is None, "nothing is kept of what was committed"


def test_markers_that_are_heard_of_first_end_nothing_before_their_records_are_seen() -> None:
    index = opened()
    index.records(1, 0, 4, begin(7, 0))
    # given: another agent's records of 7 and of 8, not yet seen, and the markers behind them
    assert index.markers(3, end(ABORT, 7, 0, 10), end(COMMIT, 8, 7, 11)) == []
    assert (index.ends(), index.gaps, index.aborted()) == ((0, 5), 1, [])
    index.records(2, 5, 9, begin(8, 7))
    assert (index.ends(), index.gaps, index.aborted()) == ((12, 12), 0, [(7, 0, 10)])


def test_a_file_that_waits_and_comes_a_second_time_in_order_begins_its_transaction_once() -> None:
    index = opened()
    for _ in range(2):
        index.records(2, 5, 9, begin(7, 5))
    index.records(1, 0, 4)
    index.records(2, 5, 9, begin(7, 5))
    assert index.ends() == (5, 10)
    index.markers(3, end(COMMIT, 7, 5, 10))
    index.records(2, 5, 9, begin(7, 5))
    assert (index.ends(), index.log().transactions) == ((11, 11), None)
    # and a waiting copy that is overtaken by the file itself leaves nothing behind
    index.records(5, 20, 29, begin(9, 20))
    index.log().end = 20
    index.records(5, 20, 29, begin(9, 20))
    assert index.ends() == (20, 30)
    index.markers(6, end(COMMIT, 9, 20, 30))
    assert (index.gaps, index.log().transactions) == (0, None)


def test_the_rows_of_files_that_were_merged_before_they_were_heard_of_count() -> None:
    index = opened()
    index.records(1, 0, 4, begin(7, 0), live=False)
    assert index.ends() == (0, 5)
    index.markers(3, end(ABORT, 7, 0, 10), live=False)
    index.records(2, 5, 9, begin(8, 5), live=False)
    assert (index.ends(), index.files, index.aborted()) == ((5, 11), 0, []), "merged extents are the store's to answer"
    index.markers(4, end(COMMIT, 8, 5, 11), live=False)
    assert (index.ends(), index.inline_files, index.extents) == ((12, 12), 0, 0)


def test_a_file_that_is_merged_while_it_waits_keeps_its_rows() -> None:
    index = opened()
    index.records(2, 5, 9, begin(7, 5))
    index.markers(3, end(ABORT, 7, 5, 10))
    index.drop(2)
    index.records(1, 0, 4)
    assert (index.ends(), index.aborted()) == ((11, 11), [(7, 5, 10)])


def test_aborted_transactions_are_forgotten_below_what_lies_in_l0() -> None:
    index = opened()
    for number in range(4):
        index.records(2 * number, 2 * number, 2 * number, begin(7, 2 * number))
        index.markers(2 * number + 1, end(ABORT, 7, 2 * number, 2 * number + 1))
    assert [marker for _, _, marker in index.aborted()] == [1, 3, 5, 7]
    index.drop(2, 3)
    assert [marker for _, _, marker in index.aborted()] == [1, 3, 5, 7], "file 0 still lies in L0"
    index.drop(0, 1, 4)
    assert index.aborted() == [(7, 4, 5), (7, 6, 7)], "its marker still lies in L0"
    index.move_log_start(1, 6)
    assert index.aborted() == [(7, 6, 7)]
    index.drop(5, 6, 7)
    assert (index.log().transactions, index.bytes_used) == (None, 0)


def test_the_log_start_bounds_the_last_stable_offset_and_does_not_end_transactions() -> None:
    index = opened()
    index.records(1, 0, 9, begin(7, 0))
    index.move_log_start(1, 5)
    assert index.ends() == (5, 10)
    # its move may be seen before the records
    index.move_log_start(1, 20)
    assert index.ends() == (10, 10)
    index.records(2, 10, 29)
    assert index.ends() == (20, 30)
    index.markers(3, end(ABORT, 7, 0, 30))
    assert index.ends() == (31, 31)
    index.move_log_start(1, 31)
    assert (index.aborted(), index.log().transactions) == ([], None)


def test_files_of_markers_stall_no_writer_and_count_for_memory() -> None:
    index = opened(1, 2)
    index.records(1, 0, 4, begin(7, 0))
    index.records(2, 0, 4, begin(7, 0, partition_id=2), partition_id=2)
    # when: one file ends it on both partitions, with the same bytes, behind a marker of another producer
    index.markers(3, *(end(ABORT, each, 0, 5 + each - 7, partition_id=at) for at in (1, 2) for each in (7, 8)))
    assert (index.files, index.inline_files, index.extents) == (2, 1, 6)
    places = [[(each.position, each.base_offset) for each in index.extents_from(at, 5)] for at in (1, 2)]
    assert places == [[(0, 5), (MARKER_BYTES, 6)]] * 2
    assert index.file(3).inline[:1] == b"\x07"
    assert index.bytes_used == 6 * EXTENT_BYTES + INLINE_FILE_BYTES + 4 * ENTRY_BYTES
    index.drop_partition(1)
    assert (index.files, index.inline_files, index.bytes_used) == (
        1,
        1,
        3 * EXTENT_BYTES + INLINE_FILE_BYTES + 2 * ENTRY_BYTES,
    )
    index.drop(3)
    assert (index.files, index.inline_files) == (1, 0)
    index.drop(2)
    assert index.bytes_used == 0


def test_markers_of_a_partition_need_not_ascend_in_their_file() -> None:
    index = opened()
    index.records(1, 0, 1, begin(9, 0), begin(8, 1))
    index.markers(2, end(ABORT, 9, 0, 2), end(COMMIT, 8, 1, 3))
    assert [each.position for each in index.extents_from(1, 2)] == [MARKER_BYTES, 0]
    assert (index.ends(), index.aborted()) == ((4, 4), [(9, 0, 2)])


def loaded(open_now: Sequence[tuple[int, int]], aborted: Sequence[tuple[int, int, int]]) -> Index:
    """A snapshot of [0, 100) in which the records from 50 on lie in L0."""
    index = Index()
    opens = [OpenTransaction(1, producer_id, first) for producer_id, first in open_now]
    index.open_partition(1, start=0, end=100, open_transactions=opens)
    index.load_file(5, FileRef("key-5", 1_000, 1_005), [IndexRow(1, 50, 99, 0, 100, 0, 0)])
    assert dict(index.lowest_bases()) == {1: 50}
    index.load_aborted([AbortedTransaction(1, *each) for each in aborted])
    return index


def test_a_snapshot_says_what_is_open_and_the_store_what_was_aborted() -> None:
    index = loaded([(8, 90), (7, 40)], [(3, 10, 60), (4, 55, 70), (7, 40, 100)])
    # the marker at 100 lies beyond the snapshot and comes with its file
    assert (index.ends(), index.aborted()) == ((40, 100), [(3, 10, 60), (4, 55, 70)])
    index.markers(6, end(ABORT, 7, 40, 100))
    assert (index.ends(), index.aborted()) == ((90, 101), [(3, 10, 60), (4, 55, 70), (7, 40, 100)])
    assert index.bytes_used == 2 * EXTENT_BYTES + INLINE_FILE_BYTES + 4 * ENTRY_BYTES
    index.drop(5)
    assert index.aborted() == [(7, 40, 100)]
    # and an index that becomes another one takes its counts along
    other = Index()
    other.become(index)
    assert (other.bytes_used, other.files, other.inline_files, other.ends()) == (
        EXTENT_BYTES + INLINE_FILE_BYTES + 2 * ENTRY_BYTES,
        0,
        1,
        (90, 101),
    )


def test_partitions_without_files_or_transactions_are_not_asked_about() -> None:
    index = opened(1, 2)
    index.records(1, 0, 4)
    assert list(index.lowest_bases()) == [(1, 0)]
    index.load_aborted([AbortedTransaction(9, 7, 0, 3)])
    assert index.log().transactions is None


def test_those_of_a_stretch_are_found_whatever_order_they_began_in() -> None:
    # given: 1 began first and was aborted last; 2 and 3 lie inside it; 4 comes after all of them
    index = opened()
    index.records(1, 0, 39, begin(1, 5), begin(2, 10), begin(3, 20))
    index.markers(2, end(ABORT, 2, 10, 40))
    index.records(3, 41, 49)
    index.markers(4, end(ABORT, 3, 20, 50), end(ABORT, 1, 5, 51))
    index.records(5, 52, 59, begin(4, 52))
    index.markers(6, end(ABORT, 4, 52, 60))
    transactions = index.log().transactions
    assert transactions is not None
    entries = transactions.aborted

    def found(offset: int, to: int) -> list[int]:
        return [each.producer_id for each in aborted_in(entries, offset, to)]

    assert found(0, 100) == [2, 3, 1, 4]
    assert found(0, 6) == [1]
    assert found(0, 5) == []
    assert found(40, 41) == [2, 3, 1]
    assert found(41, 52) == [3, 1]
    assert found(51, 53) == [1, 4]
    assert found(52, 53) == [4]
    assert found(61, 100) == []
