"""One compactor: its loops over the metadata store and the object store, under a leased identity.

| loop | task | runs in |
|---|---|---|
| beat | keeps the lease | every compactor |
| plan | view -> `plan_merges` -> jobs | the one with the duty "plan" |
| level | runs L0 jobs, one at a time | every compactor |
| merge | runs all other jobs, one at a time | every compactor |
| heavy | runs the large ones of these on a cluster, one at a time | every compactor that has a cluster |
| retain | retention by time and size | the one with the duty "retain" |
| erase | moves erasures on, and ends those that no object can hold records of | the one with the duty "erase" |
| sweep, orphans | the janitor | the one with the duty "sweep" |
| catalog | writes the metadata backup for `siltstone rebuild` | the one with the duty "catalog" |
| observe | queries Postgres for the metrics of the whole cluster | the one with the duty "observe" |

The level, merge and heavy loops are *lanes*. There are several, because a long merge must not delay leveling (agents
hold producers back when L0 files pile up), and a merge that runs on a cluster for hours must not delay small ones here.
The planned size decides which merges are heavy, because it also gave the job its limit, and the engine decides by it
too (`compactor/heavy/engine.py`). A heavy merge takes almost no memory here: only its plan and manifests.

Duties only save double work. Without them two planners would create jobs of which the store accepts one, and two
janitors would delete the same dead files. A crash of a compactor leaves jobs whose leases run out, duties that end by
themselves, and objects that no row names.

Stop, on SIGTERM: claim no more jobs, stop the running merges at their next step and give them back, end the lease.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

from compactor.compaction_metrics import begin_counts, show_jobs, show_no_sweep, show_nothing, show_view
from compactor.deletion.erasures import ErasureDuty
from compactor.deletion.janitor import ClocksApartError, Janitor, JanitorHaltedError, JanitorLimits, TooManyOrphansError
from compactor.deletion.metadata_backup import PURGE_PARTS, backup_of
from compactor.deletion.retention import Retention
from compactor.intervals import Tuning
from compactor.loop import IDLE_FACTOR_MAX, CompactorLoop, Pace
from compactor.merging.execute import MergeEngine
from compactor.merging.memory_gate import MemoryGate
from compactor.observer import OBSERVE_INTERVAL_MS, Observer
from compactor.planning.options import MergeMemory, plan_options
from compactor.planning.plan import new_job, plan_merges
from compactor.planning.spec import RUN_HERE, MergeKind, MergeSpec
from compactor.worker import Engine, Engines, Worker, WorkerMemory
from metadata.contract.compactors import CompactionView
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.jobs import InputsBusyError, JobState
from metadata.contract.leases import JOB_BEAT_MS, WriterLease
from metadata.contract.store import MetadataStore
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.objects import ObjectStore

_log = get_logger(__name__)

LEVEL_KINDS = (MergeKind.LEVEL.value,)
SPARK_KINDS = tuple(kind.value for kind in MergeKind if kind not in RUN_HERE)
MERGE_KINDS = tuple(kind.value for kind in MergeKind if kind is not MergeKind.LEVEL)
DUTIES = ("plan", "retain", "erase", "sweep", "observe", "catalog")
DUTY_SLACK_MS = 10_000
"""A duty lasts longer than the interval of its loop by this, so that it stays with its holder while that one lives."""
JOBS_SHOWN_MS = 5_000
JOBS_SHOWN_MAX = 1_000


def embedded_engine(
    settings: Settings, store: ObjectStore, runtime: Runtime, *, lease: WriterLease, in_thread: bool = True
) -> MergeEngine:
    """The engine that merges in this process."""
    return MergeEngine(
        store=store,
        runtime=runtime,
        lease=lease,
        memory=MergeMemory(keys_max=settings.dedupe_keys_max),
        in_thread=in_thread,
    )


class Compactor:
    """`store` and `metadata` are open; the caller has checked that their cluster ids agree, and closes them.

    Args:
        engines: the engines that run merges; None = the embedded engine alone.
        tuning: the numbers that are no settings.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        store: ObjectStore,
        metadata: MetadataStore,
        runtime: Runtime,
        host: str = "",
        engines: Engines | None = None,
        tuning: Tuning = Tuning(),  # noqa: B008 - a frozen value
    ) -> None:
        self._settings = settings
        self._store = store
        self._metadata = metadata
        self._runtime = runtime
        self._metrics = runtime.metrics
        self._host = host
        self._in_thread = tuning.in_thread
        self._engines = engines or Engines(make=self._embedded_engine)
        self._options = plan_options(settings, tuning.plan)
        self._intervals = tuning.intervals
        self._gate = MemoryGate(settings.compactor_memory_bytes, on_change=runtime.metrics.merge_memory_bytes.set)
        self._backup = backup_of(settings, store=store, metadata=metadata, runtime=runtime)
        self.janitor = Janitor(
            store=store,
            metadata=metadata,
            runtime=runtime,
            limits=JanitorLimits(
                grace_ms=settings.gc_grace_ms,
                orphan_age_ms=settings.orphan_age_ms,
                orphan_refuse_files=settings.orphan_refuse_files,
                # A deleted topic must leave the bucket, with the snapshots that name it, before the purge deadline.
                leftovers_ms=min(self._intervals.leftovers_interval_ms, settings.purge_deadline_ms // PURGE_PARTS),
            ),
            before_deleting=None if self._backup is None else self._backup.flush,
        )
        self.retention = Retention(metadata=metadata.deletion, metrics=runtime.metrics, clock=runtime.clock)
        self._erasures = ErasureDuty(
            store=store,
            metadata=metadata,
            runtime=runtime,
            janitor=self.janitor,
            upload_age_ms=self._intervals.upload_age_ms,
        )
        self._observer = Observer(metadata.operators, runtime, lags_max=settings.metrics_groups_max)
        self._lease: WriterLease | None = None
        self._workers: Sequence[Worker] = ()
        self._lanes: Sequence[CompactorLoop] = ()
        self._chores: Sequence[CompactorLoop] = ()
        self._jobs_shown_ms = self._retained_ms = float("-inf")
        self.ready = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the process must halt (for example because the metadata store went back in time)."""

    @property
    def node_id(self) -> int:
        """Known once started; -1 before and after."""
        return -1 if self._lease is None else self._lease.writer_id

    async def start(self) -> None:
        """Registers the compactor and starts its loops. Raises MetadataUnavailableError."""
        settings = self._settings
        lease = self._lease = await self._metadata.compactors.register_compactor(self._host)
        plan_interval_ms = self._intervals.plan_interval_ms
        plan = self._loop("plan", self._plan, Pace(interval_ms=plan_interval_ms, patient=True))
        heavy_min = self._engines.heavy_bytes_min
        begin_counts(self._metrics, (*LEVEL_KINDS, *MERGE_KINDS), heavy=heavy_min is not None)
        level, merge = self._worker(lease, plan), self._worker(lease, plan)
        lanes: dict[str, tuple[Worker, Callable[[], Awaitable[bool]]]] = {
            "level": (level, lambda: level.work(LEVEL_KINDS)),
            "merge": (merge, lambda: _work_here(merge, heavy_min)),
        }
        if heavy_min is not None:
            heavy = self._worker(lease, plan, on_cluster=True)
            lanes["heavy"] = (heavy, lambda: heavy.work(SPARK_KINDS, bytes_min=heavy_min))
        self._workers = tuple(worker for worker, _ in lanes.values())
        lane_pace = Pace(interval_ms=plan_interval_ms, patient=True, eager=True)
        self._lanes = tuple(self._loop(name, body, lane_pace) for name, (_, body) in lanes.items())
        chores: Mapping[str, tuple[Callable[[], Awaitable[bool]], Pace]] = {
            "retain": (self._retain, Pace(interval_ms=self._retention_look_ms)),
            "erase": (self._erase, Pace(interval_ms=self._intervals.erase_interval_ms, patient=True)),
            "sweep": (self._sweep, Pace(interval_ms=self._intervals.janitor_interval_ms)),
            "orphans": (self._sweep_orphans, Pace(interval_ms=self._intervals.orphan_check_interval_ms)),
            "observe": (self._observe, Pace(interval_ms=OBSERVE_INTERVAL_MS)),
            "catalog": (self._write_backup, Pace(interval_ms=settings.catalog_increment_interval_ms)),
        }
        self._chores = (
            self._loop("beat", self._beat, Pace(interval_ms=JOB_BEAT_MS)),
            plan,
            *(self._loop(name, body, pace) for name, (body, pace) in chores.items()),
        )
        for each in (*self._chores, *self._lanes):
            each.start()
        self.ready = True
        _log.info("compactor ready", node_id=lease.writer_id, pid=os.getpid())

    async def stop(self) -> None:
        """Gives running merges back within `drain.timeout.ms` and ends the lease. May be called twice."""
        self.ready = False
        # Cleared first: a second call returns at once, and no round takes a duty again while this one gives them up.
        lease, self._lease = self._lease, None
        if lease is None:
            return
        for worker in self._workers:
            worker.stop()
        for lane in self._lanes:
            # `worker.stop` ends the running merge at its next step; `end` keeps the lane from claiming another one.
            lane.end()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_ms / 1000):
                await asyncio.gather(*(lane.ended() for lane in self._lanes))
        except TimeoutError:
            _log.error("merges did not stop in time; their leases run out by themselves")
        # Chores may be cut off anywhere.
        await asyncio.gather(*(each.cancel() for each in (*self._lanes, *self._chores)))
        try:
            for duty in DUTIES:
                # another compactor may take the duty at once
                await self._metadata.compactors.take_duty(duty, lease, ttl_ms=0)
            await self._metadata.compactors.unregister_compactor(lease)
        except MetadataUnavailableError as error:
            _log.warning("could not give the lease back; it ends by itself", error=str(error))

    # ---- rounds
    async def _beat(self) -> bool:
        if self._lease is not None:
            await self._metadata.compactors.beat_compactor(self._lease)
        return True

    async def _plan(self) -> bool:
        """Returns whether it created a job."""
        if not await self._has_duty("plan", self._intervals.plan_interval_ms):
            show_nothing(self._metrics)
            return False
        view = await self._metadata.compactors.compaction_view()
        # Planning takes seconds with hundreds of thousands of extents, and heart-beats must go on meanwhile.
        planned = await asyncio.to_thread(self._planned, view) if self._in_thread else self._planned(view)
        created = 0
        for spec in planned:
            try:
                job_id = await self._metadata.compactors.create_job(new_job(spec))
            except InputsBusyError:
                continue  # the view is out of date: another job took the inputs
            created += 1
            _log.info("merge planned", job=job_id, kind=spec.kind.value, bytes=spec.input_bytes, reason=spec.reason)
        for lane in self._lanes if created else ():
            lane.wake()
        await self._show_jobs()
        return created > 0

    def _planned(self, view: CompactionView) -> Sequence[MergeSpec]:
        settings = self._settings
        partitions_max = settings.metrics_partitions_max
        show_view(self._metrics, view, topics_max=settings.metrics_topics_max, partitions_max=partitions_max)
        return plan_merges(view, self._options)

    async def _show_jobs(self) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        if now_ms - self._jobs_shown_ms >= JOBS_SHOWN_MS:
            self._jobs_shown_ms = now_ms
            live = (JobState.READY, JobState.RUNNING)
            show_jobs(self._metrics, await self._metadata.operators.jobs(states=live, limit=JOBS_SHOWN_MAX))

    async def _retain(self) -> bool:
        if not await self._has_duty("retain", self._retention_look_ms):
            return False
        asked_ms = await self._metadata.deletion.retention_check_ms()
        interval_ms = self._settings.retention_check_interval_ms if asked_ms is None else asked_ms
        now_ms = self._runtime.clock.monotonic_ms()
        # A round that would be due before the next look is due now.
        if now_ms + self._retention_look_ms <= self._retained_ms + interval_ms:
            return False
        applied = await self.retention.apply()
        self._retained_ms = now_ms
        if applied.extents:
            # Only a hint: agents learn of the new log starts now and not at their next poll.
            await self._metadata.agents.notify()
        return applied.extents > 0

    async def _erase(self) -> bool:
        """Returns whether an erasure is open."""
        # An idle patient loop waits for longer than its interval; the duty must not change hands meanwhile.
        if not await self._has_duty("erase", IDLE_FACTOR_MAX * self._intervals.erase_interval_ms):
            self._erasures.forget()
            return False
        return await self._erasures.round()

    async def _sweep(self) -> bool:
        if not await self._has_duty("sweep", self._intervals.janitor_interval_ms):
            show_no_sweep(self._metrics)  # the compactor with the duty shows it
            return False
        try:
            return (await self.janitor.sweep()).deleted_files > 0
        except JanitorHaltedError:
            return False  # the janitor has logged it; the other loops go on

    async def _sweep_orphans(self) -> bool:
        if not await self._has_duty("sweep", self._intervals.janitor_interval_ms):
            show_no_sweep(self._metrics)  # the compactor with the duty shows it
            return False
        try:
            return (await self.janitor.sweep_orphans()).deleted > 0
        except (JanitorHaltedError, TooManyOrphansError, ClocksApartError):
            # An operator has to act. If raised, the error would make the loop list the whole store every 30 s.
            return False

    async def _write_backup(self) -> bool:
        interval_ms = self._settings.catalog_increment_interval_ms
        if self._backup is None or not await self._has_duty("catalog", interval_ms):
            if self._backup is not None:
                self._backup.pause()
            self._metrics.catalog_age_seconds.set(0)  # the compactor with the duty shows the age
            return False
        return await self._backup.round()

    async def _observe(self) -> bool:
        if await self._has_duty("observe", OBSERVE_INTERVAL_MS):
            await self._observer.observe()
        else:
            self._observer.show_nothing()
        return False

    async def _has_duty(self, name: str, interval_ms: int) -> bool:
        if self._lease is None:
            return False
        ours = await self._metadata.compactors.take_duty(name, self._lease, ttl_ms=interval_ms + DUTY_SLACK_MS)
        self._metrics.compactor_duty.labels(duty=name).set(ours)
        return ours

    # ---- parts
    @property
    def _retention_look_ms(self) -> int:
        return min(self._settings.retention_check_interval_ms, self._intervals.retention_look_ms)

    def _loop(self, name: str, body: Callable[[], Awaitable[bool]], pace: Pace) -> CompactorLoop:
        return CompactorLoop(name, body, pace=pace, runtime=self._runtime, on_fatal=self._fail)

    def _worker(self, lease: WriterLease, plan: CompactorLoop, *, on_cluster: bool = False) -> Worker:
        return Worker(
            metadata=self._metadata,
            engine=self._engines.make(lease),
            lease=lease,
            memory=WorkerMemory(gate=None if on_cluster else self._gate, keys_max=self._settings.dedupe_keys_max),
            runtime=self._runtime,
            on_done=plan.wake,
        )

    def _embedded_engine(self, lease: WriterLease) -> Engine:
        return embedded_engine(self._settings, self._store, self._runtime, lease=lease, in_thread=self._in_thread)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


async def _work_here(worker: Worker, heavy_min: int | None) -> bool:
    """Runs a job of the lane for merges in this process: those below `heavy_min`, and of erase jobs all."""
    if await worker.work(MERGE_KINDS, bytes_below=heavy_min):
        return True
    return heavy_min is not None and await worker.work((MergeKind.ERASE.value,), bytes_min=heavy_min)
