"""Kernels compared with their Python twins over sound and damaged bytes: the same verdict, the same columns.

The bytes end at a page that may not be read, so a kernel that reads past them ends the test run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.fixtures.chance import examples
from tests.fixtures.guarded_memory import GuardedMemory
from tests.fixtures.record_batches import NOW_MS
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, stamp_offset
from wire.codecs import Codec
from wire.kernels.batches import CorruptBatchAtError, read_batches, read_batches_python
from wire.kernels.hashing import hash_keys, hash_keys_python, hash_keys_scalar
from wire.kernels.scan import CorruptPayloadError, scan_records, scan_records_python
from wire.records import NewRecord, build_batch

MEMORY = GuardedMemory(1 << 17)
FIELD = st.none() | st.binary(max_size=20) | st.binary(min_size=1, max_size=4).map(lambda seed: seed * 50)
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
TIMESTAMP_MS = st.integers(NOW_MS - 10**6, NOW_MS + 10**6) | st.integers(-(2**62), 2**62)
RECORDS = st.lists(st.builds(NewRecord, TIMESTAMP_MS, FIELD, FIELD, HEADERS), min_size=1, max_size=8)
BYTE = st.sampled_from([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]) | st.integers(0, 255)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with up to three of its bytes changed, inserted, removed or cut off."""
    body = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(["change", "insert", "remove", "cut"])):
            case "change":
                body[place : place + 1] = bytes((draw(BYTE),)) if place < len(body) else b""
            case "insert":
                body[place:place] = bytes((draw(BYTE),))
            case "remove":
                del body[place : place + 1]
            case _:
                del body[draw(st.just(place) | st.just(max(len(body) - 2, 0))) :]
    return bytes(body)


def verdict(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The columns with their types, or the refusal: its place and its reason."""
    try:
        columns = call(*arguments, **options)
    except CorruptPayloadError as error:
        return error.payload_index, error.record_index, error.message
    except CorruptBatchAtError as error:
        return error.position, error.message
    return [(column.dtype.name, column.tolist()) for column in columns]


def places(payloads: Sequence[bytes], counts: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
    ends = np.cumsum([len(body) for body in payloads], dtype=np.int64)
    return ends - np.array([len(body) for body in payloads], np.int64), ends, np.array(counts, np.int64)


def check_scan(payloads: Sequence[bytes], counts: Sequence[int]) -> Any:
    arena, columns = MEMORY.hold(b"".join(payloads)), places(payloads, counts)
    found = verdict(scan_records, arena, *columns)
    assert found == verdict(scan_records_python, arena, *columns)
    return found


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), batches=st.lists(RECORDS, min_size=1, max_size=3))
def test_payloads_whole_or_damaged_are_judged_alike(data: st.DataObject, batches: list[list[NewRecord]]) -> None:
    payloads = [data.draw(damaged(build_batch(records)[BATCH_HEADER_BYTES:])) for records in batches]
    counts = [len(records) + data.draw(st.sampled_from([0, 0, 0, 0, 1, -1])) for records in batches]
    check_scan(payloads, counts)


@settings(max_examples=examples(400), deadline=None)
@given(body=st.lists(BYTE, max_size=60).map(bytes), count=st.integers(-2, 9))
@example(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2)
@example(b"", 0)
def test_any_bytes_are_judged_alike(body: bytes, count: int) -> None:
    check_scan([body], [count])


VARINTS_32 = [b"\x00", b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x10"]
VARINTS_32 += [b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x7f", b"\x80", b"\xff" * 5]
VARINTS_64 = [*VARINTS_32, b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xfe" + b"\xff" * 8 + b"\x01"]
VARINTS_64 += [b"\x80" * 9 + b"\x00", b"\x80" * 10 + b"\x00", b"\xff" * 10, b"\x80" * 9 + b"\x80"]


@pytest.mark.parametrize("place", ["length", "timestamp", "offset", "key", "value", "headers", "header key"])
@pytest.mark.parametrize("varint", VARINTS_64, ids=bytes.hex)
def test_numbers_of_every_width_are_read_or_refused_alike(place: str, varint: bytes) -> None:
    # given a record in which one number has an unusual encoding, and the others the shortest one
    fields = {"timestamp": b"\0", "offset": b"\0", "key": b"\x01", "value": b"\x01", "headers": b"\x02"}
    fields |= {"header key": b"\0", "header value": b"\x01"} | ({place: varint} if place != "length" else {})
    body = b"\0" + b"".join(fields.values())
    length = varint if place == "length" else bytes((2 * len(body),))
    # when it is scanned, alone and with another record behind it
    alone = check_scan([length + body], [1])
    check_scan([length + body + b"\x0c\x00\x00\x00\x01\x01\x00"], [2])
    # then a delta keeps every bit it may have
    if place == "timestamp" and varint == b"\xff" * 9 + b"\x01":
        assert alone[6] == ("int64", [-(2**63)])
    if place == "offset" and varint == b"\xfe\xff\xff\xff\x0f":
        assert alone[3] == ("int32", [2**31 - 1])


@pytest.mark.parametrize("last", [0x80, 0xFF, 0x7E])
def test_a_number_that_goes_on_behind_the_last_byte_is_refused_alike(last: int) -> None:
    # given a record of every kind of field, cut after each of its bytes, with a length that fits
    record = NewRecord(NOW_MS, b"k", b"v", (("h", b"x"), ("n", None)))
    body = build_batch([record])[BATCH_HEADER_BYTES + 1 :]
    for end in range(6, len(body) + 1):
        cut = body[: end - 1] + bytes((last,))
        # when the last byte that exists announces one more byte, or is another number
        check_scan([bytes((2 * len(cut),)) + cut], [1])


@settings(max_examples=examples(200), deadline=None)
@given(
    data=st.data(),
    batches=st.lists(st.tuples(RECORDS, st.sampled_from(Codec), st.integers(0, 2**62)), max_size=4),
    check_crc=st.booleans(),
    allow_cut=st.booleans(),
)
def test_windows_whole_or_damaged_are_judged_alike(
    data: st.DataObject, batches: list[tuple[list[NewRecord], Codec, int]], check_crc: bool, allow_cut: bool
) -> None:
    whole = [
        stamp_offset(memoryview(batch), base) + batch[16:]
        for batch, base in ((build_batch(records, codec=codec), base) for records, codec, base in batches)
    ]
    window = MEMORY.hold(data.draw(damaged(b"".join(whole)))).data
    options = {"check_crc": check_crc, "allow_cut": allow_cut}
    assert verdict(read_batches, window, **options) == verdict(read_batches_python, window, **options)


@settings(max_examples=examples(150), deadline=None)
@given(header=st.lists(BYTE, min_size=61, max_size=70).map(bytes), data=st.data())
def test_headers_of_any_bytes_are_judged_alike(header: bytes, data: st.DataObject) -> None:
    # Make a right magic and length likely: otherwise nothing behind them is examined.
    length = data.draw(st.integers(47, 60) | st.integers(-(2**31), 2**31 - 1))
    magic = data.draw(st.sampled_from([2, 2, 2, 1]))
    edited = header[:8] + length.to_bytes(4, "big", signed=True) + header[12:16] + bytes((magic,)) + header[17:]
    window = MEMORY.hold(edited).data
    for check_crc in (False, True):
        for allow_cut in (False, True):
            options = {"check_crc": check_crc, "allow_cut": allow_cut}
            assert verdict(read_batches, window, **options) == verdict(read_batches_python, window, **options)


@settings(max_examples=examples(100), deadline=None)
@given(lengths=st.lists(st.integers(-1, 130) | st.integers(-1, 20), max_size=40), seed=st.integers(0, 2**32 - 1))
def test_keys_up_to_the_last_byte_are_hashed_alike(lengths: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    arena = MEMORY.hold(chance.bytes(140))
    positions = np.array([140 - max(length, 0) if chance.integers(2) else 0 for length in lengths], np.int64)
    columns = positions, np.array(lengths, np.int32)
    expected = hash_keys_python(arena, *columns)
    assert np.array_equal(hash_keys(arena, *columns), expected)
    assert np.array_equal(hash_keys_scalar(arena, *columns), expected)


def test_a_refused_record_is_a_refused_batch() -> None:
    # A caller that catches the errors of a bad batch catches these too.
    with pytest.raises(CorruptBatchError):
        scan_records(MEMORY.hold(b"\0"), *places([b"\0"], [1]))
    with pytest.raises(CorruptBatchError):
        read_batches(b"\0")
