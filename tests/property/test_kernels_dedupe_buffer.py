"""The table of keys compared with a dict, over random histories with full tables, ranges and clears."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.cleaning.dedupe_buffer import HASH_MAX, DedupeBuffer, PythonDedupeBuffer
from tests.fixtures.chance import examples


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    keys_max=st.integers(1, 40),
    pool=st.integers(1, 60),
    crowd=st.sampled_from([0, 1, 2]),
    calls=st.lists(st.tuples(st.integers(0, 80), st.booleans()), min_size=1, max_size=12),
)
def test_a_table_does_what_a_dict_does(
    seed: int, keys_max: int, pool: int, crowd: int, calls: list[tuple[int, bool]]
) -> None:
    # given keys that are spread over the index, that all search from its end, or that even share one tag
    chance = np.random.default_rng(seed)
    keys = chance.integers(0, 2**64, (pool, 4), dtype=np.uint64)
    if crowd:
        keys[:, 0] |= np.uint64(0xFFFFFFFF_00000000)
    if crowd == 2:
        keys[:, 0] = np.uint64(HASH_MAX)
    table, model = DedupeBuffer(keys_max), PythonDedupeBuffer(keys_max)
    dead = [np.zeros(130, np.uint8) for _ in range(2)]
    ordinal = 0
    for rows, ranged in calls:
        hashes = keys[chance.integers(0, pool, rows)]
        lengths = chance.integers(-1, 5, rows).astype(np.int32)
        lo, hi = sorted(chance.integers(0, 2**64, 2, dtype=np.uint64).tolist()) if ranged else (0, HASH_MAX)
        # when both get the same rows, and are cleared when they are full
        done = 0
        while True:
            rest = hashes[done:], lengths[done:], ordinal + done
            steps = [
                each.enter(*rest, bits, range_lo=lo, range_hi=hi)
                for each, bits in zip((table, model), dead, strict=True)
            ]
            # then both take the same number of rows, hold the same number of keys, and mark the same rows dead
            assert steps[0] == steps[1]
            assert table.keys == model.keys
            assert np.array_equal(*dead)
            done += steps[0]
            if done == rows:
                break
            table.clear()
            model.clear()
        ordinal += rows
