"""The product's janitor in a run, with limits of milliseconds: it takes any key that is old enough.

In production it leaves keys alone for hours and spares those of live agents for a day. The protocol may not depend on
that, so here it does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactor.deletion.janitor import Janitor, JanitorLimits
from metadata.contract.errors import MetadataUnavailableError
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.keys import PROBE_PREFIX
from storage.objects import Deleted, ObjectStoreError
from storage.wrappers.retrying import Retrying
from tests.simulation.faults import Fault, Path
from tests.simulation.loop import SimulationClock
from tests.simulation.services import SimulatedMetadata, finish
from tests.simulation.stores import Stage

if TYPE_CHECKING:
    from tests.simulation.world import World

ORPHANS_MAX = 10_000


class JanitorSeat:
    """The process of the janitor."""

    def __init__(self, world: World) -> None:
        self._world = world
        faults = world.faults
        process = self.process = world.new_process("janitor")
        clock = SimulationClock(world.loop)
        metadata = _Stale(world.loop, process, faults, world.server, world.noting("janitor"), world.listening)
        ids = SystemIds(seed=int(faults.rng.random() * 2**53))
        grace_ms = int(faults.between(50, 1000))
        if world.transactions is not None and world.transactions.grace_ms:
            grace_ms = world.transactions.grace_ms  # merges and agents count on it
        self._janitor = Janitor(
            store=_Watched(world, self, clock, ids),
            metadata=metadata,
            runtime=Runtime(clock=clock, ids=ids),
            limits=JanitorLimits(
                grace_ms=grace_ms,
                orphan_age_ms=int(faults.between(20, 500)),
                orphan_refuse_files=ORPHANS_MAX,
                orphan_bound_ms=0,
            ),
        )

    async def run(self) -> None:
        faults = self._world.faults
        while not faults.are_over:
            await asyncio.sleep(faults.between(10, 150) / 1000)
            for sweep in (self._janitor.sweep, self._janitor.sweep_orphans):
                try:
                    await sweep()
                except (MetadataUnavailableError, ObjectStoreError):
                    continue


class _Stale(SimulatedMetadata):
    """Some keys were committed right after the janitor asked: only the abort finds that out."""

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        known = sorted(await super().known_keys(keys))
        return frozenset(key for key in known if self.faults.rng.random() < 0.9)


class _Watched(Retrying):
    """A deletion that was confirmed has happened."""

    def __init__(self, world: World, seat: JanitorSeat, clock: SimulationClock, ids: SystemIds) -> None:
        stage = Stage.READS if world.stores.has_second else Stage.ALONE
        super().__init__(world.stores.seen_by(seat.process, stage), clock, ids, deadline_ms=500)
        self._world = world

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        world = self._world
        in_second = [key for key in keys if world.stores.is_in_second(key)]
        dead = finish(world.server.deletion.known_keys(keys))
        before_ms = world.server_clock.wall_ms()
        deleted = await super().delete_many(keys)
        for key in deleted.keys:
            if key.startswith(PROBE_PREFIX):
                continue
            world.note("janitor", "deleted", key=key)
            # A PUT that comes late leaves an orphan of its own.
            if world.stores.stored_before(key, before_ms):
                world.violation(f"object {key} was reported deleted and is still there")
            world.faults.count(Fault.DEAD_FILE_DELETED if key in dead else Fault.ORPHAN_DELETED)
            if key in in_second:
                world.faults.count(Path.DELETED_IN_SECOND)
        return deleted
