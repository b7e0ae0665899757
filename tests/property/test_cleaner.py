"""Random partitions: the compiled cleaner gives the oracle's bytes, and both keep the promises of a compacted log.

Hypothesis draws seeds and prints the one that fails: `random_partition(seed)` makes that partition again.
"""

from __future__ import annotations

import random
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor.cleaning import partition_cleaner
from compactor.cleaning import payloads as clean_payloads
from tests.fixtures.chance import examples
from tests.fixtures.cleaning import Cleaned, Stored, by_kernels, by_oracle, stored
from tests.property.cleaner_partitions import Partition, random_partition
from wire.batch import BatchHeader, read_header

SEEDS = st.integers(0, 2**48)


@settings(max_examples=examples(400), deadline=None)
@given(seed=SEEDS)
def test_the_kernels_give_the_bytes_of_the_oracle(seed: int) -> None:
    partition = random_partition(seed)
    r = random.Random(seed)
    with (
        patch.object(clean_payloads, "CHUNK_BYTES", r.choice((100, 3000, 1 << 20))),
        patch.object(clean_payloads, "PLAIN_CHUNK_BYTES", r.choice((100, 3000, 1 << 20))),
        patch.object(clean_payloads, "CHUNK_RECORDS", r.choice((1, 40, 1 << 20))),
        patch.object(partition_cleaner, "_ENTERED_AT_ONCE", r.choice((1, 16, 4096))),
    ):
        ours = by_kernels(
            partition.batches,
            partition.bounds,
            keys_max=partition.keys_max,
            passes=partition.passes,
            scan_cuts=partition.cuts[0],
            rewrite_cuts=partition.cuts[1],
            kept_bytes_max=r.choice((0, 500, 1 << 20)),
        )
    expected = by_oracle(partition.batches, partition.bounds, keys_max=partition.keys_max, passes=partition.passes)

    assert ours.scanned == expected.scanned
    assert ours.batches == expected.batches
    assert ours.stats == expected.stats
    assert ours.tombstones == expected.tombstones


@settings(max_examples=examples(400), deadline=None)
@given(seed=SEEDS)
@example(seed=320_900_762_176)  # a record without key and value above the bound, in a batch that gets a horizon
def test_a_cleaned_partition_keeps_what_a_compacted_log_promises(seed: int) -> None:
    partition = random_partition(seed)
    cleaned = by_oracle(partition.batches, partition.bounds, keys_max=partition.keys_max, passes=partition.passes)

    check_survivors_are_as_they_were(partition, cleaned)
    check_the_latest_of_each_key_is_there(partition, cleaned)
    check_batches_keep_their_places(partition, cleaned)
    check_listed_transactions(partition, cleaned)


def check_survivors_are_as_they_were(partition: Partition, cleaned: Cleaned) -> None:
    before = {record.offset: record for record in stored(partition.batches)}
    after = cleaned.records
    bound = partition.bounds.first_uncleanable_offset
    assert all(before[record.offset] == record for record in after)
    assert [record.offset for record in after] == sorted({record.offset for record in after})
    assert [one for one in before.values() if one.offset >= bound] == [one for one in after if one.offset >= bound]
    assert all(record.key is not None for record in after if record.offset < bound)


# The next two say Kafka's rules once more, in words of their own: a test that imports the product's rules agrees with
# every mistake in them.


def is_aborted(partition: Partition, header: BatchHeader) -> bool:
    return header.is_transactional and any(
        producer_id == header.producer_id and first <= header.base_offset < marker
        for producer_id, first, marker in partition.aborted
    )


def check_listed_transactions(partition: Partition, cleaned: Cleaned) -> None:
    """The marker of each is there as it was, and the report says of which of them records are left."""
    after = set(cleaned.batches)
    ends = {(producer_id, marker) for producer_id, _, marker in partition.aborted}
    for batch in partition.batches:
        header = read_header(batch)
        if header.is_control and (header.producer_id, header.base_offset) in ends and header.records_count:
            assert batch in after
    left = {
        marker
        for producer_id, first, marker in partition.aborted
        for header in cleaned.headers
        if header.is_transactional and not header.is_control and header.records_count
        if header.producer_id == producer_id and first <= header.base_offset < marker
    }
    assert cleaned.stats.aborted_left == left


def known_whole_before(partition: Partition, cleaned: Cleaned) -> int:
    """Below this offset the pass has seen every record that a tombstone may hide."""
    bounds, first_clear = partition.bounds, cleaned.scanned.first_clear_offset
    ends = [bounds.first_uncleanable_offset, bounds.whole_through_offset]
    return min(ends if first_clear is None else [*ends, first_clear])


def check_the_latest_of_each_key_is_there(partition: Partition, cleaned: Cleaned) -> None:
    bounds = partition.bounds
    latest: dict[bytes, tuple[Stored, int | None]] = {}
    dead: set[int] = set()
    for batch in partition.batches:
        header = read_header(batch)
        for record in stored([batch]):
            if record.offset >= bounds.first_uncleanable_offset:
                continue
            if is_aborted(partition, header):
                dead.add(record.offset)
            elif record.key is not None:
                latest[record.key] = (record, header.base_timestamp_ms if header.has_delete_horizon else None)
    after = set(cleaned.offsets)
    end = known_whole_before(partition, cleaned)
    assert not dead & after
    for record, horizon_ms in latest.values():
        may_be_gone = record.value is None and horizon_ms is not None and horizon_ms <= bounds.now_ms
        may_be_gone = may_be_gone and record.offset < end
        assert (record.offset in after) != may_be_gone, record
    if not cleaned.scanned.clears:
        below = [one.key for one in cleaned.records if one.offset < bounds.first_uncleanable_offset]
        assert len(below) == len(set(below))


def check_batches_keep_their_places(partition: Partition, cleaned: Cleaned) -> None:
    before = {read_header(batch).base_offset: batch for batch in partition.batches}
    bounds = partition.bounds
    end = known_whole_before(partition, cleaned)
    for batch in cleaned.batches:
        header, old = read_header(batch), read_header(before[read_header(batch).base_offset])
        for name in ("last_offset", "producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"):
            assert getattr(header, name) == getattr(old, name)
        assert header.codec == old.codec or not header.records_count
        assert (header.is_control, header.is_transactional) == (old.is_control, old.is_transactional)
        assert header.is_log_append_time == old.is_log_append_time
        if old.has_delete_horizon and header.records_count:
            assert header.base_timestamp_ms == old.base_timestamp_ms
        if header.has_delete_horizon and not old.has_delete_horizon:
            assert header.base_timestamp_ms == bounds.delete_horizon_ms
            # a record without a key and without a value supersedes nothing: it is no tombstone
            assert all(one.offset < end for one in stored([batch]) if one.key is not None and one.value is None)
    ends = {read_header(batch).next_offset for batch in cleaned.batches}
    for must_stay in (bounds.first_uncleanable_offset, bounds.last_stable_offset, bounds.high_watermark):
        if must_stay in {read_header(batch).next_offset for batch in partition.batches}:
            assert must_stay in ends
