"""`siltstone.read_topic`: a topic as Arrow record batches, read from the object store without an agent.

A reader opens, in this order: the system (it starts the Postgres of a data directory if none runs there), the object
store, a pin, and a snapshot of the topic. Invalid arguments raise before the first record. The reader closes all of
this and ends the pin when it is read to its end, closed or collected, or when the process ends. A process that dies
leaves its pin, which expires after a minute.

A failed reader stays failed: each further read raises the same error and never looks like the end. Threads may share a
reader; each batch goes to one of them. A reader belongs to the process that made it, so a forked child cannot use it.

No agent takes part, so the ACLs of brokers do not apply: the rights on the object store and on Postgres decide.
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
from dataclasses import replace
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
from siltstone.processes.places import place_of
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
        partitions=_partitions(partitions),
        starting=_where(starting),
        ending=_where(ending),
        columns=_columns(columns),
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


def _partitions(asked: object) -> tuple[int, ...] | None:
    """The partition numbers; None for all."""
    if asked is None:
        return None
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not found or not all(_is_number(each) for each in found):
        raise BadScanError(
            f"partitions={asked!r} names no partitions", remedy="give numbers in a list, such as [0] or [0, 2]"
        )
    return tuple(map(int, found))


def _is_number(value: object) -> bool:
    """Whether `value` is a whole number, also one of numpy. True and False are not."""
    return isinstance(value, Integral) and value is not True and value is not False


def _columns(asked: object) -> tuple[str, ...]:
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not all(isinstance(each, str) for each in found) or (not found and asked not in ((), [])):
        raise BadScanError(
            f"columns={asked!r} names no columns", remedy='give names in a list, such as ["key", "value"]'
        )
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
                f"{asked!r} is not a place in a topic",
                remedy='give "earliest", "latest", a datetime, or offsets by partition such as {0: 100}',
            )


class ReadFailedError(SiltstoneError):
    """The reader failed earlier; the rest of the topic was not read."""


class _Records:
    """The batches of a reader, and everything that must be closed after them."""

    def __init__(self, options: ScanOptions, batch_rows: int) -> None:
        self._options, self._batch_rows = options, batch_rows
        self._stack = ExitStack()
        self._batches: Iterator[Any] = iter(())
        self._pinned: PinnedSnapshot | None = None
        self._failed = ""
        """The failure as text. An exception object would keep its frames alive, and everything that they hold."""
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
                raise BadInputError("`data` already names the whole system: give either data or URLs, not both")
            found = self._stack.enter_context(attach(Path(data)))
            return found.metadata_url, found.object_store_url
        settings = load_settings(None, os.environ, {})
        metadata = metadata or settings.metadata_url
        object_store = place_of(replace(settings, object_store_url=object_store or settings.object_store_url))
        for url, name, variable in (
            (metadata, "metadata", "SILTSTONE_METADATA_URL"),
            (object_store, "object_store", "SILTSTONE_OBJECT_STORE_URL"),
        ):
            if not url or is_memory(url):
                raise BadInputError(
                    f"{name} names nothing that can be read: {url or 'it is empty'}",
                    remedy=f"give data='./siltstone-data', or {name}=URL, or set {variable}",
                )
        return metadata, object_store

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch. After a failure every call raises ReadFailedError."""
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
            except BaseException as error:  # Ctrl-C too: it interrupts a read whose rest is lost
                self._failed = f"{type(error).__name__}: {error}"
                self.close()
                raise

    def close(self) -> None:
        """Safe to repeat. Does nothing in a forked child, where the threads that it would wait for do not exist."""
        if os.getpid() != self._pid:
            # Keep the attributes alive: the connections belong to the parent and must not be collected here either.
            _not_ours.append(self.__dict__)
            return
        self._batches, self._pinned = iter(()), None
        self._stack.close()

    def __del__(self) -> None:
        """Close. `close` of an Arrow reader ends here and waits, so that the pin has ended when it returns.

        It never waits inside the garbage collector. The collector runs in any thread, with any locks held, and may run
        in the thread that this call would wait for; then the closing thread does the work.
        """
        if os.getpid() == self._pid and (
            sys.is_finalizing() or _collecting == threading.get_ident() or LoopThread.is_current()
        ):
            _closing.put(self._stack.pop_all())
        else:
            self.close()


class _Closing:
    """A thread that closes what it is given. `put` may be called from anywhere, because it takes no lock of ours."""

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
                _log.warning("a reader was not closed completely", error=str(error))


_log = get_logger(__name__)
_closing = _Closing()
_open: weakref.WeakSet[_Records] = weakref.WeakSet()
_not_ours: list[object] = []
_collecting = 0
"""The thread that runs the garbage collector now; 0 if none does."""


def _note_collector(phase: str, _info: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else 0


def _at_exit() -> None:
    """Close all readers while threads still exist. A reader that is collected later has none to wait for."""
    for records in list(_open):
        records.close()
    _closing.end()


def _after_fork() -> None:
    """Start fresh in a forked child: it has no closing thread, and the parent may have held the locks."""
    global _closing, _open
    _not_ours.append((_closing, _open))
    _closing, _open = _Closing(), weakref.WeakSet[_Records]()


gc.callbacks.append(_note_collector)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


def _read(store: BlockingStore, slices: Sequence[Slice], options: ScanOptions, batch_rows: int) -> Iterator[Any]:
    """Read the batches. A function and not a method: a generator that refers to its owner would keep both alive until
    the next garbage collection."""
    for part in slices:
        yield from read_slice(store, part, options, batch_rows=batch_rows)
