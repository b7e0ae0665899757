"""A topic as Arrow, read from the object store without an agent: `siltstone.read_topic` and `siltstone.topic_dataset`.

`siltstone/reading/open_topic.py` tells what is opened and who closes it. Invalid arguments raise before the first
record. A reader that has failed stays failed: each further read raises the same error and never looks like the end.
Threads may share a reader; each batch goes to one of them.

No agent takes part, so the ACLs of brokers do not apply: the rights on the object store and on Postgres decide.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import SiltstoneError
from siltstone.reading.arguments import Where, columns_of, partitions_of, where_of
from siltstone.reading.dataset import TopicDataset
from siltstone.reading.open_topic import OpenTopic
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import COLUMNS, LOG, READ_COMMITTED, BadScanError, ScanOptions, Slice, schema_of
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.read import BATCH_ROWS, read_slice


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

    The system: `data` is a directory of `siltstone dev`, running or not. Without it, `metadata` and `object_store` are
    URLs; their defaults are the settings SILTSTONE_METADATA_URL and SILTSTONE_OBJECT_STORE_URL.

    The records: `starting` (inclusive) and `ending` (exclusive) are "earliest", "latest", a `datetime` (the first
    record at or after it; UTC if it has no zone), or offsets by partition. The columns are topic, partition, offset,
    timestamp, key, value and headers. `view="latest"` gives the latest record of each key, without tombstones. By
    default records of open and aborted transactions are left out; `isolation="read_uncommitted"` gives them too.

    Raises UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError, BadScanError, DataLossError, and the errors
    of opening the system. An error during reading leaves the reader as an exception of pyarrow with our message in its
    text. Ctrl-C does too: as `ArrowInvalid` with KeyboardInterrupt in its text.
    """
    options = ScanOptions(
        topic=topic,
        partitions=partitions_of(partitions),
        starting=where_of(starting),
        ending=where_of(ending),
        columns=columns_of(columns),
        isolation=isolation,
        view=view,
        fail_on_data_loss=fail_on_data_loss,
    )
    if batch_rows < 1:
        raise BadScanError(f"batch_rows={batch_rows} asks for batches of {batch_rows} rows; give 1 or more")
    records = _Records(options, batch_rows)
    try:
        records.open(data=data, metadata=metadata, object_store=object_store)
    except BaseException:
        records.close()
        raise
    reader = pa.RecordBatchReader.from_batches(schema_of(options.columns), records)
    # Go through Arrow's C interface: `close` of the reader above would not release the object that it reads from.
    return pa.RecordBatchReader.from_stream(reader)


def topic_dataset(
    topic: str,
    *,
    data: str | Path | None = None,
    metadata: str = "",
    object_store: str = "",
    partitions: Sequence[int] | None = None,
    starting: Where = "earliest",
    ending: Where = "latest",
    isolation: str = READ_COMMITTED,
    view: str = LOG,
    fail_on_data_loss: bool = True,
) -> TopicDataset:
    """A `pyarrow.dataset.Dataset` of the topic as it is now, to be asked any number of times, also by several threads.

    The arguments and errors are those of `read_topic`. Programs such as DuckDB and polars choose the columns and filter
    the rows: a filter on partition, offset and timestamp spares what need not be read. In the latest view a filter sees
    only the latest record of each key, and only a filter on the partition spares something.

    The snapshot is pinned until the dataset is closed (`close`, or a `with` block) or collected.
    """
    options = ScanOptions(
        topic=topic,
        partitions=partitions_of(partitions),
        starting=where_of(starting),
        ending=where_of(ending),
        isolation=isolation,
        view=view,
        fail_on_data_loss=fail_on_data_loss,
    )
    opened = OpenTopic(options)
    try:
        opened.open(data=data, metadata=metadata, object_store=object_store)
        return TopicDataset(opened)
    except BaseException:
        opened.close()
        raise


class ReadFailedError(SiltstoneError):
    """The reader failed earlier; the rest of the topic was not read."""


class _Records(OpenTopic):
    """The batches of a reader, and everything that must be closed after them."""

    def __init__(self, options: ScanOptions, batch_rows: int) -> None:
        super().__init__(options)
        self._batch_rows = batch_rows
        self._batches: Iterator[Any] = iter(())
        self._failed = ""
        """The failure as text. An exception object would keep its frames alive, and everything that they hold."""
        self._has_ended = False
        self._lock = threading.Lock()

    def open(self, *, data: str | Path | None, metadata: str, object_store: str) -> None:
        super().open(data=data, metadata=metadata, object_store=object_store)
        self._batches = _read(self.store, plan_slices(self.snapshot, self.options), self.options, self._batch_rows)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch. After a failure every call raises ReadFailedError."""
        if not self.is_ours:
            raise ReadFailedError("this reader belongs to the process that made it", remedy="call read_topic here")
        with self._lock:
            if self._failed:
                raise ReadFailedError(f"this reader failed before: {self._failed}", remedy="call read_topic again")
            if self._has_ended:
                raise StopIteration
            try:
                self.check()
                return next(self._batches)
            except StopIteration:
                self._has_ended = True
                self.close()
                raise
            except BaseException as error:  # Ctrl-C too: it interrupts a read whose rest is lost
                self._failed = f"{type(error).__name__}: {error}"
                self.close()
                raise

    def close(self) -> None:
        if self.is_ours:
            self._batches = iter(())
        super().close()


def _read(store: BlockingStore, slices: Sequence[Slice], options: ScanOptions, batch_rows: int) -> Iterator[Any]:
    """Read the batches. A function and not a method: a generator that refers to its owner would keep both alive until
    the next garbage collection."""
    for part in slices:
        yield from read_slice(store, part, options, batch_rows=batch_rows)
