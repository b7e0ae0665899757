"""Kafka's producer rules, one by one (ProducerStateManager, ProducerAppendInfo), and the stretches of a file."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from metadata.contract.l0_commit import L0Batch
from metadata.rules.packed_index import IndexRow
from metadata.rules.producer_state import (
    Judgement,
    Producer,
    StoredBatch,
    is_possible,
    judge,
    last_sequence,
    may_lack_state,
)
from metadata.rules.stretches import stretches
from tests.contract.metadata_worlds import batch, duplicate, refused, sent, stored

ONE, PRODUCER = 1, 7
GREATEST = 2**31 - 1


def remembered(*batches: tuple[int, int, int], epoch: int = 0) -> Mapping[tuple[int, int], Producer]:
    """The state of PRODUCER on ONE, from (first sequence, last sequence, base offset)."""
    kept = tuple(
        StoredBatch(first_sequence=first, last_sequence=last, base_offset=base, log_append_time_ms=-1)
        for first, last, base in batches
    )
    return {(ONE, PRODUCER): Producer(epoch=epoch, batches=kept)}


def judged(
    *batches: L0Batch, state: Mapping[tuple[int, int], Producer] | None = None, may_be_absent: bool = False
) -> Judgement:
    return judge(
        batches,
        next_offsets={ONE: 100},
        producers=state or {},
        state_may_be_absent=lambda _: may_be_absent,
    )


def test_the_last_sequence_wraps_behind_the_greatest_int() -> None:
    assert last_sequence(0, 1) == 0
    assert last_sequence(GREATEST, 1) == GREATEST
    assert last_sequence(GREATEST, 3) == 1


def test_the_next_sequence_after_the_greatest_is_zero() -> None:
    state = remembered((GREATEST - 1, GREATEST, 90))

    assert judged(sent(ONE, PRODUCER, 0), state=state).results == [stored(100)]
    assert judged(sent(ONE, PRODUCER, 1), state=state).results == [refused(45)]


def test_a_duplicate_is_an_exact_match_of_first_and_last_sequence_in_the_same_epoch() -> None:
    state = remembered((0, 3, 90), (4, 4, 94))

    assert judged(sent(ONE, PRODUCER, 0, 4), state=state).results == [duplicate(90)]
    assert judged(sent(ONE, PRODUCER, 0, 3), state=state).results == [refused(45)]
    assert judged(sent(ONE, PRODUCER, 0, 4, epoch=1), state=state).results == [stored(100)]


def test_a_newer_epoch_forgets_the_batches_of_the_older_one() -> None:
    after = judged(sent(ONE, PRODUCER, 0, epoch=1), state=remembered((0, 3, 90)))

    assert after.producers[ONE, PRODUCER].epoch == 1
    assert [kept.base_offset for kept in after.producers[ONE, PRODUCER].batches] == [100]


def test_a_file_without_accepted_batches_moves_nothing() -> None:
    after = judged(sent(ONE, PRODUCER, 9, epoch=0), batch(2), batch(ONE, masked_error=87), state=remembered((0, 0, 9)))

    assert after.results == [refused(45), refused(3), refused(87)]
    assert (after.next_offsets, after.producers) == ({}, {})


def test_absence_of_state_is_believed_only_where_it_is_allowed() -> None:
    assert judged(sent(ONE, PRODUCER, 5)).results == [refused(45)]
    assert judged(sent(ONE, PRODUCER, 5), may_be_absent=True).results == [stored(100)]


@pytest.mark.parametrize(
    ("allocated_ms", "deleted_ms", "allowed"),
    [
        (None, None, False),
        (None, 50, False),
        (50, None, False),
        (50, 49, False),
        (50, 50, True),
        (50, 51, True),
        (0, None, False),
        (-1, None, True),
        (-1, -2, True),
    ],
)
def test_state_may_be_absent_for_producers_older_than_the_deletion_of_the_name_or_the_expiration(
    allocated_ms: int | None, deleted_ms: int | None, allowed: bool
) -> None:
    said = may_lack_state(
        allocated_ms=allocated_ms, predecessor_deleted_ms=deleted_ms, now_ms=100, producer_id_expiration_ms=100
    )

    assert said is allowed


def test_producers_and_partitions_do_not_mix() -> None:
    after = judge(
        [sent(1, 7, 0), sent(2, 7, 0), sent(1, 8, 0), sent(1, 7, 1), sent(2, 7, 1)],
        next_offsets={1: 0, 2: 50},
        producers={},
        state_may_be_absent=lambda *_: False,
    )

    assert after.results == [stored(0), stored(50), stored(1), stored(2), stored(51)]
    assert after.next_offsets == {1: 3, 2: 52}
    assert set(after.producers) == {(1, 7), (2, 7), (1, 8)}


def test_values_at_the_edge_of_the_columns_are_possible() -> None:
    edge = sent(2**31 - 1, 2**63 - 1, GREATEST, GREATEST, epoch=2**15 - 1)._replace(position=GREATEST, length=GREATEST)

    assert is_possible(edge)
    assert not is_possible(edge._replace(length=2**31))


def test_stretches_end_where_bytes_or_partitions_do() -> None:
    laid = [
        one._replace(position=at) for one, at in [(batch(1, 2), 0), (batch(1), 100), (batch(1), 250), (batch(2), 350)]
    ]
    results = [stored(5), stored(7), stored(8), stored(0)]

    assert list(stretches(laid, results)) == [
        IndexRow(1, 5, 7, 0, 200, 10, 20),
        IndexRow(1, 8, 8, 250, 100, 10, 20),
        IndexRow(2, 0, 0, 350, 100, 10, 20),
    ]


def test_a_duplicate_is_in_no_stretch() -> None:
    laid = [batch(1)._replace(position=at) for at in (0, 100, 200)]

    found = list(stretches(laid, [stored(5), duplicate(1), stored(6)]))

    assert [(row.position, row.base_offset) for row in found] == [(0, 5), (200, 6)]
