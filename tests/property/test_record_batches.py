"""Batches compared with two other implementations: each reads the other's output, and damage raises only our errors."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.errors import SiltstoneError
from tests.fixtures.chance import examples
from tests.fixtures.record_batches import NOW_MS, with_header, with_payload
from wire.batch import (
    BATCH_HEADER_BYTES,
    ProducerStamp,
    crc_matches,
    iter_headers,
    read_header,
    stamp_log_append_time,
    stamp_offset,
)
from wire.codecs import Codec
from wire.records import NewRecord, build_batch, iter_records, read_payload, record_facts, walk

with warnings.catch_warnings():  # kafka-python reads its schemas with a function that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka_records = importlib.import_module("kafka.record.default_records")

FIELD = st.none() | st.binary(max_size=40) | st.binary(max_size=6).map(lambda seed: seed * 400)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
TIMESTAMP_MS = st.integers(NOW_MS - 10**9, NOW_MS + 10**9) | st.integers(0, 2**48)
RECORDS = st.lists(st.builds(NewRecord, TIMESTAMP_MS, FIELD, FIELD, HEADERS), min_size=1, max_size=30)
CODECS = st.sampled_from(Codec)
MANY = [NewRecord(NOW_MS + n, b"%d" % n, b"v" * (n % 300)) for n in range(3000)]

READERS_AND_WRITERS = {
    # kafka-python reads and writes snappy with a package that we do not depend on
    "kafka-python": (kafka_records, [codec for codec in Codec if codec is not Codec.SNAPPY]),
    "aiokafka": (aiokafka_records, list(Codec)),
}


def ours(batch: bytes) -> list[NewRecord]:
    base_ms = read_header(batch).base_timestamp_ms
    walked = list(walk(memoryview(batch)))
    assert [one.offset_delta for one in walked] == list(range(len(walked)))
    return [
        NewRecord(
            base_ms + one.timestamp_delta_ms,
            None if one.key is None else bytes(one.key),
            None if one.value is None else bytes(one.value),
            one.headers,
        )
        for one in walked
    ]


@pytest.mark.parametrize("name", READERS_AND_WRITERS)
@settings(max_examples=examples(150), deadline=None)
@given(
    records=RECORDS,
    codec=CODECS,
    base_offset=st.integers(0, 2**62),
    producer=st.just((-1, -1, -1))
    | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 99)),
    transactional=st.booleans(),
    log_append_time_ms=st.none() | TIMESTAMP_MS,
)
@example(MANY, Codec.LZ4, 5, (1, 0, 0), False, None)
@example(MANY, Codec.ZSTD, 5, (1, 0, 0), False, None)
def test_other_readers_read_what_we_build(
    name: str,
    records: list[NewRecord],
    codec: Codec,
    base_offset: int,
    producer: tuple[int, int, int],
    transactional: bool,
    log_append_time_ms: int | None,
) -> None:
    module, codecs = READERS_AND_WRITERS[name]
    producer_id, producer_epoch, base_sequence = producer
    batch = build_batch(
        records,
        codec=codec if codec in codecs else Codec.NONE,
        base_offset=base_offset,
        producer=ProducerStamp(producer_id, producer_epoch, base_sequence),
        transactional=transactional,
        log_append_time_ms=log_append_time_ms,
    )

    theirs: Any = module.DefaultRecordBatch(bytearray(batch))

    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.magic, theirs.is_transactional) == (base_offset, 2, transactional)
    assert theirs.next_offset == base_offset + len(records)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == producer
    assert theirs.timestamp_type == (log_append_time_ms is not None)
    read = [(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in theirs]
    assert read == [
        (
            base_offset + index,
            one.timestamp_ms if log_append_time_ms is None else log_append_time_ms,
            one.key,
            one.value,
            one.headers,
        )
        for index, one in enumerate(records)
    ]


@pytest.mark.parametrize("name", READERS_AND_WRITERS)
@settings(max_examples=examples(150), deadline=None)
@given(records=RECORDS, codec=CODECS)
@example(MANY, Codec.LZ4)
@example(MANY, Codec.SNAPPY)
@example(MANY, Codec.ZSTD)
def test_we_read_what_other_writers_build(name: str, records: list[NewRecord], codec: Codec) -> None:
    module, codecs = READERS_AND_WRITERS[name]
    codec = codec if codec in codecs else Codec.GZIP
    builder: Any = module.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=44,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 30,
    )
    for index, one in enumerate(records):
        assert builder.append(index, one.timestamp_ms, one.key, one.value, list(one.headers))
    batch = bytes(builder.build())

    header = read_header(batch)

    assert crc_matches(batch, 0, header) and header.size_bytes == len(batch)
    assert header.codec in (codec, Codec.NONE)  # a writer keeps data as it is when compression does not shrink it
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (44, 3, 11)
    assert header.max_timestamp_ms == max(one.timestamp_ms for one in records)
    assert ours(batch) == records


@settings(max_examples=examples(100), deadline=None)
@given(records=RECORDS)
def test_a_bare_snappy_block_in_a_batch_is_read(records: list[NewRecord]) -> None:
    plain = build_batch(records)
    block = bytes(cramjam.snappy.compress_raw(plain[BATCH_HEADER_BYTES:]))

    assert ours(with_header(with_payload(plain, block), attributes=Codec.SNAPPY)) == records


@settings(max_examples=examples(150), deadline=None)
@given(records=RECORDS, codec=CODECS)
def test_the_narrow_walks_say_what_the_full_walk_says(records: list[NewRecord], codec: Codec) -> None:
    payload, count = read_payload(memoryview(build_batch(records, codec=codec)))
    walked = list(iter_records(payload, count))

    for body in (payload, bytes(payload), bytearray(payload)):
        facts = record_facts(body, count)
        assert facts.keyless == [index for index, one in enumerate(walked) if one.key is None]
        assert facts.timestamp_deltas_ms == [one.timestamp_delta_ms for one in walked]
        assert facts.displaced is None


@settings(max_examples=examples(100), deadline=None)
@given(
    batches=st.lists(st.tuples(RECORDS, CODECS), min_size=1, max_size=4), base=st.integers(0, 2**62), now=TIMESTAMP_MS
)
def test_stamped_batches_in_a_row_are_read_at_their_offsets(
    batches: list[tuple[list[NewRecord], Codec]], base: int, now: int
) -> None:
    stored, offset, expected = bytearray(), base, []
    for index, (records, codec) in enumerate(batches):
        batch = build_batch(records, codec=codec)
        if index % 2:
            batch = stamp_log_append_time(memoryview(batch), now) + batch[BATCH_HEADER_BYTES:]
        stored += stamp_offset(memoryview(batch), offset) + batch[16:]
        expected.append((offset, len(records), bool(index % 2)))
        offset += len(records)

    found = list(iter_headers(stored))

    assert all(crc_matches(stored, position, header) for position, header in found)
    assert [(header.base_offset, header.records_count, header.is_log_append_time) for _, header in found] == expected
    assert found[-1][1].next_offset == offset


@settings(max_examples=examples(400), deadline=None)
@given(records=RECORDS, codec=CODECS, data=st.data())
def test_a_damaged_batch_is_an_error_of_ours_or_is_read_within_the_bound(
    records: list[NewRecord], codec: Codec, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(batch)[: data.draw(st.integers(0, len(batch)) | st.just(len(batch)))]

    try:
        for position, header in iter_headers(damaged):
            body = memoryview(damaged)[position : position + header.size_bytes]
            read = list(walk(body, bytes_max=100_000))
            assert len(read) == header.records_count
            assert sum(len(one.value or b"") for one in read) <= 100_000
    except SiltstoneError:
        pass


@settings(max_examples=examples(400), deadline=None)
@given(payload=st.binary(max_size=60), count=st.integers(-2, 12))
@example(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2)
def test_any_bytes_are_records_to_the_end_or_an_error_of_ours(payload: bytes, count: int) -> None:
    try:
        walked = list(iter_records(payload, count))
    except SiltstoneError:
        with pytest.raises(SiltstoneError):
            record_facts(payload, count)
    else:
        assert len(walked) == count
        assert len(record_facts(payload, count).timestamp_deltas_ms) == count
        with pytest.raises(SiltstoneError):
            list(iter_records(payload + b"\0", count))
