"""The rules in Kafka's own tests of its log cleaner, for one partition: each docstring names Kafka's test.

If a merge must differ from Kafka's cleaner, the test asserts the merge's rule (docs/decisions/0011-cleaning-rules.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fixtures.cleaning import (
    ABORT,
    CLEANERS,
    COMMIT,
    DELETE_RETENTION_MS,
    Cleaned,
    Log,
    is_empty,
    marker_batch,
    pairs,
    stored,
)
from tests.fixtures.record_batches import NOW_MS, with_header
from wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, ProducerStamp, read_header
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

Clean = Callable[..., Cleaned]
LATER_MS = NOW_MS + DELETE_RETENTION_MS


@pytest.fixture(params=CLEANERS)
def clean(request: pytest.FixtureRequest) -> Clean:
    return CLEANERS[request.param]


def again(log: Log, cleaned: Cleaned) -> Log:
    """The partition after the pass; new batches follow its old end."""
    after = Log(codec=log.codec, timestamp_ms=log.timestamp_ms)
    after.batches, after.end = cleaned.batches, log.end
    return after


def at(log: Log, now_ms: int, **changed: object) -> object:
    ends = dict.fromkeys(("first_uncleanable_offset", "whole_through_offset", "high_watermark"), log.end)
    return log.bounds(**({"now_ms": now_ms, "last_stable_offset": log.end} | ends | changed))


# Keys


def test_records_whose_key_comes_again_go_and_all_others_stay(clean: Clean) -> None:
    """LogCleanerTest.testCleanSegments"""
    log = Log()
    for n in range(10):
        log.append((n % 6, n))

    cleaned = clean(log.batches, log.bounds())

    assert pairs(cleaned.records) == [(n, str(n % 6), str(n)) for n in range(4, 10)]
    assert cleaned.stats.bytes_in == sum(map(len, log.batches))
    assert cleaned.stats.bytes_out == sum(map(len, cleaned.batches))
    assert (cleaned.stats.records_in, cleaned.stats.records_out) == (10, 6)
    assert (cleaned.stats.batches_verbatim, cleaned.stats.batches_removed) == (6, 4)


def test_old_values_of_deleted_keys_are_gone_and_the_deletes_stay_first(clean: Clean) -> None:
    """LogCleanerTest.testCleaningWithDeletes"""
    log = Log()
    log.append(*((n, n) for n in range(10)))
    log.append(*((n, None) for n in range(0, 10, 2)))

    cleaned = clean(log.batches, log.bounds())

    left = {key: value for _, key, value in pairs(cleaned.records)}
    assert left == {str(n): None if n % 2 == 0 else str(n) for n in range(10)}
    assert cleaned.tombstones == 5


def test_a_tombstone_is_judged_by_its_place_and_not_by_its_timestamp(clean: Clean) -> None:
    """LogCleanerTest.testCleanTombstone: its timestamp is ancient, the value's lies in the future."""
    log = Log()
    log.append(("key", "value"), timestamp_ms=NOW_MS + 10**9)
    log.append(("key", None), timestamp_ms=1)

    cleaned = clean(log.batches, log.bounds())

    assert pairs(cleaned.records) == [(1, "key", None)]
    assert cleaned.records[0].timestamp_ms == 1


def test_a_table_of_one_key_is_cleared_at_the_second_and_nothing_is_lost(clean: Clean) -> None:
    """LogCleanerTest.testPartialSegmentClean. Kafka stops when its map is full and continues there in the next round;
    a merge clears the table and continues at once, so a round covers all keys and is clean up to the first clear."""
    log = Log()
    for n in (1, 1, 2, 2, 3, 3, 1):
        log.append((n, n))

    cleaned = clean(log.batches, log.bounds(), keys_max=1)

    assert cleaned.offsets == [1, 3, 5, 6]  # 1 stays twice: its entry was gone when it came again
    assert (cleaned.scanned.clears, cleaned.scanned.first_clear_offset, cleaned.scanned.keys) == (3, 2, 4)
    # and a round that can hold all keys leaves one of each
    assert clean(cleaned.batches, at(again(log, cleaned), NOW_MS)).offsets == [3, 5, 6]
    assert clean(log.batches, log.bounds(), keys_max=1, passes=2).offsets == [3, 5, 6]


def test_nothing_from_the_first_uncleanable_offset_on_is_touched(clean: Clean) -> None:
    """LogCleanerTest.testCleaningWithUncleanableSection"""
    log = Log()
    for n in range(15):
        log.append((n % 5, n), (n % 5, n))

    cleaned = clean(log.batches, log.bounds(first_uncleanable_offset=20))

    assert [batch for batch in cleaned.batches if read_header(batch).base_offset >= 20] == log.batches[10:]
    assert cleaned.offsets == [11, 13, 15, 17, 19, *range(20, 30)]


def test_the_bound_may_lie_within_a_batch(clean: Clean) -> None:
    log = Log()
    log.append(("a", 1), ("b", 1), (None, "no key"), ("a", 2), (None, "no key"), ("b", 2))

    cleaned = clean(log.batches, log.bounds(first_uncleanable_offset=4))

    assert cleaned.offsets == [1, 3, 4, 5]  # "b" at 5 is above the bound, so it does not replace the one at 1


def test_records_without_a_key_go_and_are_counted(clean: Clean) -> None:
    """LogCleanerTest.testCleaningWithUnkeyedMessages"""
    log = Log()
    log.append((None, 1), ("k", 2), (None, 3))
    log.append((None, 4))
    log.append(("z", 5))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.offsets == [1, 4]
    assert cleaned.stats.keyless_dropped == 3
    assert (cleaned.scanned.dead_records, cleaned.scanned.keys) == (3, 2)


@pytest.mark.parametrize("codec", Codec)
def test_the_last_value_and_offset_of_every_key_outlive_cleaning_in_every_codec(clean: Clean, codec: Codec) -> None:
    """LogCleanerParameterizedIntegrationTest.cleanerTest"""
    log = Log(codec=codec)
    for n in range(30):
        log.append(*((f"key-{(n * 7 + m) % 40}", f"value {n} {m} " * 5) for m in range(20)))

    cleaned = clean(log.batches, log.bounds())

    before = {key: (offset, value) for offset, key, value in pairs(stored(log.batches))}
    after = {key: (offset, value) for offset, key, value in pairs(cleaned.records)}
    assert after == before and len(cleaned.records) == 40
    assert cleaned.stats.bytes_out < cleaned.stats.bytes_in / 5
    assert {header.codec for header in cleaned.headers} == {codec}


def test_the_table_takes_exactly_what_lies_below_the_bound(clean: Clean) -> None:
    """LogCleanerTest.testBuildOffsetMap"""
    log = Log()
    for n in range(500):
        log.append((n, n))

    for bound, keys in ((0, 0), (1, 1), (250, 250), (500, 500)):
        scanned = clean(log.batches, log.bounds(first_uncleanable_offset=bound)).scanned
        assert (scanned.records, scanned.keys, scanned.dead_records) == (bound, keys, 0)


def test_huge_gaps_between_offsets_are_nothing_special(clean: Clean) -> None:
    """LogCleanerTest.testBuildOffsetMapFakeLarge, testCleaningBeyondMissingOffsets"""
    log = Log()
    for n in range(4):
        log.end = n * (2**31 - 1) + 2**40
        log.append(("key", n))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.offsets == [2**40 + 3 * (2**31 - 1)]


def test_a_table_that_is_full_inside_a_batch_is_cleared_there(clean: Clean) -> None:
    """LogCleanerTest.testBuildPartialOffsetMap, testLogCleanerStats"""
    log = Log()
    log.append(*((n, n) for n in range(5)))

    scanned = clean(log.batches, log.bounds(), keys_max=3).scanned

    assert (scanned.clears, scanned.first_clear_offset, scanned.keys) == (1, 3, 5)


def test_large_records_are_cleaned_like_small_ones(clean: Clean) -> None:
    """LogCleanerTest.testLargeMessage, testMessageLargerThanMaxMessageSize"""
    log = Log()
    log.append(("big", b"x" * 3_000_000), ("small", 1))
    log.append(("small", 2))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.offsets == [0, 2]
    assert cleaned.records[0].value == b"x" * 3_000_000


# Batches


def test_one_empty_batch_is_left_of_a_partition_whose_last_batch_lost_all(clean: Clean) -> None:
    """LogCleanerTest.testCleanSegmentsRetainingLastEmptyBatch, MemoryRecordsTest.testFilterToEmptyBatchRetention"""
    log = Log()
    log.append(("a", None), ("b", None))
    log.append(("c", None), producer=ProducerStamp(23, 5, 10))
    stamped = again(log, clean(log.batches, log.bounds()))

    cleaned = clean(stamped.batches, at(stamped, LATER_MS))

    (left,) = cleaned.batches
    header = read_header(left)
    assert is_empty(left) and header.next_offset == log.end
    assert (header.attributes, header.base_timestamp_ms) == (0, -1)
    assert header.max_timestamp_ms == read_header(log.batches[-1]).max_timestamp_ms
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (23, 5, 10)
    assert cleaned.stats.tombstones_dropped == 3
    # and it is copied as it is while it is the last
    assert clean([left], at(stamped, LATER_MS)).batches == [left]


def test_an_empty_batch_goes_once_others_follow(clean: Clean) -> None:
    """MemoryRecordsTest.testFilterToEmptyBatchDeletion"""
    log = Log()
    log.add(with_header(build_batch([NewRecord(1, b"k", b"v")])[:61], batch_length=49, records_count=0))
    log.append(("a", 1))

    assert clean(log.batches, log.bounds()).batches == log.batches[1:]


@pytest.mark.parametrize("bound", ["first_uncleanable_offset", "last_stable_offset", "high_watermark"])
def test_an_emptied_batch_below_a_bound_stays_so_that_readers_reach_it(clean: Clean, bound: str) -> None:
    """MemoryRecordsTest.testFilterToBatchDiscard; Cleaner: `batch.nextOffset == firstUncleanableOffset`"""
    log = Log()
    log.append((None, 1))
    log.append((None, 2))
    log.append(("k", 3))
    bounds = replace(log.bounds(), **{bound: 2})
    if bound == "high_watermark":
        bounds = replace(bounds, last_stable_offset=3)

    cleaned = clean(log.batches, bounds)

    assert cleaned.last_offsets == [1, 2]
    assert is_empty(cleaned.batches[0]) and cleaned.batches[1] == log.batches[2]


def test_a_batch_that_loses_records_keeps_its_offsets_sequences_and_producer(clean: Clean) -> None:
    """MemoryRecordsTest.testFilterToPreservesProducerInfo, ...PreservesPartitionLeaderEpoch,
    LogCleanerTest.testDuplicateCheckAfterCleaning"""
    batch = build_batch(
        [NewRecord(NOW_MS + n, key, b"%d" % n) for n, key in enumerate((b"a", b"b", b"c"))],
        base_offset=7,
        producer=ProducerStamp(99, 4, 2**31 - 2),
        transactional=True,
    )
    log = Log()
    log.add(with_header(batch, partition_leader_epoch=57))
    log.marker(COMMIT, 99)
    log.append(("a", 1), ("c", 1))

    cleaned = clean(log.batches, log.bounds())

    before, after = read_header(log.batches[0]), cleaned.headers[0]
    assert after == before._replace(
        batch_length=after.batch_length, crc=after.crc, records_count=1, max_timestamp_ms=NOW_MS + 1
    )
    assert (after.last_offset, after.last_sequence) == (9, 0)
    assert cleaned.offsets == [8, 11, 12]


def test_the_last_batch_of_a_producer_is_not_kept_for_its_sequence(clean: Clean) -> None:
    """LogCleanerTest.testLogCleanerRetainsProducerLastSequence: there the emptied batch of producer 2 stays, at 1."""
    log = Log()
    log.append((0, 0), producer=ProducerStamp(1, 0, 0))
    log.append((1, 1), producer=ProducerStamp(2, 0, 0))
    log.append((0, 2), producer=ProducerStamp(1, 0, 1))
    log.append((1, 3))
    log.append((0, 4), producer=ProducerStamp(1, 0, 2))

    assert clean(log.batches, log.bounds()).last_offsets == [3, 4]


def test_a_partition_without_anything_to_drop_is_copied_as_it_is(clean: Clean) -> None:
    """MemoryRecordsTest.testFilterToAlreadyCompactedLog"""
    log = Log(codec=Codec.GZIP)
    log.append(*((n, n) for n in range(8)))
    log.append((2, "new"), (5, "new"))
    once = clean(log.batches, log.bounds())

    twice = clean(once.batches, at(again(log, once), LATER_MS))

    assert twice.batches == once.batches
    assert twice.stats.batches_verbatim == 2


def test_log_append_time_outlives_the_records_that_are_gone(clean: Clean) -> None:
    """MemoryRecordsTest.testFilterToPreservesLogAppendTime"""
    log = Log()
    log.append(("a", 1), ("b", 2), ("c", None), log_append_time_ms=NOW_MS - 5)
    log.append(("b", 3))

    cleaned = clean(log.batches, log.bounds())

    header = cleaned.headers[0]
    assert header.is_log_append_time and header.max_timestamp_ms == NOW_MS - 5
    assert header.has_delete_horizon
    assert [record.timestamp_ms for record in cleaned.records[:2]] == [NOW_MS - 5] * 2


@pytest.mark.parametrize("codec", Codec)
def test_timestamps_do_not_change_when_the_base_becomes_a_horizon(clean: Clean, codec: Codec) -> None:
    """MemoryRecordsTest.testBaseTimestampToDeleteHorizonConversion"""
    log = Log(codec=codec, timestamp_ms=-1)
    log.append(("a", 1), ("b", None), ("c", 2), ("a", 3))
    horizon_ms = NOW_MS + DELETE_RETENTION_MS

    cleaned = clean(log.batches, log.bounds())

    (header,) = cleaned.headers
    assert header.has_delete_horizon and header.base_timestamp_ms == horizon_ms
    assert header.max_timestamp_ms == 2
    before = {record.offset: record for record in stored(log.batches)}
    assert [before[record.offset] for record in cleaned.records] == cleaned.records and cleaned.offsets == [1, 2, 3]


# Transactions


def test_aborted_data_goes_at_once_and_hides_nothing(clean: Clean) -> None:
    """LogCleanerTest.testBasicTransactionAwareCleaning"""
    log = Log()
    log.append((1, "old"), (2, "old"))
    first_1 = log.append((1, "aborted"), producer=ProducerStamp(11), transactional=True)
    log.append((2, "committed"), producer=ProducerStamp(12), transactional=True)
    log.append((3, "aborted"), producer=ProducerStamp(11), transactional=True)
    abort = log.marker(ABORT, 11)
    log.marker(COMMIT, 12)
    log.append((4, "after"), producer=ProducerStamp(11), transactional=True)
    log.marker(COMMIT, 11)

    cleaned = clean(log.batches, log.bounds(aborted=[(11, first_1, abort)]))

    assert pairs(cleaned.records) == [(0, "1", "old"), (3, "2", "committed"), (7, "4", "after")]
    assert [header.base_offset for header in cleaned.headers if header.is_control] == [5, 6, 8]
    assert (cleaned.scanned.records, cleaned.scanned.dead_records) == (6, 3)


def test_aborted_data_goes_through_every_clear_of_the_table(clean: Clean) -> None:
    """LogCleanerTest.testMultiPassSegmentCleaningWithAbortedTransactions"""
    log = Log()
    first = log.append(*((n, n) for n in range(9)), producer=ProducerStamp(5), transactional=True)
    abort = log.marker(ABORT, 5)
    log.append(*((n, "kept") for n in range(9)))
    one = clean(log.batches, log.bounds(aborted=[(5, first, abort)]), keys_max=2)
    # nothing of it is left, so the next pass does not list it any more
    two = clean(one.batches, at(again(log, one), NOW_MS), keys_max=2)

    assert one.offsets == two.offsets == list(range(10, 19))
    assert one.headers[0].is_control and not one.headers[0].has_delete_horizon
    assert two.headers[0].has_delete_horizon  # the marker at 9 lies below the first clear, its data is gone


def test_only_what_is_decided_is_cleaned(clean: Clean) -> None:
    """LogCleanerTest.testCleanWithTransactionsSpanningSegments, testUndecidedTransactionalDataNotCleanable"""
    log = Log()
    log.append((1, "a"), (2, "a"))
    log.append((1, "b"), (2, "b"))
    first = log.append((1, "undecided"), producer=ProducerStamp(7), transactional=True)
    log.append((2, "after"))

    open_still = clean(log.batches, log.bounds(first_uncleanable_offset=first, last_stable_offset=first))
    assert open_still.offsets == [2, 3, 4, 5]

    abort = log.marker(ABORT, 7)
    decided = clean(log.batches, log.bounds(aborted=[(7, first, abort)]))
    assert [offset for offset in decided.offsets if offset != abort] == [2, 5]


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_marker_goes_two_passes_after_the_data_of_its_transaction(clean: Clean, kind: int) -> None:
    """LogCleanerTest.testCommitMarkerRemoval, testAbortMarkerRemoval, testCommittedTransactionSpanningSegments"""
    log = Log()
    first = log.append((1, "x"), (2, "x"), producer=ProducerStamp(3), transactional=True)
    marker = log.marker(kind, 3, timestamp_ms=NOW_MS - 77)
    log.append((1, "y"), (2, "y"))
    changed = {"aborted": [(3, first, marker)]} if kind == ABORT else {}

    # the data goes, but this pass has seen it, so the marker stays
    one = again(log, clean(log.batches, log.bounds(**changed)))
    assert one.batches == log.batches[1:]
    # no data is left, so no list names the transaction any more: the horizon is stamped
    two = again(one, clean(one.batches, at(one, NOW_MS)))
    header = read_header(two.batches[0])
    assert (header.is_control, header.base_timestamp_ms) == (True, NOW_MS + DELETE_RETENTION_MS)
    assert stored(two.batches[:1], control=True) == stored(log.batches[1:2], control=True)
    # the clock has not moved: it stays as it is
    assert clean(two.batches, at(two, NOW_MS + 5)).batches == two.batches
    # the horizon has passed
    assert clean(two.batches, at(two, LATER_MS)).batches == log.batches[2:]


def test_an_empty_batch_of_a_transaction_keeps_its_marker(clean: Clean) -> None:
    """LogCleanerTest.testCommitMarkerRetentionWithEmptyBatch, testAbortMarkerRetentionWithEmptyBatch"""
    log = Log()
    log.append(("old", 1))
    first = log.append((1, "x"), producer=ProducerStamp(3), transactional=True)
    changed = {"first_uncleanable_offset": log.end, "last_stable_offset": log.end}
    emptied = again(log, clean(log.batches, log.bounds(**changed, aborted=[(3, first, first + 9)])))
    assert is_empty(emptied.batches[1])  # it ends below the first uncleanable offset
    emptied.marker(ABORT, 3)
    emptied.append(("new", 1))

    one = again(emptied, clean(emptied.batches, at(emptied, NOW_MS)))
    two = again(one, clean(one.batches, at(one, NOW_MS)))

    assert [read_header(batch).has_delete_horizon for batch in one.batches] == [False, False, False]
    assert [read_header(batch).has_delete_horizon for batch in two.batches] == [False, True, False]


def test_a_marker_may_become_an_empty_batch_and_that_be_cleaned_again(clean: Clean) -> None:
    """LogCleanerTest.testCleanEmptyControlBatch"""
    log = Log()
    log.marker(COMMIT, 9, producer_epoch=6)
    stamped = again(log, clean(log.batches, log.bounds()))

    emptied = again(stamped, clean(stamped.batches, at(stamped, LATER_MS)))

    (left,) = emptied.batches
    header = read_header(left)
    assert is_empty(left) and header.is_control and header.is_transactional and not header.has_delete_horizon
    assert (header.producer_id, header.producer_epoch) == (9, 6)
    assert clean(emptied.batches, at(emptied, LATER_MS)).batches == [left]
    emptied.append(("k", "v"))
    assert clean(emptied.batches, at(emptied, LATER_MS)).batches == emptied.batches[1:]


def test_control_records_other_than_markers_are_left_alone(clean: Clean) -> None:
    log = Log()
    for kind in (2, 3, 200):
        log.add(marker_batch(kind, 4, log.end))
    log.append(("k", "v"))

    assert clean(log.batches, log.bounds()).batches == log.batches


def test_each_marker_is_judged_by_the_data_of_its_own_transaction(clean: Clean) -> None:
    """LogCleanerTest.testEmptyBatchRemovalWithSequenceReuse: a producer with several transactions in a row."""
    log = Log()
    log.append(("kept", 1), producer=ProducerStamp(3), transactional=True)
    log.marker(COMMIT, 3)
    log.marker(ABORT, 3)
    log.append(("also kept", 1), producer=ProducerStamp(3), transactional=True)
    log.marker(COMMIT, 3)

    cleaned = clean(log.batches, log.bounds())

    assert [header.base_offset for header in cleaned.headers if header.has_delete_horizon] == [2]


def test_a_control_batch_of_two_records_is_none_that_we_know(clean: Clean) -> None:
    log = Log()
    records = [NewRecord(1, bytes((0, 0, 0, COMMIT)), bytes(6)) for _ in range(2)]
    batch = build_batch(records, producer=ProducerStamp(4, 0))
    log.add(with_header(batch, attributes=CONTROL_BIT | TRANSACTIONAL_BIT))
    log.append(("k", "v"))

    assert clean(log.batches, log.bounds()).batches == log.batches


def test_a_key_with_the_bytes_of_a_markers_key_neither_removes_it_nor_is_removed(clean: Clean) -> None:
    """LogCleanerTest.testCleaningWithKeysConflictingWithTxnMarkerKeys"""
    commit_key = bytes((0, 0, 0, COMMIT))
    log = Log()
    log.append((commit_key, "before"), ("other", 1))
    log.append(("data", 1), producer=ProducerStamp(1), transactional=True)
    log.marker(COMMIT, 1)
    log.append((commit_key, "after"))
    log.append(("data", 1), producer=ProducerStamp(1), transactional=True)
    log.marker(COMMIT, 1)

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.offsets == [1, 4, 5]
    assert [header.base_offset for header in cleaned.headers if header.is_control] == [3, 6]
    assert [record.key for record in cleaned.records] == [b"other", commit_key, b"data"]
