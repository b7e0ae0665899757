"""The table of the batches of a window: the kernel and Python give the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from tests.fixtures.record_batches import NOW_MS, one_batch, with_header
from wire.batch import ProducerStamp, stamp_offset
from wire.codecs import Codec
from wire.crc import Body, crc32c
from wire.kernels.batches import (
    BatchTable,
    CorruptBatchAtError,
    check_crcs,
    read_batches,
    read_batches_python,
    runs_crc32c,
)

READERS: dict[str, Callable[..., BatchTable]] = {"kernel": read_batches, "python": read_batches_python}


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest) -> Callable[..., BatchTable]:
    return READERS[request.param]


def at(offset: int, batch: bytes) -> bytes:
    return stamp_offset(memoryview(batch), offset) + batch[16:]


def three() -> tuple[bytes, bytes, bytes]:
    return (
        at(100, one_batch(3)),
        at(2**40, one_batch(50, codec=Codec.ZSTD, producer=ProducerStamp(77, 1, 3))),
        at(2**40 + 60, one_batch(1, log_append_time_ms=NOW_MS + 5)),
    )


def test_every_batch_is_a_row(read: Callable[..., BatchTable]) -> None:
    first, second, third = three()
    table = read(first + second + third)
    assert table.positions.tolist() == [0, len(first), len(first) + len(second)]
    assert table.sizes.tolist() == [len(first), len(second), len(third)]
    assert table.base_offsets.tolist() == [100, 2**40, 2**40 + 60]
    assert table.last_offsets.tolist() == [102, 2**40 + 49, 2**40 + 60]
    assert table.record_counts.tolist() == [3, 50, 1]
    assert table.attributes.tolist() == [0, Codec.ZSTD, 8]
    assert table.base_timestamps_ms.tolist() == [NOW_MS] * 3
    assert table.max_timestamps_ms.tolist() == [NOW_MS + 2, NOW_MS + 49, NOW_MS + 5]
    assert table.producer_ids.tolist() == [-1, 77, -1]
    assert {column.dtype for column in table} == {np.dtype(np.int64)}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(b"x" + data + b"y")[1:-1]])
def test_any_bytes_are_read_in_place(read: Callable[..., BatchTable], kind: Callable[[bytes], Body]) -> None:
    assert read(kind(b"".join(three()))).record_counts.tolist() == [3, 50, 1]


def test_nothing_is_a_table_without_rows(read: Callable[..., BatchTable]) -> None:
    for allow_cut in (False, True):
        table = read(b"", allow_cut=allow_cut)
        assert [len(column) for column in table] == [0] * 10


def test_a_batch_that_is_cut_off_is_left_out_where_that_is_allowed(read: Callable[..., BatchTable]) -> None:
    first, second, _ = three()
    for kept in (1, 16, 60, 61, 62, len(second) - 1):
        window = first + second[:kept]
        assert read(window, allow_cut=True).sizes.tolist() == [len(first)]
        with pytest.raises(CorruptBatchAtError, match=f"position {len(first)}") as refused:
            read(window)
        assert refused.value.position == len(first)


BROKEN = {
    "magic 1": {"magic": 1},
    "magic 3": {"magic": 3},
    "batch length 48": {"batch_length": 48},
    "batch length -1": {"batch_length": -1},
    "codec 5": {"attributes": 5},
    "last offset delta -1": {"last_offset_delta": -1},
    "base offset -1": {"base_offset": -1},
    "leads to no offset": {"base_offset": 2**63 - 2},
    "counts -1": {"records_count": -1},
    "counts 4 records over 3 offsets": {"records_count": 4},
    "CRC-32C": {"crc": 1},
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_batch_that_breaks_a_rule_is_named_by_its_place(read: Callable[..., BatchTable], words: str) -> None:
    first, _, third = three()
    window = first + with_header(at(200, one_batch(3)), **BROKEN[words]) + third
    for allow_cut in (False, True):
        with pytest.raises(CorruptBatchAtError, match=words) as refused:
            read(window, allow_cut=allow_cut)
        assert refused.value.position == len(first)
        assert f"base offset {BROKEN[words].get('base_offset', 200)}" in refused.value.message


def test_the_first_bad_batch_is_the_one_named(read: Callable[..., BatchTable]) -> None:
    first, second, third = three()
    bad_sum = first[:-1] + bytes((first[-1] ^ 1,))
    with pytest.raises(CorruptBatchAtError, match="CRC-32C") as refused:
        read(second + bad_sum + with_header(third, magic=0))
    assert refused.value.position == len(second)


def test_the_checksum_is_not_looked_at_unless_asked_for(read: Callable[..., BatchTable]) -> None:
    batch = one_batch(3)
    for place in (17, 21, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[place] ^= 0x80 if place != 21 else 0x01  # in the attributes: an unused bit
        assert len(read(damaged, check_crc=False).sizes) == 1
        with pytest.raises(CorruptBatchAtError, match="CRC-32C"):
            read(damaged)


def test_an_empty_batch_keeps_the_offsets_it_stood_for(read: Callable[..., BatchTable]) -> None:
    empty = with_header(one_batch(3)[:61], batch_length=49, records_count=0, base_offset=10, base_timestamp_ms=-1)
    table = read(empty)
    assert (table.sizes.tolist(), table.record_counts.tolist(), table.last_offsets.tolist()) == ([61], [0], [12])


def test_the_last_offset_there_is_can_be_read(read: Callable[..., BatchTable]) -> None:
    assert read(with_header(one_batch(3), base_offset=2**63 - 3)).last_offsets.tolist() == [2**63 - 1]


def test_sums_of_runs_are_those_of_all_their_bytes() -> None:
    # given short and long batches, in runs of none, one and several
    batches = [at(100 * n, one_batch(records)) for n, records in enumerate((1, 40, 3, 50, 1, 30))]
    assert min(map(len, batches)) < 1024 < max(map(len, batches))
    data = b"".join(batches)
    table, firsts = read_batches(data), np.array([0, 1, 1, 4, 6])
    edges = [*table.positions.tolist(), len(data)]
    wanted = [crc32c(data[edges[a] : edges[b]]) for a, b in pairwise(firsts.tolist())]
    # then the results are sums of the bytes, and continue from a sum before the first
    assert runs_crc32c(data, table, firsts).tolist() == wanted
    before = crc32c(b"before")
    assert runs_crc32c(data, table, np.array([0, 6]), first_value=before).tolist() == [crc32c(data, before)]


@pytest.mark.parametrize("records", [1, 50])
def test_no_byte_can_change_that_neither_the_sum_of_a_run_nor_a_batchs_own_tells_of(records: int) -> None:
    batch = at(7, one_batch(records))
    table, whole = read_batches(batch), np.array([0, 1])
    right = runs_crc32c(batch, table, whole).tolist()
    for place in range(len(batch)):
        turned = bytearray(batch)
        turned[place] ^= 0x10
        try:
            check_crcs(turned, table)
        except CorruptBatchAtError as error:
            assert error.position == 0
        else:
            assert runs_crc32c(turned, table, whole).tolist() != right, place


def test_the_first_batch_whose_checksum_is_wrong_is_named() -> None:
    data = bytearray(b"".join(three()))
    table = read_batches(data)
    check_crcs(data, table)
    data[-1] ^= 1
    with pytest.raises(CorruptBatchAtError, match=f"position {table.positions[2]}: base offset .*CRC-32C"):
        check_crcs(data, table)
    data[int(table.positions[1]) + 70] ^= 1
    with pytest.raises(CorruptBatchAtError, match=f"position {table.positions[1]}: base offset .*CRC-32C"):
        check_crcs(data, table)
