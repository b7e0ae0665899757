"""Reads slices: bytes from the object store in, Arrow record batches out. Synchronous, in bounded memory.

Held at once: the bytes requested ahead (`windows.py`), one window, some MiB of it decompressed and the columns made of
that; for the views by key also the table of keys and one bit per record (`latest.py`). It does not use the metadata
store.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.blocks import blocks_of
from spark_jobs.scan.contract import LOG, ScanOptions, Slice
from spark_jobs.scan.decode import BatchMaker
from storage.objects import ObjectStore

BATCH_ROWS = 65_536


def read_slice(
    store: str | BlockingStore | ObjectStore, part: Slice, options: ScanOptions, *, batch_rows: int = BATCH_ROWS
) -> Iterator[Any]:
    """The slice's records as `pyarrow.RecordBatch`es of `schema_of(options.columns)`, in offset order.

    `store`: its URL (opened once per process), one that is already open, or a store that allows calls from any event
    loop (memory, a directory). Of the options only topic, columns, view and fail_on_data_loss count; the rest is in the
    slice. Raises DataLossError, and the store's errors when it does not answer.
    """
    with _blocking(store) as blocking:
        if options.view != LOG:
            from spark_jobs.scan.latest import latest_blocks  # only these views need the table of keys

            blocks = latest_blocks(blocking, part, options)
        else:
            blocks = blocks_of(blocking, part, options)
        maker = BatchMaker(options.topic, part.partition, options.columns)
        for block in blocks:
            yield from maker.batches(block, batch_rows)


@contextmanager
def _blocking(store: str | BlockingStore | ObjectStore) -> Generator[BlockingStore]:
    if isinstance(store, str):
        yield BlockingStore.at(store)
    elif isinstance(store, BlockingStore):
        yield store
    else:
        with BlockingStore(store) as ours:
            yield ours
