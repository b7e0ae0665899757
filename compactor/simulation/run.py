"""The simulation: the real planner over a modelled cluster (`compactor/simulation/cluster.py`).

The simulation jumps from event to event: an L0 job comes due, a job ends, a minute has passed (for the rules that wait
for time), a sample is taken. The L0 rule gets only ages and sizes (`job_ends`); the other rules get a whole view. As in
a compactor, one of several workers is kept for L0 jobs.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from compactor.planning.l0 import job_ends
from compactor.planning.plan import plan_merges
from compactor.planning.spec import MIB, MergeKind, MergeSpec, PlanOptions
from compactor.simulation.cluster import Load, SimulatedCluster
from metadata.contract.leveled import FileClass

TICK_MS = 60_000
REPLAN_MS = 30_000
"""Events within this time share one run of the planner, because planning takes most of the simulator's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    count: int = 4
    """Merges that run at once, over all compactors."""
    bytes_per_second: float = 64.0 * MIB
    """The rate of one worker that reads, merges and writes. Every further pass of a dedupe reads again at this rate."""
    overhead_ms: int = 1_000
    """Fixed time of a job: claim, first reads, commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state at one time; counts and rates are since the sample before."""

    at_ms: int
    l0_files: int
    """The most live L0 files since the sample before."""
    l1_plain: int
    l1_compacted: int
    l2_plain: int
    l2_compacted: int
    """Runs, as in the three fields above."""
    rows_per_second: float
    """File and extent rows written, L0 included."""
    write_amplification: float
    """Bytes written to the store since the start, over bytes that agents wrote."""
    dedupe_lag_ms: int
    """Age of the oldest offset that no pass from the log start has read, in the worst partition."""
    jobs_ready: int
    jobs_running: int
    compacted_bytes: int
    """Bytes of live L1 and L2 extents of compacted topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    load: Load
    workers: Workers
    hours: float
    samples: Sequence[Sample]
    jobs: dict[str, int]
    """Jobs created, by kind."""
    job_wait_ms_max: int
    """The longest time between the creation of a job and its start."""
    workers_busy: float
    """The share of the time that workers spend on jobs."""
    compacted_bytes_least: int
    """The size of the compacted topics with one record for each key."""


class _Event(IntEnum):
    JOB_ENDED = 0
    L0_DUE = 1
    PLAN = 2
    SAMPLE = 3


@dataclass(frozen=True, slots=True)
class _Job:
    made_ms: float
    kind: str
    read_bytes: float
    l0: tuple[int, int] | None = None
    spec: MergeSpec | None = None
    weight: float = 1.0


@dataclass
class Simulation:
    load: Load
    workers: Workers = field(default_factory=Workers)
    options: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        self.cluster = SimulatedCluster(self.load, self.options)
        self._events: list[tuple[float, int, _Event, _Job | None]] = []
        self._numbers = 0
        self._ready: list[_Job] = []
        self._running: list[_Job] = []
        self._plan_due_ms = float(TICK_MS)
        self._l0_due_ms = -1.0
        self._busy_ms = 0.0
        self._wait_ms_max = 0.0
        self._l0_most = 0
        self._rows_before = 0.0
        self._sampled_ms = 0.0

    def run(self, hours: float, *, samples: int = 240) -> Simulated:
        """Starts with an empty cluster."""
        end_ms = hours * 3_600_000
        every_ms = end_ms / samples
        taken: list[Sample] = []
        self._at(TICK_MS, _Event.PLAN)
        self._at(every_ms, _Event.SAMPLE)
        self._expect_l0()
        while self._events and self._events[0][0] <= end_ms + 1:
            self.cluster.now_ms, _, event, job = heapq.heappop(self._events)
            match event:
                case _Event.JOB_ENDED if job is not None:
                    self._ended(job)
                case _Event.L0_DUE:
                    self._plan_l0()
                case _Event.PLAN:
                    self._plan_runs()
                case _:
                    taken.append(self._sample())
                    self._at(self.cluster.now_ms + every_ms, _Event.SAMPLE)
        return Simulated(
            load=self.load,
            workers=self.workers,
            hours=hours,
            samples=taken,
            jobs=dict(sorted(self.cluster.written.jobs.items())),
            job_wait_ms_max=int(self._wait_ms_max),
            workers_busy=self._busy_ms / (end_ms * self.workers.count),
            compacted_bytes_least=self._least_bytes(end_ms),
        )

    def _at(self, at_ms: float, event: _Event, job: _Job | None = None) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at_ms, self._numbers, event, job))

    # ---- planning

    def _live(self) -> Counter[str]:
        return Counter(each.kind for each in (*self._ready, *self._running))

    def _plan_l0(self) -> None:
        cluster = self.cluster
        jobs = self.options.l0_jobs_max - self._live()[MergeKind.LEVEL]
        created_ms, bytes_before = cluster.l0_waiting()
        ends = job_ends(
            created_ms,
            bytes_before,
            range(len(bytes_before)),
            now_ms=int(cluster.now_ms),
            jobs=jobs,
            options=self.options,
        )
        first = cluster.l0_taken
        for end in ends:
            start, cluster.l0_taken = cluster.l0_taken, first + end
            size = (cluster.l0_taken - start) * self.cluster.file_bytes
            self._ready.append(_Job(cluster.now_ms, MergeKind.LEVEL, size, l0=(start, cluster.l0_taken)))
        self._begin()
        self._expect_l0()

    def _expect_l0(self) -> None:
        """Schedules the time at which L0 comes due. L0 files are evenly spaced, so their future times are known."""
        if self._live()[MergeKind.LEVEL] >= self.options.l0_jobs_max:
            return  # asked again when a job ends
        cluster, options = self.cluster, self.options
        oldest_ms = cluster.l0_created_ms(cluster.l0_taken)
        enough_ms = cluster.l0_created_ms(cluster.l0_taken + options.l0_files_min - 1)
        large_ms = cluster.l0_created_ms(cluster.l0_taken + int(options.l0_bytes_min / self.cluster.file_bytes))
        due_ms = min(oldest_ms + options.l0_wait_ms_max, max(enough_ms, min(oldest_ms + options.l0_wait_ms, large_ms)))
        due_ms = max(due_ms, cluster.now_ms) + 1
        # An event that is due sooner is on its way and asks again.
        if not self.cluster.now_ms < self._l0_due_ms <= due_ms:
            self._l0_due_ms = due_ms
            self._at(due_ms, _Event.L0_DUE)

    def _plan_runs(self) -> None:
        if self.cluster.now_ms < self._plan_due_ms:
            return  # an earlier event has planned since
        self._plan_due_ms = self.cluster.now_ms + TICK_MS
        self._at(self._plan_due_ms, _Event.PLAN)
        live: dict[str, list[int]] = defaultdict(list)
        for each in (*self._ready, *self._running):
            live[each.kind].append(0 if each.spec is None else each.spec.input_bytes)
        view = replace(self.cluster.view(), live_jobs=live)
        for spec in plan_merges(view, self.options):
            self.cluster.take(spec)
            weight = self.cluster.weight if spec.extent_ids else 1.0
            job = _Job(self.cluster.now_ms, spec.kind, self.cluster.read_bytes(spec), spec=spec, weight=weight)
            self._ready.append(job)
        self._begin()

    def _plan_soon(self) -> None:
        due_ms = self.cluster.now_ms + REPLAN_MS
        if due_ms < self._plan_due_ms:
            self._plan_due_ms = due_ms
            self._at(due_ms, _Event.PLAN)

    # ---- jobs

    def _begin(self) -> None:
        others_max = max(1, self.workers.count - 1)
        waiting: list[_Job] = []
        for job in sorted(self._ready, key=lambda each: (each.kind != MergeKind.LEVEL, each.made_ms)):
            others = sum(each.kind != MergeKind.LEVEL for each in self._running)
            is_full = len(self._running) >= self.workers.count
            if is_full or (job.kind != MergeKind.LEVEL and others >= others_max):
                waiting.append(job)
                continue
            self._wait_ms_max = max(self._wait_ms_max, self.cluster.now_ms - job.made_ms)
            took_ms = self.workers.overhead_ms * max(1.0, job.weight)
            took_ms += job.read_bytes / self.workers.bytes_per_second * 1_000
            self._busy_ms += took_ms
            self._running.append(job)
            self._at(self.cluster.now_ms + took_ms, _Event.JOB_ENDED, job)
        self._ready = waiting

    def _ended(self, job: _Job) -> None:
        self._running.remove(job)
        if job.l0 is not None:
            self._l0_most = max(self._l0_most, self.cluster.l0_live)
            self.cluster.level(*job.l0)
            if self._has_l1_runs():
                self._plan_soon()
            self._plan_l0()
        if job.spec is not None:
            self.cluster.merge(job.spec)
            self._plan_soon()
        self._begin()

    def _has_l1_runs(self) -> bool:
        return max(self.cluster.l1_runs) >= self.options.l1_runs_min

    # ---- samples

    def _sample(self) -> Sample:
        cluster = self.cluster
        runs = Counter((each.level, each.file_class) for each in (*cluster.files.values(), *cluster.settled.values()))
        since_ms = cluster.now_ms - self._sampled_ms
        rows = cluster.written.file_rows + cluster.written.extent_rows + cluster.l0_arrived
        rate = (rows - self._rows_before) / since_ms * 1_000
        self._rows_before, self._sampled_ms = rows, cluster.now_ms
        l0_most, self._l0_most = max(self._l0_most, cluster.l0_live), 0
        written_bytes = cluster.l0_arrived * self.cluster.file_bytes
        return Sample(
            at_ms=int(cluster.now_ms),
            l0_files=l0_most,
            l1_plain=runs[1, FileClass.PLAIN],
            l1_compacted=runs[1, FileClass.COMPACTED],
            l2_plain=runs[2, FileClass.PLAIN],
            l2_compacted=runs[2, FileClass.COMPACTED],
            rows_per_second=rate,
            write_amplification=(written_bytes + cluster.written.merge_bytes) / written_bytes,
            dedupe_lag_ms=self._dedupe_lag_ms(),
            jobs_ready=len(self._ready),
            jobs_running=len(self._running),
            compacted_bytes=int(sum(each.length for lane in cluster.lanes for each in lane.extents) * cluster.weight),
        )

    def _dedupe_lag_ms(self) -> int:
        cleaned = min((lane.cleaned_through_offset for lane in self.cluster.lanes), default=None)
        return 0 if cleaned is None else int(self.cluster.now_ms - cleaned / self.cluster.records_per_ms)

    def _least_bytes(self, end_ms: float) -> int:
        records = min(self.load.keys, end_ms * self.cluster.records_per_ms)
        return int(records * self.load.record_bytes * self.load.compacted_partitions)


def simulate(
    load: Load, *, hours: float, workers: Workers | None = None, options: PlanOptions | None = None, samples: int = 240
) -> Simulated:
    return Simulation(load, workers or Workers(), options or PlanOptions()).run(hours, samples=samples)
