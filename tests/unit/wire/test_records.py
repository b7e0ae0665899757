"""Records inside a batch: the walk, every way in which its input can be wrong, and the batches that we build."""

from __future__ import annotations

import pytest

from runtime.errors import BadInputError
from tests.fixtures.record_batches import NOW_MS, one_batch, some_records, with_header, with_payload
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, ProducerStamp, read_header
from wire.codecs import Codec, DecompressedTooLargeError
from wire.crc import crc32c
from wire.records import (
    CorruptRecordError,
    NewRecord,
    Record,
    build_batch,
    iter_records,
    iter_times,
    read_payload,
    record_facts,
    walk,
)

SMALLEST = bytes.fromhex("0c 00 00 00 01 01 00")  # null key, null value, no headers


def varint(value: int) -> bytes:
    raw, out = value << 1 ^ value >> 63, bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(out) + bytes([raw])


def record(fields: bytes, *, length: int | None = None) -> bytes:
    """`fields` (timestamp delta onwards) as a record with its length and attributes in front."""
    return varint(len(fields) + 1 if length is None else length) + b"\x00" + fields


def test_the_crc_is_castagnolis_and_can_be_taken_in_parts() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial
    assert crc32c(memoryview(b"56789"), crc32c(bytearray(b"1234"))) == 0xE3069283


def test_a_walk_yields_every_field() -> None:
    payload = SMALLEST + record(varint(-70) + varint(1) + b"\x02k\x04vv\x04\x02h\x02x\x04\xc3\xa9\x01")

    assert list(iter_records(payload, 2)) == [
        Record(0, 0, None, None, ()),
        Record(1, -70, b"k", b"vv", (("h", b"x"), ("é", None))),
    ]
    assert record_facts(payload, 2) == ([0, -70], [0], None, 4)
    assert record_facts(payload[len(SMALLEST) :] + SMALLEST, 2) == ([-70, 0], [1], (0, 1), 4)


def test_an_empty_key_is_not_a_null_key() -> None:
    payload = record(b"\x00\x00\x00\x00\x00")

    assert list(iter_records(payload, 1)) == [Record(0, 0, b"", b"", ())]
    assert record_facts(payload, 1).keyless == []


def test_keys_and_values_are_views_into_the_payload_and_not_copies() -> None:
    payload = bytearray(record(b"\x00\x00\x02k\x04vv\x00"))

    (only,) = iter_records(payload, 1)
    payload[payload.index(b"k")] = ord("K")

    assert isinstance(only.key, memoryview) and only.key == b"K"
    del only  # releases the bytearray


@pytest.mark.parametrize("bits", [7, 8, 14, 31])
def test_varints_of_every_length_are_read(bits: int) -> None:
    for value in (2**bits - 1, -(2**bits), 2 ** (bits - 1)):
        payload = record(varint(value << 32 if bits == 31 else value) + varint(value) + b"\x01\x01\x00")
        (only,) = iter_records(payload, 1)
        assert only.offset_delta == value
        assert only.timestamp_delta_ms == (value << 32 if bits == 31 else value)


def test_header_keys_that_are_not_utf8_are_read_with_replacements() -> None:
    (only,) = iter_records(record(b"\x00\x00\x01\x01\x02\x04\xff\x61\x01"), 1)

    assert only.headers == (("\ufffda", None),)


MALFORMED = {
    "length says one more": (record(b"\x00\x00\x01\x01\x00", length=7) + b"\x00", "its fields use"),
    "length says one less": (record(b"\x00\x00\x02k\x01\x00", length=6), "its fields use"),
    "length below the smallest record": (b"\x0a\x00\x00\x00\x01\x01\x00", "it says it has 5 bytes"),
    "length of nothing": (b"\x00" * 7, "it says it has 0 bytes"),
    "negative length": (varint(-6) + SMALLEST[1:], "it says it has -6 bytes"),
    "length past the payload": (record(b"\x00\x00\x01\x01\x00", length=2**30), "1073741824 bytes, but 6 are left"),
    "length of more than 32 bits": (b"\xff\xff\xff\xff\x1f" + bytes(20), "more than 32 bits"),
    "length that never ends": (b"\xff" * 30, "more than 32 bits"),
    "timestamp of more than 64 bits": (record(b"\xff" * 9 + b"\x03\x00\x01\x01\x00"), "more than 64 bits"),
    "offset of more than 32 bits": (record(b"\x00" + b"\xff" * 4 + b"\x10\x01\x01\x00"), "more than 32 bits"),
    "key past the record": (record(b"\x00\x00" + varint(9) + b"k\x01\x00") + SMALLEST * 2, "leaves its record"),
    "key past the payload": (record(b"\x00\x00" + varint(2**31 - 1) + b"k\x01\x00"), "leaves the payload"),
    "value past the record": (record(b"\x00\x00\x01" + varint(9) + b"v\x00") + SMALLEST * 2, "leaves its record"),
    "key length -2": (record(b"\x00\x00\x03\x01\x00"), "length -2"),
    "value length -2": (record(b"\x00\x00\x01\x03\x00"), "length -2"),
    "header count -1": (record(b"\x00\x00\x01\x01\x01"), "counts -1 headers"),
    "header count beyond the record": (record(b"\x00\x00\x01\x01" + varint(2**31 - 1)), "counts 2147483647 headers"),
    "header without a key": (record(b"\x00\x00\x01\x01\x02\x01\x01"), "no key"),
    "header value length -2": (record(b"\x00\x00\x01\x01\x02\x02h\x03"), "length -2"),
    "header key past the record": (record(b"\x00\x00\x01\x01\x02\x0ah") + SMALLEST * 2, "its fields use"),
    "no header count": (record(b"\x00\x00\x04kk\x01"), "leaves the payload"),
    "bytes after the headers": (record(b"\x00\x00\x01\x01\x00\x00"), "its fields use"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_record_is_named_by_its_index(name: str) -> None:
    bad, message = MALFORMED[name]
    payload, count = SMALLEST * 2 + bad, 3

    for read in (lambda: list(iter_records(payload, count)), lambda: record_facts(payload, count)):
        with pytest.raises(CorruptRecordError, match=message) as raised:
            read()
        assert raised.value.record_index == 2
    with pytest.raises(CorruptRecordError):
        record_facts(memoryview(payload), count)


@pytest.mark.parametrize(
    ("payload", "count", "index"),
    [
        (SMALLEST * 3, 2, 2),
        (SMALLEST, 0, 0),
        (SMALLEST + b"\x00", 1, 1),
        (record(b"\x00\x00\x0ekkkkkkk\x01\x00") * 2, 3, 2),
        (SMALLEST * 2, 3, 0),
        (SMALLEST, 2**31 - 1, 0),
        (SMALLEST, -1, 0),
        (b"", 1, 0),
    ],
    ids=["too few", "none", "a byte after", "one too many", "no room for so many", "lying", "negative", "no bytes"],
)
def test_a_count_that_is_not_the_number_of_records_is_an_error(payload: bytes, count: int, index: int) -> None:
    with pytest.raises(CorruptRecordError) as raised:
        list(iter_records(payload, count))
    assert raised.value.record_index == index


def test_an_empty_batch_as_a_cleaner_leaves_it_has_no_records() -> None:
    for codec in Codec:
        empty = with_header(one_batch(3)[:BATCH_HEADER_BYTES], batch_length=49, records_count=0, attributes=codec)
        assert list(walk(memoryview(empty))) == []


@pytest.mark.parametrize("codec", Codec)
def test_a_walk_reads_what_was_built_and_nothing_after_the_batch(codec: Codec) -> None:
    records = [
        NewRecord(NOW_MS, b"a", b"1"),
        NewRecord(NOW_MS - 5, None, b"2" * 200_000, (("h", None), ("h", b""))),
        NewRecord(NOW_MS + 5, b"", None),
    ]
    batch = build_batch(records, codec=codec)

    walked = list(walk(memoryview(batch + b"next batch")))

    assert [NewRecord(NOW_MS + one.timestamp_delta_ms, *one[2:]) for one in walked] == records
    assert [one.offset_delta for one in walked] == [0, 1, 2]
    header = read_header(batch)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.codec) == (NOW_MS, NOW_MS + 5, codec)
    assert (header.records_count, header.last_offset_delta, header.size_bytes) == (3, 2, len(batch))


def test_a_built_batch_without_options_has_no_producer_and_one_with_them_has_what_was_asked() -> None:
    plain = read_header(build_batch(some_records(2)))
    assert (plain.base_offset, plain.producer_id, plain.producer_epoch, plain.base_sequence) == (0, -1, -1, -1)
    assert plain.attributes == 0

    full = read_header(
        build_batch(
            some_records(2),
            codec=Codec.LZ4,
            base_offset=2**33,
            producer=ProducerStamp(2**40, 7, 2**31 - 1),
            transactional=True,
            log_append_time_ms=NOW_MS + 60_000,
        )
    )
    assert (full.base_offset, full.producer_id, full.producer_epoch) == (2**33, 2**40, 7)
    assert (full.base_sequence, full.last_sequence) == (2**31 - 1, 0)
    assert full.is_transactional and full.is_log_append_time and not full.is_control and full.codec is Codec.LZ4
    assert (full.base_timestamp_ms, full.max_timestamp_ms) == (NOW_MS, NOW_MS + 60_000)


def test_records_without_timestamps_keep_minus_one() -> None:
    batch = build_batch([NewRecord(-1, None, None), NewRecord(-1, None, None)])

    assert read_header(batch).base_timestamp_ms == read_header(batch).max_timestamp_ms == -1
    assert [one.timestamp_delta_ms for one in walk(memoryview(batch))] == [0, 0]


def test_a_batch_of_no_records_cannot_be_built() -> None:
    with pytest.raises(BadInputError):
        build_batch([])


def test_a_payload_that_is_not_compressed_is_lent_and_not_copied() -> None:
    batch = one_batch(2)

    payload, count = read_payload(memoryview(batch))

    assert isinstance(payload, memoryview) and payload.obj is batch
    assert count == 2


@pytest.mark.parametrize(
    "batch",
    [
        one_batch()[:-1],
        one_batch()[:60],
        b"",
        with_header(one_batch(), batch_length=48),
        with_header(one_batch(), batch_length=-1),
        with_header(one_batch(), magic=1),
        with_header(one_batch(), attributes=6),
    ],
    ids=["cut short", "no header", "nothing", "length too small", "length negative", "magic", "codec"],
)
def test_a_walk_of_something_that_is_no_batch_is_an_error(batch: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        list(walk(memoryview(batch)))


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_walk_stops_at_the_bound(codec: Codec) -> None:
    plain = record(b"\x00\x00\x01" + varint(100_000) + bytes(100_000) + b"\x00")
    batch = memoryview(with_payload(one_batch(1), plain, codec))

    assert len(list(walk(batch, bytes_max=len(plain)))) == 1
    with pytest.raises(DecompressedTooLargeError):
        list(walk(batch, bytes_max=len(plain) - 1))


def test_times_are_those_of_the_records_and_wrong_bounds_are_seen() -> None:
    payload = SMALLEST + record(varint(-70) + varint(1) + b"\x02k\x04vv\x04\x02h\x02x\x04\xc3\xa9\x01")
    assert list(iter_times(payload, 2)) == [
        (each.offset_delta, each.timestamp_delta_ms) for each in iter_records(payload, 2)
    ]
    far = record(varint(-(2**40)) + varint(300) + b"\x01\x01\x00")
    assert list(iter_times(far, 1)) == [(300, -(2**40))]
    for wrong, count, index in (
        (SMALLEST, 2, 0),  # more records than bytes
        (SMALLEST, -1, 0),
        (SMALLEST + SMALLEST, 1, 1),  # bytes behind the last record
        (SMALLEST + record(b"\x00\x00\x01\x01\x00", length=70), 2, 1),  # leaves the payload
        (record(b"\x00\x00\x01\x01\x00", length=2), 1, 0),
        (record(b"\xff" * 11 + b"\x01"), 1, 0),  # more than 64 bits
        (record(b"\x00\xff\xff\xff\xff\x7f"), 1, 0),  # more than 32 bits
        (record(b"\xff\xff\xff\xff\xff"), 1, 0),  # a delta leaves the payload
        (record(b"\xff\xff\xff\xff\xff") + SMALLEST, 2, 0),  # a delta leaves its record
    ):
        with pytest.raises(CorruptRecordError) as error:
            list(iter_times(wrong, count))
        assert error.value.record_index == index


def test_times_of_a_record_with_many_headers_cost_nothing_more() -> None:
    count = 100_000
    payload = record(b"\x00\x00\x01\x01" + varint(count) + bytes(2 * count))
    assert len(next(iter_records(payload, 1)).headers) == count
    assert list(iter_times(payload, 1)) == [(0, 0)]
