"""A pass stamps delete horizons and drops tombstones only if it has seen all records that they may hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactor.cleaning.bounds import CleanBounds
from compactor.cleaning.oracle import compact
from runtime.errors import BadInputError
from tests.fixtures.cleaning import CLEANERS, DELETE_RETENTION_MS, Cleaned, Log, by_kernels, stored
from tests.fixtures.record_batches import NOW_MS
from wire.batch import read_header
from wire.codecs import Codec

Clean = Callable[..., Cleaned]
LATER_MS = NOW_MS + DELETE_RETENTION_MS


@pytest.fixture(params=CLEANERS)
def clean(request: pytest.FixtureRequest) -> Clean:
    return CLEANERS[request.param]


def values_and_deletes() -> Log:
    """Offsets 0 and 1 hold values, 2 and 3 delete them in one batch, 4 deletes another key, 5 is a value."""
    log = Log()
    log.append(("a", 1), ("b", 1))
    log.append(("a", None), ("b", None))
    log.append(("c", None))
    log.append(("d", 1))
    return log


def horizons(cleaned: Cleaned) -> dict[int, int]:
    """The horizons by base offset."""
    return {header.base_offset: header.base_timestamp_ms for header in cleaned.headers if header.has_delete_horizon}


def stamped(clean: Clean, log: Log) -> list[bytes]:
    cleaned = clean(log.batches, log.bounds())
    assert horizons(cleaned) == {2: LATER_MS, 4: LATER_MS}
    return cleaned.batches


@pytest.mark.parametrize("name", ["now_ms", "delete_horizon_ms"])
@pytest.mark.parametrize("value_ms", [2**63, -(2**63) - 1, 2**64])
def test_a_time_that_no_batch_can_hold_is_refused(name: str, value_ms: int) -> None:
    bounds = values_and_deletes().bounds()
    with pytest.raises(BadInputError, match=name):
        replace(bounds, **{name: value_ms})


def test_the_longest_delete_retention_keeps_a_tombstone_for_good(clean: Clean) -> None:
    log = values_and_deletes()
    for horizon_ms in (2**62, 2**63 - 1):
        cleaned = clean(log.batches, replace(log.bounds(), delete_horizon_ms=horizon_ms))
        assert horizons(cleaned) == {2: horizon_ms, 4: horizon_ms}
        again = clean(cleaned.batches, log.bounds(now_ms=2**61))
        assert again.offsets == cleaned.offsets == [2, 3, 4, 5]
        assert [each.timestamp_ms for each in again.records] == [each.timestamp_ms for each in cleaned.records]


BOUNDS = ["first_uncleanable_offset", "whole_through_offset"]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("offset", "expected"), [(0, set()), (2, set()), (3, set()), (4, {2}), (5, {2, 4})])
def test_a_batch_is_stamped_when_all_its_tombstones_lie_below_the_bound(
    clean: Clean, bound: str, offset: int, expected: set[int]
) -> None:
    log = values_and_deletes()

    cleaned = clean(log.batches, replace(log.bounds(), **{bound: offset}))

    assert set(horizons(cleaned)) == expected


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("offset", "left"), [(0, [2, 3, 4, 5]), (3, [3, 4, 5]), (4, [4, 5]), (5, [5])])
def test_each_drop_checks_the_bound_again_by_the_tombstones_own_offset(
    clean: Clean, bound: str, offset: int, left: list[int]
) -> None:
    log = values_and_deletes()
    batches = stamped(clean, log)

    cleaned = clean(batches, replace(log.bounds(now_ms=LATER_MS), **{bound: offset}))

    assert cleaned.offsets == left
    assert cleaned.stats.tombstones_dropped == 4 - len(left)
    assert cleaned.tombstones == len(left) - 1


@pytest.mark.parametrize(("now_ms", "left"), [(LATER_MS - 1, [2, 3, 4, 5]), (LATER_MS, [5]), (LATER_MS + 1, [5])])
def test_a_tombstone_goes_when_its_horizon_is_reached(clean: Clean, now_ms: int, left: list[int]) -> None:
    log = values_and_deletes()

    assert clean(stamped(clean, log), log.bounds(now_ms=now_ms)).offsets == left


def test_a_horizon_that_is_there_is_kept(clean: Clean) -> None:
    log = values_and_deletes()
    batches = stamped(clean, log)
    log.batches = batches
    log.append(("a", "again"))

    cleaned = clean(log.batches, log.bounds(now_ms=NOW_MS + 1000))

    assert horizons(cleaned) == {2: LATER_MS, 4: LATER_MS}  # one tombstone of the first batch remains
    assert cleaned.offsets == [3, 4, 5, 6]


def test_after_a_clear_tombstones_above_it_stay_as_they_are(clean: Clean) -> None:
    """The value of "a" was entered before the clear, so it is not marked: without its tombstone it would come back."""
    log = Log()
    log.append(("x", 1))
    log.append(("x", None))
    log.append(("a", 1))
    log.append(("b", 1))  # a third key: the table of two is cleared here
    log.append(("a", None))

    once = clean(log.batches, log.bounds(), keys_max=2)

    assert once.scanned.first_clear_offset == 3
    assert once.offsets == [1, 2, 3, 4]
    assert horizons(once) == {1: LATER_MS}
    # a later pass that is cleared at the same place drops the one below, whatever horizons lie above it
    all_stamped = clean(once.batches, log.bounds())
    assert horizons(all_stamped) == {1: LATER_MS, 4: LATER_MS}
    unmarked = [*all_stamped.batches[:1], log.batches[2], *all_stamped.batches[1:]]
    later = clean(unmarked, log.bounds(now_ms=LATER_MS), keys_max=2)
    assert later.scanned.first_clear_offset == 3
    assert later.offsets == [2, 3, 4]


def test_deep_passes_never_clear_so_their_tombstones_count(clean: Clean) -> None:
    log = Log()
    for n in range(40):
        log.append((n, n))
    log.append(*((n, None) for n in range(40)))

    cleaned = clean(log.batches, log.bounds(), keys_max=15, passes=3)

    assert cleaned.offsets == list(range(40, 80))
    assert cleaned.scanned.first_clear_offset is None
    assert set(horizons(cleaned)) == {40}


def test_a_tombstone_that_is_replaced_needs_no_horizon(clean: Clean) -> None:
    log = Log()
    log.append(("a", None), ("b", 1))
    log.append(("a", 1))

    cleaned = clean(log.batches, log.bounds())

    assert horizons(cleaned) == {}
    assert cleaned.offsets == [1, 2]
    assert (cleaned.stats.tombstones_dropped, cleaned.tombstones) == (0, 0)


def test_an_empty_value_is_not_a_tombstone(clean: Clean) -> None:
    log = Log()
    log.append(("a", b""))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.batches == log.batches and cleaned.tombstones == 0


def test_tombstones_above_the_bound_are_counted_though_nothing_is_done_to_them(clean: Clean) -> None:
    log = values_and_deletes()

    cleaned = clean(log.batches, log.bounds(first_uncleanable_offset=0))

    assert cleaned.batches == log.batches
    assert cleaned.tombstones == cleaned.stats.tombstones_out == 3


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_that_would_unfold_to_more_than_readers_allow_is_not_stamped(codec: Codec) -> None:
    # given a batch whose timestamps take a byte each, and six bytes more once they count from a horizon
    log = Log(codec=codec)
    log.append(*((n, None) for n in range(20)))

    def cleaned(bytes_max: int, bounds: CleanBounds) -> list[bytes]:
        out, _, _ = compact(log.batches, bounds, keys_max=100, decompressed_bytes_max=bytes_max)
        assert by_kernels(log.batches, bounds, decompressed_bytes_max=bytes_max).batches == out
        return out

    (whole,) = cleaned(10_000, log.bounds())
    plain = sum(len(record.key or b"") for record in stored([whole])) + 20 * 12
    assert read_header(whole).has_delete_horizon
    # when that is one byte more than allowed, then it stays as it is
    sizes = [bytes_max for bytes_max in range(plain - 40, plain + 80) if cleaned(bytes_max, log.bounds()) == [whole]]
    assert sizes and cleaned(sizes[0] - 1, log.bounds()) == log.batches
