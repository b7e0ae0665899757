"""Keys of many records as columns: split by hash into buckets, and the last record of each key in a bucket.

A *row* is 40 bytes: the four words of a key's SHA-512/256 and the record's offset. All 256 bits decide whether two keys
are the same. The first word chooses the bucket, and other words the place in the table of a bucket, so rows that share
a bucket still spread over its table.

`last_offsets` needs no sort by hash. Its table has 3 slots for 2 rows; a slot holds 32 bits of a hash and the number of
a row. So a new key costs one look into memory, and a known one two. While one row is entered, the memory of later rows
is prefetched. For n rows it takes 12 bytes a row for the table, 1 for the mark of a row that is still the last, and up
to 8 for the result: 62 MB for a bucket of 2 M rows beside the rows themselves (84 MB).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.heavy.key_scan import HASH_WORDS, ROW_BYTES, KeyBlock
from runtime.errors import BugError
from wire.kernels.compiled import address_of, compiled, inlined, register_warm
from wire.kernels.memory import (
    load_i64_le,
    load_u8,
    load_u64_le,
    prefetch,
    prefetch_read,
    store_u8,
    store_u64_le,
    to_int,
)

ROW_WORDS = HASH_WORDS + 1
BUCKETS_MAX = 2**31 - 1
ROWS_MAX = 2**32 - 2
"""The rows of a bucket: a slot has 32 bits for the number of a row, and 0 means that it is empty."""
_SLOT_BYTES = 8
_OFFSET_AT = 8 * HASH_WORDS
_ROW_MASK = 2**32 - 1
_SLOTS_AHEAD, _ROWS_AHEAD = 32, 16

Rows = NDArray[np.uint64]
"""[n, 5]: the words of the hash, then the offset."""
Offsets = NDArray[np.int64]


class Split(NamedTuple):
    """Rows by bucket. Rows of a bucket stay in the order in which they came."""

    rows: Rows
    edges: NDArray[np.int64]
    """[buckets + 1]: bucket b has the rows from `edges[b]` up to `edges[b + 1]`."""


def split(blocks: Sequence[KeyBlock], buckets: int) -> Split:
    """All rows of `blocks`, split by hash. Raises BugError for blocks of another shape."""
    if not 1 <= buckets <= BUCKETS_MAX:
        raise BugError(f"rows cannot be split into {buckets} buckets")
    columns = [_checked(block) for block in blocks]
    counts = np.zeros(buckets, dtype=np.int64)
    for hashes, _ in columns:
        _count(address_of(hashes), len(hashes), buckets, counts)
    edges = edges_of(counts)
    rows = np.empty((int(edges[-1]), ROW_WORDS), dtype=np.uint64)
    free = edges[:-1].copy()
    for hashes, offsets in columns:
        _scatter(address_of(hashes), address_of(offsets), len(hashes), buckets, free, address_of(rows))
    return Split(rows, edges)


def rows_of(data: NDArray[np.uint8]) -> Rows:
    """The rows that these bytes hold. Raises BugError unless they are whole rows."""
    if len(data) % ROW_BYTES:
        raise BugError(f"{len(data)} bytes are not whole rows of {ROW_BYTES} bytes")
    return data.view(np.uint64).reshape(-1, ROW_WORDS)


def last_offsets(rows: Rows) -> Offsets:
    """The largest offset of each key, rising. `rows` may come in any order."""
    _check_rows(rows)
    count = len(rows)
    if count > ROWS_MAX:
        raise BugError(f"{count} rows in one bucket; it takes {ROWS_MAX}")
    slots = np.zeros(count + count // 2 + 1, dtype=np.uint64)  # more than rows: every search ends at an empty slot
    is_last = np.zeros(count, dtype=np.uint8)
    keys = _find_last(address_of(rows), count, address_of(slots), len(slots), address_of(is_last))
    found = np.empty(keys, dtype=np.int64)
    _collect(address_of(rows), count, address_of(is_last), found)
    found.sort()
    return found


def count_in_places(rows: Rows, base_offsets: Offsets, last_offsets: Offsets, counts: NDArray[np.int64]) -> None:
    """Adds to `counts` the number of rows in each place. Places are disjoint and rise; their last offsets count in.

    Fast for rows in runs of rising offsets, as `split` leaves them. Raises BugError for a row outside all places.
    """
    _check_rows(rows)
    bases = np.ascontiguousarray(base_offsets, dtype=np.int64)
    lasts = np.ascontiguousarray(last_offsets, dtype=np.int64)
    if not len(bases) == len(lasts) == len(counts):
        raise BugError(f"{len(bases)} places that begin, {len(lasts)} that end, and {len(counts)} counts")
    outside = _count_places(address_of(rows), len(rows), address_of(bases), address_of(lasts), len(bases), counts)
    if outside >= 0:
        raise BugError(f"a row of offset {int(rows[outside, HASH_WORDS])} lies in none of {len(bases)} places")


def edges_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n + 1]: where each of n stretches of these lengths begins, and where the last ends."""
    edges = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges


class Pieces(NamedTuple):
    """Stretches cut into pieces. Piece i goes from `edges[i]` to `edges[i + 1]`."""

    owners: NDArray[np.int64]
    """The number of the stretch of each piece, ascending."""
    edges: NDArray[np.int64]


def cut_pieces(edges: NDArray[np.int64], most: int, *, at_least: NDArray[np.bool_] | None = None) -> Pieces:
    """Cuts stretches that follow one another into pieces of at most `most`.

    An empty stretch has no piece, or an empty one if `at_least` says so.
    """
    counts = -(-np.diff(edges) // most)
    if at_least is not None:
        counts = np.maximum(counts, at_least)
    owners = np.repeat(np.arange(len(counts)), counts)
    number_within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pieces(owners, np.append(edges[owners] + number_within * most, edges[-1]))


def _checked(block: KeyBlock) -> tuple[NDArray[np.uint64], Offsets]:
    """The columns as the kernels take them, which read by address."""
    if block.hashes.shape != (len(block.offsets), HASH_WORDS):
        raise BugError(f"{len(block.offsets)} offsets and hashes of shape {block.hashes.shape}")
    return np.ascontiguousarray(block.hashes, dtype=np.uint64), np.ascontiguousarray(block.offsets, dtype=np.int64)


def _check_rows(rows: Rows) -> None:
    if rows.ndim != 2 or rows.shape[1] != ROW_WORDS or rows.dtype != np.uint64 or not rows.flags.c_contiguous:
        raise BugError(f"rows of shape {rows.shape} and type {rows.dtype} are not rows of keys")


# The kernels


@inlined
def _share_of(word: np.uint64, parts: int) -> int:
    # Multiply and shift instead of a modulo: even over any number of parts, and no division.
    return to_int((word >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32))


@compiled
def _count(hashes: int, rows: int, buckets: int, counts: NDArray[np.int64]) -> None:
    for row in range(rows):
        counts[_share_of(load_u64_le(hashes + 8 * HASH_WORDS * row), buckets)] += 1


@compiled
def _scatter(hashes: int, offsets: int, rows: int, buckets: int, free: NDArray[np.int64], target: int) -> None:
    """`free`: the next row of each bucket in `target`."""
    for row in range(rows):
        source = hashes + 8 * HASH_WORDS * row
        bucket = _share_of(load_u64_le(source), buckets)
        to = target + ROW_BYTES * free[bucket]
        free[bucket] += 1
        for word in range(HASH_WORDS):
            store_u64_le(to + 8 * word, load_u64_le(source + 8 * word))
        store_u64_le(to + _OFFSET_AT, load_u64_le(offsets + 8 * row))


@inlined
def _slot_of(row: int, slots_count: int) -> int:
    return _share_of(load_u64_le(row + 8), slots_count)


@inlined
def _tag_of(row: int) -> int:
    return to_int(load_u64_le(row + 16) >> np.uint64(32))


@inlined
def _is_same_key(one: int, other: int) -> bool:
    differs = load_u64_le(one) ^ load_u64_le(other)
    differs |= load_u64_le(one + 8) ^ load_u64_le(other + 8)
    differs |= load_u64_le(one + 16) ^ load_u64_le(other + 16)
    return differs | load_u64_le(one + 24) ^ load_u64_le(other + 24) == np.uint64(0)


@inlined
def _ask_ahead(rows: int, row: int, count: int, slots: int, slots_count: int) -> None:
    """Prefetches the memory of later rows."""
    ahead = row + _SLOTS_AHEAD
    if ahead < count:
        prefetch(slots + _SLOT_BYTES * _slot_of(rows + ROW_BYTES * ahead, slots_count))
    ahead = row + _ROWS_AHEAD
    if ahead < count:
        address = rows + ROW_BYTES * ahead
        stored = load_u64_le(slots + _SLOT_BYTES * _slot_of(address, slots_count))
        if to_int(stored >> np.uint64(32)) == _tag_of(address):
            other = rows + ROW_BYTES * (to_int(stored & np.uint64(_ROW_MASK)) - 1)
            prefetch_read(other)
            # A row of 40 bytes may lie across two cache lines.
            prefetch_read(other + ROW_BYTES - 1)


@compiled
def _find_last(rows: int, count: int, slots: int, slots_count: int, is_last: int) -> int:
    """Marks the last row of each key in `is_last`, zeroed before, and returns the number of keys."""
    keys = 0
    for row in range(count):
        _ask_ahead(rows, row, count, slots, slots_count)
        address = rows + ROW_BYTES * row
        slot, tag = _slot_of(address, slots_count), _tag_of(address)
        entry = np.uint64(tag) << np.uint64(32) | np.uint64(row + 1)
        while True:
            at = slots + _SLOT_BYTES * slot
            stored = load_u64_le(at)
            if stored == np.uint64(0):
                store_u64_le(at, entry)
                store_u8(is_last + row, 1)
                keys += 1
                break
            if to_int(stored >> np.uint64(32)) == tag:
                number = to_int(stored & np.uint64(_ROW_MASK)) - 1
                other = rows + ROW_BYTES * number
                if _is_same_key(address, other):
                    if load_i64_le(address + _OFFSET_AT) > load_i64_le(other + _OFFSET_AT):
                        store_u8(is_last + number, 0)
                        store_u8(is_last + row, 1)
                        store_u64_le(at, entry)
                    break
            slot += 1
            if slot == slots_count:
                slot = 0
    return keys


@compiled
def _collect(rows: int, count: int, is_last: int, found: NDArray[np.int64]) -> None:
    at = 0
    for row in range(count):
        if load_u8(is_last + row):
            found[at] = load_i64_le(rows + ROW_BYTES * row + _OFFSET_AT)
            at += 1


@compiled
def _count_places(rows: int, count: int, bases: int, lasts: int, places: int, counts: NDArray[np.int64]) -> int:
    """The first row outside all places, or -1."""
    place = 0
    for row in range(count):
        offset = load_i64_le(rows + ROW_BYTES * row + _OFFSET_AT)
        if place >= places or not load_i64_le(bases + 8 * place) <= offset <= load_i64_le(lasts + 8 * place):
            low, high = 0, places
            while low < high:
                middle = (low + high) >> 1
                if load_i64_le(lasts + 8 * middle) < offset:
                    low = middle + 1
                else:
                    high = middle
            place = low
            if place == places or load_i64_le(bases + 8 * place) > offset:
                return row
        counts[place] += 1
    return -1


@register_warm
def _warm() -> None:
    block = KeyBlock(np.zeros((1, HASH_WORDS), dtype=np.uint64), np.zeros(1, dtype=np.int64))
    rows = split([block], 1).rows
    place = last_offsets(rows)
    count_in_places(rows, place, place, np.zeros(1, dtype=np.int64))
