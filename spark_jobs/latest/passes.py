"""The two passes of one task over its slice: keys out, and once the survivors are known, their records out.

A record that only one of the passes could read would make the answer wrong: it would hide an older record of its key
and be missing itself. So the second pass counts what it reads, and ends with an error if the first had read anything
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compactor.heavy.key_scan import KeyBlock
from runtime.logging import get_logger
from spark_jobs.keys.layout import Surviving
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.blocks import blocks_of
from spark_jobs.scan.contract import DataLossError, ScanOptions, Slice
from spark_jobs.scan.decode import BatchMaker
from spark_jobs.scan.read import BATCH_ROWS
from wire.kernels.hashing import hash_keys

_log = get_logger(__name__)


def key_blocks(store: BlockingStore, part: Slice, options: ScanOptions) -> Iterator[KeyBlock]:
    """The keys of the slice's records, in offset order. Records without a key are left out. Raises as `read_slice`."""
    keyless = 0
    for block in blocks_of(store, part, options):
        has_key = block.columns.key_lengths[block.rows] >= 0
        if not has_key.all():
            keyless += int((~has_key).sum())
            block = block.keep(has_key)
        if len(block.rows):
            columns = block.columns
            hashes = hash_keys(block.arena, columns.key_positions[block.rows], columns.key_lengths[block.rows])
            yield KeyBlock(hashes, block.offsets)
    if keyless:
        _log.warning("records without a key are left out", topic=options.topic, partition=part.partition, count=keyless)


def surviving_batches(
    store: BlockingStore,
    part: Slice,
    options: ScanOptions,
    surviving: Surviving,
    *,
    keep_tombstones: bool,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Any]:
    """The surviving records as `pyarrow.RecordBatch`es of `schema_of(options.columns)`, in offset order.

    Tombstones among them are left out, unless `keep_tombstones`. Raises as `read_slice`, and DataLossError, at the end,
    if these are not the records that the first pass read.
    """
    maker = BatchMaker(options.topic, part.partition, options.columns)
    rows = met = 0
    for block in blocks_of(store, part, options):
        has_key = block.columns.key_lengths[block.rows] >= 0
        rows += int(has_key.sum())
        survives = _held(block.offsets, surviving.offsets) & has_key
        met += int(survives.sum())
        if not keep_tombstones:
            survives &= block.columns.value_is_null[block.rows] == 0
        if survives.any():
            yield from maker.batches(block.keep(survives), batch_rows)
    if (rows, met) != (surviving.rows, len(surviving.offsets)):
        raise DataLossError(
            f"topic {options.topic!r}, partition {part.partition}, offsets {part.start} to {part.end - 1}: {rows}"
            f" records with a key were read, and {met} latest ones among them; when their keys were read, it was"
            f" {surviving.rows} and {len(surviving.offsets)}",
            remedy="read again; `siltstone fsck` shows what is damaged",
        )


def _held(offsets: NDArray[np.int64], survivors: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these offsets are among the survivors. Both rise."""
    first, end = np.searchsorted(survivors, (offsets[0], offsets[-1] + 1))
    found = np.zeros(len(offsets), dtype=np.bool_)
    within = survivors[first:end]
    at = np.searchsorted(offsets, within)
    found[at[offsets[at] == within]] = True
    return found
