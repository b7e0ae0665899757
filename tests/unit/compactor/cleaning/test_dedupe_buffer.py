"""The table of keys: last ordinals, bits of dead records, the full table, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from compactor.cleaning.bounds import DEDUPE_BUFFER_BYTES, DEDUPE_ENTRY_BYTES, DEDUPE_KEYS_MAX
from compactor.cleaning.dedupe_buffer import (
    ENTRIES_MAX,
    DedupeBuffer,
    OrdinalOverflowError,
    PythonDedupeBuffer,
    bytes_of_keys,
)
from runtime.errors import BadInputError, BugError
from runtime.settings.table import Settings

Buffer = DedupeBuffer | PythonDedupeBuffer


@pytest.fixture(params=[DedupeBuffer, PythonDedupeBuffer])
def make(request: pytest.FixtureRequest) -> Callable[[int], Buffer]:
    return request.param


def hashes_of(*keys: int) -> NDArray[np.uint64]:
    """Keys that differ in only one word: the last one, which decides the range of a deep pass."""
    return np.array([[2**63 + 5, 6, 7, key] for key in keys], dtype=np.uint64).reshape(-1, 4)


def lengths_of(hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
    return np.ones(len(hashes), dtype=np.int32)


def enter(buffer: Buffer, keys: list[int], first: int, dead: NDArray[np.uint8], **bounds: int) -> int:
    hashes = hashes_of(*keys)
    return buffer.enter(hashes, lengths_of(hashes), first, dead, **bounds)


def bits(dead: NDArray[np.uint8]) -> list[int]:
    return np.flatnonzero(np.unpackbits(dead, bitorder="little")).tolist()


def test_all_but_the_last_of_a_key_are_dead(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(4), np.zeros(3, np.uint8)
    assert enter(buffer, [1, 2, 1, 1, 3], 0, dead) == 5
    assert enter(buffer, [2, 4, 1], 17, dead) == 3
    assert bits(dead) == [0, 1, 2, 3]
    assert buffer.keys == 4
    assert enter(buffer, [4, 2], 20, dead) == 2
    assert bits(dead) == [0, 1, 2, 3, 17, 18]


@pytest.mark.parametrize("keys_max", [1, 2, 3, 4, 5, 100])
def test_a_full_table_takes_known_keys_and_stops_before_a_new_one(make: Callable[[int], Buffer], keys_max: int) -> None:
    buffer, dead = make(keys_max), np.zeros(50, np.uint8)
    known = list(range(keys_max))
    assert enter(buffer, known, 0, dead) == keys_max
    # when a new key comes between known ones
    assert enter(buffer, [*known, 1000, *known], keys_max, dead) == keys_max
    assert buffer.keys == keys_max and bits(dead) == known
    # then the caller clears the table and continues at that row, without a second look at earlier records
    buffer.clear()
    assert buffer.keys == 0
    assert enter(buffer, [1000, 0][:keys_max], 2 * keys_max, dead) == min(2, keys_max)
    assert bits(dead) == known


def test_null_keys_and_keys_out_of_range_are_passed_over(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(2), np.zeros(2, np.uint8)
    hashes = hashes_of(9, 10, 20, 21, 10, 20, 9)
    lengths = lengths_of(hashes)
    lengths[4] = -1
    assert buffer.enter(hashes, lengths, 3, dead, range_lo=10, range_hi=20) == 7
    assert buffer.keys == 2 and bits(dead) == [5]


def test_a_range_may_end_at_the_last_hash(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(9), np.zeros(1, np.uint8)
    assert enter(buffer, [2**64 - 1, 2**63, 2**63 - 1, 0], 0, dead, range_lo=2**63) == 4
    assert buffer.keys == 2
    assert enter(buffer, [2**64 - 1, 2**63, 2**63 - 1, 0], 4, dead, range_hi=2**63 - 1) == 4
    assert buffer.keys == 4 and bits(dead) == []


def test_hashes_that_differ_in_any_one_bit_are_different_keys(make: Callable[[int], Buffer]) -> None:
    base = np.array([0x0123456789ABCDEF] * 4, dtype=np.uint64)
    hashes = np.array(
        [base] + [base ^ np.uint64(1 << bit) * (np.arange(4) == word) for word in range(4) for bit in range(64)]
    )
    buffer, dead = make(257), np.zeros(100, np.uint8)
    assert buffer.enter(hashes, lengths_of(hashes), 0, dead) == 257
    assert buffer.keys == 257 and bits(dead) == []
    assert buffer.enter(hashes, lengths_of(hashes), 300, dead) == 257
    assert bits(dead) == list(range(257))


def test_ordinals_of_32_bits_are_the_most_there_can_be(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(4), np.zeros(2**29, np.uint8)  # not touched, so not allocated
    assert enter(buffer, [1, 1], 2**32 - 2, dead) == 2
    assert dead[2**29 - 1] == 1 << 6
    with pytest.raises(OrdinalOverflowError, match="4294967296"):
        enter(buffer, [1, 1], 2**32 - 1, dead)
    assert dead[2**29 - 1] == 1 << 6
    with pytest.raises(OrdinalOverflowError):
        enter(buffer, [1], -1, dead)


def test_an_ordinal_without_a_bit_is_our_mistake(make: Callable[[int], Buffer]) -> None:
    buffer = make(4)
    with pytest.raises(BugError, match="ordinal 8 has no bit in 1 bytes"):
        enter(buffer, [1, 2], 7, np.zeros(1, np.uint8))
    assert buffer.keys == 0
    for dead in (np.zeros(8, np.int8), np.zeros(8, np.uint8)[::2], np.frombuffer(bytes(8), np.uint8)):
        with pytest.raises(BugError, match="contiguous, writable"):
            enter(buffer, [1], 0, dead)


def test_no_rows_need_no_bits(make: Callable[[int], Buffer]) -> None:
    buffer = make(4)
    assert enter(buffer, [], 1000, np.zeros(0, np.uint8)) == 0
    assert buffer.keys == 0


def test_an_earlier_ordinal_that_lost_its_bit_is_noticed_too() -> None:
    buffer = DedupeBuffer(4)
    enter(buffer, [1], 100, np.zeros(20, np.uint8))
    with pytest.raises(BugError, match="entered earlier"):
        enter(buffer, [1], 0, np.zeros(1, np.uint8))


def test_columns_that_do_not_fit_each_other_are_refused(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(4), np.zeros(8, np.uint8)
    for hashes in (np.zeros((2, 4), np.uint64), np.zeros((3, 3), np.uint64), np.zeros(12, np.uint64)):
        with pytest.raises(BugError, match="shape"):
            buffer.enter(hashes, np.ones(3, np.int32), 0, dead)


def test_hashes_may_be_part_of_others_and_unwritable(make: Callable[[int], Buffer]) -> None:
    buffer, dead = make(4), np.zeros(8, np.uint8)
    hashes = hashes_of(1, 2, 1, 3, 1, 4)
    hashes.flags.writeable = False
    assert buffer.enter(hashes[::2], lengths_of(hashes)[::2], 0, dead) == 3
    assert bits(dead) == [0, 1]


def test_every_size_that_the_setting_allows_makes_a_table() -> None:
    declared = next(each for each in fields(Settings) if each.name == "dedupe_keys_max").metadata["declared"]
    assert 10_000_000 == declared.maximum <= ENTRIES_MAX


def test_more_than_four_million_keys_are_told_apart() -> None:
    # given a table of more entries than 22 bits number
    keys, at_once = 4_300_000, 430_000
    buffer, dead = DedupeBuffer(keys), np.zeros(keys // 4, np.uint8)
    chance = np.random.default_rng(5)
    hashes = chance.integers(0, 2**64, (at_once, 4), dtype=np.uint64)
    lengths = np.ones(at_once, np.int32)
    for number in range(keys // at_once):
        # each time others, by the last word too
        assert buffer.enter(hashes ^ np.uint64(number << 40), lengths, number * at_once, dead) == at_once
    assert (buffer.keys, int(np.bitwise_count(dead).sum())) == (keys, 0)
    # when the last ones come again
    assert buffer.enter(hashes ^ np.uint64((keys // at_once - 1) << 40), lengths, keys, dead) == at_once
    # then exactly their first records are dead
    assert int(np.bitwise_count(dead).sum()) == at_once
    assert int(np.bitwise_count(dead[(keys - at_once) // 8 : keys // 8]).sum()) == at_once


def test_how_many_keys_there_can_be_is_bounded() -> None:
    for keys_max in (0, -1, ENTRIES_MAX + 1):
        with pytest.raises(BadInputError, match=f"from 1 to {ENTRIES_MAX}"):
            DedupeBuffer(keys_max)


def test_a_table_may_lie_in_memory_of_its_size_that_held_something_else() -> None:
    memory, dead = np.full(bytes_of_keys(4), 7, np.uint8), np.zeros(1, np.uint8)
    buffer = DedupeBuffer(4, memory=memory)
    assert buffer.bytes_allocated == memory.nbytes
    assert enter(buffer, [1, 2, 1, 3, 4], 0, dead) == 5
    assert enter(buffer, [5], 5, dead) == 0
    assert bits(dead) == [0]
    for wrong in (memory[1:], np.zeros(memory.nbytes + 1, np.uint8), memory.view(np.int8)):
        with pytest.raises(BugError, match="takes 1"):
            DedupeBuffer(4, memory=wrong)


def test_the_table_holds_exactly_3273603_keys_in_128_mib() -> None:
    # given the table of its own size: 41 bytes a key
    buffer = DedupeBuffer()
    assert buffer.bytes_allocated == 134_217_720 <= DEDUPE_BUFFER_BYTES
    assert buffer.bytes_allocated <= DEDUPE_ENTRY_BYTES * DEDUPE_KEYS_MAX
    # when one more key comes than fits, all different
    numbers = np.arange(DEDUPE_KEYS_MAX + 1, dtype=np.uint64)
    hashes = np.zeros((len(numbers), 4), dtype=np.uint64)
    hashes[:, 0] = numbers * np.uint64(0x9E3779B97F4A7C15)
    hashes[:, 3] = numbers
    dead = np.zeros(2 * DEDUPE_KEYS_MAX // 8 + 2, np.uint8)
    # then the 3,273,604th is refused, the others are known
    assert buffer.enter(hashes, lengths_of(hashes), 0, dead) == DEDUPE_KEYS_MAX == 3_273_603
    assert buffer.keys == DEDUPE_KEYS_MAX and not dead.any()
    assert buffer.enter(hashes, lengths_of(hashes), DEDUPE_KEYS_MAX, dead) == DEDUPE_KEYS_MAX
    assert bits(dead)[-1] == DEDUPE_KEYS_MAX - 1 and len(bits(dead)) == DEDUPE_KEYS_MAX
    # and once cleared it takes keys again
    buffer.clear()
    assert (buffer.keys, buffer.enter(hashes[-1:], lengths_of(hashes[-1:]), 0, dead), buffer.keys) == (0, 1, 1)
