"""An export's engine on a cluster: store a plan, submit a driver, collect the results of its units.

Plan and results lie in the table's own place, because the export may have no right to write among the records. The
results are the truth about finished slices, and the driver's state is only a hint. If a driver ends before all results
are there, another one is started, a few times. If a slice failed for good, its note ends the export with the same error
as in this process. Whatever ends the export, the driver is cancelled and the plan is removed with all results.

An exporter that is killed leaves its plan. A later export of the same table removes it, once nobody has kept it alive
for some minutes: a living exporter says from time to time, by an object beside its plan, that it lives.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from compactor.heavy.plan.frames import fingerprint_of
from compactor.heavy.submitter import Phase, Submission, SubmissionState, Submitter, SubmitUnavailableError
from runtime.clock import Clock, SystemClock
from runtime.errors import SiltstoneError, UnavailableError
from runtime.ids import IdSource, SystemIds
from runtime.logging import get_logger
from spark_jobs.scan.contract import Slice
from spark_jobs.tables.cluster.places import plans_url
from spark_jobs.tables.cluster.plan import (
    ExportPlanError,
    PlanUnit,
    decode_failure,
    decode_result,
    encode_plan,
    head_of,
)
from spark_jobs.tables.cluster.unit import units_with
from spark_jobs.tables.errors import BadTableError, StaleWriterError
from spark_jobs.tables.file_task import WriteResult, WriteTask
from spark_jobs.tables.objects import errors_of
from storage.keys import FAILED_NAME, JOBS_PREFIX, PLAN_NAME, BadKeyError, failed_key, job_key, parse_job_key, unit_key
from storage.objects import ObjectNotFoundError, ObjectStat, ObjectStore, SupportsOpen
from storage.urls import ObjectStoreUrl, object_url, open_store
from storage.wrappers.retrying import Retrying
from wire.crc import crc32c

TRIES_MAX = 3
"""The drivers of one plan."""
LIMIT_MS = 24 * 3_600_000
"""The cluster ends a driver after this time, if its exporter can no longer."""
POLL_MS = 1_000.0
POLL_MS_PER_UNIT = 1.0
"""Added to the poll interval for each slice, because each poll lists all results."""
END_WAIT_MS, CANCEL_WAIT_MS = 15_000, 30_000
ALIVE_EVERY_MS = 30_000
LEFT_AFTER_MS = 10 * 60_000
"""A plan that nobody has kept alive for so long is one of an exporter that was killed."""
READS_AT_ONCE = 8
DETAIL_CHARS_MAX = 1_500
_ALIVE = "alive-"
_log = get_logger(__name__)


class SlicesMissingError(UnavailableError):
    """The drivers have ended and some slices are not written. Nothing of them was committed."""


class OnCluster:
    """Runs tasks as units of a stored plan, by a submitter."""

    name = "spark"
    shuffles = True

    def __init__(self, submitter: Submitter, *, poll_ms: float = POLL_MS, left_after_ms: float = LEFT_AFTER_MS) -> None:
        self._submitter, self._poll_ms, self._left_after_ms = submitter, poll_ms, left_after_ms

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        """Run the tasks. Ctrl-C in between cancels the driver and removes the plan.

        Raises a task's error that another try cannot heal; SlicesMissingError and SubmitUnavailableError (try again
        later); SubmitError; BadTableError for a table that a cluster cannot reach; StaleWriterError if another export
        has taken this one for dead.
        """
        if not tasks:
            return []
        url = plans_url(tasks[0].place)
        self._check_reach(tasks[0])
        with errors_of(str(url)):
            return asyncio.run(self._run(url, tasks, done))

    def close(self) -> None:
        """Do nothing: each driver ends with its plan."""

    def _check_reach(self, task: WriteTask) -> None:
        places = [task.place] if task.letters is None else [task.place, task.letters.place]
        records = str(getattr(task.reader, "url", ""))
        is_local = records.startswith("file:") or any(plans_url(each).scheme == "file" for each in places)
        if self._submitter.name == "emr-serverless" and is_local:
            raise BadTableError(
                "spark.submitter is emr-serverless, which reads and writes no directory of this machine",
                remedy="export from s3:// to s3://, or give --engine process",
            )

    async def _run(
        self, url: ObjectStoreUrl, tasks: Sequence[WriteTask], done: Callable[[int], None]
    ) -> Sequence[WriteResult]:
        clock, ids = SystemClock(), SystemIds()
        inner = open_store(url)
        store = Retrying(inner, clock, ids)
        try:
            if isinstance(inner, SupportsOpen):
                await inner.open()
            plan = _Plan.of(tasks, url, clock, ids)
            try:
                await store.put_if_absent(plan.key(PLAN_NAME), plan.body, crc32c=crc32c(plan.body))
                await _sweep(store, plan, self._left_after_ms)
                poll_ms = max(self._poll_ms, POLL_MS_PER_UNIT * len(plan.parts))
                return await _Following(plan, store, self._submitter, clock, poll_ms, done).results()
            finally:
                await _forget(store, plan)
        finally:
            await store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A plan, whole, and its name."""

    job_id: int
    fingerprint: str
    url: str
    body: bytes
    parts: Sequence[Slice]
    drivers_max: int

    @staticmethod
    def of(tasks: Sequence[WriteTask], url: ObjectStoreUrl, clock: Clock, ids: IdSource) -> _Plan:
        job_id = ids.uuid4().int >> 70
        head = head_of(tasks, job_id=job_id, ends_ms=clock.wall_ms() + LIMIT_MS)
        body = encode_plan(head, [PlanUnit(each.part, each.survivors, each.judged) for each in tasks])
        fingerprint = fingerprint_of(body)
        plan_url = object_url(url, job_key(job_id, fingerprint, PLAN_NAME))
        return _Plan(
            job_id=job_id,
            fingerprint=fingerprint,
            url=plan_url,
            body=body,
            parts=[each.part for each in tasks],
            drivers_max=TRIES_MAX if head.can_go_on else 1,
        )

    def key(self, name: str) -> str:
        return job_key(self.job_id, self.fingerprint, name)


class _Following:
    """One plan, until all its results are there."""

    def __init__(
        self,
        plan: _Plan,
        store: ObjectStore,
        submitter: Submitter,
        clock: Clock,
        poll_ms: float,
        done: Callable[[int], None],
    ) -> None:
        self._plan, self._store, self._submitter = plan, store, submitter
        self._clock, self._poll_ms, self._done = clock, poll_ms, done
        self._results: dict[int, WriteResult] = {}
        self._ends_ms = clock.monotonic_ms() + LIMIT_MS
        self._alive, self._alive_ms = 0, clock.monotonic_ms()

    @property
    def _is_complete(self) -> bool:
        return len(self._results) == len(self._plan.parts)

    async def results(self) -> Sequence[WriteResult]:
        """In the order of the slices."""
        state = SubmissionState(Phase.PENDING)
        drivers_max = self._plan.drivers_max
        for number in range(1, drivers_max + 1):
            state = await self._drive(number)
            if self._is_complete:
                return [self._results[unit] for unit in range(len(self._plan.parts))]
            _log.warning("a driver ended before its slices", driver=number, said=state.detail)
            await self._raise_what_failed()
            if number == drivers_max:
                break
            await self._pause()
        raise SlicesMissingError(
            f"{len(self._results)} of {len(self._plan.parts)} slices are written; nothing was committed:"
            f" {drivers_max} drivers ended before the rest, the last one {state.phase}:"
            f" {state.detail[:DETAIL_CHARS_MAX]}",
            remedy="run the export again when the cluster works; `siltstone spark doctor` looks for mistakes",
        )

    async def _drive(self, number: int) -> SubmissionState:
        """Follow one driver until it has ended, or all slices are written."""
        plan = self._plan
        submission = await self._submitter.submit(
            plan.url,
            job_id=plan.job_id,
            token=f"{plan.job_id}-{plan.fingerprint}-{number}",
            limit_ms=max(int(self._ends_ms - self._clock.monotonic_ms()), 1),
        )
        try:
            state = SubmissionState(Phase.PENDING)
            while True:
                # The state is read before the results: once a driver has ended, no further result of it comes.
                state = await _state(submission) or state
                await self._look()
                if state.phase.is_over or self._is_complete:
                    break
                await self._pause()
            until_ms = self._clock.monotonic_ms() + END_WAIT_MS  # it ends by itself
            while not state.phase.is_over and self._clock.monotonic_ms() < until_ms:
                await self._pause()
                state = await _state(submission) or state
        finally:
            await _cancel(submission)
        return state

    async def _pause(self) -> None:
        await self._clock.sleep_ms(self._poll_ms)
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._alive_ms >= ALIVE_EVERY_MS:
            self._alive_ms = now_ms
            self._alive += 1
            await self._store.put_if_absent(self._plan.key(f"{_ALIVE}{self._alive}"), b"", crc32c=0)
            await _remove(self._store, [self._plan.key(f"{_ALIVE}{self._alive - 1}")])
        if now_ms > self._ends_ms:
            raise SlicesMissingError(f"the export was not done within {LIMIT_MS // 3_600_000} hours")

    async def _look(self) -> None:
        """Read new results. Raises ExportPlanError."""
        fresh = [number for number in await self._listed("u") if number not in self._results]
        for start in range(0, len(fresh), READS_AT_ONCE):
            some = fresh[start : start + READS_AT_ONCE]
            for number, result in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                self._results[number] = result
        if fresh:
            self._done(len(self._results))

    async def _read(self, number: int) -> WriteResult:
        if number >= len(self._plan.parts):
            raise ExportPlanError(f"there is a result of slice {number}, which is not in the plan")
        stored = await self._store.get(unit_key(self._plan.job_id, self._plan.fingerprint, number))
        part = self._plan.parts[number]
        return decode_result(stored, fingerprint=self._plan.fingerprint, unit=number, part=part)

    async def _raise_what_failed(self) -> None:
        """Raise the error of a slice that no other try has written."""
        plan = self._plan
        for number in await self._listed(FAILED_NAME):
            if number not in self._results:
                stored = await self._store.get(failed_key(plan.job_id, plan.fingerprint, number))
                raise decode_failure(stored, fingerprint=plan.fingerprint, unit=number)
        try:
            await self._store.head(plan.key(PLAN_NAME))
        except ObjectNotFoundError as error:
            raise StaleWriterError("another export of the table took this one for dead") from error

    async def _listed(self, name: str) -> Sequence[int]:
        return await units_with(self._store, self._plan.job_id, self._plan.fingerprint, name)


async def _state(submission: Submission) -> SubmissionState | None:
    """None when the cluster does not answer; the results still show the progress."""
    with suppress(SubmitUnavailableError):
        return await submission.state()
    return None


async def _cancel(submission: Submission) -> None:
    """Cancel the driver, even while this task is being cancelled."""
    cancelling = asyncio.ensure_future(submission.cancel())
    finished, _ = await asyncio.wait({cancelling}, timeout=CANCEL_WAIT_MS / 1000)
    if not finished:
        cancelling.cancel()
        _log.warning("could not cancel a driver in time")
    elif error := cancelling.exception():
        _log.warning("could not cancel a driver", error=str(error))


async def _forget(store: ObjectStore, plan: _Plan) -> None:
    """Remove the plan and all that lies beside it. What cannot be removed now is left to a later export."""
    try:
        await _remove(store, [each.key async for each in store.list(plan.key(""))])
    except SiltstoneError as error:
        _log.warning("the plan of an export was not removed", plan=plan.url, error=str(error))


async def _sweep(store: ObjectStore, ours: _Plan, left_after_ms: float) -> None:
    """Remove the objects of exports that were killed."""
    groups: defaultdict[tuple[int, str], list[ObjectStat]] = defaultdict(list)
    async for stat in store.list(JOBS_PREFIX):
        with suppress(BadKeyError):
            key = parse_job_key(stat.key)
            groups[key.job_id, key.fingerprint].append(stat)
    own = groups.pop((ours.job_id, ours.fingerprint), None)
    if own is not None:
        # Our plan is as old as a moment, by the store's own clock.
        await _remove(store, left_behind(groups, max(each.last_modified_ms for each in own) - left_after_ms))


def left_behind(groups: Mapping[tuple[int, str], Sequence[ObjectStat]], before_ms: float) -> Sequence[str]:
    """The keys of those plans of which no object is younger than that. Pure."""
    old = [stats for stats in groups.values() if max(each.last_modified_ms for each in stats) < before_ms]
    return [each.key for stats in old for each in stats]


async def _remove(store: ObjectStore, keys: Sequence[str]) -> None:
    if keys:
        await store.delete_many(list(keys))
