"""Keys that Spark's hash partitioning sends to a chosen task each. Pure.

`DataFrame.repartition(n, column)` sends a row to task `pmod(murmur3(column, 42), n)`. So a number whose hash lands on
task i stands for task i, and no two tasks collide by chance, which they would if their own numbers were hashed. Spark
has `repartitionById` from 4.1 on, and this is the same on every version. The hash is a part of Spark's public behaviour
(the function `hash` of SQL), and a test compares it. If it changed, tasks would only take more than their share.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_SEED = 42
_TRIED_AT_ONCE = 1 << 14


@functools.lru_cache(maxsize=16)
def keys_of_tasks(tasks: int) -> NDArray[np.int32]:
    """[tasks]: for each task, the smallest number from 0 on that lands there."""
    found = np.full(tasks, -1, dtype=np.int32)
    start = 0
    while (found < 0).any():
        tried = np.arange(start, start + _TRIED_AT_ONCE, dtype=np.int32)
        landed, first = np.unique(task_of(tried, tasks), return_index=True)
        is_new = found[landed] < 0
        found[landed[is_new]] = tried[first[is_new]]
        start += _TRIED_AT_ONCE
    found.setflags(write=False)
    return found


def task_of(keys: NDArray[np.int32], tasks: int) -> NDArray[np.int64]:
    """The task that Spark sends each of these keys to: Murmur3 (x86, 32 bits) of one word, modulo."""
    mixed = _turned(keys.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = _turned(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed ^= np.uint32(4)  # the length in bytes
    hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    return hashed.view(np.int32).astype(np.int64) % tasks


def _turned(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)
