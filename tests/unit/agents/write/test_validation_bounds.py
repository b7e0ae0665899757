"""The number of records that an agent walks before it accepts or refuses a batch, and offset deltas where records are
walked.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from agents.write.validation import Refusal, TopicRules
from agents.write.walking import WALKED_FIELDS_MAX
from tests.fixtures.produced import check_and_walk, of_many, varint
from tests.fixtures.record_batches import NOW_MS, as_sent, with_payload
from wire.batch import BatchHeader
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

PLAIN = TopicRules(
    compacted=False,
    message_bytes_max=1_048_588,
    log_append_time=False,
    timestamp_before_ms_max=2**63 - 1,
    timestamp_after_ms_max=3_600_000,
    segment_bytes=1 << 30,
)
COMPACTED = replace(PLAIN, compacted=True)
WALK_SECONDS_MAX = 5.0
"""Ten times the time that the bound allows on an idle core. Without the bound these batches take minutes."""


def check(batch: bytes, rules: TopicRules) -> BatchHeader | Refusal:
    return check_and_walk(as_sent([batch]), rules=rules, api_version=9, now_ms=NOW_MS)


def with_deltas(*deltas: int, codec: Codec = Codec.NONE) -> bytes:
    records = b"".join(
        bytes((len(delta) * 2 + 14,)) + b"\x00\x00" + delta + b"\x02k\x02v\x00" for delta in map(varint, deltas)
    )
    return with_payload(
        build_batch([NewRecord(NOW_MS, b"k", b"v")]),
        records,
        codec,
        records_count=len(deltas),
        last_offset_delta=len(deltas) - 1,
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    ("deltas", "wrong"), [((0, 0), 1), ((1, 0), 0), ((0, 2), 1), ((-1, 1), 0), ((1,), 0), ((0, 1, 3), 2)]
)
def test_offset_deltas_that_do_not_count_from_0_are_refused_on_a_compacted_topic(
    deltas: tuple[int, ...], wrong: int, codec: Codec
) -> None:
    answer = check(with_deltas(*deltas, codec=codec), COMPACTED)
    assert isinstance(answer, Refusal)
    assert (answer.error, [one.batch_index for one in answer.record_errors]) == (ErrorCode.INVALID_RECORD, [wrong])
    assert "offset delta" in answer.record_errors[0].message


@pytest.mark.parametrize("rules", [PLAIN, COMPACTED])
def test_offset_deltas_that_count_from_0_are_taken(rules: TopicRules) -> None:
    assert isinstance(check(with_deltas(0, 1, 2), rules), BatchHeader)


def test_offset_deltas_are_not_looked_at_where_no_rule_walks_the_records() -> None:
    assert isinstance(check(with_deltas(0, 0), PLAIN), BatchHeader)


def test_as_many_records_as_may_be_walked_are_taken_soon() -> None:
    began = time.process_time()  # processor time: other load on the machine does not count
    assert isinstance(check(of_many(WALKED_FIELDS_MAX), COMPACTED), BatchHeader)
    assert time.process_time() - began < WALK_SECONDS_MAX


def test_one_record_more_is_too_large_for_a_compacted_topic_and_none_of_a_plain_ones_business() -> None:
    batch = of_many(WALKED_FIELDS_MAX + 1)
    answer = check(batch, COMPACTED)
    assert isinstance(answer, Refusal)
    assert answer.error is ErrorCode.MESSAGE_TOO_LARGE and str(WALKED_FIELDS_MAX) in answer.message
    assert isinstance(check(batch, PLAIN), BatchHeader)


def test_a_count_that_cannot_be_is_refused_before_anything_is_unfolded() -> None:
    answer = check(of_many(3, said=8_000_000), COMPACTED)
    assert isinstance(answer, Refusal) and answer.error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("records", [1, 2])
def test_headers_count_as_what_is_walked(records: int) -> None:
    """One record with millions of headers, or many with as many together, take as long as millions of records."""
    headers = WALKED_FIELDS_MAX // records + 1
    bodies = [b"\x00\x00" + varint(n) + b"\x02k\x02v" + varint(headers) + bytes(2) * headers for n in range(records)]
    batch = with_payload(
        build_batch([NewRecord(NOW_MS, b"k", b"v")]),
        b"".join(varint(len(body)) + body for body in bodies),
        Codec.ZSTD,
        records_count=records,
        last_offset_delta=records - 1,
    )
    began = time.process_time()
    answer = check(batch, COMPACTED)
    assert isinstance(answer, Refusal) and answer.error is ErrorCode.MESSAGE_TOO_LARGE
    assert time.process_time() - began < WALK_SECONDS_MAX
