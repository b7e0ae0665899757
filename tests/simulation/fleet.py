"""The agents of a simulation, each in its seat (an address): started, killed, put to sleep, replaced and drained."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Any

from agents.agent import Agent
from agents.registration import DuplicateAgentError
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import ALIVE_MS, BEAT_MS, WriterFencedError
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.cluster import ClusterMismatchError
from storage.objects import Body, ObjectStore, ObjectStoreError
from storage.second_store import check_second
from storage.wrappers.retrying import Retrying
from tests.simulation.faults import Fault, Faults, Path
from tests.simulation.hedges import Outcomes, WatchedHedged
from tests.simulation.loop import Process, SimulationClock
from tests.simulation.seals import AgentSeals
from tests.simulation.services import SimulatedMetadata
from tests.simulation.stores import Stage

if TYPE_CHECKING:
    from tests.simulation.world import World

CLUSTER_ID = "simulated"
FIRST_PORT, FIRST_ZONE_PORT = 9001, 9501
_ZONE_PATHS = {"served": Path.ZONE_SERVED, "late": Path.ZONE_LATE, "failed": Path.ZONE_FAILED}
_METRICS = Metrics()
"""Shared by all agents of all runs: no test reads these metrics, and making them takes longer than starting an
agent.
"""


class CountedRetrying(Retrying):
    """The product's own class, with its failures recorded in the books."""

    faults: Faults

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        try:
            await super().put_if_absent(key, body, crc32c=crc32c)
        except ObjectStoreError:
            self.faults.count(Path.PUT_GIVEN_UP)
            raise


class GapGauge:
    """Replaces the gauge of gaps: counts how often a follower had one."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._last = 0.0

    def set(self, value: float) -> None:
        if value > self._last:
            self._faults.count(Path.GAP_WAITED)
        self._last = value


class ZoneRequests:
    """Replaces the counter of requests to neighbours."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outcome = ""

    def labels(self, *, outcome: str) -> ZoneRequests:
        self._outcome = outcome
        return self

    def inc(self) -> None:
        if self._outcome == "corrupt":
            self._world.violation("a neighbour's bytes do not fit their CRC, though nothing changes bytes")
        elif path := _ZONE_PATHS.get(self._outcome):
            self._world.faults.count(path)


class Seat:
    """An address, and the processes that have it or had it."""

    def __init__(self, world: World, number: int, settings: dict[str, Any]) -> None:
        self.world = world
        self.number = number
        self.address = f"127.0.0.1:{FIRST_PORT + number}"
        if zone := world.zone_names[number % len(world.zone_names)]:
            settings = {**settings, "agent_zone": zone, "zone_listen": f"127.0.0.1:{FIRST_ZONE_PORT + number}"}
        self.settings = Settings(listen=self.address, metrics_listen="", **settings)
        self.skew_ms = int(world.faults.between(-3000, 3000))
        self.process: Process | None = None
        self.agent: Agent | None = None
        self.was_told_to_stop = False
        self.older: list[Process] = []
        """Processes that were replaced while they slept; some may be awake again."""
        self.metadata: dict[Process, SimulatedMetadata] = {}
        self.stage = world.stores.plan[0]
        """The settings of the next process here."""
        self._stages: dict[Process, Stage] = {}
        self._seals: dict[Process, AgentSeals] = {}
        self._incarnation = 0

    @property
    def is_ready(self) -> bool:
        return self.agent is not None and self.agent.ready and self.process is not None and self.process.is_running

    # ---- life

    def start(self) -> None:
        world, faults = self.world, self.world.faults
        self._incarnation += 1
        process = self.process = world.new_process(f"agent {self.number}.{self._incarnation}")
        self.agent = None
        clock = SimulationClock(world.loop, skew_ms=self.skew_ms)
        ids = SystemIds(seed=int(faults.rng.random() * 2**53))
        metadata = self.metadata[process] = SimulatedMetadata(
            world.loop, process, faults, world.server, world.noting(process.name), world.listening
        )
        if world.transactions is not None:
            world.transactions.services(metadata)
        if faults.are_over and self.stage is Stage.ALONE and world.stores.has_second:
            self.stage = Stage.READS  # a person mends the settings of an agent that refused to start
        self._stages[process] = self.stage
        metrics = copy(_METRICS)
        metrics.tail_gaps = GapGauge(faults)  # type: ignore[assignment]
        metrics.object_hedges_total = Outcomes(faults)  # type: ignore[assignment]
        seals = self._seals[process] = AgentSeals(world, process, self.settings, world.tokens_max)
        metadata.on_commit, metadata.on_committed = seals.committing, seals.committed
        bare = world.stores.seen_by(process, self.stage, on_put=self._put_done, on_put_begun=seals.put_begun)
        if world.hedges:
            bare = WatchedHedged(bare, metrics, clock, on_violation=world.violation)
        store = CountedRetrying(bare, clock, ids, deadline_ms=faults.between(300, 3000), cap_ms=500)
        store.faults = faults
        metrics.zone_requests_total = ZoneRequests(world)  # type: ignore[assignment]
        world.start(process, self._live(process, metadata, store, Runtime(clock=clock, ids=ids, metrics=metrics)))

    async def _live(
        self,
        process: Process,
        metadata: SimulatedMetadata,
        store: Retrying,
        runtime: Runtime,
    ) -> None:
        world = self.world
        await metadata.open()
        if world.stores.has_second and not await self._may_start(process, store, runtime):
            world.loop.after(0, world.loop.outside, self._gone, process)
            return
        agent = Agent(
            settings=self.settings,
            store=store,
            metadata=metadata,
            runtime=runtime,
            bind=world.network.binder(process),
            dial=world.network.dialer(process),
        )
        agent.failed.add_done_callback(lambda failed: self._failed(process, failed))
        try:
            await agent.start()
        except DuplicateAgentError as error:
            self._address_taken(process, Path.START_BESIDE_TWIN, error)
            return
        except (MetadataUnavailableError, WriterFencedError) as error:
            # Fenced: a registration of its predecessor, reported as lost, was carried out after its own. The process
            # ends.
            world.note(process.name, "did not start", why=str(error))
            world.loop.after(0, world.loop.outside, self._gone, process)
            return
        world.note(process.name, "is ready")
        if self.process is process:
            self.agent = agent

    async def _may_start(self, process: Process, store: ObjectStore, runtime: Runtime) -> bool:
        """The part of a start that looks at the second store."""
        try:
            await check_second(store, cluster_id=CLUSTER_ID, ids=runtime.ids, clock=runtime.clock)
        except ClusterMismatchError as error:
            self.world.note(process.name, "refuses to start", why=str(error))
            if self._stages[process] is not Stage.ALONE:
                self.world.violation(f"{process.name} refused to start with the right stores: {error}")
            self.world.faults.count(Path.START_REFUSED)
        except ObjectStoreError as error:
            self.world.note(process.name, "did not start", why=str(error))
        else:
            return True
        return False

    def _failed(self, process: Process, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if isinstance(error, DuplicateAgentError) and self.older:
            self._address_taken(process, Path.HALTED_BESIDE_TWIN, error)
        elif error is not None:
            self.world.violation(f"{process.name} halted: {error!r}")

    def _address_taken(self, process: Process, path: Path, error: DuplicateAgentError) -> None:
        self.world.note(process.name, str(path), why=str(error))
        self.world.faults.count(path)
        self.world.loop.after(0, self.world.loop.outside, self._gone, process)

    def _put_done(self, process: Process) -> None:
        """Between PUT and commit another process may overtake the writer."""
        if self.world.faults.strikes(Fault.ASLEEP_BEFORE_COMMIT):
            self._sleep(process, self.world.faults.between(300, 2500))

    # ---- faults from outside

    def crash_within(self, callbacks: int) -> None:
        """Kill it before the n-th callback from now."""
        process = self.process
        if process is not None and process.is_running:
            process.strike_after(callbacks, lambda: self._crash(process))

    def _crash(self, process: Process) -> None:
        if not self.world.faults.are_over:
            self.world.faults.count(Fault.CRASH)
            self._gone(process)

    def sleep(self, fault: Fault, duration_ms: float) -> None:
        if self.process is not None and self.process.is_running:
            self.world.faults.count(fault)
            self._sleep(self.process, duration_ms)

    def replace_while_asleep(self, duration_ms: float) -> None:
        """The sleeper is taken for dead, and another process is started at its address; then the sleeper wakes up."""
        if self.process is not None and self.process.is_running and self.is_ready:
            self.world.faults.count(Fault.TWIN)
            if self.world.faults.rng.random() < 0.5:  # the sleeper has time to learn that it was replaced
                self.world.extend(duration_ms + ALIVE_MS + BEAT_MS / 2)
            self._sleep(self.process, duration_ms)
            self.older.append(self.process)
            self.start()

    def cut_off(self, duration_ms: float) -> None:
        """From the metadata; the next process here is not."""
        if self.process is not None and self.process.is_running:
            self.world.note(self.process.name, "is cut off", ms=int(duration_ms))
            metadata = self.metadata[self.process]
            metadata.cut_off_until_ms = max(metadata.cut_off_until_ms, self.world.loop.now_ms + duration_ms)

    def drain(self) -> None:
        if self.is_ready and self.process is not None and self.agent is not None:
            self.world.faults.count(Fault.DRAIN)
            self.world.note(self.process.name, "drains")
            self.was_told_to_stop = True
            self.world.start(self.process, self._drain(self.process, self.agent))

    async def _drain(self, process: Process, agent: Agent) -> None:
        self._seals[process].is_draining = True
        await agent.stop()
        self.world.loop.after(0, self.world.loop.outside, self._gone, process)

    def _sleep(self, process: Process, duration_ms: float) -> None:
        world = self.world
        if process.is_dead or process.is_frozen:
            return
        world.note(process.name, "falls asleep", ms=int(duration_ms))
        process.freeze()
        world.extend(duration_ms)
        world.loop.after(duration_ms, world.loop.outside, self._wake, process)

    def _wake(self, process: Process) -> None:
        if process.is_frozen and not process.is_dead:
            self.world.note(process.name, "wakes up")
            process.thaw()

    def _gone(self, process: Process) -> None:
        """Killed or ended: its lines break, and if it has no successor another process is started."""
        if process.is_dead:
            return
        world = self.world
        world.note(process.name, "is gone")
        process.kill()
        world.network.cut_all_of(process)
        world.listening.pop(self.metadata[process], None)
        if process is self.process:
            self.agent = None
            if all(older.is_dead for older in self.older):
                self._age_lease()
            world.loop.after(world.faults.between(20, 600), world.loop.outside, self._start_again, process)

    def _age_lease(self) -> None:
        """Some stay away for so long that their successors need not wait. It would only make the run longer."""
        for writer in self.world.server.database.writers.values():
            is_here = writer.address.port == FIRST_PORT + self.number
            if is_here and writer.lease_until_ms is not None and self.world.faults.rng.random() < 0.6:
                writer.lease_until_ms -= ALIVE_MS

    def _start_again(self, process: Process) -> None:
        if self.process is process:
            self.start()

    def is_draining(self, process: Process) -> bool:
        return process in self._seals and self._seals[process].is_draining

    def has_others_than(self, stage: Stage) -> bool:
        """Whether a process with other settings is alive here, or none is."""
        alive = [process for process in self._stages if not process.is_dead]
        return not alive or any(self._stages[process] is not stage for process in alive)

    def end_others_than(self, stage: Stage) -> None:
        for process, its in list(self._stages.items()):
            if its is not stage:
                self._gone(process)

    def heal(self) -> None:
        for process in self.older:
            self._gone(process)
        if self.process is not None:
            self._wake(self.process)
