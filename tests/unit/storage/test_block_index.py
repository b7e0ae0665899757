from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.block_index import (
    BlockEntry,
    block_end,
    block_of_offset,
    decode_block_index,
    encode_block_index,
)
from storage.format.file_format import CorruptFileError
from wire.crc import crc32c

ENTRIES = [BlockEntry(100, 50, 0), BlockEntry(140, 90, 1000), BlockEntry(200, -1, 2500)]


def packed(*rows: tuple[int, int, int]) -> bytes:
    """A block index with any rows, sealed as if they were right."""
    body = b"".join(struct.pack(">qqQ", *row) for row in rows)
    return body + struct.pack(">I", crc32c(body))


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 2**40), st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**40)),
        min_size=1,
        max_size=20,
    )
)
def test_what_was_encoded_is_decoded(steps: list[tuple[int, int, int]]) -> None:
    entries: list[BlockEntry] = []
    offset = position = 0
    for offset_step, timestamp_ms, step in steps:
        entries.append(BlockEntry(offset, timestamp_ms, position))
        offset += offset_step
        position += step
    encoded = encode_block_index(entries)
    assert len(encoded) == 24 * len(entries) + 4
    assert decode_block_index(memoryview(encoded), extent_length=position) == entries


def test_the_bytes_are_those_of_the_specification() -> None:
    assert encode_block_index([BlockEntry(1, 2, 0)]).hex() == (
        "000000000000000100000000000000020000000000000000368eead0"
    )


def test_an_extent_without_blocks_has_no_index() -> None:
    assert encode_block_index([]) == b""
    assert decode_block_index(b"") == []
    with pytest.raises(ValueError, match="without a block index"):
        block_of_offset([], 5)


@given(st.data())
def test_one_changed_bit_is_refused(data: st.DataObject) -> None:
    encoded = bytearray(encode_block_index(ENTRIES))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFileError):
        decode_block_index(encoded)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"x", "1 bytes"),
        (b"xxxx", "4 bytes"),
        (packed((1, 0, 0))[:-1], "27 bytes"),
        (packed((1, 0, 8)), "begins at 8"),
        (packed((1, 0, 0), (1, 0, 9)), "does not follow"),
        (packed((1, 0, 0), (2, 0, 0)), "does not follow"),
        (packed((1, 0, 0), (2, 0, 900)), "in an extent of 900 bytes"),
    ],
)
def test_rows_that_cannot_be_are_refused_though_their_crc_is_right(wrong: bytes, said: str) -> None:
    with pytest.raises(CorruptFileError, match=said):
        decode_block_index(wrong, extent_length=900)


def test_a_value_outside_its_field_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_block_index([BlockEntry(2**63, 0, 0)])


@pytest.mark.parametrize(("offset", "block"), [(0, 0), (100, 0), (139, 0), (140, 1), (199, 1), (200, 2), (10**9, 2)])
def test_an_offset_is_looked_for_in_the_last_block_that_begins_at_or_below_it(offset: int, block: int) -> None:
    assert block_of_offset(ENTRIES, offset) == block


def test_a_block_ends_where_the_next_begins_and_the_last_with_its_extent() -> None:
    assert [block_end(ENTRIES, block, 3000) for block in range(3)] == [1000, 2500, 3000]
