"""The tail of a topic by key: the keys that it names, and its latest records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from compactor.heavy.key_scan import HASH_WORDS, KeyBlock
from spark_jobs.keys.columns import ROW_WORDS, last_offsets
from spark_jobs.keys.layout import Surviving
from spark_jobs.scan.contract import Slice
from spark_jobs.tables.keyed.key_index import SoughtKeys

ReadKeys = Callable[[Slice], Iterator[KeyBlock]]


class Tail(NamedTuple):
    keys: Mapping[int, SoughtKeys]
    """Partition -> the keys of all its records, tombstones too."""
    surviving: Mapping[tuple[int, int], Surviving]
    """(partition, start of the slice) -> its records that are the last of their keys in the whole tail."""


def read_tail(slices: Sequence[Slice], read: ReadKeys) -> Tail:
    """Reads the keys of all slices: 40 bytes a record in memory, and as much again for one partition."""
    keys: dict[int, SoughtKeys] = {}
    surviving: dict[tuple[int, int], Surviving] = {}
    by_partition: dict[int, list[Slice]] = {}
    for part in slices:
        by_partition.setdefault(part.partition, []).append(part)
    for partition, parts in by_partition.items():
        blocks: list[KeyBlock] = []
        counts: list[int] = []
        for part in parts:
            before = len(blocks)
            blocks += read(part)
            counts.append(sum(len(block.offsets) for block in blocks[before:]))
        hashes = np.concatenate([np.zeros((0, HASH_WORDS), dtype=np.uint64), *(block.hashes for block in blocks)])
        offsets = np.concatenate([np.zeros(0, dtype=np.int64), *(block.offsets for block in blocks)])
        blocks.clear()
        rows = np.empty((len(offsets), ROW_WORDS), dtype=np.uint64)
        rows[:, :HASH_WORDS], rows[:, HASH_WORDS] = hashes, offsets.view(np.uint64)
        last = last_offsets(rows)
        # Offsets rise, so each is found by halving.
        keys[partition] = SoughtKeys.of(hashes[np.searchsorted(offsets, last)])
        for part, count in zip(parts, counts, strict=True):
            low, high = np.searchsorted(last, (part.start, part.end))
            surviving[partition, part.start] = Surviving(last[low:high], count)
    return Tail(keys, surviving)
