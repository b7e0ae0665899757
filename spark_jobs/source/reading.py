"""The work of a Spark task: read one slice, renew its pin meanwhile, and plan again if its files have gone all the
same.

A slice names the files that held its offsets when it was planned. Under a pin they stay. If the pin ran out they may
have been replaced and deleted, and the object store answers "not there". Then the task takes a new pin, asks which
files hold its offsets now, and goes on after the last record it has handed on: nothing twice, nothing left out. That
needs Postgres within reach of the executor; without it the error says what to do. The latest view cannot go on in the
middle, because it decides the latest record of a key over the whole slice, and neither can the changes. So such a task
fails if it has handed on anything, and Spark runs it again from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from metadata.contract.topics import UnknownTopicError
from runtime.clock import Clock, SystemClock
from runtime.errors import UnavailableError
from runtime.logging import get_logger
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import LOG, DataLossError, PinLostError, ScanOptions, Slice, schema_of
from spark_jobs.scan.read import read_slice
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Renewal, let_go, renew, take_pin, task_renewal
from spark_jobs.source.scan import ScanPlanner, SliceTask, TopicScan
from storage.objects import ObjectStoreError

_log = get_logger(__name__)
REPLANS_MAX = 5
"""The most new plans of one task. Each comes after a pin that ran out; if this goes on, the system has another problem.
"""
OFFSET = "offset"

Read = Callable[[Slice, ScanOptions, Collection[str]], Iterator[Any]]
"""Record batches of a slice, in offset order. The objects in the last argument are known to be lost. Raises
FileGoneError."""
Replan = Callable[[int], Sequence[Slice]]
"""The slices that hold the rest of the task from an offset on."""


class FileGoneError(ObjectStoreError):
    """An object of the plan is no longer in the store: merged and deleted, or lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} is not in the store")
        self.key = key


def read_task(task: SliceTask, options: SourceOptions, clock: Clock | None = None) -> Iterator[Any]:
    """Record batches of the chosen columns. Raises ScanError (PinLostError, DataLossError), ObjectStoreError."""
    clock = clock or SystemClock()
    store = BlockingStore.at(options.object_store_url)
    whole = Slice.from_json(task.slice)

    def read(part: Slice, scan: ScanOptions, lost: Collection[str]) -> Iterator[Any]:
        return read_slice(_Planned(store, lost), part, scan)

    with ExitStack() as stack:
        if task.pin is not None:
            stack.enter_context(task_renewal(options.metadata_url, task.pin, now_ms=clock.wall_ms()))
        again = _Again(task, whole, options, clock)
        stack.callback(again.close)
        yield from read_through(whole, options.scan_of(task.topic), read=read, replan=again.slices)


def read_through(whole: Slice, scan: ScanOptions, *, read: Read, replan: Replan) -> Iterator[Any]:
    """Batches of the columns of `scan`; if files have gone, the rest is read from others.

    An object that is gone but named again by the new plan was not replaced but lost: the scan room decides about it.
    """
    has_offset = OFFSET in scan.columns
    # The offset is read in any case, because the task must know where to go on after a new plan.
    asked = scan if has_offset else replace(scan, columns=(OFFSET, *scan.columns))
    schema = schema_of(scan.columns)
    next_offset, replans, waiting = whole.start, 0, [whole]
    handed_on, lost = False, set[str]()
    while waiting:
        part = waiting.pop(0)
        try:
            for batch in read(part, asked, lost):
                if batch.num_rows:
                    handed_on = True
                    next_offset = batch.column(asked.columns.index(OFFSET))[-1].as_py() + 1
                    yield batch if has_offset else pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema)
            next_offset = max(next_offset, part.end)
        except FileGoneError as gone:
            if replans == REPLANS_MAX or (handed_on and scan.view != LOG):
                raise PinLostError(
                    f"files of topic {scan.topic!r} partition {whole.partition} were deleted while they were read:"
                    f" {gone.message}",
                    remedy="run the query again; a larger pinTtl keeps files longer",
                ) from gone
            replans += 1
            _log.warning("a file has gone, planning again", partition=part.partition, offset=next_offset, key=gone.key)
            waiting = list(replan(next_offset))
            if any(piece.key == gone.key for part in waiting for piece in part.pieces):
                # The new plan names it again, so nobody replaced it. From now on the scan itself reports it as lost.
                lost.add(gone.key)


class _Planned(BlockingStore):
    """The process's store, in which a missing object means that the plan is old."""

    def __init__(self, store: BlockingStore, lost: Collection[str]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._shared, self._lost = store, lost

    def get_range(self, key: str, start: int, length: int) -> Future[bytes | None]:
        if key in self._lost:
            return self._shared.get_range(key, start, length)
        answer: Future[bytes | None] = Future()

        def told(found: Future[bytes | None]) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody is waiting any more
            error = found.exception() if not found.cancelled() else CancelledError()
            if error is None and found.result() is None:
                error = FileGoneError(key)
            if error is None:
                answer.set_result(found.result())
            else:
                answer.set_exception(error)

        self._shared.get_range(key, start, length).add_done_callback(told)
        return answer

    def close(self, *, patience_s: float | None = None) -> None:
        """Do nothing: the store belongs to the process."""


class _Again:
    """Plans the rest of a task again once the pin of its plan is gone, under pins of its own."""

    def __init__(self, task: SliceTask, whole: Slice, options: SourceOptions, clock: Clock) -> None:
        self._task, self._whole, self._options, self._clock = task, whole, options, clock
        self._scan = options.scan_of(task.topic)
        self._metadata: MetadataThread | None = None
        self._pins = ExitStack()

    def slices(self, start: int) -> Sequence[Slice]:
        """The new slices. Raises DataLossError, and PinLostError if Postgres cannot be reached from here."""
        whole, scan = self._whole, self._scan
        if self._metadata is None:
            self._metadata = MetadataThread(self._options.metadata_url, clock=self._clock)
        metadata = self._metadata
        number = whole.partition
        try:
            self._pin_again(metadata)
            snapshot = metadata.call(lambda opened: opened.readers.topic_snapshot(scan.topic))
        except UnavailableError as error:
            raise PinLostError(
                f"files of topic {scan.topic!r} partition {number} have gone, their pin ran out before this task began"
                f" or was not renewed, and the metadata store cannot be asked from here: {error.message}",
                remedy="run the query again with a larger pinTtl, or let executors reach Postgres",
            ) from error
        except UnknownTopicError as error:
            return self._lost(f"topic {scan.topic!r} was deleted while it was read", error.remedy)
        if str(snapshot.topic.topic_id) != self._task.topic_id:
            return self._lost(f"topic {scan.topic!r} was deleted and created again while it was read", "run it again")
        left = replace(scan, partitions=(number,), starting={number: start}, ending={number: whole.end})
        return ScanPlanner(self._options).slices([TopicScan(snapshot, left)])[0] if start < whole.end else ()

    def _pin_again(self, metadata: MetadataThread) -> None:
        pin = take_pin(
            metadata, f"spark task of {self._scan.topic}", ttl_ms=self._options.pin_ttl_ms, clock=self._clock
        )
        # The new pin comes first: between the two, files of neither plan may be deleted.
        self._pins.close()
        self._pins.callback(let_go, metadata, [pin])
        every_ms = pin.renew_every_ms
        self._pins.enter_context(Renewal(lambda: renew(metadata, pin), first_ms=every_ms, every_ms=every_ms))

    def _lost(self, message: str, remedy: str) -> Sequence[Slice]:
        if self._scan.fail_on_data_loss:
            raise DataLossError(message, remedy=remedy)
        _log.warning("data lost", what=message)
        return ()

    def close(self) -> None:
        self._pins.close()
        if self._metadata is not None:
            self._metadata.close()
