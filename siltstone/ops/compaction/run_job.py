"""One merge in the foreground: a worker in this process that claims given jobs by id, under its own lease, on the
engine that a person chose.

The worker is that of a compactor (`compactor/worker.py`), with the same lease, time limit and traces after a crash. A
beat keeps the lease. When the worker is stopped, it gives the merge back, and other compactors go on with it; finished
units of a merge on Spark stay done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from compactor.merging.execute import Progress
from compactor.merging.memory_gate import MemoryGate
from compactor.planning.spec import SPARK_LIMIT_BASE_MS, MergeKind, MergeSpec
from compactor.worker import Engine, Worker, WorkerMemory
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobState, MergeJob
from metadata.contract.leases import JOB_BEAT_MS, WriterFencedError
from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError, SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.processes.engines import engines
from siltstone.processes.spark_note import EngineChoice
from storage.objects import ObjectStore

_log = get_logger(__name__)


class NoSuchJobError(BadInputError):
    """No job has this id, or the job ended so long ago that its row was deleted."""


class JobNotReadyError(BadInputError):
    """The job is over, or a compactor runs it. Nothing was done."""


class WrongEngineError(BadInputError):
    """The job cannot run on the engine that was asked for. Nothing was done."""


class JobFailedError(SiltstoneError):
    """The merge failed or was given back. The planner plans it again, or another compactor claims it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Open services, and the rest that a worker needs."""

    settings: Settings
    store: ObjectStore
    metadata: MetadataStore
    runtime: Runtime


@asynccontextmanager
async def foreground_worker(
    parts: Parts, *, choice: EngineChoice | None, host: str, on_progress: Callable[[int, Progress], None]
) -> AsyncGenerator[Worker]:
    """A worker that claims only the jobs it is given. It calls `on_progress` with the job's id at every step.

    Raises NoSubmitterError and similar errors before anything is registered.
    """
    settings, metadata = parts.settings, parts.metadata
    chosen = await engines(settings, parts.store, metadata, parts.runtime, choice=choice)
    lease = await metadata.compactors.register_compactor(host)

    async def beat() -> None:
        while True:
            await parts.runtime.clock.sleep_ms(JOB_BEAT_MS)
            try:
                await metadata.compactors.beat_compactor(lease)
            except MetadataUnavailableError as error:
                _log.warning("beat failed", error=str(error))
            except WriterFencedError:
                return  # the store tells the worker too, which then drops its job

    beats = asyncio.create_task(beat(), name="beat-foreground")
    try:
        yield Worker(
            metadata=metadata,
            engine=_Tapped(chosen.make(lease), on_progress),
            lease=lease,
            memory=WorkerMemory(gate=MemoryGate(settings.compactor_memory_bytes), keys_max=settings.dedupe_keys_max),
            runtime=parts.runtime,
        )
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)
        try:
            await metadata.compactors.unregister_compactor(lease)
        except MetadataUnavailableError as error:
            _log.warning("could not give the lease back; it ends by itself", error=str(error))


async def check_runnable(metadata: MetadataStore, job_id: int, choice: EngineChoice | None) -> MergeJob:
    """Raises NoSuchJobError, JobNotReadyError, WrongEngineError."""
    job = await metadata.compactors.job(job_id)
    if job is None:
        raise NoSuchJobError(f"there is no job {job_id}", remedy="`siltstone jobs list` lists the jobs")
    if job.state in (JobState.DONE, JobState.FAILED):
        raise JobNotReadyError(
            f"job {job_id} is over: it is {job.state.value}" + (f" ({job.error})" if job.error else ""),
            remedy="none: the planner plans the rest again; `siltstone jobs list --state ready` shows waiting jobs",
        )
    now_ms = await metadata.now_ms()
    if job.state is JobState.RUNNING and (job.lease_until_ms or 0) > now_ms:
        hosts = dict(await metadata.compactors.live_compactors())
        at = f" at {hosts[job.holder]}" if job.holder in hosts else ""
        raise JobNotReadyError(
            f"job {job_id} is run by compactor {job.holder}{at}",
            remedy="wait until it ends; stopping that compactor gives the job back",
        )
    if choice is EngineChoice.SPARK and job.kind == MergeKind.LEVEL:
        raise WrongEngineError(
            f"job {job_id} takes L0 files, which only compactors merge: they are small and must not wait for a cluster",
            remedy="leave --engine out",
        )
    if choice is EngineChoice.SPARK and job.kind == MergeKind.ERASE:
        raise WrongEngineError(
            f"job {job_id} erases keys, which only compactors do: the marks of erased keys never leave them",
            remedy="leave --engine out",
        )
    if choice is EngineChoice.SPARK:
        check_limit(job)
    return job


def check_limit(job: MergeJob) -> None:
    """Whether the job's time limit leaves room for a cluster to start.

    The limit cannot be raised, because the delete horizons in the job's spec are computed from it.

    Raises WrongEngineError, and SpecError for a job of another release.
    """
    limit_ms = MergeSpec.from_json(job.spec).limit_ms
    if limit_ms < SPARK_LIMIT_BASE_MS:
        raise WrongEngineError(
            f"job {job.job_id} was planned for a compactor and must end within {limit_ms // 1000} s, but the start of a"
            f" cluster alone may take {SPARK_LIMIT_BASE_MS // 1000} s",
            remedy="leave --engine out; or `siltstone compact TOPIC --now --engine spark` plans a pass over a compacted"
            " topic with time for a cluster",
        )


async def run_job(parts: Parts, worker: Worker, job_id: int) -> MergeJob:
    """Returns the job when it is done. Raises JobNotReadyError if another compactor claimed it first,
    JobFailedError."""
    if not await worker.work_on(job_id):
        job = await check_runnable(parts.metadata, job_id, None)
        raise JobNotReadyError(f"job {job.job_id} was claimed by another compactor just now", remedy="try again")
    ended = await parts.metadata.compactors.job(job_id)
    if ended is None or ended.state is not JobState.DONE:
        state = "gone" if ended is None else ended.state.value
        said = ended.error if ended is not None and ended.error else "its lease was lost, or it was given back"
        raise JobFailedError(f"job {job_id} is {state}: {said}", remedy=f"`siltstone jobs show {job_id}` tells more")
    return ended


class _Tapped:
    """An engine that also reports its progress to `on_progress`."""

    def __init__(self, inner: Engine, on_progress: Callable[[int, Progress], None]) -> None:
        self._inner, self._on_progress = inner, on_progress

    async def run(self, claimed: ClaimedJob, **options: Any) -> CommitMerge:
        told: Callable[[Progress], None] = options.pop("progress")

        def progress(step: Progress) -> None:
            told(step)
            self._on_progress(claimed.job.job_id, step)

        return await self._inner.run(claimed, progress=progress, **options)
