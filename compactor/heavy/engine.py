"""The engine of a compactor with a cluster: small merges run in this process, heavy ones as units on the cluster.

A heavy merge goes like this: take a stored plan of the job if it may be continued, else write a new one -> submit a
driver -> collect manifests until every unit has one -> combine all into one commit, which the caller passes to the
metadata store. If anything but a crash ends this early, the driver is cancelled. The one exception: if another
compactor has claimed the job meanwhile, the driver may be that compactor's by now, and it is left running. A crash at
any point leaves the plan and the manifests of finished units; the next claim of the job, by any compactor, continues
with them.

Units may end inside an extent. Its CRC-32C is checked when all its parts were read, and if it is wrong, the merge is
planned again with that extent whole, which one unit then finds corrupt and copies, as the embedded engine does.

The manifests are the truth about finished units, and the driver's state is only a hint. If a driver ends before all
manifests are there, another one is started, a few times; if it fails after the last manifest, its work is done. If a
driver ends and a unit has left a failure note (`compactor/heavy/failures.py`), the merge ends as it would in this
process, with the files to blame if inputs are at fault. Files are also to blame if units could not read them until all
tries were used up: then the job is given back, and after too many returns the files rest.

A driver is submitted with a token that is the same for the same try of the same plan. A cluster that honours the token
gives a restarted compactor the driver that runs already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, ParamSpec, TypeVar

from compactor.heavy.blocks import read_blocks
from compactor.heavy.combine import PartsDamagedError, combine
from compactor.heavy.failures import failure_of_all, stored_failures, stored_unread, unread_of_all
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, check_result, decode_result
from compactor.heavy.plan.cut import Blocks, UnitSizes, cut, long_extents, may_go_on
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.stored import store_plan, stored_plans
from compactor.heavy.submitter import Phase, Submission, SubmissionState, Submitter, SubmitUnavailableError
from compactor.merging.execute import Progress, Watch, ignore_progress, never_stop
from compactor.planning.spec import GIB, RUN_HERE, MergeSpec
from compactor.worker import Engine
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobLostError
from metadata.contract.leases import WriterLease
from runtime.clock import Clock
from runtime.errors import UnavailableError
from runtime.logging import get_logger
from runtime.tracing import CURRENT_SPAN, child_span
from storage.keys import BadKeyError, job_key, parse_job_key
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import ObjectStoreUrl, object_url

_log = get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

POLL_MS = 1_000.0
POLL_MS_PER_UNIT = 1.0
"""Added to the poll interval for each unit, because each poll lists all manifests."""
TRIES_MAX = 3
"""Failed drivers after which a claim gives the job back."""
TRIES_KNOWN_MAX = 16
"""Drivers of one plan, including those that failed before this claim."""
END_WAIT_MS, CANCEL_WAIT_MS = 15_000, 30_000
READS_AT_ONCE = 8
EXTENTS_ON_LOOP_MAX = 1_000
"""Plans of up to so many extents are made on the event loop, in some tens of ms."""
DETAIL_CHARS_MAX = 1_500


class UnitsMissingError(UnavailableError):
    """The drivers have ended, or the time of the plan is over, and some units are not done. The job is given back;
    finished units stay finished, and the next claim continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyOptions(UnitSizes):
    bytes_min: int = 8 * GIB
    """Merges planned with fewer bytes run in this process."""
    is_heavy: Callable[[ClaimedJob], bool | None] = lambda _: None
    """The user's choice for a job; None = its size decides."""
    poll_ms: float = POLL_MS


class PlanStore(NamedTuple):
    """The object store that plans, manifests and files lie in."""

    store: ObjectStore
    url: ObjectStoreUrl | None
    """Its URL, for the driver; None if the driver shares this process's store and gets only the plan's key."""
    cluster_id: str


class _StoredPlan(NamedTuple):
    plan: HeavyPlan
    url: str
    """The plan's place, for the driver."""


class _Timing(NamedTuple):
    poll_ms: float
    ends_ms: float
    """The end of the plan's time, by the local monotonic clock."""


class HeavyEngine:
    """An `Engine` (`compactor/worker.py`)."""

    def __init__(
        self,
        *,
        embedded: Engine,
        submitter: Submitter,
        plans: PlanStore,
        clock: Clock,
        lease: WriterLease,
        options: HeavyOptions,
    ) -> None:
        self._embedded = embedded
        self._submitter = submitter
        self._store, self._store_url, self._cluster_id = plans
        self._clock = clock
        self._lease = lease
        self._options = options

    def takes(self, claimed: ClaimedJob) -> bool:
        """Whether the job runs on the cluster. L0 jobs and erase jobs never do.

        The planned size decides, even if some inputs have died since, because the planned size gave the job its time
        limit and its lane.
        """
        if claimed.l0_files or claimed.job.kind in RUN_HERE:
            return False
        wanted = self._options.is_heavy(claimed)
        return claimed.job.input_bytes >= self._options.bytes_min if wanted is None else wanted

    async def run(
        self,
        claimed: ClaimedJob,
        *,
        progress: Callable[[Progress], None] = ignore_progress,
        keep_going: Callable[[], None] = never_stop,
    ) -> CommitMerge:
        """The commit of the merge. `keep_going` is called at least every few seconds and may raise to stop the merge.

        Raises the errors of the embedded engine; UnitsMissingError, SubmitUnavailableError and those of the object
        store (try again later); SubmitError, ManifestMismatchError, UnitFailedError (a retry would not help).
        """
        if not self.takes(claimed) or not any(each.partition_id in claimed.partitions for each in claimed.extents):
            # No input is left: an empty commit needs no cluster, whatever inputs a stored plan still names.
            return await self._embedded.run(claimed, progress=progress, keep_going=keep_going)
        keep_going()
        name, size_bytes = self._submitter.name, sum(each.length for each in claimed.extents)
        progress(Progress(0.0, f"{name}: making the plan", 0, size_bytes, name))
        asked_ms = self._clock.monotonic_ms()
        watch = Watch(progress, keep_going)
        damaged: frozenset[int] = frozenset()
        while True:
            stored = await self._plan(claimed, damaged, keep_going)
            plan = stored.plan
            if not plan.units:
                return await self._embedded.run(claimed, progress=progress, keep_going=keep_going)
            run = _HeavyRun(
                stored,
                store=self._store,
                submitter=self._submitter,
                clock=self._clock,
                timing=_Timing(
                    poll_ms=max(self._options.poll_ms, POLL_MS_PER_UNIT * len(plan.units)),
                    ends_ms=asked_ms + plan.commit_by_ms - claimed.now_ms,
                ),
                watch=watch,
            )
            try:
                results = await run.all_results()
                commit = await _off_loop(len(plan.extents), combine, plan, results, epoch=claimed.job.epoch)
            except PartsDamagedError as error:
                # Ends: the next plan divides none of these extents. After a crash the manifests tell it again.
                _log.warning("a heavy merge is planned again", job=plan.job_id, reason=error.message)
                damaged |= error.extent_ids
                continue
            return replace(commit, summary={**commit.summary, "engine": name})

    async def _plan(self, claimed: ClaimedJob, damaged: frozenset[int], keep_going: Callable[[], None]) -> _StoredPlan:
        """A stored plan that may be continued, else a new one, which is stored unless it has no units.

        `damaged`: ids of extents that must stay whole.
        """
        spec = MergeSpec.from_json(claimed.job.spec)
        job_id = claimed.job.job_id
        for plan in await stored_plans(self._store, job_id, cluster_id=self._cluster_id):
            fits = damaged.isdisjoint(each.extent_id for each in plan.divided)
            if fits and may_go_on(plan, claimed, spec, cluster_id=self._cluster_id):
                _log.info("a heavy merge goes on", job=job_id, plan=plan.fingerprint, units=len(plan.units))
                break
        else:
            wanted = await _off_loop(len(claimed.extents), long_extents, claimed, spec, self._options)
            sound = [each for each in wanted if each.extent_id not in damaged]
            blocks = await read_blocks(self._store, sound, keep_going=keep_going)
            plan = await _off_loop(len(claimed.extents), self._cut, claimed, spec, blocks)
            if not plan.units:
                return _StoredPlan(plan, "")
            _log.info("a heavy merge is planned", job=job_id, plan=plan.fingerprint, units=len(plan.units))
        key = await store_plan(self._store, plan)
        return _StoredPlan(plan, key if self._store_url is None else object_url(self._store_url, key))

    def _cut(self, claimed: ClaimedJob, spec: MergeSpec, blocks: Blocks) -> HeavyPlan:
        return cut(claimed, spec, cluster_id=self._cluster_id, lease=self._lease, sizes=self._options, blocks=blocks)


async def _off_loop(extents: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work over so many extents. That over many takes a thread: the leases of a compactor are kept alive on the
    event loop, which must not stand still for seconds."""
    if extents <= EXTENTS_ON_LOOP_MAX:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


class _HeavyRun:
    """One claim's wait for all units of a plan."""

    def __init__(
        self,
        stored: _StoredPlan,
        *,
        store: ObjectStore,
        submitter: Submitter,
        clock: Clock,
        timing: _Timing,
        watch: Watch,
    ) -> None:
        self._plan, self._url = stored
        self._store = store
        self._submitter = submitter
        self._clock = clock
        self._poll_ms, self._ends_ms = timing
        self._progress = watch.progress
        self._keep_going = watch.keep_going
        self._results: dict[int, UnitResult] = {}
        self._bytes_done = 0
        self._bytes_planned = sum(unit.input_bytes for unit in self._plan.units)
        self._said_last = ""
        """The last line of the driver before this one, which failed."""
        self._words = ""
        """The last line of this driver, until a unit is done: it tells what the driver waits for."""
        self._phase: Phase | None = None
        """The last known phase of the driver."""
        self._done_before = 0
        """The number of units done when the driver was submitted."""

    @property
    def _is_complete(self) -> bool:
        return len(self._results) == len(self._plan.units)

    async def all_results(self) -> dict[int, UnitResult]:
        """All results by unit. Raises UnitsMissingError, the units' InputUnavailableError, MergeInputError and
        UnitFailedError, and the errors of `keep_going`."""
        await self._look()
        failures = 0
        for number in range(1, TRIES_KNOWN_MAX + 1):
            if self._is_complete:
                break
            attributes = {"siltstone.spark.submitter": self._submitter.name, "siltstone.spark.driver": number}
            with child_span("spark job", attributes={**attributes, "siltstone.spark.units": len(self._plan.units)}):
                state, was_over = await self._drive(number)
            if self._is_complete:
                break
            _log.warning("a driver ended before its units", job=self._plan.job_id, driver=number, said=state.detail)
            await self._raise_what_failed()
            self._said_last = state.last_words
            failures += not was_over  # a driver that had ended before this claim is no failure of this claim
            if failures == TRIES_MAX or number == TRIES_KNOWN_MAX:
                raise await self._missing(f"; the driver {state.phase}: {state.detail[:DETAIL_CHARS_MAX]}")
            await self._pause()
        return self._results

    async def _drive(self, number: int) -> tuple[SubmissionState, bool]:
        """Follows one driver until it ends or all units are done. Also tells whether it had ended before this claim."""
        plan = self._plan
        self._done_before = len(self._results)
        submission = await self._submitter.submit(
            self._url,
            job_id=plan.job_id,
            # The same for every claim that continues this plan: a cluster that honours tokens then returns the driver
            # that runs.
            token=f"{plan.job_id}-{plan.fingerprint}-{number}",
            limit_ms=max(int(self._ends_ms - self._clock.monotonic_ms()), 1),
        )
        try:
            state = await _state(submission) or SubmissionState(Phase.PENDING)
            was_over = state.phase.is_over
            self._tell(state)
            while not state.phase.is_over and not self._is_complete:
                await self._pause()
                # The state is read before the manifests: once a driver has ended, no further manifest of it comes.
                state = await _state(submission) or state
                await self._look()
                self._tell(state)
            # For a driver that was over before the loop began: its manifests may have come since the first look.
            await self._look()
            self._tell(state)
            await self._wait_for_end(submission, state)
        except JobLostError:
            # The compactor that claimed the job since submits with the same token, and may have got this very driver.
            is_late = self._clock.monotonic_ms() >= self._ends_ms - END_WAIT_MS
            await self._end(submission.cancel if is_late else submission.let_go)
            raise
        except BaseException:
            await self._end(submission.cancel)
            raise
        await self._end(submission.cancel)
        return state, was_over

    async def _wait_for_end(self, submission: Submission, state: SubmissionState) -> None:
        """Waits a moment for a driver that has finished all units: it ends by itself."""
        until_ms = self._clock.monotonic_ms() + END_WAIT_MS
        while not state.phase.is_over and self._clock.monotonic_ms() < until_ms:
            await self._pause()
            state = await _state(submission) or state

    async def _end(self, how: Callable[[], Awaitable[None]]) -> None:
        """Cancels the driver or lets it go, even while this task is being cancelled."""
        # A task of its own: if ours is being cancelled, an await here would end at once and leave the driver running.
        cancelling = asyncio.ensure_future(how())
        done, _ = await asyncio.wait({cancelling}, timeout=CANCEL_WAIT_MS / 1000)
        if not done:
            cancelling.cancel()
            _log.warning("could not cancel a driver in time", job=self._plan.job_id)
        elif error := cancelling.exception():
            _log.warning("could not cancel a driver", job=self._plan.job_id, error=str(error))

    async def _pause(self) -> None:
        self._keep_going()
        await self._clock.sleep_ms(self._poll_ms)
        self._keep_going()
        if self._clock.monotonic_ms() > self._ends_ms:
            words = f"; {self._words}" if self._words else ""
            raise await self._missing(f" when the time of the plan was over{words}")

    async def _raise_what_failed(self) -> None:
        """Raises the permanent failure of units that no other try has finished."""
        error = failure_of_all(await stored_failures(self._store, self._plan, done=self._results))
        if error is not None:
            raise error

    async def _missing(self, why: str) -> UnavailableError:
        """The error for missing units. It blames the inputs that units could not read, if there are any, because such a
        unit may have kept others from beginning."""
        said = f"{self._said()}{why}"
        unread = await stored_unread(self._store, self._plan, done=self._results)
        return unread_of_all(unread, said) or UnitsMissingError(said)

    def _said(self) -> str:
        return f"{len(self._results)} of {len(self._plan.units)} units of job {self._plan.job_id} are done"

    def _tell(self, state: SubmissionState) -> None:
        bytes_planned = self._bytes_planned
        # A driver that makes progress needs no attention: show its last line only if it has ended or done nothing.
        is_news = state.phase.is_over or len(self._results) == self._done_before
        if state.phase is not self._phase and (span := CURRENT_SPAN.get()) is not None:
            span.event(state.phase.value)
        self._phase = state.phase
        name, self._words = self._submitter.name, state.last_words if is_news else ""
        step = f"{name}: {state.phase}, {len(self._results)} of {len(self._plan.units)} units done"
        step += f"; {self._words}" if self._words else ""
        step += f"; the driver before failed: {self._said_last}" if self._said_last else ""
        fraction = self._bytes_done / max(bytes_planned, 1)
        self._progress(Progress(fraction, step, self._bytes_done, bytes_planned, name))

    # ---- manifests

    async def _look(self) -> None:
        """Reads new manifests. Raises ManifestMismatchError."""
        fresh: list[tuple[int, str]] = []
        prefix = f"{job_key(self._plan.job_id, self._plan.fingerprint)}u"
        async with aclosing(_listed(self._store, prefix)) as keys:
            async for number, key in keys:
                if number not in self._results:
                    fresh.append((number, key))
        for start in range(0, len(fresh), READS_AT_ONCE):
            some = fresh[start : start + READS_AT_ONCE]
            for number, result in zip(
                (number for number, _ in some),
                await asyncio.gather(*(self._read(number, key) for number, key in some)),
                strict=True,
            ):
                self._results[number] = result
                self._bytes_done += self._plan.units[number].input_bytes
            self._keep_going()

    async def _read(self, number: int, key: str) -> UnitResult:
        if number >= len(self._plan.units):
            raise ManifestMismatchError(f"{key!r} is the manifest of a unit that is not in the plan")
        result = decode_result(await self._store.get(key))
        check_result(self._plan, self._plan.units[number], result)
        for file in result.outputs:
            try:
                stat = await self._store.head(file.key)
            except ObjectNotFoundError as error:
                message = f"{key!r} names {file.key!r}, which is not in the object store"
                raise ManifestMismatchError(message) from error
            if stat.size_bytes != file.size_bytes or stat.crc32c not in (None, file.crc32c):
                raise ManifestMismatchError(f"{file.key!r} is not the object that {key!r} names: another size or CRC")
        return result


async def _state(submission: Submission) -> SubmissionState | None:
    """None when the cluster does not answer; the manifests still show the progress."""
    with suppress(SubmitUnavailableError):
        return await submission.state()
    return None


async def _listed(store: ObjectStore, prefix: str) -> AsyncGenerator[tuple[int, str]]:
    """(unit, key) of the stored manifests."""
    async for stat in store.list(prefix):
        with suppress(BadKeyError):
            number = parse_job_key(stat.key).unit
            if number is not None:
                yield number, stat.key
