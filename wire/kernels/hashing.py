"""SHA-512/256 of many keys. Keys of one block, which holds up to 111 bytes, are hashed several at a time.

Rows are taken in order, and each one-block key goes into the next free lane; full lanes are hashed together. A longer
key is hashed by itself at once, and a null key only leaves its row zero, so neither costs its neighbours their lanes.
Lanes that stay empty at the end are hashed with their old content, and the result is dropped.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError
from wire.kernels.compiled import address_of, compiled, contiguous, inlined, register_warm
from wire.kernels.memory import load_u8, load_u64, prefetch_read, store_u64_le, to_int
from wire.kernels.sha512 import (
    BLOCK_BYTES,
    BLOCK_WORDS,
    DIGEST_WORDS,
    LANES,
    STATE_WORDS,
    hash_block,
    hash_blocks,
    start,
)

ONE_BLOCK_BYTES_MAX = 111
"""The largest key in bytes that fits in one block of 128 with the byte 0x80 and the 16 bytes of its length in bits."""
_LENGTH_WORD = BLOCK_WORDS - 1
_STEP = 8 * LANES
"""The bytes from one word of a message to its next; the words of the other lanes lie between."""
_ROWS_AHEAD = 4 * LANES
"""The keys that are prefetched ahead. Each key between large values costs a wait for memory, unless it is prefetched
while others are hashed."""
_ALL, _TOP_BIT = 2**64 - 1, 1 << 63


def hash_keys(
    arena: NDArray[np.uint8], key_positions: NDArray[np.int64], key_lengths: NDArray[np.int32]
) -> NDArray[np.uint64]:
    """[n, 4]: SHA-512/256 of `arena[position:position + length]` as four words, read big-endian; zeros for a null key.

    A null key has a negative length. Raises BugError when a key does not lie in the arena.
    """
    key_positions, key_lengths = _checked(arena, key_positions, key_lengths)
    hashes = np.empty((len(key_lengths), DIGEST_WORDS), dtype=np.uint64)
    lanes, rows = np.zeros(LANES * (BLOCK_WORDS + DIGEST_WORDS), dtype=np.uint64), np.zeros(LANES, dtype=np.int64)
    block = np.empty(BLOCK_WORDS + STATE_WORDS, dtype=np.uint64)
    arena_at, words_at = address_of(arena), address_of(lanes)
    _hash_in_lanes(arena_at, len(arena), key_positions, key_lengths, lanes, words_at, rows, block, hashes)
    return hashes


def hash_keys_scalar(
    arena: NDArray[np.uint8], key_positions: NDArray[np.int64], key_lengths: NDArray[np.int32]
) -> NDArray[np.uint64]:
    """`hash_keys` one key at a time."""
    key_positions, key_lengths = _checked(arena, key_positions, key_lengths)
    hashes = np.empty((len(key_lengths), DIGEST_WORDS), dtype=np.uint64)
    block = np.empty(BLOCK_WORDS + STATE_WORDS, dtype=np.uint64)
    _hash_one_by_one(address_of(arena), key_positions, key_lengths, block, hashes)
    return hashes


def hash_keys_python(
    arena: NDArray[np.uint8], key_positions: NDArray[np.int64], key_lengths: NDArray[np.int32]
) -> NDArray[np.uint64]:
    """`hash_keys` by hashlib."""
    view, empty = arena.data, hashlib.new("sha512_256")
    digests = bytearray()
    for position, length in zip(key_positions.tolist(), key_lengths.tolist(), strict=True):
        if length < 0:
            digests += bytes(empty.digest_size)
            continue
        one = empty.copy()
        one.update(view[position : position + length])
        digests += one.digest()
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, DIGEST_WORDS)


def _checked(
    arena: NDArray[np.uint8], positions: NDArray[np.int64], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The columns as the kernels take them. Kernels read by address, so every key must lie in the arena."""
    if arena.dtype != np.uint8 or arena.ndim != 1 or not arena.flags.c_contiguous:
        raise BugError("an arena is a contiguous array of bytes")
    positions, lengths = contiguous(positions, np.int64), contiguous(lengths, np.int32)
    if len(positions) != len(lengths):
        raise BugError(f"{len(positions)} positions and {len(lengths)} lengths of keys")
    outside = _first_outside(len(arena), positions, lengths)
    if outside < len(lengths):
        raise BugError(
            f"key {outside} of {lengths[outside]} bytes at {positions[outside]} in an arena of {len(arena)} bytes"
        )
    return positions, lengths


# The kernels


@compiled
def _first_outside(arena_bytes: int, positions: NDArray[np.int64], lengths: NDArray[np.int32]) -> int:
    for row in range(len(lengths)):
        length = to_int(lengths[row])
        if length >= 0 and (positions[row] < 0 or positions[row] > arena_bytes - length):
            return row
    return len(lengths)


@inlined
def _last_word(address: int, count: int) -> np.uint64:
    """The last `count` bytes of a message, 0 to 7, as its last word, with 0x80 and zeros behind them."""
    word, shift = np.uint64(0), 56
    for at in range(address, address + count):
        word |= np.uint64(load_u8(at)) << np.uint64(shift)
        shift -= 8
    return word | np.uint64(0x80) << np.uint64(shift)


@inlined
def _last_word_of_eight(address: int, count: int) -> np.uint64:
    """`_last_word` for an address at which eight bytes may be read."""
    # `count` is below 8, so the shift is below 64: a shift by 64 has no defined result.
    behind = np.uint64(_ALL) >> np.uint64(8 * count)
    return load_u64(address) & ~behind | np.uint64(_TOP_BIT) >> np.uint64(8 * count)


@inlined
def _fill_lane(address: int, length: int, arena_end: int, words: int, used: int) -> int:
    """Lay a one-block key into a lane, whose first word is at address `words`; returns how many words are not zero.

    `used` words of the lane's previous key were not zero. The caller writes the length.
    """
    whole = length >> 3
    for at in range(whole):
        store_u64_le(words + _STEP * at, load_u64(address + 8 * at))
    last = address + 8 * whole
    # Eight bytes at once where the arena has them; at its very end byte by byte, because the next page may not exist.
    if last + 8 <= arena_end:
        store_u64_le(words + _STEP * whole, _last_word_of_eight(last, length & 7))
    else:
        store_u64_le(words + _STEP * whole, _last_word(last, length & 7))
    # Only what the lane's last key left behind.
    for at in range(whole + 1, used):
        store_u64_le(words + _STEP * at, np.uint64(0))
    store_u64_le(words + _STEP * _LENGTH_WORD, np.uint64(8 * length))
    return whole + 1


@compiled
def _hash_in_lanes(
    arena: int,
    arena_bytes: int,
    positions: NDArray[np.int64],
    lengths: NDArray[np.int32],
    lanes: NDArray[np.uint64],
    words: int,
    rows: NDArray[np.int64],
    block: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
) -> None:
    """Hash all rows. `lanes` (at address `words`) starts with the words of all lanes, zeroed, followed by room for
    their digests; `rows` tells whose key is in a lane.
    """
    used, filled = np.zeros(LANES, dtype=np.int64), 0
    digests = words + _STEP * BLOCK_WORDS
    last = len(lengths) - 1
    for row in range(len(lengths)):
        # A null key's position may be anything: a prefetch is harmless whatever the address.
        prefetch_read(arena + positions[min(row + _ROWS_AHEAD, last)])
        length = to_int(lengths[row])
        if length < 0:
            hashes[row, :] = np.uint64(0)
        elif length > ONE_BLOCK_BYTES_MAX:
            _hash_one(arena + positions[row], length, block, hashes, row)
        else:
            address = arena + positions[row]
            used[filled] = _fill_lane(address, length, arena + arena_bytes, words + 8 * filled, used[filled])
            rows[filled] = row
            filled += 1
            if filled == LANES:
                hash_blocks(words, digests)
                _hand_out(lanes, rows, filled, hashes)
                filled = 0
    if filled:
        hash_blocks(words, digests)
        _hand_out(lanes, rows, filled, hashes)


@inlined
def _hand_out(lanes: NDArray[np.uint64], rows: NDArray[np.int64], filled: int, hashes: NDArray[np.uint64]) -> None:
    for lane in range(filled):
        for word in range(DIGEST_WORDS):
            hashes[rows[lane], word] = lanes[(BLOCK_WORDS + word) * LANES + lane]


@compiled
def _hash_one_by_one(
    arena: int,
    positions: NDArray[np.int64],
    lengths: NDArray[np.int32],
    block: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
) -> None:
    for row in range(len(lengths)):
        if lengths[row] < 0:
            hashes[row, :] = np.uint64(0)
        else:
            _hash_one(arena + positions[row], to_int(lengths[row]), block, hashes, row)


@compiled
def _hash_one(address: int, length: int, block: NDArray[np.uint64], hashes: NDArray[np.uint64], row: int) -> None:
    """Hash a key of any length. `block` has room for the words of a block and for the state behind them."""
    words, state = block[:BLOCK_WORDS], block[BLOCK_WORDS:]
    start(state)
    end = address + length
    while end - address >= BLOCK_BYTES:
        for at in range(BLOCK_WORDS):
            words[at] = load_u64(address + 8 * at)
        hash_block(words, state)
        address += BLOCK_BYTES
    left = end - address
    words[:] = np.uint64(0)
    for at in range(left >> 3):
        words[at] = load_u64(address + 8 * at)
    words[left >> 3] = _last_word(address + (left & ~7), left & 7)
    # No room for the length behind the 0x80: it goes into one more block, otherwise empty.
    if left > ONE_BLOCK_BYTES_MAX:
        hash_block(words, state)
        words[:] = np.uint64(0)
    words[_LENGTH_WORD] = np.uint64(8 * length)
    hash_block(words, state)
    for word in range(DIGEST_WORDS):
        hashes[row, word] = state[word]


@register_warm
def _warm() -> None:
    arena, places, lengths = np.zeros(1, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int32)
    for hashed in (hash_keys, hash_keys_scalar):
        hashed(arena, places, lengths)
