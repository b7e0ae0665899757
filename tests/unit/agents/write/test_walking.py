"""The budget of a request for records that must be unfolded and walked."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from agents.write.validation import Refusal, TopicRules, Unwalked, check_produced
from agents.write.walking import (
    REQUEST_FIELDS_MAX,
    REQUEST_NAMES_MAX,
    TURN_FIELDS_MAX,
    TURN_UNFOLDED_BYTES_MAX,
    WALKED_FIELDS_MAX,
    WalkBudget,
    judge,
    judge_at_once,
)
from tests.fixtures.produced import bomb, keyless, of_many
from tests.fixtures.record_batches import NOW_MS, as_sent, one_batch
from wire.batch import BatchHeader
from wire.codecs import Allowance, Codec
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

MIB = 1 << 20
PLAIN = TopicRules(
    compacted=False,
    message_bytes_max=1_048_588,
    log_append_time=False,
    timestamp_before_ms_max=2**63 - 1,
    timestamp_after_ms_max=3_600_000,
    segment_bytes=1 << 30,
)
COMPACTED = replace(PLAIN, compacted=True)
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]


def unwalked(batch: bytes, rules: TopicRules = COMPACTED) -> Unwalked:
    found = check_produced(as_sent([batch]), rules=rules, api_version=9, now_ms=NOW_MS)
    assert isinstance(found, Unwalked)
    return found


def refused(verdict: BatchHeader | Refusal | None) -> Refusal:
    assert isinstance(verdict, Refusal)
    return verdict


def with_bytes(bytes_left: int) -> WalkBudget:
    return replace(WalkBudget.of_request(), unfolding=Allowance.of_bytes(bytes_left))


def test_batches_that_no_rule_walks_are_not_left_unwalked() -> None:
    assert isinstance(check_produced(as_sent([one_batch()]), rules=PLAIN, api_version=9, now_ms=NOW_MS), BatchHeader)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_batches_of_a_request_share_a_budget_of_unfolded_bytes(codec: Codec) -> None:
    budget = with_bytes(2 * MIB)
    # given two bombs that take all of it
    for _ in range(2):
        assert refused(judge(unwalked(bomb(MIB, codec)), budget)).error is ErrorCode.INVALID_RECORD
    # then a third, and a good batch too, are too large for this request, and nothing is unfolded for them
    assert budget.unfolding.bytes_left == 0
    for batch in (bomb(MIB, codec), one_batch(codec=codec)):
        refusal = refused(judge(unwalked(batch), budget))
        assert refusal.error is ErrorCode.MESSAGE_TOO_LARGE
        assert "fewer batches in a request" in refusal.message


def test_a_batch_beyond_its_own_bound_is_told_so_though_the_request_has_budget() -> None:
    small = replace(COMPACTED, message_bytes_max=16 << 10)
    refusal = refused(judge(unwalked(bomb(2 * MIB), small), with_bytes(9 * MIB)))
    assert refusal.error is ErrorCode.MESSAGE_TOO_LARGE
    assert str(64 * (16 << 10)) in refusal.message


def test_uncompressed_batches_take_nothing_from_the_bytes() -> None:
    budget = with_bytes(0)
    assert isinstance(judge(unwalked(one_batch()), budget), BatchHeader)


def test_the_batches_of_a_request_share_a_budget_of_records_and_headers() -> None:
    budget = WalkBudget.of_request()
    budget.fields_left = 5_000
    assert isinstance(judge(unwalked(of_many(3_000)), budget), BatchHeader)
    assert budget.fields_left == 2_000
    assert refused(judge(unwalked(of_many(2_001)), budget)).error is ErrorCode.MESSAGE_TOO_LARGE
    assert isinstance(judge(unwalked(of_many(2_000)), budget), BatchHeader)


def test_a_walk_in_vain_counts() -> None:
    """Else each of a thousand batches could have its last record wrong."""
    budget = WalkBudget.of_request()
    wrong = of_many(1_000, said=999)  # a record more than the header says
    assert refused(judge(unwalked(wrong), budget)).error is ErrorCode.INVALID_RECORD
    assert budget.fields_left <= REQUEST_FIELDS_MAX - 999


def test_the_largest_batches_that_are_taken_alone_are_taken_together_as_often_as_the_budget_says() -> None:
    budget = WalkBudget.of_request()
    one = unwalked(of_many(WALKED_FIELDS_MAX))
    verdicts = [judge(one, budget) for _ in range(5)]
    assert [isinstance(each, BatchHeader) for each in verdicts] == [True] * 4 + [False]


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_turn_of_the_loop_takes_no_more_than_its_share(codec: Codec) -> None:
    # given batches that take far more, by bytes or by records
    for batch in (bomb(16 * MIB, codec), of_many(200_000)):
        waiting = unwalked(batch)
        began = time.thread_time()
        verdict = judge_at_once(waiting, WalkBudget.of_turn())
        # then the loop goes on soon, and the verdict is for a thread to find
        assert time.thread_time() - began < 0.1
        assert verdict is None


def test_what_fits_into_a_turn_is_judged_at_once() -> None:
    for batch in (one_batch(codec=Codec.ZSTD), of_many(TURN_FIELDS_MAX)):
        assert isinstance(judge_at_once(unwalked(batch), WalkBudget.of_turn()), BatchHeader)
    assert judge_at_once(unwalked(of_many(TURN_FIELDS_MAX + 1)), WalkBudget.of_turn()) is None
    assert refused(judge_at_once(unwalked(bomb(TURN_UNFOLDED_BYTES_MAX)), WalkBudget.of_turn())).error
    assert judge_at_once(unwalked(bomb(TURN_UNFOLDED_BYTES_MAX + 1)), WalkBudget.of_turn()) is None


@pytest.mark.parametrize("rules", [PLAIN, COMPACTED])
def test_a_max_timestamp_in_the_future_never_makes_more_work_than_a_turn_allows(rules: TopicRules) -> None:
    """It is refused in any case; the names of the records at fault are not worth a bomb."""
    future_ms = NOW_MS + 2 * rules.timestamp_after_ms_max
    for batch in (bomb(64 * MIB, max_timestamp_ms=future_ms), of_many(200_000, max_timestamp_ms=future_ms)):
        began = time.thread_time()
        refusal = refused(judge_at_once(unwalked(batch, rules), WalkBudget.of_turn()))
        assert time.thread_time() - began < 0.1
        assert refusal.error is ErrorCode.INVALID_TIMESTAMP
        assert str(future_ms) in refusal.message


def test_the_names_in_the_answer_to_a_request_are_bounded_and_what_is_wrong_stays_wrong() -> None:
    budget = WalkBudget.of_request()
    refusals = [refused(judge(unwalked(keyless(2_000)), budget)) for _ in range(12)]
    assert {refusal.error for refusal in refusals} == {ErrorCode.INVALID_RECORD}
    assert [len(refusal.record_errors) for refusal in refusals] == [1_000] * 10 + [0] * 2
    assert budget.names_left == REQUEST_NAMES_MAX - 10_000 == 0
    # and a timestamp fault is found without a name left
    late = build_batch([NewRecord(NOW_MS + 2 * PLAIN.timestamp_after_ms_max, b"k", b"v")])
    refusal = refused(judge(unwalked(late, PLAIN), budget))
    assert (refusal.error, refusal.record_errors) == (ErrorCode.INVALID_TIMESTAMP, ())
    assert "rejected" in refusal.message


def test_the_walk_pauses_all_the_time() -> None:
    pauses: list[float] = []
    assert judge(unwalked(of_many(50_000)), WalkBudget.of_request(), lambda: pauses.append(time.thread_time()))
    assert 45 <= len(pauses) <= 50
