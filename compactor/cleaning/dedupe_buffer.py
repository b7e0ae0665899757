"""The table of keys that finds the last record of each key, in a fixed amount of memory.

One allocation holds two arrays. *Entries*, 36 bytes each, lie in the order in which their keys came: the hash of the
key (32) and the ordinal of the last record with that key (4). The *index* has 5 slots of 4 bytes for 4 entries: 24 bits
are the number of an entry, 8 are bits of its hash (the tag), and all ones mean empty. That is 41 bytes a key:
134,217,720 for 3,273,603. A search starts at slot `hash * slots >> 32`, by the first 32 bits of the hash, and ends at
the first empty slot; an entry is read only if the tag of its slot matches. New entries are appended. Clearing the table
means filling the index with ones.

In a large table each look-up misses the processor's caches twice. So while one row is entered, the kernel prefetches
the slot of a later row and the entry of a nearer one.

A hash stands for its key. Two keys with the same 256 bits would count as one key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from runtime.errors import BadInputError, BugError, SiltstoneError
from wire.kernels.compiled import address_of, compiled, contiguous, inlined, register_warm
from wire.kernels.memory import (
    load_u8,
    load_u32_le,
    load_u64_le,
    prefetch,
    store_u8,
    store_u32_le,
    store_u64_le,
    to_int,
)

ORDINAL_MAX = 2**32 - 1
HASH_MAX = 2**64 - 1
_HASH_WORDS = 4
_ENTRY_BYTES, _SLOT_BYTES = 36, 4
_ORDINAL_AT = 32
_ENTRY_BITS = 24
_ENTRY_MASK, _TAG_MASK = (1 << 24) - 1, (1 << 8) - 1
_EMPTY = 2**32 - 1
ENTRIES_MAX = _ENTRY_MASK
"""Entry 2^24 - 1 is never used: with a tag of all ones its slot would look empty."""
_SLOTS_AHEAD, _ENTRIES_AHEAD = 32, 16
_SLOTS_LOOKED_AT = 16
"""Slots searched for an entry to prefetch: a cache line holds 16 slots."""
_OUTSIDE = -1


class OrdinalOverflowError(SiltstoneError):
    """A partition has more records in one pass than 32-bit ordinals."""


class DedupeBuffer:
    """At most `keys_max` keys, each with the ordinal of its last record.

    Below 4 keys the index takes a few bytes more than 41 a key. Raises BadInputError unless `keys_max` is from 1 to
    16,777,215.
    """

    def __init__(self, keys_max: int = DEDUPE_KEYS_MAX, *, memory: NDArray[np.uint8] | None = None) -> None:
        """`memory`: `bytes_of_keys(keys_max)` bytes for the table, whatever they hold; None = allocate them."""
        if not 1 <= keys_max <= ENTRIES_MAX:
            raise BadInputError(f"the dedupe buffer holds from 1 to {ENTRIES_MAX} keys, not {keys_max}")
        self.keys_max = keys_max
        self._slots_count = _slots_of(keys_max)
        size_bytes = bytes_of_keys(keys_max)
        self._memory = np.empty(size_bytes, dtype=np.uint8) if memory is None else memory
        if self._memory.shape != (size_bytes,) or self._memory.dtype != np.uint8:
            raise BugError(f"a table of {keys_max} keys takes {size_bytes} bytes, not {self._memory.nbytes}")
        self._slots = self._memory[keys_max * _ENTRY_BYTES :]
        self._keys = np.zeros(1, dtype=np.int64)
        self.clear()

    @property
    def keys(self) -> int:
        """The number of entries now."""
        return int(self._keys[0])

    @property
    def bytes_allocated(self) -> int:
        return self._memory.nbytes

    def clear(self) -> None:
        """Forgets all keys and their ordinals."""
        self._slots.fill(0xFF)
        self._keys[0] = 0

    def enter(
        self,
        hashes: NDArray[np.uint64],
        key_lengths: NDArray[np.int32],
        first_ordinal: int,
        dead: NDArray[np.uint8],
        *,
        range_lo: int = 0,
        range_hi: int = HASH_MAX,
    ) -> int:
        """Enters rows in order until the table is full; returns how many rows are done.

        Row i of `hashes` [n, 4] is the record of ordinal `first_ordinal + i`. It is entered when its `key_lengths[i]`
        is not negative and `range_lo <= hashes[i, 3] <= range_hi`, both inclusive. The record that had the key before
        is dead: bit `ordinal & 7` of `dead[ordinal >> 3]` is set. The table is full before a row whose key is new when
        it has `keys_max`; rows with known keys are still entered.

        Raises OrdinalOverflowError when an ordinal would be above 2^32-1, BugError when `dead` has no bit for an
        ordinal; then nothing is entered.
        """
        hashes, key_lengths = _checked(hashes, key_lengths, first_ordinal, dead)
        done = _enter(
            address_of(self._memory),
            address_of(self._slots),
            self._slots_count,
            self.keys_max,
            self._keys,
            hashes,
            key_lengths,
            first_ordinal,
            address_of(dead),
            len(dead),
            np.uint64(range_lo),
            np.uint64(range_hi),
        )
        if done == _OUTSIDE:
            # The bitmap must be at least as long as in every call before.
            raise BugError(f"an ordinal that was entered earlier has no bit in {len(dead)} bytes of dead records")
        return done


def bytes_of_keys(keys_max: int) -> int:
    """The size of a table."""
    return keys_max * _ENTRY_BYTES + _slots_of(keys_max) * _SLOT_BYTES


def _slots_of(keys_max: int) -> int:
    return max(keys_max * 5 // 4, keys_max + 1)  # one slot is always empty, so that every search ends


def _checked(
    hashes: NDArray[np.uint64], key_lengths: NDArray[np.int32], first_ordinal: int, dead: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """The columns as the kernel takes them, checked: the kernel does not check bounds."""
    rows = len(key_lengths)
    if first_ordinal < 0 or first_ordinal + rows > ORDINAL_MAX + 1:
        raise OrdinalOverflowError(
            f"a pass over one partition reached {first_ordinal + rows} records; it takes at most {ORDINAL_MAX + 1}",
            remedy="compact the partition in smaller parts, by a forced or a deep pass",
        )
    if hashes.shape != (rows, _HASH_WORDS):
        raise BugError(f"{rows} lengths of keys and hashes of shape {hashes.shape}")
    if dead.dtype != np.uint8 or dead.ndim != 1 or not (dead.flags.c_contiguous and dead.flags.writeable):
        raise BugError("the bits of dead records are a contiguous, writable array of bytes")
    if rows and first_ordinal + rows > 8 * len(dead):
        raise BugError(f"ordinal {first_ordinal + rows - 1} has no bit in {len(dead)} bytes of dead records")
    return contiguous(hashes, np.uint64), contiguous(key_lengths, np.int32)


# The kernel


@inlined
def _slot_of(first_word: np.uint64, slots_count: int) -> int:
    # Multiply and shift instead of a modulo: even over any number of slots, and no division.
    return to_int((first_word >> np.uint64(32)) * np.uint64(slots_count) >> np.uint64(32))


@inlined
def _tag_of(first_word: np.uint64) -> int:
    """Bits of the hash that do not decide its slot."""
    return to_int(first_word & np.uint64(_TAG_MASK))


@inlined
def _ask_ahead(entries: int, slots: int, slots_count: int, hashes: NDArray[np.uint64], row: int, rows: int) -> None:
    """Prefetches the memory of later rows. A prefetch for a row that is skipped later does no harm."""
    ahead = row + _SLOTS_AHEAD
    if ahead < rows:
        prefetch(slots + _SLOT_BYTES * _slot_of(hashes[ahead, 0], slots_count))
    ahead = row + _ENTRIES_AHEAD
    if ahead < rows:
        first_word = hashes[ahead, 0]
        slot, tag = _slot_of(first_word, slots_count), _tag_of(first_word)
        for at in range(slot, min(slot + _SLOTS_LOOKED_AT, slots_count)):
            stored = load_u32_le(slots + _SLOT_BYTES * at)
            if stored == _EMPTY:
                break
            if stored >> _ENTRY_BITS == tag:
                entry = entries + _ENTRY_BYTES * (stored & _ENTRY_MASK)
                prefetch(entry)
                # An entry of 36 bytes may lie across two cache lines.
                prefetch(entry + _ENTRY_BYTES - 1)
                break


@inlined
def _is_hash(entry: int, hashes: NDArray[np.uint64], row: int) -> bool:
    differs = load_u64_le(entry) ^ hashes[row, 0]
    differs |= load_u64_le(entry + 8) ^ hashes[row, 1]
    differs |= load_u64_le(entry + 16) ^ hashes[row, 2]
    return differs | load_u64_le(entry + 24) ^ hashes[row, 3] == np.uint64(0)


@inlined
def _find(entries: int, slots: int, slots_count: int, hashes: NDArray[np.uint64], row: int) -> tuple[int, int]:
    """(address of the entry, or 0 when the key is new; address of the slot at which the search ended)."""
    slot, tag = _slot_of(hashes[row, 0], slots_count), _tag_of(hashes[row, 0])
    while True:
        at = slots + _SLOT_BYTES * slot
        stored = load_u32_le(at)
        if stored == _EMPTY:
            return 0, at
        if stored >> _ENTRY_BITS == tag:
            entry = entries + _ENTRY_BYTES * (stored & _ENTRY_MASK)
            if _is_hash(entry, hashes, row):
                return entry, at
        slot += 1
        if slot == slots_count:
            slot = 0


@compiled
def _enter(
    entries: int,
    slots: int,
    slots_count: int,
    keys_max: int,
    keys: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    key_lengths: NDArray[np.int32],
    first_ordinal: int,
    dead: int,
    dead_bytes: int,
    range_lo: np.uint64,
    range_hi: np.uint64,
) -> int:
    """Rows done; -1 when the ordinal of an entry has no bit in `dead`."""
    rows, entered = len(key_lengths), keys[0]
    for row in range(rows):
        _ask_ahead(entries, slots, slots_count, hashes, row, rows)
        last_word = hashes[row, 3]
        if key_lengths[row] < 0 or last_word < range_lo or last_word > range_hi:
            continue
        entry, slot = _find(entries, slots, slots_count, hashes, row)
        if entry:
            before = load_u32_le(entry + _ORDINAL_AT)
            # The one index that comes out of the table and not from the caller, so only here can it be checked.
            if before >> 3 >= dead_bytes:
                keys[0] = entered
                return _OUTSIDE
            store_u8(dead + (before >> 3), load_u8(dead + (before >> 3)) | 1 << (before & 7))
        else:
            if entered == keys_max:
                keys[0] = entered
                return row
            entry = entries + _ENTRY_BYTES * entered
            for word in range(_HASH_WORDS):
                store_u64_le(entry + 8 * word, hashes[row, word])
            store_u32_le(slot, _tag_of(hashes[row, 0]) << _ENTRY_BITS | entered)
            entered += 1
        store_u32_le(entry + _ORDINAL_AT, first_ordinal + row)
    keys[0] = entered
    return rows


@register_warm
def _warm() -> None:
    hashes, lengths = np.zeros((1, _HASH_WORDS), dtype=np.uint64), np.zeros(1, dtype=np.int32)
    DedupeBuffer(1).enter(hashes, lengths, 0, np.zeros(1, dtype=np.uint8))


# The same in Python


class PythonDedupeBuffer:
    """`DedupeBuffer` as a dict."""

    def __init__(self, keys_max: int = DEDUPE_KEYS_MAX) -> None:
        self.keys_max = keys_max
        self._ordinals: dict[bytes, int] = {}

    @property
    def keys(self) -> int:
        return len(self._ordinals)

    def clear(self) -> None:
        self._ordinals.clear()

    def enter(
        self,
        hashes: NDArray[np.uint64],
        key_lengths: NDArray[np.int32],
        first_ordinal: int,
        dead: NDArray[np.uint8],
        *,
        range_lo: int = 0,
        range_hi: int = HASH_MAX,
    ) -> int:
        _checked(hashes, key_lengths, first_ordinal, dead)
        for row, length in enumerate(key_lengths.tolist()):
            if length < 0 or not range_lo <= int(hashes[row, 3]) <= range_hi:
                continue
            key = hashes[row].tobytes()
            before = self._ordinals.get(key)
            if before is not None:
                dead[before >> 3] |= 1 << (before & 7)
            elif len(self._ordinals) == self.keys_max:
                return row
            self._ordinals[key] = first_ordinal + row
        return len(key_lengths)
