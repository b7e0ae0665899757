"""The cleaner at its edges: the smallest and largest keys and batches, damage, and wrong calls."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest

from compactor.cleaning import payloads as clean_payloads
from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.cleaning.oracle import compact
from compactor.cleaning.partition_cleaner import PartitionCleaner
from compactor.cleaning.payloads import CodecAtError, CorruptRecordAtError, Payloads
from runtime.errors import BadInputError, BugError
from tests.fixtures.cleaning import CLEANERS, Cleaned, Log, bounds_of, by_kernels, by_oracle, pairs, split
from tests.fixtures.record_batches import NOW_MS, with_header, with_payload
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, ProducerStamp, read_header
from wire.codecs import Codec, CodecError, decompress
from wire.kernels.batches import CorruptBatchAtError, read_batches
from wire.records import DECOMPRESSED_BYTES_MAX, CorruptRecordError, NewRecord, build_batch

Clean = Callable[..., Cleaned]


@pytest.fixture(params=CLEANERS)
def clean(request: pytest.FixtureRequest) -> Clean:
    return CLEANERS[request.param]


def scan_all(cleaner: PartitionCleaner, data: bytes) -> int:
    """The number of scans."""
    scans, more = 0, True
    while more:
        cleaner.scan(data, read_batches(data))
        more, scans = cleaner.end_scan(), scans + 1
    return scans


# Sizes


def test_a_key_of_no_bytes_is_a_key(clean: Clean) -> None:
    log = Log()
    log.append((b"", 1), (None, 2), (b"", 3))
    log.append((b"", None), ("k", 1))

    cleaned = clean(log.batches, log.bounds())

    assert pairs(cleaned.records) == [(3, "", None), (4, "k", "1")]
    assert cleaned.stats.keyless_dropped == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_key_of_a_mebibyte_is_like_any_other(clean: Clean, codec: Codec) -> None:
    long = b"k" * (1 << 20)
    log = Log(codec=codec)
    log.append((long, 1), (long + b".", 1))
    log.append((long, 2))

    assert clean(log.batches, log.bounds()).offsets == [1, 2]


def test_batches_of_one_record_stay_whole_or_go(clean: Clean) -> None:
    log = Log()
    for n in range(300):
        log.append((n % 100, n))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.batches == log.batches[200:]
    assert (cleaned.stats.batches_removed, cleaned.stats.batches_rebuilt) == (200, 0)


@pytest.mark.parametrize("survivor", [0, 1, 127, 128, 199])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_one_survivor_of_a_batch_is_its_only_record(clean: Clean, survivor: int, codec: Codec) -> None:
    log = Log(codec=codec)
    log.append(*(("mine" if n == survivor else "theirs", n) for n in range(200)))
    log.append(("theirs", "new"))

    cleaned = clean(log.batches, log.bounds())

    assert cleaned.offsets == [survivor, 200]
    assert cleaned.headers[0].last_offset == 199
    assert cleaned.headers[0].max_timestamp_ms == cleaned.records[0].timestamp_ms == log.timestamp_ms + survivor


def test_a_batch_of_a_million_records_is_cleaned() -> None:
    # given a batch in which a thousand keys occur a thousand times
    records = 1_000_000
    deltas = [bytes((n << 1 & 0x7F | 0x80, n >> 6 & 0x7F | 0x80, n >> 13 & 0x7F)) for n in range(records)]
    keys = [b"\x08%04d\x02v\x00" % n for n in range(1000)]
    payload = b"".join([b"\x1a\x00\x00" + deltas[n] + keys[n % 1000] for n in range(records)])
    batch = with_payload(
        build_batch([NewRecord(NOW_MS, b"k", b"v")]), payload, records_count=records, last_offset_delta=records - 1
    )

    cleaned = by_kernels([batch], bounds_of([batch]))

    assert cleaned.offsets == list(range(records - 1000, records))
    assert (cleaned.scanned.dead_records, cleaned.scanned.keys) == (records - 1000, 1000)


def test_a_window_without_batches_is_nothing() -> None:
    cleaner = PartitionCleaner(DedupeBuffer(10), bounds_of([]))
    assert scan_all(cleaner, b"") == 1
    assert bytes(cleaner.rewrite(b"", read_batches(b"")).data) == b""


# Damage


def bomb() -> bytes:
    return with_payload(build_batch([NewRecord(1, b"k", b"v")]), bytes(DECOMPRESSED_BYTES_MAX + 1), Codec.ZSTD)


def test_a_batch_that_unfolds_to_too_much_is_an_error_that_names_it(clean: Clean) -> None:
    log = Log()
    log.append(("k", "v"))
    log.add(with_header(bomb(), base_offset=77))

    with pytest.raises(CodecError, match="unfolds to more than") as caught:
        clean(log.batches, log.bounds())

    if clean is by_kernels:
        assert isinstance(caught.value, CodecAtError)
        assert (caught.value.base_offset, caught.value.position) == (77, len(log.batches[0]))
        assert "base offset 77" in str(caught.value)


def test_a_bomb_is_found_within_any_bound() -> None:
    log = Log(codec=Codec.GZIP)
    log.append(("k", b"v" * 10_000))
    with pytest.raises(CodecError):
        by_kernels(log.batches, log.bounds(), decompressed_bytes_max=9_000)
    with pytest.raises(CodecError):
        compact(log.batches, log.bounds(), keys_max=9, decompressed_bytes_max=9_000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_malformed_record_is_an_error_that_names_batch_and_record(clean: Clean, codec: Codec) -> None:
    good = build_batch([NewRecord(1, b"k", b"v"), NewRecord(2, b"l", b"w")], base_offset=5)
    plain = bytearray(good[BATCH_HEADER_BYTES:])
    plain[-1] = 9  # header bytes that are missing
    log = Log()
    log.append(("k", "v"))
    log.add(with_payload(good, bytes(plain), codec))

    with pytest.raises(CorruptRecordError) as caught:
        clean(log.batches, log.bounds())

    assert caught.value.record_index == 1
    if clean is by_kernels:
        assert isinstance(caught.value, CorruptRecordAtError)
        assert (caught.value.base_offset, caught.value.position) == (5, len(log.batches[0]))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (-1, 1)])
def test_offsets_that_do_not_ascend_within_their_batch_are_refused(clean: Clean, deltas: tuple[int, int]) -> None:
    """Offsets decide which record is the latest and which lies below a bound, so their order must be right."""
    # each is: length, attributes, timestamp delta, offset delta, key "k", value "v", no headers
    zigzag = [bytes((delta << 1 if delta >= 0 else 1,)) for delta in deltas]
    records = b"".join(b"\x10\x00\x00" + delta + b"\x02k\x02v\x00" for delta in zigzag)
    batch = with_payload(
        build_batch([NewRecord(1, b"k", b"v")], base_offset=3), records, records_count=2, last_offset_delta=1
    )

    with pytest.raises(CorruptRecordError, match="offset delta"):
        clean([batch], bounds_of([batch]))


def test_batches_out_of_order_are_refused() -> None:
    batches = [build_batch([NewRecord(1, b"k", b"v")], base_offset=offset) for offset in (3, 4, 4)]
    cleaner = PartitionCleaner(DedupeBuffer(10), bounds_of(batches))
    cleaner.scan(batches[0], read_batches(batches[0]))

    with pytest.raises(CorruptBatchAtError, match="base offset 4 does not come after 4") as caught:
        cleaner.scan(batches[1] + batches[2], read_batches(batches[1] + batches[2]))
    assert caught.value.position == len(batches[1])

    for batch in batches[:2]:
        with pytest.raises(CorruptBatchError):
            again = PartitionCleaner(DedupeBuffer(10), bounds_of(batches))
            again.scan(batches[1], read_batches(batches[1]))
            again.scan(batch, read_batches(batch))


# Calls


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_nothing_changed_in_is_given_back_itself(kind: Callable[[bytes], bytes]) -> None:
    log = Log()
    log.append(("a", 1), ("b", 2))
    log.append(("c", 1))
    window = kind(b"".join(log.batches))
    cleaner = PartitionCleaner(DedupeBuffer(10), log.bounds())
    scan_all(cleaner, window)

    assert cleaner.rewrite(window, read_batches(window)).data is window


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_windows_may_be_any_buffer(kind: Callable[[bytes], bytes]) -> None:
    log = Log(codec=Codec.LZ4)
    log.append(("a", 1), ("b", 2))
    log.codec = Codec.NONE
    log.append(("a", 3), ("a", 4))
    window = kind(b"".join(log.batches))
    cleaner = PartitionCleaner(DedupeBuffer(10), log.bounds())
    cleaner.scan(window, read_batches(window))
    cleaner.end_scan()

    cleaned = cleaner.rewrite(window, read_batches(window))

    assert split(cleaned.data) == by_oracle(log.batches, log.bounds()).batches


def test_one_buffer_serves_partitions_in_turn() -> None:
    buffer = DedupeBuffer(10)
    for value in (1, 2):
        log = Log()
        log.append(("a", value), ("b", value))
        cleaner = PartitionCleaner(buffer, log.bounds())
        scan_all(cleaner, log.batches[0])
        assert (cleaner.scanned.keys, cleaner.scanned.dead_records) == (2, 0)


def test_a_part_that_overflows_is_split_until_every_piece_fits() -> None:
    log = Log()
    for n in range(400):
        log.append((n % 100, n))
    data = b"".join(log.batches)
    cleaner = PartitionCleaner(DedupeBuffer(8), log.bounds(), passes=2)

    scans = scan_all(cleaner, data)

    assert scans >= 100 // 8 + 1
    assert (cleaner.scanned.keys, cleaner.scanned.dead_records, cleaner.scanned.clears) == (100, 300, 0)
    cleaned = cleaner.rewrite(data, read_batches(data))
    assert bytes(cleaned.data) == b"".join(log.batches[300:])


def test_enough_parts_take_one_scan_each() -> None:
    log = Log()
    log.append(*((n, n) for n in range(100)))
    assert by_kernels(log.batches, log.bounds(), keys_max=60, passes=3).scans == 3


@pytest.mark.parametrize(("kept_bytes_max", "unfolded"), [(0, 20), (1 << 20, 10), (700, 15)])
def test_what_was_unfolded_is_kept_for_the_rewrite_within_its_bound(kept_bytes_max: int, unfolded: int) -> None:
    log = Log(codec=Codec.ZSTD)
    for n in range(10):
        log.append((n, b"v" * (140 - 12)))  # 140 bytes of payload each, five of them in 700

    with patch.object(clean_payloads, "decompress", wraps=decompress) as counted:
        cleaned = by_kernels(log.batches, log.bounds(), kept_bytes_max=kept_bytes_max, scan_cuts=[3], rewrite_cuts=[8])

    assert cleaned.batches == log.batches
    assert counted.call_count == unfolded


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_chunks_hold_what_fits_in_order_and_one_batch_at_least(codec: Codec) -> None:
    log = Log(codec=codec)
    for records in (3, 3, 3, 20, 3, 3, 3, 3):
        log.append(*((n, b"v" * 100) for n in range(records)))
    window = b"".join(log.batches)
    table = read_batches(window)

    for chunk_bytes, chunk_records, expected in (
        (1 << 20, 9, [(0, 3), (3, 4), (4, 7), (7, 8)]),
        (800, 1 << 20, [(0, 2), (2, 3), (3, 4), (4, 6), (6, 8)]),
        (1, 1 << 20, [(n, n + 1) for n in range(8)]),
    ):
        with (
            patch.object(clean_payloads, "CHUNK_BYTES", chunk_bytes),
            patch.object(clean_payloads, "PLAIN_CHUNK_BYTES", chunk_bytes + 61 * 2),
            patch.object(clean_payloads, "CHUNK_RECORDS", chunk_records),
        ):
            payloads = Payloads(kept_bytes_max=0, decompressed_bytes_max=1 << 20)
            chunks = list(payloads.chunks(window, table, 0))
        assert [(chunk.first, chunk.stop) for chunk in chunks] == expected


def test_calls_in_the_wrong_order_are_bugs() -> None:
    log = Log()
    log.append(("a", 1))
    window, table = log.batches[0], read_batches(log.batches[0])
    cleaner = PartitionCleaner(DedupeBuffer(10), log.bounds())
    with pytest.raises(BugError):
        _ = cleaner.scanned
    with pytest.raises(BugError):
        cleaner.rewrite(window, table)
    scan_all(cleaner, window)
    with pytest.raises(BugError):
        cleaner.scan(window, table)
    with pytest.raises(BugError):
        cleaner.end_scan()
    cleaner.rewrite(window, table)
    log.append(("b", 1))
    with pytest.raises(BugError):
        cleaner.rewrite(log.batches[1], read_batches(log.batches[1]))


def test_no_pass_and_no_room_are_refused() -> None:
    with pytest.raises(BadInputError):
        PartitionCleaner(DedupeBuffer(10), bounds_of([]), passes=0)
    with pytest.raises(BadInputError):
        compact([], bounds_of([]), keys_max=0)


def test_tables_of_the_output_describe_it() -> None:
    log = Log()
    log.append(("a", 1), ("b", None), log_append_time_ms=NOW_MS)
    log.append(("a", 2))
    log.append(("b", 3), producer=ProducerStamp(8, 0, 4))
    window = b"".join(log.batches)
    cleaner = PartitionCleaner(DedupeBuffer(10), log.bounds())
    scan_all(cleaner, window)

    cleaned = cleaner.rewrite(window, read_batches(window))

    headers = [read_header(batch) for batch in split(cleaned.data)]
    assert cleaned.table.base_offsets.tolist() == [header.base_offset for header in headers] == [2, 3]
    assert cleaned.table.producer_ids.tolist() == [-1, 8]
    assert cleaned.table.positions.dtype == np.int64
