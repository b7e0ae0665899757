"""One merge from its claim to its end.

Claim (epoch + 1; the lease and the time limit begin) -> wait for memory -> read, merge and write
(`compactor/merging/execute.py`) while the event loop beats for the job -> commit. Only the commit counts. A crash
anywhere before it leaves objects that no row names and a job whose lease runs out; the next claim starts again. If the
answer to a commit is lost, the worker repeats the same call until it gets an answer.

A merge ends in one of four ways:

- `done`;
- `lost`: another compactor claimed the job after this lease ran out, or its time limit passed; nothing is committed;
- `given_back`: the compactor stops, and the job is ready for the next claim; or a store is unavailable, and the job is
  ready after a rest;
- `failed`: the job cannot be done as planned; its inputs rest for a while, and other merges go on.

A failed merge never ends the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.compaction_metrics import count_merge
from compactor.merging.execute import Progress
from compactor.merging.kway_merge import InputUnavailableError, MergeInputError
from compactor.merging.memory_gate import WAITS_FOR_MEMORY, MemoryGate, TurnGivenUpError
from compactor.merging.spans import merge_span, note_outputs
from compactor.planning.options import job_memory_bytes
from compactor.planning.spec import MergeKind
from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError, WentBackError
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobLostError, MergeCommitted, MergeRefusedError
from metadata.contract.leases import JOB_BEAT_MS, WriterLease
from metadata.contract.store import MetadataStore
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from runtime.ids import IdSource
from runtime.logging import About, get_logger, log_context
from runtime.runtime import Runtime
from runtime.tracing import CURRENT_SPAN, SpanKind, child_span, current

_log = get_logger(__name__)

BAD_INPUT_RETRY_MS = 600_000
"""Rest of an input that is missing or corrupt. It does not heal by itself."""
FAILED_RETRY_MS = 60_000
COMMIT_PAUSE_MS = 100.0
COMMIT_PAUSE_MS_MAX = 5_000.0
ERROR_CHARS_MAX = 2_000


class Engine(Protocol):
    """Runs merges. `compactor.merging.execute.MergeEngine` runs them in this process."""

    async def run(
        self, claimed: ClaimedJob, *, progress: Callable[[Progress], None] = ..., keep_going: Callable[[], None] = ...
    ) -> CommitMerge: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines that a compactor runs its merges on."""

    make: Callable[[WriterLease], Engine]
    """The engine of a lease."""
    heavy_bytes_min: int | None = None
    """The engine runs merges from this planned size up on a cluster; None = it runs every merge in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """The memory for the merges of a worker."""

    gate: MemoryGate | None
    """None = the engine runs all merges of this worker on a cluster, and they take no memory here."""
    keys_max: int = DEDUPE_KEYS_MAX
    """The size of the dedupe buffer."""


async def commit_until_answered(
    commit_merge: Callable[[CommitMerge], Awaitable[MergeCommitted]],
    commit: CommitMerge,
    *,
    clock: Clock,
    ids: IdSource,
) -> MergeCommitted:
    """Raises JobLostError, MergeRefusedError, WentBackError, SchemaMismatchError. Never gives up because an answer was
    lost: the outputs may be committed, and only an answer can tell."""
    pause_ms = COMMIT_PAUSE_MS
    while True:
        try:
            return await commit_merge(commit)
        except MetadataUnavailableError as error:
            _log.warning("merge commit in doubt, asking again", error=str(error))
            if (span := CURRENT_SPAN.get()) is not None:
                span.event("in doubt")
        await clock.sleep_ms(pause_ms * (0.5 + 0.5 * ids.jitter()))
        pause_ms = min(pause_ms * 2, COMMIT_PAUSE_MS_MAX)


class StoppedError(SiltstoneError):
    """The compactor stops. The merge is given back."""


@dataclass(slots=True)
class _Run:
    """The state that a merge shares with its heart-beats and with `Worker.stop`; kernel threads read it too."""

    claimed: ClaimedJob
    began_ms: float
    limit_ms: float
    lost: str = ""
    committing: bool = False
    progress: Progress | None = None
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    """The merge is lost, or must be given back: ends a wait, during which no step checks for it. Set on the event loop
    only."""


class Worker:
    """Runs one job at a time for one lane."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        engine: Engine,
        lease: WriterLease,
        memory: WorkerMemory,
        runtime: Runtime,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._metadata = metadata
        self._engine = engine
        self._lease = lease
        self._gate = memory.gate
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics
        self._tracing = runtime.tracing
        self._keys_max = memory.keys_max
        self._on_done = on_done
        self._stopping = False
        self._run: _Run | None = None

    def stop(self) -> None:
        """Claims no further job. The running merge stops at its next step, or stops waiting, and is given back."""
        self._stopping = True
        if self._run is not None:
            self._run.halted.set()

    async def work(self, kinds: Sequence[str], *, bytes_min: int = 0, bytes_below: int | None = None) -> bool:
        """Claims a job of these kinds and of a planned size in [`bytes_min`, `bytes_below`), and runs it to its end.

        False when there was none. Raises MetadataUnavailableError, and retriable store errors after the job was given
        back; the caller should pause.
        """
        return await self._work(kinds=kinds, bytes_min=bytes_min, bytes_below=bytes_below)

    async def work_on(self, job_id: int) -> bool:
        """As `work`, for one job; False when it cannot be claimed now."""
        return await self._work(job_id=job_id)

    async def _work(self, **which: Any) -> bool:
        """`which`: the arguments of `claim_job`."""
        if self._stopping:
            return False
        asked_ms = self._clock.monotonic_ms()
        claimed = await self._metadata.compactors.claim_job(self._lease, **which)
        if claimed is None:
            return False
        with log_context(About(job=claimed.job.job_id, kind=claimed.job.kind)):
            if not self._tracing.on:
                return await self._run_job(claimed)
            claim_ms = self._clock.monotonic_ms() - asked_ms
            with current(merge_span(self._tracing, claimed, claim_ms)):
                return await self._run_job(claimed)

    async def _run_job(self, claimed: ClaimedJob) -> bool:
        began_ms = self._clock.monotonic_ms()
        # A duration, measured by our monotonic clock: the deadline is in the store's time, which our clock may not
        # share. The commit checks the real deadline.
        limit_ms = (claimed.job.deadline_ms or claimed.now_ms) - claimed.now_ms
        run = self._run = _Run(claimed=claimed, began_ms=began_ms, limit_ms=limit_ms)
        job = claimed.job
        facts = {"bytes": job.input_bytes, "epoch": job.epoch}
        try:
            committed, commit = await self._merge(run)
        except Exception as error:
            await self._end_with_error(run, error, facts)
            return True
        seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        count_merge(self._metrics, claimed, commit, committed, seconds=seconds, keys_max=self._keys_max)
        if self._gate is None:
            self._metrics.heavy_merges_total.labels(outcome="done").inc()
        _log.info("merge done", **facts, files=len(committed.file_ids), seconds=round(seconds, 3))
        # The planner runs at once: the outputs may make another merge due.
        self._on_done()
        await self._metadata.agents.notify()
        return True

    async def _merge(self, run: _Run) -> tuple[MergeCommitted, CommitMerge]:
        job = run.claimed.job
        # The remaining inputs: some may have died since the job was planned.
        input_bytes = sum(file.size_bytes for file in run.claimed.l0_files)
        input_bytes += sum(extent.length for extent in run.claimed.extents)
        run.progress = Progress(0.0, WAITS_FOR_MEMORY, 0, input_bytes)
        # Beats begin before the wait for memory, which may last longer than the lease.
        async with self._beats(run), self._memory(run, job_memory_bytes(job.kind, input_bytes, self._keys_max)):
            run.progress = Progress(0.0, "starting", 0, input_bytes)

            def keep_going() -> None:
                self._keep_going(run)

            def progress(step: Progress) -> None:
                run.progress = step

            with child_span("merge"):
                claimed = await self._with_erased_keys(run.claimed)
                commit = await self._engine.run(claimed, progress=progress, keep_going=keep_going)
            keep_going()
            run.committing = True
            note_outputs(commit)
            with child_span("commit", kind=SpanKind.CLIENT, attributes={"db.system.name": "postgresql"}):
                committed = await commit_until_answered(
                    self._metadata.compactors.commit_merge, commit, clock=self._clock, ids=self._ids
                )
                return committed, commit

    async def _with_erased_keys(self, claimed: ClaimedJob) -> ClaimedJob:
        """Raises MetadataUnavailableError."""
        if claimed.job.kind != MergeKind.ERASE:
            return claimed
        # Asked as late as this, so that erasures which began since the planning are carried out too. Later ones find
        # the outputs pending.
        keys = await self._metadata.erasures.erased_keys(sorted(claimed.partitions))
        return replace(claimed, erased_keys=keys)

    @asynccontextmanager
    async def _memory(self, run: _Run, size_bytes: int) -> AsyncGenerator[None]:
        """Waits for the memory of a merge, unless it is lost or given back first. Raises JobLostError, StoppedError."""
        self._keep_going(run)  # `stop` may have been called during the claim
        if self._gate is None or not size_bytes:
            yield  # without a place in the queue
            return
        try:
            waits = CURRENT_SPAN.get()
            waiting = waits.child("wait for memory") if waits is not None else None
            async with self._gate.held(size_bytes, halted=run.halted):
                if waiting is not None:
                    waiting.end()
                self._keep_going(run)
                yield
        except TurnGivenUpError:
            self._keep_going(run)
            raise

    def _keep_going(self, run: _Run) -> None:
        """Raises JobLostError, StoppedError."""
        if self._stopping:
            raise StoppedError("the compactor stops")
        if run.lost:
            raise JobLostError(run.lost)
        if self._clock.monotonic_ms() - run.began_ms > run.limit_ms:
            raise JobLostError(f"the merge did not end within its time limit of {run.limit_ms / 1000:.0f} s")

    @asynccontextmanager
    async def _beats(self, run: _Run) -> AsyncGenerator[None]:
        """Beats for the job while the block runs."""
        beats = asyncio.create_task(self._beat_for_ever(run), name=f"beat-job-{run.claimed.job.job_id}")
        try:
            yield
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _beat_for_ever(self, run: _Run) -> None:
        job = run.claimed.job
        while True:
            await self._clock.sleep_ms(JOB_BEAT_MS)
            progress = None if run.progress is None else run.progress._asdict()
            try:
                await self._metadata.compactors.beat_job(job.job_id, job.epoch, progress=progress)
            except JobLostError as error:
                if not run.committing:  # else the commit has ended the job, or gets this error itself
                    run.lost = error.message
                    run.halted.set()
                return
            except Exception as error:  # one missed beat does no harm: the lease outlasts four
                self._metrics.compactor_errors_total.labels(loop="beat").inc()
                _log.warning("beat failed", error=str(error))

    # ---- ends with an error
    async def _end_with_error(self, run: _Run, error: Exception, facts: dict[str, Any]) -> None:
        """Ends the job by the kind of error. Raises the error again if the caller should pause or halt."""
        if (span := CURRENT_SPAN.get()) is not None:
            span.end(error=type(error).__qualname__)
        job = run.claimed.job
        files = sorted({*(file.file_id for file in run.claimed.l0_files), *(e.file_id for e in run.claimed.extents)})
        if isinstance(error, (WentBackError, SchemaMismatchError)):
            raise error  # the compactor halts, and the merge is not to blame
        if isinstance(error, JobLostError):
            self._count(run, "lost")
            _log.warning("merge lost", **facts, error=error.message)
            if not run.lost:  # the local clock ended it: the row still gets the last progress, for people
                await self._beat_last(run)
        elif isinstance(error, StoppedError):
            self._count(run, "given_back")
            _log.info("merge given back", **facts)
            # No trouble is recorded: the inputs are not to blame, and another compactor may claim the job at once.
            await self._metadata.compactors.give_back_job(job.job_id, job.epoch)
        elif isinstance(error, MergeInputError):
            self._count(run, "failed")
            _log.error("merge failed on an input", **facts, files=list(error.file_ids), error=str(error))
            await self._fail(run, error, error.file_ids, BAD_INPUT_RETRY_MS)
        elif isinstance(error, MergeRefusedError):
            # The refusal has ended the job and lets its inputs rest.
            self._count(run, "failed")
            _log.error("merge refused", **facts, error=error.message)
        elif isinstance(error, SiltstoneError) and error.retriable:
            self._count(run, "given_back")
            blamed = error.file_ids if isinstance(error, InputUnavailableError) else ()
            said = str(error)[:ERROR_CHARS_MAX]
            await self._metadata.compactors.give_back_job(job.job_id, job.epoch, trouble=said, file_ids=blamed)
            raise error
        else:
            self._count(run, "failed")
            _log.exception("merge failed", **facts)
            await self._fail(run, error, files, FAILED_RETRY_MS)

    async def _beat_last(self, run: _Run) -> None:
        job, progress = run.claimed.job, run.progress
        with suppress(JobLostError, MetadataUnavailableError):
            await self._metadata.compactors.beat_job(
                job.job_id, job.epoch, progress=None if progress is None else progress._asdict()
            )

    async def _fail(self, run: _Run, error: Exception, file_ids: Sequence[int], retry_after_ms: int) -> None:
        said = str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"
        job = run.claimed.job
        await self._metadata.compactors.fail_job(
            job.job_id, job.epoch, error=said[:ERROR_CHARS_MAX], file_ids=file_ids, retry_after_ms=retry_after_ms
        )

    def _count(self, run: _Run, outcome: str) -> None:
        self._metrics.merges_total.labels(kind=run.claimed.job.kind, outcome=outcome).inc()
        if self._gate is None:
            self._metrics.heavy_merges_total.labels(outcome=outcome).inc()
