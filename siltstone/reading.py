"""`siltstone.read_topic`: a topic as Arrow record batches, straight from the object store, with no agent in between.

What it opens, in this order: the place (an embedded Postgres of a data directory, when none runs there), the object
store, a pin and then a snapshot of the topic; what is wrong with what was asked for is said before the first record.
All of it is closed, and the pin ended, when the reader was read to its end, was closed or is collected. A process that
dies leaves a pin, which runs out after a minute.

This path asks no agent, so ACLs of the brokers do not hold here: what the object store and Postgres let one read, one
reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from siltstone.embedded.attach import attach
from siltstone.errors import BadInputError
from siltstone.settings import is_memory, load_settings
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import (
    COLUMNS,
    EARLIEST,
    LATEST,
    LOG,
    READ_COMMITTED,
    AtTimestamp,
    BadScanError,
    Edge,
    OffsetSpec,
    ScanOptions,
    Slice,
    schema_of,
)
from spark_jobs.scan.pinned import PinnedSnapshot
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.read import BATCH_ROWS, read_slice
from spark_jobs.scan.timestamps import look_up

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Where = str | datetime | Edge | AtTimestamp | Mapping[int, int]


def read_topic(
    topic: str,
    *,
    data: str | Path | None = None,
    metadata: str = "",
    object_store: str = "",
    partitions: Sequence[int] | None = None,
    starting: Where = "earliest",
    ending: Where = "latest",
    columns: Sequence[str] = COLUMNS,
    isolation: str = READ_COMMITTED,
    view: str = LOG,
    fail_on_data_loss: bool = True,
    batch_rows: int = BATCH_ROWS,
) -> Any:
    """A `pyarrow.RecordBatchReader` over the topic as it is now, partition by partition, in offset order.

    Where: `data` is a directory of `siltstone dev`, running or not; else `metadata` and `object_store` are URLs, by
    default those of the settings (SILTSTONE_METADATA_URL, SILTSTONE_OBJECT_STORE_URL).

    What: `starting` (inclusive) and `ending` (exclusive) are "earliest", "latest", a `datetime` (the first record of
    that time or a later one; one without a zone is UTC) or offsets by partition. Columns are topic, partition, offset,
    timestamp, key, value and headers. `view="latest"` gives the latest record of each key, without tombstones.

    Raises UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError, BadScanError, DataLossError, and what
    opening the places raises. What goes wrong while it is read comes out of the reader as pyarrow's exceptions do, with
    our message in theirs.
    """
    options = ScanOptions(
        topic=topic,
        partitions=None if partitions is None else tuple(partitions),
        starting=_where(starting),
        ending=_where(ending),
        columns=tuple(columns),
        isolation=isolation,
        view=view,
        fail_on_data_loss=fail_on_data_loss,
    )
    if batch_rows < 1:
        raise BadScanError(f"batches of {batch_rows} rows")
    records = _Records(options, batch_rows)
    try:
        records.open(data=data, metadata=metadata, object_store=object_store)
    except BaseException:
        records.close()
        raise
    reader = pa.RecordBatchReader.from_batches(schema_of(options.columns), records)
    # Through Arrow's C interface, for `close` of the reader itself would not let go of what it reads from.
    return pa.RecordBatchReader.from_stream(reader)


def _where(asked: Where) -> OffsetSpec:
    match asked:
        case Edge() | AtTimestamp():
            return asked
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case datetime():
            zoned = asked if asked.tzinfo else asked.replace(tzinfo=UTC)
            return AtTimestamp(-((_EPOCH - zoned) // timedelta(milliseconds=1)))  # rounded up
        case Mapping():
            return dict(asked)
        case _:
            raise BadScanError(
                f"{asked!r} is no place in a topic",
                remedy='"earliest", "latest", a datetime, or offsets by partition such as {0: 100}',
            )


class _Records:
    """The batches, and everything that has to be closed after them."""

    def __init__(self, options: ScanOptions, batch_rows: int) -> None:
        self._options, self._batch_rows = options, batch_rows
        self._stack = ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._pinned: PinnedSnapshot | None = None

    def open(self, *, data: str | Path | None, metadata: str, object_store: str) -> None:
        metadata_url, store_url = self._places(data, metadata, object_store)
        store = self._stack.enter_context(BlockingStore.opened(store_url))
        self._pinned = self._stack.enter_context(PinnedSnapshot(metadata_url, self._options.topic))
        self._pinned.check_store(store)
        snapshot = self._pinned.snapshot
        options = look_up(store, snapshot, self._options)
        self._batches = _read(store, plan_slices(snapshot, options), options, self._batch_rows)

    def _places(self, data: str | Path | None, metadata: str, object_store: str) -> tuple[str, str]:
        if data is not None:
            if metadata or object_store:
                raise BadInputError("`data` says where everything lies: give it, or give URLs")
            found = self._stack.enter_context(attach(Path(data)))
            return found.metadata_url, found.object_store_url
        settings = load_settings(None, os.environ, {})
        metadata, object_store = metadata or settings.metadata_url, object_store or settings.object_store_url
        for url, name, variable in (
            (metadata, "metadata", "SILTSTONE_METADATA_URL"),
            (object_store, "object_store", "SILTSTONE_OBJECT_STORE_URL"),
        ):
            if not url or is_memory(url):
                raise BadInputError(
                    f"nothing that can be read is named as {name}",
                    remedy=f"give data='./siltstone-data', or {name}=URL, or set {variable}",
                )
        return metadata, object_store

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            if self._pinned is not None:
                self._pinned.check()
            return next(self._batches)
        except BaseException:  # the end, too
            self.close()
            raise

    def close(self) -> None:
        """May be repeated."""
        self._batches, self._pinned = iter(()), None
        self._stack.close()

    def __del__(self) -> None:
        self.close()


def _read(store: BlockingStore, slices: Sequence[Slice], options: ScanOptions, batch_rows: int) -> Iterator[Any]:
    """No method: a generator that knew its owner would keep both alive until the next garbage collection."""
    for part in slices:
        yield from read_slice(store, part, options, batch_rows=batch_rows)
