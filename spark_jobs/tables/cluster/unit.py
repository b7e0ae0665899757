"""One unit of an export's plan, run by a task on any machine.

Order: read the manifest (if there is one, the unit is done) -> read the unit's slice, write its files under names of
their own -> write the manifest, unless there is one by now. A crash anywhere leaves files that no manifest names, and
so no commit. Of two tries at once the first manifest counts; the files of the other stay as those of a crash do. A task
neither begins a unit nor writes its manifest when the plan is gone, because its exporter has ended, or out of time.

A unit that cannot be done leaves a note, which the exporter shows.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from compactor.heavy.plan.frames import FramesError
from compactor.heavy.stored import LATE_SLACK_MS, Frames
from runtime.clock import Clock, SystemClock
from runtime.errors import SiltstoneError, UnavailableError
from runtime.logging import get_logger
from spark_jobs.keys.layout import Surviving
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.tables.cluster.plan import (
    ExportHead,
    ExportPlanError,
    PlanUnit,
    decode_head,
    decode_result,
    decode_unit,
    encode_failure,
    encode_result,
)
from spark_jobs.tables.file_task import WriteResult
from spark_jobs.tables.file_writer import Place
from spark_jobs.tables.keyed.writes import write_survivors, write_task
from spark_jobs.tables.objects import errors_of
from spark_jobs.tables.parquet_table import ParquetPlace
from storage.keys import PLAN_NAME, BadKeyError, failed_key, job_key, parse_job_key, unit_key
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from storage.urls import split_object_url
from wire.crc import crc32c

T = TypeVar("T")
_log = get_logger(__name__)


class ExportOverError(UnavailableError):
    """Nobody waits for the unit any more. It counts as temporary, because a clock may be wrong here."""


class UnitDone(NamedTuple):
    seconds: float
    input_bytes: int
    output_bytes: int


class OpenExport:
    """A stored plan and its store, for code without an event loop."""

    def __init__(self, store: BlockingStore, frames: Frames) -> None:
        self._store, self._frames = store, frames
        self.fingerprint = frames.directory.fingerprint
        self.head: ExportHead = decode_head(frames.head, frames.directory)
        key = parse_job_key(frames.key)
        if (key.job_id, key.fingerprint, key.name) != (self.head.job_id, self.fingerprint, PLAN_NAME):
            raise ExportPlanError(f"the plan at {frames.key!r} is another than its key says")

    @staticmethod
    def at(plan_url: str) -> OpenExport:
        """This process's one: a worker runs many units of a plan. Raises ExportPlanError, ExportOverError, and the
        store's errors."""
        # With the process id: a forked child has no threads of its parent.
        place = (os.getpid(), plan_url)
        if place not in _kept:
            url, key = split_object_url(plan_url)
            store = BlockingStore.at(url)
            try:
                frames = store.call(lambda inner: Frames.read(inner, key))
            except ObjectNotFoundError as error:
                raise ExportOverError(f"there is no plan {key!r}: its export has ended") from error
            except FramesError as error:
                raise ExportPlanError(f"{key!r} is not a plan: {error.message}") from error
            opened = OpenExport(store, frames)
            _kept.clear()
            _kept[place] = opened
        return _kept[place]

    def call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        return self._store.call(work)

    def unit(self, unit: int) -> PlanUnit:
        """Raises ExportPlanError, ExportOverError and the store's errors."""
        if not 0 <= unit < self.head.units:
            raise ExportPlanError(f"the plan has {self.head.units} units, so there is none with number {unit}")
        try:
            bodies = self.call(lambda _: self._frames.bodies([unit]))
        except ObjectNotFoundError as error:
            raise ExportOverError(f"there is no plan {self._frames.key!r}: its export has ended") from error
        return decode_unit(bodies[unit], self._frames.directory, unit)

    def place(self) -> Place:
        """The table's place, by stores that this process shares."""
        place = self.head.place
        return _SharedPlace(place.objects.url) if isinstance(place, ParquetPlace) else place

    def key(self, name: Callable[[int, str, int], str], unit: int) -> str:
        return name(self.head.job_id, self.fingerprint, unit)

    def check_stands(self, clock: Clock) -> None:
        """Raises ExportOverError."""
        late_ms = clock.wall_ms() - self.head.ends_ms
        if late_ms > LATE_SLACK_MS:
            raise ExportOverError(f"the time of the export is over: it ended {late_ms / 1000:.0f} s ago")
        key = job_key(self.head.job_id, self.fingerprint, PLAN_NAME)
        try:
            self.call(lambda store: store.head(key))
        except ObjectNotFoundError as error:
            raise ExportOverError(f"the plan {key!r} is gone: its export has ended") from error

    def finished(self) -> Sequence[int]:
        """The units that have results. Raises the store's errors."""
        return self.call(lambda store: units_with(store, self.head.job_id, self.fingerprint, "u"))


async def units_with(store: ObjectStore, job_id: int, fingerprint: str, name: str) -> Sequence[int]:
    """The units of a plan that have an object whose name begins so: "u" (results) or FAILED_NAME (notes)."""
    found: list[int] = []
    async for stat in store.list(job_key(job_id, fingerprint) + name):
        with suppress(BadKeyError):
            key = parse_job_key(stat.key)
            number = key.unit if name == "u" else key.failed_unit
            if number is not None:
                found.append(number)
    return sorted(found)


_kept: dict[tuple[int, str], OpenExport] = {}


@dataclass(frozen=True, slots=True)
class _SharedPlace:
    """A `ParquetPlace` whose store is opened once a process."""

    url: str

    def put(self, name: str, body: memoryview) -> None:
        with errors_of(self.url):
            BlockingStore.at(self.url).call(lambda store: store.put_if_absent(name, body, crc32c=crc32c(body)))

    def remove(self, names: Sequence[str]) -> None:
        if names:
            with errors_of(self.url):
                BlockingStore.at(self.url).call(lambda store: store.delete_many(list(names)))


def run_unit(plan_url: str, unit: int, surviving: Surviving | None = None, *, clock: Clock | None = None) -> UnitDone:
    """Run a unit. `surviving`: the records to write, for a plan whose head has places.

    Raises the errors of `write_slice`, ExportPlanError, ExportOverError, and the store's errors. An error that another
    try cannot heal leaves a note.
    """
    clock = clock or SystemClock()
    opened = OpenExport.at(plan_url)
    began_ms = clock.monotonic_ms()
    with noted(opened, unit):
        result = _run(opened, unit, surviving, clock)
    seconds = round((clock.monotonic_ms() - began_ms) / 1000, 3)
    return UnitDone(seconds, opened.head.sizes[unit], sum(file.size_bytes for file in result.files))


@contextmanager
def noted(opened: OpenExport, unit: int) -> Generator[None]:
    """Leave a note of an error that another try cannot heal."""
    try:
        yield
    except SiltstoneError as error:
        if not error.retriable:
            _leave_note(opened, unit, error)
        raise


def _run(opened: OpenExport, unit: int, surviving: Surviving | None, clock: Clock) -> WriteResult:
    planned = opened.unit(unit)
    key = opened.key(unit_key, unit)

    def known() -> WriteResult | None:
        with suppress(ObjectNotFoundError):
            stored = opened.call(lambda store: store.get(key))
            return decode_result(stored, fingerprint=opened.fingerprint, unit=unit, part=planned.part)
        return None

    done = known()
    if done is not None:
        return done
    opened.check_stands(clock)
    task = opened.head.task(planned, opened.place())
    result = write_task(task) if surviving is None else write_survivors(task, surviving)
    # Again: after an hour of work the exporter may have ended, and nobody would remove the manifest.
    opened.check_stands(clock)
    body = encode_result(result, fingerprint=opened.fingerprint, unit=unit)
    try:
        opened.call(lambda store: store.put_if_absent(key, body, crc32c=crc32c(body)))
    except ObjectExistsError:
        _log.info("another try finished the slice first", unit=unit)
        return known() or result
    return result


def _leave_note(opened: OpenExport, unit: int, error: SiltstoneError) -> None:
    body = encode_failure(error, fingerprint=opened.fingerprint, unit=unit)
    key = opened.key(failed_key, unit)
    try:
        with suppress(ObjectExistsError):
            opened.call(lambda store: store.put_if_absent(key, body, crc32c=crc32c(body)))
    except SiltstoneError as trouble:  # the unit's own error matters more, and the driver prints it too
        _log.warning("could not write the note of a slice that failed", unit=unit, error=str(trouble))
