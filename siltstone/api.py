"""`siltstone.read_topic`: a topic as Arrow record batches, straight from the object store, with no agent in between.

What it opens, in this order: the place (an embedded Postgres of a data directory, when none runs there), the object
store, a pin and then a snapshot of the topic; what is wrong with what was asked for is said before the first record.
All of it is closed, and the pin ended, when the reader was read to its end, was closed or is collected, or when the
process ends. One that dies leaves a pin, which runs out after a minute.

A reader that has failed has failed: whoever asks it for more hears the same again, and never that it ended. Threads may
share one, each batch goes to one of them. A forked child has nothing of it: it belongs to the process that made it.

This path asks no agent, so ACLs of the brokers do not hold here: what the object store and Postgres let one read, one
reads.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from numbers import Integral
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from runtime.errors import BadInputError, SiltstoneError
from runtime.logging import get_logger
from runtime.settings.checks import is_memory
from runtime.settings.loading import load_settings
from siltstone.embedded.attach import attach
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.blocking import BlockingStore, LoopThread
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
_CLOSING_AT_EXIT_S = 10
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
    our message in theirs; so does Ctrl-C, as `ArrowInvalid` with KeyboardInterrupt in it.
    """
    options = ScanOptions(
        topic=topic,
        partitions=_partitions(partitions),
        starting=_where(starting),
        ending=_where(ending),
        columns=_columns(columns),
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


def _partitions(asked: object) -> tuple[int, ...] | None:
    """None: all."""
    if asked is None:
        return None
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not found or not all(_is_number(each) for each in found):
        raise BadScanError(
            f"partitions={asked!r} names no partitions", remedy="numbers in a list, such as [0] or [0, 2]"
        )
    return tuple(map(int, found))


def _is_number(value: object) -> bool:
    """numpy's whole numbers too; True is none."""
    return isinstance(value, Integral) and value is not True and value is not False


def _columns(asked: object) -> tuple[str, ...]:
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not all(isinstance(each, str) for each in found) or (not found and asked not in ((), [])):
        raise BadScanError(f"columns={asked!r} names no columns", remedy='names in a list, such as ["key", "value"]')
    return found


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


class ReadFailedError(SiltstoneError):
    """The reader failed before, and the rest of the topic was not read."""


class _Records:
    """The batches, and everything that has to be closed after them."""

    def __init__(self, options: ScanOptions, batch_rows: int) -> None:
        self._options, self._batch_rows = options, batch_rows
        self._stack = ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._pinned: PinnedSnapshot | None = None
        self._failed = ""
        """What went wrong, in words: an error would hold the frames it went through, and all that they hold."""
        self._lock = threading.Lock()
        self._pid = os.getpid()
        _closing.starts()
        _open.add(self)

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
        """Raises ReadFailedError at every call after one that failed."""
        if os.getpid() != self._pid:
            raise ReadFailedError("this reader belongs to the process that made it", remedy="call read_topic here")
        with self._lock:
            if self._failed:
                raise ReadFailedError(f"this reader failed before: {self._failed}", remedy="call read_topic again")
            try:
                if self._pinned is not None:
                    self._pinned.check()
                return next(self._batches)
            except StopIteration:
                self.close()
                raise
            except BaseException as error:  # Ctrl-C, too: what it broke off is lost
                self._failed = f"{type(error).__name__}: {error}"
                self.close()
                raise

    def close(self) -> None:
        """May be repeated. Does nothing in a forked child, which has none of the threads that would be waited for."""
        if os.getpid() != self._pid:
            _not_ours.append(self.__dict__)  # its connections must not be collected here, either: they are the parent's
            return
        self._batches, self._pinned = iter(()), None
        self._stack.close()

    def __del__(self) -> None:
        """`close` of an Arrow reader comes here: then it waits, so that the pin has ended when `close` returns. It
        never waits inside of the garbage collector, which runs in whatever thread, with whatever locks held, and may
        be the one that would be waited for."""
        if os.getpid() == self._pid and (
            sys.is_finalizing() or _collecting == threading.get_ident() or LoopThread.is_current()
        ):
            _closing.put(self._stack.pop_all())
        else:
            self.close()


class _Closing:
    """Closes in a thread of its own what is given to it. `put` may be called anywhere: it takes no lock of ours."""

    def __init__(self) -> None:
        self._given: SimpleQueue[ExitStack | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def starts(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reader closing", daemon=True)
                self._thread.start()

    def put(self, stack: ExitStack) -> None:
        self._given.put(stack)

    def end(self) -> None:
        thread = self._thread
        if thread is not None:
            self._given.put(None)
            thread.join(_CLOSING_AT_EXIT_S)

    def _run(self) -> None:
        while (stack := self._given.get()) is not None:
            try:
                stack.close()
            except Exception as error:
                _log.warning("a reader was not closed whole", error=str(error))


_log = get_logger(__name__)
_closing = _Closing()
_open: weakref.WeakSet[_Records] = weakref.WeakSet()
_not_ours: list[object] = []
_collecting = 0
"""The thread that runs the garbage collector now."""


def _note_collector(phase: str, _info: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else 0


def _at_exit() -> None:
    """While there are threads yet: what is collected later finds none to wait for."""
    for records in list(_open):
        records.close()
    _closing.end()


def _after_fork() -> None:
    """The thread is not in the child, and the parent may have held the locks."""
    global _closing, _open
    _not_ours.append((_closing, _open))
    _closing, _open = _Closing(), weakref.WeakSet[_Records]()


gc.callbacks.append(_note_collector)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


def _read(store: BlockingStore, slices: Sequence[Slice], options: ScanOptions, batch_rows: int) -> Iterator[Any]:
    """No method: a generator that knew its owner would keep both alive until the next garbage collection."""
    for part in slices:
        yield from read_slice(store, part, options, batch_rows=batch_rows)
