"""The engine of a compactor with a cluster beside it: small merges here, heavy ones as units elsewhere.

A heavy merge: a stored plan of the job that may be gone on with, else a new one is written -> a driver is submitted ->
manifests are collected until every unit has one -> all are put together to one commit, which the caller hands to the
metadata store. Whatever ends this early, a crash apart, cancels the driver; only where the job was claimed by another
meanwhile it may be his driver by now, and is let go. A crash at any point leaves the plan and
the manifests of finished units; the next claim of the job, by whatever compactor, goes on with them.

The manifests are the truth about what is done, the driver's state is a hint: a driver that ends without all manifests
is followed by another, a few times, and one that fails behind the last manifest has done its work. Where one ends and
a unit has left word that it cannot be done (`compactor/heavy/failures.py`), the merge ends as it would have in this
process: with the files that are to blame, when inputs are. Files are to blame also where units could not read them
until all tries were used up: then the job is given back, and when that was done too often they are left alone.
A driver is asked for by a token that is the same for the same try of the same plan, so a cluster that honours it gives
a compactor that was started anew the driver that runs already.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.heavy.combine import combine
from compactor.heavy.cut import KEYED_UNIT_BYTES, UNIT_BYTES, cut, may_go_on
from compactor.heavy.failures import failure_of_all, stored_failures, stored_unread, unread_of_all
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, check_result, decode_result
from compactor.heavy.stored import store_plan, stored_plans
from compactor.heavy.submitter import Phase, Submission, SubmissionState, Submitter, SubmitUnavailableError
from compactor.heavy.units import HeavyPlan
from compactor.merging.execute import Progress
from compactor.planning.options import CURSOR_BYTES, KEPT_BYTES
from compactor.planning.spec import GIB, MergeKind, MergeSpec
from compactor.worker import Engine
from metadata.contract.compaction import ClaimedJob, CommitMerge, JobLostError
from metadata.contract.service import WriterLease
from runtime.clock import Clock
from runtime.errors import UnavailableError
from runtime.logging import get_logger
from runtime.tracing import CURRENT_SPAN, child_span
from storage.keys import BadKeyError, job_key, parse_job_key
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import ObjectStoreUrl, object_url

_log = get_logger(__name__)

POLL_MS = 1_000.0
POLL_MS_PER_UNIT = 1.0
"""A look lists all manifests: fewer looks where there are many."""
TRIES_MAX = 3
"""Drivers that one claim sees fail."""
TRIES_KNOWN_MAX = 16
"""Drivers of a plan, those that had failed before this claim too."""
END_WAIT_MS, CANCEL_WAIT_MS = 15_000, 30_000
READS_AT_ONCE = 8
DETAIL_CHARS_MAX = 1_500
WORDS_CHARS_MAX = 200
_FRAME = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more)")
"""A line of a JVM's stack trace."""
"""Of a driver, in what a merge says it is doing."""


class UnitsMissingError(UnavailableError):
    """Drivers ended and units are not done, or the time of the plan is over. The job is given back: what is done stays
    done, and the next claim goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyOptions:
    bytes_min: int = 8 * GIB
    """Merges planned with fewer bytes are run here."""
    unit_bytes: int = UNIT_BYTES
    keyed_unit_bytes: int = KEYED_UNIT_BYTES
    keys_max: int = DEDUPE_KEYS_MAX
    cursor_bytes: int = CURSOR_BYTES
    kept_bytes_max: int = KEPT_BYTES
    poll_ms: float = POLL_MS


def _ignore_progress(_: Progress) -> None: ...


def _never_stop() -> None: ...


class HeavyEngine:
    """An `Engine` (`compactor/worker.py`)."""

    def __init__(
        self,
        *,
        embedded: Engine,
        submitter: Submitter,
        store: ObjectStore,
        store_url: ObjectStoreUrl | None,
        cluster_id: str,
        clock: Clock,
        lease: WriterLease,
        options: HeavyOptions,
        is_heavy: Callable[[ClaimedJob], bool | None] = lambda _: None,
    ) -> None:
        """`store_url`: the store's, for the driver; None where the driver shares the store with us, and is given the
        plan's key. `is_heavy`: what somebody wants for a job, None where its size decides."""
        self._embedded = embedded
        self._submitter = submitter
        self._store = store
        self._store_url = store_url
        self._cluster_id = cluster_id
        self._clock = clock
        self._lease = lease
        self._options = options
        self._is_heavy = is_heavy

    def takes(self, claimed: ClaimedJob) -> bool:
        """Whether it is run elsewhere. Never a merge of L0 files: it is small, and consumers wait for it.

        Its bytes are those that were planned, though some may have died since: by these the job was given its limit,
        and a compactor's lane has claimed it.
        """
        if claimed.l0_files or claimed.job.kind == MergeKind.LEVEL:
            return False
        wanted = self._is_heavy(claimed)
        return claimed.job.input_bytes >= self._options.bytes_min if wanted is None else wanted

    async def run(
        self,
        claimed: ClaimedJob,
        *,
        progress: Callable[[Progress], None] = _ignore_progress,
        keep_going: Callable[[], None] = _never_stop,
    ) -> CommitMerge:
        """What to commit. `keep_going` is called at least every few seconds and may raise to stop the merge.

        Raises what the embedded engine raises; UnitsMissingError, SubmitUnavailableError and those of the object store
        (try again later); SubmitError, ManifestMismatchError, UnitFailedError (the job cannot be done so).
        """
        if not self.takes(claimed) or not any(each.partition_id in claimed.partitions for each in claimed.extents):
            # nothing is left of it: an empty commit needs no cluster, whatever a stored plan still names
            return await self._embedded.run(claimed, progress=progress, keep_going=keep_going)
        keep_going()
        name, size_bytes = self._submitter.name, sum(each.length for each in claimed.extents)
        progress(Progress(0.0, f"{name}: making the plan", 0, size_bytes, name))
        asked_ms = self._clock.monotonic_ms()
        plan, url = await self._plan(claimed)
        if not plan.units:
            return await self._embedded.run(claimed, progress=progress, keep_going=keep_going)
        run = _HeavyRun(
            plan,
            url,
            store=self._store,
            submitter=self._submitter,
            clock=self._clock,
            poll_ms=max(self._options.poll_ms, POLL_MS_PER_UNIT * len(plan.units)),
            ends_ms=asked_ms + plan.commit_by_ms - claimed.now_ms,
            progress=progress,
            keep_going=keep_going,
        )
        results = await run.all_results()
        commit = combine(plan, results, epoch=claimed.job.epoch)
        return replace(commit, summary={**commit.summary, "engine": name})

    async def _plan(self, claimed: ClaimedJob) -> tuple[HeavyPlan, str]:
        """A stored one that may be gone on with, else a new one, stored; and where the driver finds it."""
        spec = MergeSpec.from_json(claimed.job.spec)
        job_id = claimed.job.job_id
        for plan in await stored_plans(self._store, job_id, cluster_id=self._cluster_id):
            if may_go_on(plan, claimed, spec, cluster_id=self._cluster_id):
                _log.info("a heavy merge goes on", job=job_id, plan=plan.fingerprint, units=len(plan.units))
                break
        else:
            options = self._options
            plan = cut(
                claimed,
                spec,
                cluster_id=self._cluster_id,
                lease=self._lease,
                unit_bytes=options.unit_bytes,
                keyed_unit_bytes=options.keyed_unit_bytes,
                keys_max=options.keys_max,
                cursor_bytes=options.cursor_bytes,
                kept_bytes_max=options.kept_bytes_max,
            )
            if not plan.units:
                return plan, ""
            _log.info("a heavy merge is planned", job=job_id, plan=plan.fingerprint, units=len(plan.units))
        key = await store_plan(self._store, plan)
        return plan, key if self._store_url is None else object_url(self._store_url, key)


class _HeavyRun:
    """One claim's wait for all units of a plan."""

    def __init__(
        self,
        plan: HeavyPlan,
        url: str,
        *,
        store: ObjectStore,
        submitter: Submitter,
        clock: Clock,
        poll_ms: float,
        ends_ms: float,
        progress: Callable[[Progress], None],
        keep_going: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._url = url
        self._store = store
        self._submitter = submitter
        self._clock = clock
        self._poll_ms = poll_ms
        self._ends_ms = ends_ms
        """By our monotonic clock: when the plan may be committed no more."""
        self._progress = progress
        self._keep_going = keep_going
        self._results: dict[int, UnitResult] = {}
        self._bytes_done = 0
        self._said_last = ""
        """Of the driver before this one, which failed."""
        self._words = ""
        """Of this one, until a unit is done: what it waits for."""
        self._phase: Phase | None = None
        """As it was told last."""
        self._done_before = 0
        """Units, when it was asked for."""

    @property
    def _is_complete(self) -> bool:
        return len(self._results) == len(self._plan.units)

    async def all_results(self) -> dict[int, UnitResult]:
        """By unit. Raises UnitsMissingError, InputUnavailableError, MergeInputError and UnitFailedError of units, what
        `keep_going` raises."""
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
            self._said_last = _last_words(state)
            failures += not was_over
            if failures == TRIES_MAX or number == TRIES_KNOWN_MAX:
                raise await self._missing(f"; the driver {state.phase}: {state.detail[:DETAIL_CHARS_MAX]}")
            await self._pause()
        return self._results

    async def _drive(self, number: int) -> tuple[SubmissionState, bool]:
        """One driver from its start to its end, or to that of all units. And whether it was over when we came."""
        plan = self._plan
        self._done_before = len(self._results)
        submission = await self._submitter.submit(
            self._url,
            job_id=plan.job_id,
            token=f"{plan.job_id}-{plan.fingerprint}-{number}",
            limit_ms=max(int(self._ends_ms - self._clock.monotonic_ms()), 1),
        )
        try:
            state = await _state(submission) or SubmissionState(Phase.PENDING)
            was_over = state.phase.is_over
            self._tell(state)
            while not state.phase.is_over and not self._is_complete:
                await self._pause()
                # asked before the look: a driver that has ended writes nothing behind it
                state = await _state(submission) or state
                await self._look()
                self._tell(state)
            await self._look()
            self._tell(state)
            await self._wait_for_end(submission, state)
        except JobLostError:
            # whoever claimed the job since asks by the same token, and may have been given this very driver
            is_late = self._clock.monotonic_ms() >= self._ends_ms - END_WAIT_MS
            await self._end(submission.cancel if is_late else submission.let_go)
            raise
        except BaseException:
            await self._end(submission.cancel)
            raise
        await self._end(submission.cancel)
        return state, was_over

    async def _wait_for_end(self, submission: Submission, state: SubmissionState) -> None:
        """A driver whose units are done ends by itself, in a moment."""
        until_ms = self._clock.monotonic_ms() + END_WAIT_MS
        while not state.phase.is_over and self._clock.monotonic_ms() < until_ms:
            await self._pause()
            state = await _state(submission) or state

    async def _end(self, how: Callable[[], Awaitable[None]]) -> None:
        """Also where we are cancelled ourselves."""
        cancelling = asyncio.ensure_future(how())
        done, _ = await asyncio.wait({cancelling}, timeout=CANCEL_WAIT_MS / 1000)
        if not done:
            cancelling.cancel()
            _log.warning("a driver was not cancelled in time", job=self._plan.job_id)
        elif error := cancelling.exception():
            _log.warning("a driver was not cancelled", job=self._plan.job_id, error=str(error))

    async def _pause(self) -> None:
        self._keep_going()
        await self._clock.sleep_ms(self._poll_ms)
        self._keep_going()
        if self._clock.monotonic_ms() > self._ends_ms:
            words = f"; {self._words}" if self._words else ""
            raise await self._missing(f" when the time of the plan was over{words}")

    async def _raise_what_failed(self) -> None:
        """Of units that no other try has done."""
        error = failure_of_all(await stored_failures(self._store, self._plan, done=self._results))
        if error is not None:
            raise error

    async def _missing(self, why: str) -> UnavailableError:
        """With inputs to blame where units could not read some: behind such a unit others may not have begun."""
        said = f"{self._said()}{why}"
        unread = await stored_unread(self._store, self._plan, done=self._results)
        return unread_of_all(unread, said) or UnitsMissingError(said)

    def _said(self) -> str:
        return f"{len(self._results)} of {len(self._plan.units)} units of job {self._plan.job_id} are done"

    def _tell(self, state: SubmissionState) -> None:
        bytes_planned = sum(unit.input_bytes for unit in self._plan.units)
        # what a driver that gets on writes to its log is no news
        is_news = state.phase.is_over or len(self._results) == self._done_before
        if state.phase is not self._phase and (span := CURRENT_SPAN.get()) is not None:
            span.event(state.phase.value)
        self._phase = state.phase
        name, self._words = self._submitter.name, _last_words(state) if is_news else ""
        step = f"{name}: {state.phase}, {len(self._results)} of {len(self._plan.units)} units done"
        step += f"; {self._words}" if self._words else ""
        step += f"; the driver before failed: {self._said_last}" if self._said_last else ""
        fraction = self._bytes_done / max(bytes_planned, 1)
        self._progress(Progress(fraction, step, self._bytes_done, bytes_planned, name))

    # ---- manifests

    async def _look(self) -> None:
        """Read the manifests that have come. Raises ManifestMismatchError."""
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
            raise ManifestMismatchError(f"{key!r} is the manifest of a unit that the plan does not have")
        result = decode_result(await self._store.get(key))
        check_result(self._plan, self._plan.units[number], result)
        for file in result.outputs:
            try:
                stat = await self._store.head(file.key)
            except ObjectNotFoundError as error:
                raise ManifestMismatchError(f"{key!r} names {file.key!r}, which is not there") from error
            if stat.size_bytes != file.size_bytes or stat.crc32c not in (None, file.crc32c):
                raise ManifestMismatchError(f"{file.key!r} is not the object that {key!r} says it is")
        return result


def _last_words(state: SubmissionState) -> str:
    """A line for people."""
    lines = [line.strip() for line in state.detail.splitlines() if line.strip() and not _FRAME.match(line)]
    return lines[-1][:WORDS_CHARS_MAX] if lines else ""


async def _state(submission: Submission) -> SubmissionState | None:
    """None where it cannot be told now: the manifests tell."""
    with suppress(SubmitUnavailableError):
        return await submission.state()
    return None


async def _listed(store: ObjectStore, prefix: str) -> AsyncGenerator[tuple[int, str]]:
    """(unit, key) of the manifests there are."""
    async for stat in store.list(prefix):
        with suppress(BadKeyError):
            number = parse_job_key(stat.key).unit
            if number is not None:
                yield number, stat.key
