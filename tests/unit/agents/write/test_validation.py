"""The reasons to refuse a produced batch, in Kafka's order, and the cases that are not refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agents.write.validation import RecordError, Refusal, TopicRules
from tests.fixtures.produced import check_and_walk
from tests.fixtures.record_batches import NOW_MS, as_sent, one_batch, some_records, with_header, with_payload
from wire.batch import BatchHeader, ProducerStamp, read_header
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

RULES = TopicRules(
    compacted=False,
    message_bytes_max=1_048_588,
    log_append_time=False,
    timestamp_before_ms_max=2**63 - 1,
    timestamp_after_ms_max=3_600_000,
    segment_bytes=1 << 30,
)
COMPACTED = replace(RULES, compacted=True)
LOG_APPEND_TIME = replace(RULES, log_append_time=True)
OLDEST_AN_HOUR = replace(RULES, timestamp_before_ms_max=3_600_000)
HOUR_MS = 3_600_000


def check(batch: bytes | None, rules: TopicRules = RULES, api_version: int = 9) -> BatchHeader | Refusal:
    view = None if batch is None else as_sent([batch])
    return check_and_walk(view, rules=rules, api_version=api_version, now_ms=NOW_MS)


def error_of(batch: bytes | None, rules: TopicRules = RULES, api_version: int = 9) -> ErrorCode | None:
    answer = check(batch, rules, api_version)
    return answer.error if isinstance(answer, Refusal) else None


@pytest.mark.parametrize("rules", [RULES, COMPACTED, LOG_APPEND_TIME, OLDEST_AN_HOUR])
@pytest.mark.parametrize("codec", Codec)
def test_a_good_batch_answers_with_its_header(codec: Codec, rules: TopicRules) -> None:
    batch = build_batch(some_records(50), codec=codec, producer=ProducerStamp(9, 0, 0))

    assert check(batch, rules) == read_header(batch)


def test_a_leader_epoch_and_unused_attribute_bits_are_the_clients_own_business() -> None:
    assert error_of(with_header(one_batch(), partition_leader_epoch=-1)) is None
    assert error_of(with_header(one_batch(), attributes=0x0080)) is None


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        pytest.param(None, ErrorCode.INVALID_RECORD, id="null"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="no bytes"),
        pytest.param(one_batch()[:16], ErrorCode.INVALID_RECORD, id="no magic yet"),
        pytest.param(one_batch()[:40], ErrorCode.INVALID_RECORD, id="cut in the header"),
        pytest.param(one_batch()[:-1], ErrorCode.INVALID_RECORD, id="cut in the payload"),
        pytest.param(with_header(one_batch(), batch_length=2**31 - 1), ErrorCode.INVALID_RECORD, id="length past end"),
        pytest.param(with_header(one_batch(), batch_length=13), ErrorCode.CORRUPT_MESSAGE, id="length 13"),
        pytest.param(with_header(one_batch(), batch_length=13, magic=1), ErrorCode.CORRUPT_MESSAGE, id="length, magic"),
        pytest.param(with_header(one_batch(), batch_length=-5), ErrorCode.CORRUPT_MESSAGE, id="length negative"),
        pytest.param(with_header(one_batch(), batch_length=48), ErrorCode.CORRUPT_MESSAGE, id="length 48"),
        pytest.param(
            with_header(one_batch(), batch_length=30)[:42], ErrorCode.CORRUPT_MESSAGE, id="no room for a header"
        ),
        pytest.param(with_header(one_batch(), magic=0), ErrorCode.INVALID_RECORD, id="magic 0"),
        pytest.param(with_header(one_batch(), magic=1, batch_length=30)[:42], ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(with_header(one_batch(), magic=3), ErrorCode.INVALID_RECORD, id="magic 3"),
        pytest.param(one_batch() + one_batch(), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(one_batch() + b"\x00", ErrorCode.INVALID_RECORD, id="a byte after"),
        pytest.param(with_header(one_batch(), base_offset=5), ErrorCode.INVALID_RECORD, id="base offset"),
        pytest.param(with_header(one_batch(), crc=1), ErrorCode.CORRUPT_MESSAGE, id="crc"),
        pytest.param(one_batch()[:-1] + b"\x7f", ErrorCode.CORRUPT_MESSAGE, id="payload damaged"),
        pytest.param(with_header(one_batch(), records_count=0), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(with_header(one_batch(), records_count=-1), ErrorCode.INVALID_RECORD, id="-1 records"),
        pytest.param(with_header(one_batch(3), records_count=2), ErrorCode.INVALID_RECORD, id="fewer than the range"),
        pytest.param(with_header(one_batch(3), last_offset_delta=-1), ErrorCode.INVALID_RECORD, id="delta -1"),
        pytest.param(
            with_header(one_batch(3), last_offset_delta=-1, records_count=0),
            ErrorCode.INVALID_RECORD,
            id="an empty batch",
        ),
        pytest.param(
            with_header(one_batch(), last_offset_delta=999_999, records_count=1_000_000),
            ErrorCode.INVALID_RECORD,
            id="more records than bytes",
        ),
        pytest.param(
            with_header(one_batch(codec=Codec.ZSTD), last_offset_delta=2**31 - 2, records_count=2**31 - 1),
            ErrorCode.INVALID_RECORD,
            id="more records than any batch holds",
        ),
        pytest.param(with_header(one_batch(), attributes=0x20), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(with_header(one_batch(), attributes=0x40), ErrorCode.INVALID_RECORD, id="delete horizon"),
        pytest.param(
            with_header(one_batch(), producer_id=0, producer_epoch=0), ErrorCode.INVALID_RECORD, id="no sequence"
        ),
        pytest.param(
            with_header(one_batch(), attributes=0x10),
            ErrorCode.INVALID_RECORD,
            id="transactional without a producer",
        ),
        pytest.param(with_header(one_batch(), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="codec 5"),
        pytest.param(with_header(one_batch(), attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="codec 7"),
        pytest.param(with_header(one_batch(), attributes=8), ErrorCode.INVALID_TIMESTAMP, id="LogAppendTime bit"),
    ],
)
def test_a_bad_batch_is_refused_by_its_header(batch: bytes | None, error: ErrorCode) -> None:
    answer = check(batch)

    assert isinstance(answer, Refusal)
    assert answer.error is error
    assert answer.message and answer.record_errors == ()


def test_zstd_needs_produce_version_7_and_the_other_codecs_do_not() -> None:
    assert error_of(one_batch(codec=Codec.ZSTD), api_version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert error_of(one_batch(codec=Codec.ZSTD), api_version=7) is None
    assert error_of(one_batch(codec=Codec.LZ4), api_version=3) is None


def test_sizes_are_checked_to_the_byte() -> None:
    batch = one_batch(40)
    exact = replace(RULES, message_bytes_max=len(batch), segment_bytes=len(batch))

    assert error_of(batch, exact) is None
    assert error_of(batch, replace(exact, message_bytes_max=len(batch) - 1)) is ErrorCode.MESSAGE_TOO_LARGE
    assert error_of(batch, replace(exact, segment_bytes=len(batch) - 1)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_an_internal_topic_takes_nothing() -> None:
    assert error_of(one_batch(), replace(RULES, internal=True)) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_of_several_faults_the_one_that_kafka_looks_for_first_is_answered() -> None:
    rules = replace(COMPACTED, internal=True, message_bytes_max=100, segment_bytes=50)
    bad = with_header(build_batch([NewRecord(NOW_MS + 2 * HOUR_MS, None, b"v" * 100)], codec=Codec.ZSTD), base_offset=1)
    bad = with_header(bad, last_offset_delta=-1, crc=5)
    expected = [
        (with_header(bad, magic=1, crc=5), 6, rules, ErrorCode.INVALID_RECORD),
        (bad, 6, rules, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (bad + b"x", 7, rules, ErrorCode.INVALID_RECORD),
        (bad, 7, rules, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (bad, 7, rules := replace(rules, internal=False, message_bytes_max=60), ErrorCode.INVALID_RECORD),
        (bad := with_header(bad, base_offset=0, crc=5), 7, rules, ErrorCode.MESSAGE_TOO_LARGE),
        (bad, 7, rules := replace(rules, message_bytes_max=10_000), ErrorCode.CORRUPT_MESSAGE),
        (bad := with_header(bad), 7, rules, ErrorCode.INVALID_RECORD),
        (bad := with_header(bad, last_offset_delta=0), 7, rules, ErrorCode.INVALID_RECORD),  # no key, and only then
        (bad, 7, rules := replace(rules, compacted=False), ErrorCode.INVALID_TIMESTAMP),
        (bad, 7, rules := replace(rules, log_append_time=True), ErrorCode.RECORD_LIST_TOO_LARGE),
        (bad, 7, replace(rules, segment_bytes=10_000), None),
    ]

    assert [error_of(batch, rules, version) for batch, version, rules, _ in expected] == [row[3] for row in expected]


@pytest.mark.parametrize("codec", Codec)
def test_null_keys_on_a_compacted_topic_refuse_the_whole_batch_and_name_the_records(codec: Codec) -> None:
    records = some_records(70)
    for index in (1, 3, 69):
        records[index] = records[index]._replace(key=None)
    batch = build_batch(records, codec=codec)

    answer = check(batch, COMPACTED)

    assert isinstance(answer, Refusal)
    assert answer.error is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 3, 69]
    assert error_of(batch) is None


def test_empty_keys_and_null_values_are_fine_on_a_compacted_topic() -> None:
    assert error_of(build_batch([NewRecord(NOW_MS, b"", None)]), COMPACTED) is None


def test_the_records_named_in_a_refusal_are_bounded() -> None:
    answer = check(build_batch([NewRecord(NOW_MS, None, None)] * 5000, codec=Codec.GZIP), COMPACTED)

    assert isinstance(answer, Refusal)
    assert [error.batch_index for error in answer.record_errors] == list(range(1000))


@pytest.mark.parametrize("codec", Codec)
def test_timestamps_too_far_ahead_are_named_and_the_limit_itself_is_allowed(codec: Codec) -> None:
    records = [NewRecord(NOW_MS + delta, b"k", b"v") for delta in (0, HOUR_MS, HOUR_MS + 1, -5, HOUR_MS + 9)]

    answer = check(build_batch(records, codec=codec))

    assert isinstance(answer, Refusal)
    assert answer.error is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [2, 4]
    assert str(NOW_MS + HOUR_MS + 1) in answer.record_errors[0].message
    assert error_of(build_batch(records[:2], codec=codec)) is None


def test_timestamps_too_old_are_named_only_where_a_limit_is_set() -> None:
    batch = build_batch([NewRecord(NOW_MS - delta, b"k", b"v") for delta in (HOUR_MS, HOUR_MS + 1, 0)])

    answer = check(batch, OLDEST_AN_HOUR)

    assert isinstance(answer, Refusal)
    assert answer.error is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert error_of(batch) is None
    assert error_of(batch, replace(OLDEST_AN_HOUR, log_append_time=True)) is None


def test_records_without_a_timestamp_are_never_out_of_range() -> None:
    assert error_of(build_batch([NewRecord(-1, b"k", b"v")]), OLDEST_AN_HOUR) is None


def test_a_max_timestamp_in_the_future_that_no_record_has_is_refused_without_naming_one() -> None:
    answer = check(with_header(one_batch(), max_timestamp_ms=NOW_MS + 2 * HOUR_MS))

    assert isinstance(answer, Refusal)
    assert (answer.error, answer.record_errors) == (ErrorCode.INVALID_TIMESTAMP, ())


def test_future_timestamps_do_not_matter_where_the_broker_sets_them_but_its_bit_does() -> None:
    future = build_batch([NewRecord(NOW_MS + 9 * HOUR_MS, b"k", b"v")])

    assert error_of(future, LOG_APPEND_TIME) is None
    assert error_of(with_header(future, attributes=8), LOG_APPEND_TIME) is ErrorCode.INVALID_TIMESTAMP


def test_a_timestamp_fault_outranks_a_missing_key_and_each_record_is_named_once() -> None:
    late = NOW_MS + 2 * HOUR_MS
    batch = build_batch(
        [NewRecord(at, key, b"") for at, key in ((late, b"k"), (NOW_MS, None), (late, None), (late, b""))]
    )

    answer = check(batch, COMPACTED)

    assert isinstance(answer, Refusal)
    assert answer.error is ErrorCode.INVALID_TIMESTAMP
    no_key = "Compacted topic cannot accept message without key."
    assert answer.record_errors[1:3] == (RecordError(1, no_key), RecordError(2, no_key))
    assert [error.batch_index for error in answer.record_errors] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", Codec)
def test_malformed_records_under_a_good_crc_are_refused_where_records_are_walked(codec: Codec) -> None:
    good = bytes.fromhex("0e 00 00 00 02 6b 01 00")  # "k": null
    for plain, count in ((good + b"\x00", 1), (good, 2), (good * 2, 1), (b"\x7f" * 14, 2)):
        batch = with_payload(one_batch(count), plain, codec)
        assert error_of(batch, COMPACTED) is ErrorCode.INVALID_RECORD
        assert error_of(batch, OLDEST_AN_HOUR) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_payloads_that_do_not_unfold_are_refused_where_records_are_walked(codec: Codec) -> None:
    plain = one_batch(3)[61:]
    for batch in (with_payload(one_batch(3), plain), with_payload(one_batch(3), plain + plain)):
        assert error_of(with_header(batch, attributes=codec), COMPACTED) is ErrorCode.INVALID_RECORD


def test_a_bomb_on_a_compacted_topic_is_too_large_and_not_unfolded() -> None:
    bomb = with_payload(one_batch(1), bytes(65 << 20), Codec.ZSTD)

    assert error_of(bomb, replace(COMPACTED, message_bytes_max=1 << 20)) is ErrorCode.MESSAGE_TOO_LARGE
    assert error_of(bomb, replace(COMPACTED, message_bytes_max=2 << 20)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("rules", [RULES, COMPACTED, OLDEST_AN_HOUR], ids=["plain", "compacted", "oldest"])
def test_no_bytes_of_a_client_make_the_check_raise(rules: TopicRules) -> None:
    chance = random.Random(3)
    batches = [build_batch(some_records(5), codec=codec) for codec in Codec]
    for turn in range(4000):
        damaged = bytearray(chance.choice(batches))
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        batch = bytes(damaged)
        if len(batch) > 61 and turn % 2:
            batch = with_header(batch)  # a good CRC lets the damage through to the later checks
        assert isinstance(check(batch, rules), BatchHeader | Refusal)
        assert isinstance(check(batch[: chance.randrange(len(batch))], rules), Refusal)
