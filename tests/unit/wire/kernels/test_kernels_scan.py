"""The places of records and keys: the kernel and Python give the same. Damage: tests/property/test_kernels_walks.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.errors import BugError
from tests.fixtures.record_batches import NOW_MS, some_records
from wire.batch import BATCH_HEADER_BYTES
from wire.kernels.scan import (
    CorruptPayloadError,
    KeyColumns,
    PayloadChecksumError,
    scan_records,
    scan_records_python,
)
from wire.records import NewRecord, build_batch, iter_records

SCANS: dict[str, Callable[..., KeyColumns]] = {"kernel": scan_records, "python": scan_records_python}


@pytest.fixture(params=SCANS)
def scan(request: pytest.FixtureRequest) -> Callable[..., KeyColumns]:
    return SCANS[request.param]


def payload(records: Sequence[NewRecord]) -> bytes:
    return build_batch(records)[BATCH_HEADER_BYTES:]


def laid_out(payloads: Sequence[bytes], counts: Sequence[int]) -> tuple[NDArray[np.uint8], ...]:
    """The arguments of a scan: the payloads with a gap before each and some bytes behind the last."""
    arena, starts, ends = bytearray(), [], []
    for body in payloads:
        arena += b"\xff\xff\xff"
        starts.append(len(arena))
        arena += body
        ends.append(len(arena))
    arena += b"\xff"
    return (np.frombuffer(bytes(arena), dtype=np.uint8), *(np.array(each, np.int64) for each in (starts, ends, counts)))


def test_every_record_is_a_row(scan: Callable[..., KeyColumns]) -> None:
    # given payloads with long and null keys, null values, headers, and deltas of many bytes
    first = [
        NewRecord(NOW_MS, b"k", b"v"),
        NewRecord(NOW_MS - 2**40, None, b"x" * 300),
        NewRecord(NOW_MS + 2**55, b"key" * 9000, None, (("h", b"1"), ("nothing", None))),
    ]
    second = some_records(200)
    arena, starts, ends, counts = laid_out([payload(first), payload(second)], [3, 200])
    # when they are scanned
    columns = scan(arena, starts, ends, counts)
    # then every key is at its place, and every record can be read again from its stretch alone
    everything = [*first, *second]
    places = zip(columns.key_positions, columns.key_lengths, strict=True)
    keys = [None if length < 0 else arena[at : at + length].tobytes() for at, length in places]
    assert keys == [one.key for one in everything]
    assert columns.value_is_null.tolist() == [one.value is None for one in everything]
    assert columns.offset_deltas.tolist() == [*range(3), *range(200)]
    assert columns.timestamp_deltas.tolist() == [one.timestamp_ms - NOW_MS for one in everything]
    for row, one in enumerate(everything):
        (alone,) = iter_records(arena[columns.record_positions[row] : columns.record_ends[row]].tobytes(), 1)
        assert (alone.value, alone.headers) == (one.value, one.headers)
    kinds = [column.dtype.name for column in columns]
    assert kinds == ["int64", "int32", "uint8", "int32", "int64", "int64", "int64"]


def test_no_payloads_and_empty_payloads_have_no_records(scan: Callable[..., KeyColumns]) -> None:
    for payloads in ([], [b""], [b"", b""]):
        assert {len(column) for column in scan(*laid_out(payloads, [0] * len(payloads)))} == {0}


def test_the_first_record_that_is_wrong_is_named(scan: Callable[..., KeyColumns]) -> None:
    good = payload(some_records(5))
    last = payload(some_records(4))
    broken = good[: -len(good) // 5] + bytes(len(good) // 5)
    for payloads, counts, place in (
        ([good, broken, broken], [5, 5, 5], (1, 4)),
        ([good, good + b"\0"], [5, 5], (1, 5)),
        ([good, good], [5, 4], (1, 4)),
        ([good, good, last], [5, 6, 4], (1, 5)),
        ([good, last, good], [5, -1, 6], (1, 0)),
        ([good, good, broken], [5, 2**40, 5], (1, 0)),
        ([broken, good], [5, -7], (0, 4)),
    ):
        with pytest.raises(CorruptPayloadError) as refused:
            scan(*laid_out(payloads, counts))
        assert (refused.value.payload_index, refused.value.record_index) == place


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 11), (2**62, 2**62 + 5), (-(2**63), 2**63 - 1)])
def test_a_payload_outside_the_arena_is_our_mistake(scan: Callable[..., KeyColumns], start: int, end: int) -> None:
    places = (np.array([value], np.int64) for value in (start, end, 0))
    with pytest.raises(BugError, match="in an arena of 10 bytes"):
        scan(np.zeros(10, np.uint8), *places)


def test_what_is_not_an_arena_of_bytes_is_refused(scan: Callable[..., KeyColumns]) -> None:
    none = np.empty(0, np.int64)
    for arena in (np.zeros(10, np.int8), np.zeros(10, np.uint8)[::2], np.zeros((2, 5), np.uint8)):
        with pytest.raises(BugError, match="contiguous"):
            scan(arena, none, none, none)


def test_columns_may_be_parts_of_others_and_unwritable(scan: Callable[..., KeyColumns]) -> None:
    arena, starts, ends, counts = laid_out([payload(some_records(3))] * 4, [3] * 4)
    for column in (starts, ends, counts):
        column.flags.writeable = False
    assert len(scan(arena, starts[::2], ends[::2], counts[1:3]).key_lengths) == 6


def test_a_batch_whose_checksum_is_wrong_is_named_before_its_records_are_looked_at() -> None:
    # given three batches in a row
    batches = [build_batch(some_records(count)) for count in (3, 5, 2)]
    ends = np.cumsum([len(batch) for batch in batches])
    starts = ends - [len(batch) - BATCH_HEADER_BYTES for batch in batches]
    places = (starts, ends, np.array([3, 5, 2]))
    sound = np.frombuffer(b"".join(batches), dtype=np.uint8)
    assert scan_records(sound, *places, check_crc=True).key_lengths.tolist() == (
        scan_records(sound, *places).key_lengths.tolist()
    )
    # when any byte that the second one's checksum covers, or the checksum itself, is changed
    for place in range(int(starts[1]) - BATCH_HEADER_BYTES + 17, int(ends[1])):
        turned = sound.copy()
        turned[place] ^= 0xFF
        # then exactly that batch is refused, whatever is wrong with its records
        with pytest.raises(PayloadChecksumError) as caught:
            scan_records(turned, *places, check_crc=True)
        assert caught.value.payload_index == 1
    # and so too where its count is impossible
    turned = sound.copy()
    turned[int(starts[1]) - 4] = 0x7F
    with pytest.raises(PayloadChecksumError) as caught:
        scan_records(turned, starts, ends, np.array([3, 0x7F000005, 2]), check_crc=True)
    assert caught.value.payload_index == 1


def test_a_payload_without_a_header_before_it_has_no_checksum_to_look_at() -> None:
    body = np.frombuffer(bytes(BATCH_HEADER_BYTES), dtype=np.uint8)
    with pytest.raises(BugError, match="header"):
        scan_records(body, np.array([60]), np.array([60]), np.array([0]), check_crc=True)
