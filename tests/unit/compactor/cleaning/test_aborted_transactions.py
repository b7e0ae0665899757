"""Listed aborted transactions: their data, their markers, and the report of which of them something is left.

Clients take one listed transaction of a producer off their list at each ABORT marker. So a marker stays as it is while
its transaction is listed, or they would drop the records of the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.cleaning.partition_cleaner import PartitionCleaner
from tests.fixtures.cleaning import ABORT, CLEANERS, COMMIT, DELETE_RETENTION_MS, Cleaned, Log
from tests.fixtures.record_batches import NOW_MS, with_payload
from wire.batch import ProducerStamp
from wire.kernels.batches import read_batches
from wire.records import NewRecord, build_batch

Clean = Callable[..., Cleaned]
LATER_MS = NOW_MS + DELETE_RETENTION_MS


@pytest.fixture(params=CLEANERS)
def clean(request: pytest.FixtureRequest) -> Clean:
    return CLEANERS[request.param]


def a_log() -> Log:
    log = Log()
    log.append(("a", "old"))
    return log


def in_transaction(log: Log, *pairs: tuple[str, str | None], producer_id: int = 7) -> int:
    return log.append(*pairs, producer=ProducerStamp(producer_id), transactional=True)


def after(log: Log, cleaned: Cleaned) -> Log:
    rest = Log()
    rest.batches, rest.end = cleaned.batches, log.end
    return rest


def horizons(cleaned: Cleaned) -> dict[int, int]:
    return {header.base_offset: header.base_timestamp_ms for header in cleaned.headers if header.has_delete_horizon}


def test_a_marker_gets_no_horizon_while_its_transaction_is_listed(clean: Clean) -> None:
    # given a transaction without data, which is still listed: a pass over a part of the log took its data
    log = a_log()
    abort = log.marker(ABORT, 7)
    log.append(("b", "new"))
    listed = log.bounds(aborted=[(7, 0, abort)])
    # then no number of passes stamps its marker
    assert clean(log.batches, listed).batches == log.batches
    # when it is not listed any more, then the horizon counts from that pass
    later = log.bounds(now_ms=LATER_MS, delete_horizon_ms=LATER_MS + 5)
    assert horizons(clean(log.batches, later)) == {abort: LATER_MS + 5}


def test_a_marker_whose_horizon_has_passed_stays_while_its_transaction_is_listed(clean: Clean) -> None:
    log = a_log()
    abort = log.marker(ABORT, 7)
    log.append(("b", "new"))
    stamped = after(log, clean(log.batches, log.bounds()))
    listed = log.bounds(now_ms=LATER_MS, aborted=[(7, 0, abort)])
    assert clean(stamped.batches, listed).batches == stamped.batches
    assert clean(stamped.batches, log.bounds(now_ms=LATER_MS)).offsets == [0, 2]


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_only_the_marker_of_the_listed_transaction_waits(clean: Clean, kind: int) -> None:
    # given an earlier transaction of the same producer, and one of another producer, and a list without them
    log = a_log()
    earlier = log.marker(kind, 7)
    abort = log.marker(ABORT, 7)
    other = log.marker(kind, 8)
    log.append(("b", "new"))
    cleaned = clean(log.batches, log.bounds(aborted=[(7, earlier + 1, abort)]))
    assert horizons(cleaned) == {earlier: LATER_MS, other: LATER_MS}


def test_aborted_data_hides_nothing_when_its_marker_lies_above_every_bound(clean: Clean) -> None:
    # given a transaction that was aborted while an older one was open: its marker lies above the last stable offset
    log = a_log()
    first = in_transaction(log, ("a", "aborted"), ("x", "aborted"))
    stable = in_transaction(log, ("b", "open"), producer_id=8)
    in_transaction(log, ("a", "aborted, too"))
    abort = log.marker(ABORT, 7)
    bounds = log.bounds(first_uncleanable_offset=stable, last_stable_offset=stable, aborted=[(7, first, abort)])
    # then the old value stays, and what lies below the bound goes
    cleaned = clean(log.batches, bounds)
    assert [(one.offset, one.value) for one in cleaned.records[:2]] == [(0, b"old"), (stable, b"open")]
    # and something of the transaction is left above it
    assert cleaned.stats.aborted_left == {abort}


def test_nothing_is_left_of_a_transaction_of_which_all_records_went(clean: Clean) -> None:
    log = a_log()
    first = in_transaction(log, ("a", "aborted"))
    in_transaction(log, ("a", "good"), producer_id=8)
    abort = log.marker(ABORT, 7)
    log.marker(COMMIT, 8)
    in_transaction(log, ("b", "next of the producer"))
    assert clean(log.batches, log.bounds(aborted=[(7, first, abort)])).stats.aborted_left == frozenset()


def test_an_empty_batch_is_nothing_that_is_left(clean: Clean) -> None:
    # given data that ends at the last stable offset, where readers have to come by
    log = a_log()
    first = in_transaction(log, ("a", "aborted"))
    stable = log.end
    abort = log.marker(ABORT, 7)
    bounds = log.bounds(first_uncleanable_offset=stable, last_stable_offset=stable, aborted=[(7, first, abort)])
    cleaned = clean(log.batches, bounds)
    assert (cleaned.headers[1].base_offset, cleaned.headers[1].records_count) == (first, 0)
    assert cleaned.stats.aborted_left == frozenset()
    # and the marker outlives the empty batch
    assert horizons(clean(cleaned.batches, log.bounds())) == {}


def test_a_batch_that_lies_across_the_bound_is_left(clean: Clean) -> None:
    log = a_log()
    first = in_transaction(log, ("a", "aborted"), ("b", "aborted"))
    abort = log.marker(ABORT, 7)
    bounds = log.bounds(first_uncleanable_offset=first + 1, aborted=[(7, first, abort)])
    cleaned = clean(log.batches, bounds)
    assert (cleaned.offsets, cleaned.stats.aborted_left) == ([0, first + 1], {abort})


def test_an_unreadable_batch_of_a_transaction_is_left() -> None:
    # given a batch with a right CRC whose records nobody can read, in an aborted transaction
    log = a_log()
    body = build_batch(
        [NewRecord(NOW_MS, b"a", b"aborted")], base_offset=log.end, producer=ProducerStamp(7), transactional=True
    )
    first = log.add(with_payload(body, b"\xff" * 40))
    abort = log.marker(ABORT, 7)
    window = b"".join(log.batches)
    cleaner = PartitionCleaner(DedupeBuffer(9), log.bounds(aborted=[(7, first, abort)]))
    cleaner.scan(window, read_batches(window))
    assert not cleaner.end_scan()
    cleaned = cleaner.rewrite(window, read_batches(window))
    # then it stays, and its transaction must stay listed
    assert bytes(cleaned.data) == window
    assert cleaner.stats.aborted_left == {abort}
