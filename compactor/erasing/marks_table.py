"""The marks of one partition, looked up by the hashes of its records' keys.

The hashes lie sorted in one array of 32 bytes a key, with the offsets beside them. The leading bits of a hash name a
stretch of that array, about half a key long, so a look-up reads a place or two, whatever the number of keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metadata.erasures.contract import KeyMark
from wire.kernels.compiled import compiled, register_warm

_HASH_WORDS = 4


class MarksTable:
    def __init__(self, marks: Sequence[KeyMark]) -> None:
        """Of several marks for one key, the farthest one counts."""
        hashes = np.frombuffer(b"".join(mark.key_hash for mark in marks), dtype=">u8")
        words = hashes.astype(np.uint64).reshape(-1, _HASH_WORDS)
        ends = np.array([mark.before_offset + (1 if mark.tombstone else 0) for mark in marks], dtype=np.int64)
        order = np.lexsort((ends, *(words[:, word] for word in reversed(range(_HASH_WORDS)))))
        words, ends = words[order], ends[order]
        # Equal hashes stand together, the farthest mark last.
        is_last = np.ones(len(ends), dtype=np.bool_)
        is_last[:-1] = (words[1:] != words[:-1]).any(axis=1)
        self._words = np.ascontiguousarray(words[is_last])
        self._ends = np.ascontiguousarray(ends[is_last])
        bits = max(len(self._ends).bit_length(), 1)
        self._shift = np.uint64(64 - bits)
        stretches = np.arange((1 << bits) + 1, dtype=np.uint64)
        self._starts = (self._words[:, 0] >> self._shift).searchsorted(stretches).astype(np.int64)

    @property
    def end_offset(self) -> int:
        """The exclusive end of the offsets that any mark touches."""
        return int(self._ends.max(initial=0))

    def ends_of(self, hashes: NDArray[np.uint64], key_lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        """For each row, the exclusive end of the offsets at which its key is erased; 0 without a mark or a key.

        `hashes` as from `hash_keys`: [n, 4].
        """
        found = np.zeros(len(key_lengths), dtype=np.int64)
        _look_up(hashes, key_lengths, self._words, self._ends, self._starts, self._shift, found)
        return found


@compiled
def _look_up(
    hashes: NDArray[np.uint64],
    key_lengths: NDArray[np.int32],
    words: NDArray[np.uint64],
    ends: NDArray[np.int64],
    starts: NDArray[np.int64],
    shift: np.uint64,
    found: NDArray[np.int64],
) -> None:
    for row in range(len(key_lengths)):
        # A null key has a hash of zeros, which no mark may match.
        if key_lengths[row] < 0:
            continue
        stretch = np.int64(hashes[row, 0] >> shift)
        for at in range(starts[stretch], starts[stretch + 1]):
            if (
                words[at, 0] == hashes[row, 0]
                and words[at, 1] == hashes[row, 1]
                and words[at, 2] == hashes[row, 2]
                and words[at, 3] == hashes[row, 3]
            ):
                found[row] = ends[at]
                break


@register_warm
def _warm() -> None:
    MarksTable([KeyMark(bytes(32), 1)]).ends_of(
        np.zeros((0, _HASH_WORDS), dtype=np.uint64), np.zeros(0, dtype=np.int32)
    )
