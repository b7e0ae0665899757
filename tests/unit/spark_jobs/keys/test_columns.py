"""Rows split by hash and the last record of each key, against a dict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compactor.heavy.key_scan import HASH_WORDS, KeyBlock
from runtime.errors import BugError
from spark_jobs.keys.columns import (
    ROW_WORDS,
    count_in_places,
    cut_pieces,
    edges_of,
    last_offsets,
    rows_of,
    split,
)
from tests.fixtures.chance import examples

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]


def some_hashes(chance: np.random.Generator, keys: int) -> Hashes:
    return chance.integers(0, 2**64 - 1, (keys, HASH_WORDS), dtype=np.uint64, endpoint=True)


def in_blocks(hashes: Hashes, offsets: Offsets, rows: int) -> list[KeyBlock]:
    return [KeyBlock(hashes[at : at + rows], offsets[at : at + rows]) for at in range(0, len(offsets), rows)]


def last_by_dict(hashes: Hashes, offsets: Offsets) -> list[int]:
    last: dict[bytes, int] = {}
    for key, offset in zip(hashes, offsets.tolist(), strict=True):
        last[key.tobytes()] = max(offset, last.get(key.tobytes(), -1))
    return sorted(last.values())


def as_rows(hashes: Hashes, offsets: Offsets) -> Hashes:
    return np.ascontiguousarray(np.column_stack((hashes, offsets.view(np.uint64))))


@settings(max_examples=examples(400))
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 600),
    keys=st.integers(1, 300),
    buckets=st.sampled_from((1, 2, 3, 7, 64, 1000)),
    block_rows=st.integers(1, 200),
    shared_words=st.sampled_from((0, 1, 2, 3)),
)
def test_the_last_record_of_each_key_is_found_in_buckets_as_in_a_dict(
    seed: int, count: int, keys: int, buckets: int, block_rows: int, shared_words: int
) -> None:
    # given keys that may share the first words of their hashes, and offsets with gaps
    chance = np.random.default_rng(seed)
    names = some_hashes(chance, keys)
    names[:, :shared_words] = names[0, :shared_words]
    hashes = names[chance.integers(0, keys, count)]
    offsets = np.cumsum(chance.integers(1, 1 << 40, count))
    # when they are split, and each bucket comes in any order
    parts = split(in_blocks(hashes, offsets, block_rows), buckets)
    found: list[int] = []
    for bucket in range(buckets):
        rows = parts.rows[parts.edges[bucket] : parts.edges[bucket + 1]]
        last = last_offsets(chance.permutation(rows))
        assert (np.diff(last) > 0).all()
        found += last.tolist()
    # then buckets share no key, and no row is lost
    assert sorted(found) == last_by_dict(hashes, offsets)
    assert sorted(map(bytes, parts.rows)) == sorted(map(bytes, as_rows(hashes, offsets)))
    assert rows_of(parts.rows.reshape(-1).view(np.uint8)).tolist() == parts.rows.tolist()


def test_rows_of_a_bucket_keep_their_order_and_keys_at_the_edges_of_buckets_have_one_home() -> None:
    # given hashes just below and at each edge of four buckets
    quarters = [np.uint64(quarter << 62) for quarter in range(4)]
    firsts = [word for quarter in quarters for word in (quarter - np.uint64(quarter != 0), quarter)]
    hashes = np.zeros((8, HASH_WORDS), dtype=np.uint64)
    hashes[:, 0] = firsts
    # when they are split, then each lies on its side, in the order in which it came
    parts = split([KeyBlock(np.tile(hashes, (2, 1)), np.arange(16))], 4)
    assert parts.edges.tolist() == [0, 6, 10, 14, 16]
    assert parts.rows[:, HASH_WORDS].tolist() == [0, 1, 2, 8, 9, 10, 3, 4, 11, 12, 5, 6, 13, 14, 7, 15]


def test_all_rows_of_one_key_or_none_at_all() -> None:
    one = np.full((1000, HASH_WORDS), 2**64 - 1, dtype=np.uint64)
    assert last_offsets(as_rows(one, np.random.default_rng(3).permutation(1000))).tolist() == [999]
    assert last_offsets(np.zeros((0, ROW_WORDS), dtype=np.uint64)).tolist() == []
    assert split([], 3).edges.tolist() == [0, 0, 0, 0]


def test_keys_that_differ_in_any_one_bit_are_two_keys() -> None:
    hashes = np.zeros((257, HASH_WORDS), dtype=np.uint64)
    for bit in range(256):
        hashes[bit + 1, bit // 64] = np.uint64(1 << bit % 64)
    assert last_offsets(as_rows(hashes, np.arange(257))).tolist() == list(range(257))


def test_two_hundred_thousand_rows_as_numpy_finds_them() -> None:
    chance = np.random.default_rng(8)
    numbers = chance.integers(0, 90_000, 200_000)
    hashes = some_hashes(chance, 90_000)[numbers]
    last = np.full(90_000, -1)
    last[numbers] = np.arange(200_000)
    parts = split(in_blocks(hashes, np.arange(200_000), 4096), 5)
    assert np.diff(parts.edges).min() > 30_000  # even
    found = [last_offsets(parts.rows[start:end]) for start, end in pairwise(parts.edges.tolist())]
    assert np.array_equal(np.sort(np.concatenate(found)), np.sort(last[last >= 0]))


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32), places=st.integers(1, 40), count=st.integers(0, 300))
def test_rows_are_counted_in_the_place_of_their_offset(seed: int, places: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    edges = np.cumsum(chance.integers(1, 9, 2 * places))
    bases, lasts = edges[::2], edges[1::2] - 1  # gaps between them
    within = np.concatenate([np.arange(base, last + 1) for base, last in zip(bases, lasts, strict=True)])
    offsets = chance.choice(within, count)
    offsets[: count // 2].sort()
    counts = np.full(places, 5, dtype=np.int64)
    rows = as_rows(some_hashes(chance, count), offsets)
    count_in_places(rows, bases, lasts, counts)
    expected = [5 + int(((offsets >= base) & (offsets <= last)).sum()) for base, last in zip(bases, lasts, strict=True)]
    assert counts.tolist() == expected
    # and a row outside all of them is an error
    outside = chance.choice(np.setdiff1d(np.arange(edges[-1] + 2), within), 1)
    with pytest.raises(BugError, match=f"a row of offset {outside[0]} lies in none of {places} places"):
        count_in_places(as_rows(some_hashes(chance, 1), outside), bases, lasts, counts)


@settings(max_examples=examples(200))
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    most=st.integers(1, 12),
    also_empty=st.booleans(),
)
def test_stretches_are_cut_into_pieces_that_join_to_them(counts: list[int], most: int, also_empty: bool) -> None:
    edges = edges_of(np.array(counts, dtype=np.int64))
    asked = np.array([also_empty and at % 2 == 0 for at in range(len(counts))])
    owners, cut = cut_pieces(edges, most, at_least=asked)
    assert len(cut) == len(owners) + 1
    assert np.diff(cut).max(initial=0) <= most
    pieces = list(zip(owners.tolist(), cut[:-1].tolist(), cut[1:].tolist(), strict=True))
    for at, count in enumerate(counts):
        mine = [(start, stop) for owner, start, stop in pieces if owner == at]
        assert len(mine) == max(-(-count // most), int(asked[at]))
        assert [each for start, stop in mine for each in range(start, stop)] == list(range(edges[at], edges[at + 1]))


def test_what_is_no_row_of_a_key_is_refused() -> None:
    with pytest.raises(BugError, match="whole rows"):
        rows_of(np.zeros(41, dtype=np.uint8))
    with pytest.raises(BugError, match="are not rows of keys"):
        last_offsets(np.zeros((2, 4), dtype=np.uint64))
    with pytest.raises(BugError, match="2 offsets and hashes of shape"):
        split([KeyBlock(np.zeros((1, 4), dtype=np.uint64), np.zeros(2, dtype=np.int64))], 1)
    with pytest.raises(BugError, match="0 buckets"):
        split([], 0)
