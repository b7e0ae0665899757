"""Headers of record batch v2: read, walked over, checked and stamped."""

from __future__ import annotations

import pytest

from tests.fixtures.record_batches import NOW_MS, as_sent, one_batch, some_records, with_header
from wire.batch import (
    BATCH_HEADER_BYTES,
    CorruptBatchError,
    ProducerStamp,
    crc_matches,
    iter_headers,
    read_header,
    stamp_log_append_time,
    stamp_offset,
)
from wire.codecs import Codec
from wire.records import NewRecord, build_batch, walk

GOLDEN = bytes.fromhex(
    "0000000000000007"  # base offset 7
    "00000051"  # batch length 81 = 93 - 12
    "00000000"  # leader epoch 0
    "02"  # magic
    "536b1579"  # CRC-32C of the bytes that follow
    "0010"  # attributes: transactional, no codec, CreateTime
    "00000001"  # last offset delta 1
    "0000018bcfe56800"  # base timestamp 1700000000000
    "0000018bcfe56c2e"  # max timestamp 1700000001070
    "00000000000003e8"  # producer id 1000
    "0005"  # producer epoch 5
    "00000009"  # base sequence 9
    "00000002"  # two records
    "2e"  # 23 bytes
    "00" "00" "00"  # attributes, timestamp delta 0, offset delta 0
    "066b6579"  # key, 3 bytes
    "0a76616c7565"  # value, 5 bytes
    "04"  # two headers
    "026101"  # "a": null
    "04c3a90478ff"  # "é": two bytes
    "0e"  # 7 bytes
    "00" "dc10" "02"  # timestamp delta 1070, offset delta 1
    "01" "01"  # null key, null value
    "00"  # no headers
)  # fmt: skip


def golden_batch() -> bytes:
    return build_batch(
        [
            NewRecord(1_700_000_000_000, b"key", b"value", (("a", None), ("é", b"x\xff"))),
            NewRecord(1_700_000_001_070, None, None),
        ],
        base_offset=7,
        producer=ProducerStamp(1000, 5, 9),
        transactional=True,
    )


def test_a_batch_has_the_bytes_that_the_format_asks_for() -> None:
    assert golden_batch() == GOLDEN


def test_every_header_field_is_read_from_its_place() -> None:
    header = read_header(b"before" + GOLDEN, 6)

    assert header == (7, 81, 0, 2, 0x536B1579, 0x10, 1, 1_700_000_000_000, 1_700_000_001_070, 1000, 5, 9, 2)
    assert (header.size_bytes, header.codec) == (93, Codec.NONE)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (8, 9, 10)


@pytest.mark.parametrize(
    ("bit", "name"),
    [(0x08, "is_log_append_time"), (0x10, "is_transactional"), (0x20, "is_control"), (0x40, "has_delete_horizon")],
)
def test_each_attribute_bit_is_read_alone(bit: int, name: str) -> None:
    alone = read_header(with_header(one_batch(), attributes=bit))
    others = read_header(with_header(one_batch(), attributes=0x78 & ~bit))

    assert getattr(alone, name) and not getattr(others, name)


def test_the_codec_is_the_three_low_bits_and_codes_above_zstd_are_refused() -> None:
    assert [read_header(with_header(one_batch(), attributes=0x78 | code)).codec for code in range(5)] == list(Codec)
    for code in (5, 6, 7):
        with pytest.raises(CorruptBatchError, match=f"codec {code}"):
            _ = read_header(with_header(one_batch(), attributes=code)).codec


@pytest.mark.parametrize(
    ("base_sequence", "delta", "last"),
    [(0, 0, 0), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 9, 6), (-1, 4, -1)],
)
def test_the_last_sequence_wraps_past_the_largest_and_is_none_without_a_first(
    base_sequence: int, delta: int, last: int
) -> None:
    header = read_header(with_header(one_batch(), base_sequence=base_sequence, last_offset_delta=delta))

    assert header.last_sequence == last


@pytest.mark.parametrize(("length", "position"), [(0, 0), (60, 0), (93, 33), (93, 93), (93, 200), (93, -1)])
def test_a_header_that_is_not_all_there_is_an_error(length: int, position: int) -> None:
    with pytest.raises(CorruptBatchError):
        read_header(GOLDEN[:length], position)


def test_the_crc_matches_at_any_position_and_shows_every_flipped_bit_it_covers() -> None:
    view = as_sent([one_batch(1), GOLDEN, one_batch(2)])
    position = len(one_batch(1))
    assert crc_matches(view, position, read_header(view, position))

    for bit in range(len(GOLDEN) * 8):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        outside = bit // 8 < 8 or 12 <= bit // 8 < 17  # base offset, leader epoch, magic
        assert crc_matches(damaged, 0, read_header(damaged)) is outside


def test_the_crc_of_a_batch_that_is_not_all_there_does_not_match() -> None:
    assert not crc_matches(GOLDEN[:-1], 0, read_header(GOLDEN))
    assert not crc_matches(GOLDEN, 1, read_header(GOLDEN))


def test_headers_of_batches_in_a_row_come_with_their_positions() -> None:
    batches = [one_batch(1), GOLDEN, one_batch(40, codec=Codec.ZSTD)]
    view = as_sent(batches)

    found = list(iter_headers(view))

    assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0]) + len(GOLDEN)]
    assert [header for _, header in found] == [read_header(batch) for batch in batches]
    assert list(iter_headers(view, found[2][0])) == found[2:]
    assert list(iter_headers(b"")) == []


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(GOLDEN[:60], id="header cut short"),
        pytest.param(GOLDEN[:-1], id="payload cut short"),
        pytest.param(with_header(GOLDEN, batch_length=48), id="length below the header's"),
        pytest.param(with_header(GOLDEN, batch_length=-12), id="length that would stand still"),
        pytest.param(with_header(GOLDEN, batch_length=-(2**31)), id="negative length"),
        pytest.param(with_header(GOLDEN, batch_length=2**31 - 1), id="length past the end"),
        pytest.param(with_header(GOLDEN, magic=1), id="magic 1"),
        pytest.param(with_header(GOLDEN, magic=-126), id="magic with the sign bit"),
    ],
)
def test_walking_over_batches_stops_with_an_error_at_the_first_bad_one(second: bytes) -> None:
    headers = iter_headers(GOLDEN + second)

    assert next(headers)[0] == 0
    with pytest.raises(CorruptBatchError):
        next(headers)


def test_an_offset_stamp_replaces_the_first_16_bytes_and_keeps_the_crc_true() -> None:
    sent = with_header(one_batch(3), partition_leader_epoch=77)

    stamp = stamp_offset(memoryview(sent), 2**40 + 5)

    assert len(stamp) == 16
    stored = stamp + sent[16:]
    header = read_header(stored)
    assert crc_matches(stored, 0, header)
    assert header == read_header(sent)._replace(base_offset=2**40 + 5, partition_leader_epoch=0)


def test_a_stamp_of_something_too_short_is_an_error() -> None:
    with pytest.raises(CorruptBatchError):
        stamp_offset(memoryview(GOLDEN)[:15], 1)


@pytest.mark.parametrize("codec", Codec)
def test_a_log_append_time_stamp_changes_only_the_bit_the_max_timestamp_and_the_crc(codec: Codec) -> None:
    sent = build_batch(some_records(20), codec=codec, producer=ProducerStamp(4, 1, 0))
    before = read_header(sent)

    stamp = stamp_log_append_time(memoryview(sent), NOW_MS + 99)

    assert len(stamp) == BATCH_HEADER_BYTES
    stored = stamp + sent[BATCH_HEADER_BYTES:]
    after = read_header(stored)
    assert crc_matches(stored, 0, after)
    assert after.is_log_append_time and after.codec is codec
    assert after == before._replace(attributes=before.attributes | 0x08, max_timestamp_ms=NOW_MS + 99, crc=after.crc)
    assert after.crc != before.crc
    assert list(walk(memoryview(stored))) == list(walk(memoryview(sent)))


def test_a_log_append_time_stamp_covers_exactly_one_batch() -> None:
    for view in (GOLDEN + b"x", GOLDEN[:-1], GOLDEN[:20]):
        with pytest.raises(CorruptBatchError):
            stamp_log_append_time(memoryview(view), NOW_MS)
