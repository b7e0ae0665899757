"""CRC-32C: known sums, sums continued, and sums combined without the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import crc_matches, crc_of_batch, read_header
from wire.crc import crc32c, joined_crc32c
from wire.records import NewRecord, build_batch


def test_the_check_value_of_the_catalogue() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_joined_sums_are_the_sum_of_the_bytes_joined(first: bytes, second: bytes) -> None:
    assert joined_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


@pytest.mark.parametrize("second_bytes", [0, 1, 255, 256, 65_535, 65_536, 1_000_003, 8 << 20])
def test_any_length_may_follow(second_bytes: int) -> None:
    first, second = b"some bytes before", bytes([n % 253 for n in range(4096)]) * (second_bytes // 4096 + 1)
    second = second[:second_bytes]
    assert joined_crc32c(crc32c(first), crc32c(second), second_bytes) == crc32c(first + second)


@pytest.mark.parametrize("value_bytes", [0, 1, 70_000])
def test_the_sum_of_a_whole_batch_follows_from_the_one_in_its_header(value_bytes: int) -> None:
    batch = memoryview(build_batch([NewRecord(1_700_000_000_000, b"key", bytes(value_bytes))]))
    header = read_header(batch)
    assert crc_matches(batch, 0, header)
    assert crc_of_batch(batch, header) == crc32c(batch)
