"""Key indexes against a dict of the rows."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.keyed import key_index
from spark_jobs.tables.keyed.key_index import (
    BLOCK_ROWS,
    Hashes,
    KeyIndex,
    KeyIndexError,
    SoughtKeys,
    encode,
    key_hashes,
)


class Reads:
    """The bytes of an index, and what was read of them."""

    def __init__(self, body: bytes) -> None:
        self.body, self.lengths = body, list[int]()

    def __call__(self, position: int, length: int) -> bytes:
        self.lengths.append(length)
        return self.body[position : position + length]


def random_hashes(chance: np.random.Generator, rows: int, *, first_words: int) -> Hashes:
    hashes = chance.integers(0, 2**64, (rows, 4), dtype=np.uint64)
    if first_words:  # many keys share their first word
        hashes[:, 0] = chance.integers(0, first_words, rows, dtype=np.uint64) << np.uint64(50)
    return hashes


@pytest.mark.parametrize("rows", [0, 1, BLOCK_ROWS, BLOCK_ROWS + 1, 40_000])
@pytest.mark.parametrize("first_words", [0, 200])
def test_rows_are_found_by_their_whole_hash(rows: int, first_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    monkeypatch.setattr(key_index, "WINDOW_BYTES", 3 * BLOCK_ROWS * key_index.ROW_BYTES)
    hashes = random_hashes(chance, rows, first_words=first_words)
    if rows > 10:
        hashes[7] = hashes[3]  # a key with two rows
    body = encode(hashes)
    index = KeyIndex(Reads(body), len(body))
    assert index.rows == rows
    known = hashes[chance.permutation(rows)[: rows // 3]]
    near = hashes[: rows // 2].copy()  # keys that differ from one with a row by a single bit
    near[np.arange(len(near)), chance.integers(1, 4, len(near))] ^= np.uint64(1)
    wanted = np.concatenate([known, near, random_hashes(chance, 100, first_words=first_words)])
    held = {row.tobytes() for row in wanted}
    expected = [position for position, row in enumerate(hashes) if row.tobytes() in held]
    assert index.find(SoughtKeys.of(wanted)).tolist() == expected


def test_few_keys_need_few_blocks() -> None:
    hashes = random_hashes(np.random.default_rng(1), 400_000, first_words=0)
    body = encode(hashes)
    reads = Reads(body)
    index = KeyIndex(reads, len(body))
    assert sum(reads.lengths) < 2_000  # the trailer and the directory of 98 blocks
    reads.lengths.clear()
    assert index.find(SoughtKeys.of(hashes[[5, 300_000]])).tolist() == [5, 300_000]
    assert sum(reads.lengths) <= 2 * 2 * BLOCK_ROWS * key_index.ROW_BYTES


def test_damage_is_noticed_wherever_it_is() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    hashes = random_hashes(np.random.default_rng(seed), 5_000, first_words=0)
    body = encode(hashes)
    for _ in range(300):
        hurt = bytearray(body)
        hurt[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        with pytest.raises(KeyIndexError):
            KeyIndex(Reads(bytes(hurt)), len(hurt)).find(SoughtKeys.of(hashes))
    for cut in (0, 3, 24, len(body) - 1):
        with pytest.raises(KeyIndexError):
            KeyIndex(Reads(body[:cut]), cut).find(SoughtKeys.of(hashes))


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_a_column_of_keys_is_hashed_as_the_compactor_hashes_them(kind: object) -> None:
    keys = ["a", "", None, "ключ", "long " * 40, "z"]
    column = pa.array(keys, type=pa.string()).cast(kind)
    for start, stop in [(0, 6), (2, 5), (6, 6)]:
        hashes = key_hashes(column.slice(start, stop - start))
        expected = [
            bytes(32) if key is None else hashlib.new("sha512_256", key.encode()).digest() for key in keys[start:stop]
        ]
        assert [row.astype(">u8").tobytes() for row in hashes] == expected
