"""The producers after a rebuild: what is in the log counts as a duplicate, and what is not in it never does."""

from __future__ import annotations

import pytest

from metadata.rules.producer_state import SEQUENCES
from siltstone.ops.rebuild.producers import PartitionProducers, ProducerBatch, producer_batch
from wire.batch import ProducerStamp, read_header
from wire.records import NewRecord, build_batch

NOW_MS = 5_000


def a_batch(first: int, base_offset: int, *, epoch: int = 0, count: int = 2) -> ProducerBatch:
    return ProducerBatch(7, epoch, first, (first + count - 1) % SEQUENCES, base_offset, -1)


def known(*batches: ProducerBatch) -> list[tuple[int, int]]:
    """(first sequence, base offset) of the batches that count as duplicates."""
    producers = PartitionProducers(3, [], now_ms=NOW_MS)
    for each in batches:
        producers.add(each)
    [row] = producers.rows
    assert len(row["first_sequences"]) == len(row["last_sequences"]) == len(row["base_offsets"])
    assert (row["partition_id"], row["last_seen_ms"]) == (3, NOW_MS)
    return list(zip(row["first_sequences"], row["base_offsets"], strict=True))


def test_batches_that_follow_each_other_are_all_known_up_to_five() -> None:
    batches = [a_batch(2 * number, 10 * number) for number in range(7)]
    assert known(*batches) == [(2 * number, 10 * number) for number in range(2, 7)]
    # the sequence begins again after its largest number
    assert known(a_batch(SEQUENCES - 2, 0), a_batch(0, 2)) == [(SEQUENCES - 2, 0), (0, 2)]


@pytest.mark.parametrize("first", [5, 1_000, 3, 0], ids=["one is missing", "many are", "an overlap", "begun again"])
def test_after_a_gap_in_the_sequence_the_state_begins_again(first: int) -> None:
    """Otherwise the batches that are missing would pass for stored when the client sends them again."""
    assert known(a_batch(0, 0), a_batch(2, 2), a_batch(first, 4)) == [(first, 4)]


def test_a_newer_epoch_begins_again_and_an_older_one_is_passed_over() -> None:
    assert known(a_batch(0, 0), a_batch(0, 2, epoch=1), a_batch(2, 4)) == [(0, 2)]
    # even where its sequence would go on
    assert known(a_batch(0, 0), a_batch(2, 2, epoch=1)) == [(2, 2)]


def test_a_batch_is_not_counted_twice_when_its_offset_is_not_above_the_last() -> None:
    assert known(a_batch(0, 10), a_batch(2, 10)) == [(2, 10)]


def test_batches_that_no_idempotent_producer_sent_make_no_state() -> None:
    header = read_header(build_batch([NewRecord(1_000, None, b"v")], producer=ProducerStamp(7, 0, 4)))
    assert producer_batch(12, header) == ProducerBatch(7, 0, 4, 4, 12, -1)
    for name in ("producer_id", "producer_epoch", "base_sequence"):
        assert producer_batch(12, header._replace(**{name: -1})) is None
