"""SHA-512/256 of keys: in lanes of every width and one by one, compared with hashlib."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.errors import BugError
from wire.kernels.compiled import address_of, compiled
from wire.kernels.hashing import hash_keys, hash_keys_python, hash_keys_scalar
from wire.kernels.sha512 import LANES, rounds_over

PATHS: dict[str, Callable[..., NDArray[np.uint64]]] = {"lanes": hash_keys, "scalar": hash_keys_scalar}
CHANCE = np.random.default_rng(512)
ARENA = CHANCE.integers(0, 256, (1 << 20) + 1000, dtype=np.uint8)

rounds_over_2, rounds_over_4 = rounds_over(2), rounds_over(4)


@compiled
def in_2_lanes(words: int, digests: int) -> None:
    rounds_over_2(words, digests)


@compiled
def in_4_lanes(words: int, digests: int) -> None:
    rounds_over_4(words, digests)


@pytest.fixture(params=PATHS)
def hashed(request: pytest.FixtureRequest) -> Callable[..., NDArray[np.uint64]]:
    return PATHS[request.param]


def columns(lengths: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Keys of these lengths at any place, some at the arena's very end, where no byte behind them may be read."""
    positions = [int(CHANCE.integers(0, len(ARENA) - max(length, 0) + 1)) for length in lengths]
    for row in range(0, len(lengths), 7):
        positions[row] = len(ARENA) - max(lengths[row], 0)
    return np.array(positions, np.int64), np.array(lengths, np.int32)


def test_keys_of_every_length_hash_as_by_hashlib(hashed: Callable[..., NDArray[np.uint64]]) -> None:
    positions, lengths = columns([*range(401), 1 << 20, *range(400, -1, -1)])
    assert np.array_equal(hashed(ARENA, positions, lengths), hash_keys_python(ARENA, positions, lengths))


def test_long_and_null_keys_change_nothing_for_their_neighbours(hashed: Callable[..., NDArray[np.uint64]]) -> None:
    # given short keys with some long and null ones between, and counts that leave lanes empty
    for count in (*range(2 * LANES + 2), 500):
        positions, lengths = columns([int(CHANCE.choice([-1, 0, 5, 16, 111, 112, 300])) for _ in range(count)])
        rows = hashed(ARENA, positions, lengths)
        assert np.array_equal(rows, hash_keys_python(ARENA, positions, lengths))
        assert rows.shape == (count, 4) and rows.dtype == np.uint64
        assert not rows[lengths < 0].any()


def test_a_digest_is_four_words_read_big_endian(hashed: Callable[..., NDArray[np.uint64]]) -> None:
    # given the example of FIPS 180-4: SHA-512/256 of "abc"
    abc = np.frombuffer(b"abc", dtype=np.uint8)
    (row,) = hashed(abc, np.zeros(1, np.int64), np.full(1, 3, np.int32))
    expected = "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"
    assert "".join(f"{word:016x}" for word in row.tolist()) == expected


@pytest.mark.parametrize(("lanes", "kernel"), [(2, in_2_lanes), (4, in_4_lanes)])
def test_every_width_of_lanes_gives_the_same(lanes: int, kernel: Callable[[int, int], None]) -> None:
    # given a padded block of one key per lane, word by word
    keys = [bytes(ARENA[100 * lane : 100 * lane + 40 + lane]) for lane in range(lanes)]
    blocks = [key + b"\x80" + bytes(119 - len(key)) + (8 * len(key)).to_bytes(8, "big") for key in keys]
    words = np.ascontiguousarray(np.array([np.frombuffer(block, ">u8") for block in blocks], np.uint64).T)
    digests = np.zeros((4, lanes), np.uint64)
    # when all are hashed at once
    kernel(address_of(words), address_of(digests))
    # then each lane holds its key's digest
    positions = np.array([100 * lane for lane in range(lanes)], np.int64)
    lengths = np.array([len(key) for key in keys], np.int32)
    assert np.array_equal(digests.T, hash_keys_python(ARENA, positions, lengths))


@pytest.mark.parametrize(
    ("position", "length"), [(-1, 1), (10, 1), (0, 11), (2**63 - 1, 2), (-(2**63), 5), (9, 2**31 - 1)]
)
def test_a_key_outside_the_arena_is_our_mistake(
    hashed: Callable[..., NDArray[np.uint64]], position: int, length: int
) -> None:
    with pytest.raises(BugError, match=r"key 0 .* in an arena of 10 bytes"):
        hashed(np.zeros(10, np.uint8), np.array([position], np.int64), np.array([length], np.int32))


def test_a_null_key_may_say_any_place(hashed: Callable[..., NDArray[np.uint64]]) -> None:
    assert not hashed(np.zeros(1, np.uint8), np.array([2**62], np.int64), np.array([-1], np.int32)).any()
