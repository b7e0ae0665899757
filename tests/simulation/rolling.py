"""A rolling restart that tells the agents of a second store, one after the other, stage by stage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from metadata.contract.leases import ALIVE_MS
from tests.simulation.faults import Fault
from tests.simulation.stores import Stage

if TYPE_CHECKING:
    from tests.simulation.fleet import Seat
    from tests.simulation.world import World

PATIENCE_MS = 4_000.0
"""An agent that did not stop by then is killed."""


class Roller:
    """The operator. It begins a stage when no process of an older one is left."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self) -> None:
        world = self._world
        for stage in world.stores.plan[1:]:
            await asyncio.sleep(world.faults.between(50, 300) / 1000)
            for place, seat in enumerate(world.seats):
                if world.faults.are_over:
                    return
                await self._roll(seat, stage)
                if place + 1 < len(world.seats) and world.faults.rng.random() < 0.6:
                    # One that dies before its turn comes back with its old settings, and may be refused.
                    world.seats[place + 1].crash_within(50)
                    await asyncio.sleep(world.faults.between(100, 400) / 1000)
            world.note("operator", "all agents are rolled", stage=stage.value)

    async def _roll(self, seat: Seat, stage: Stage) -> None:
        world = self._world
        world.note("operator", "rolls", agent=seat.address, stage=stage.value)
        world.faults.count(Fault.ROLLED_WRITES if stage is Stage.WRITES else Fault.ROLLED_READS)
        world.extend(2 * PATIENCE_MS + ALIVE_MS)
        seat.stage = stage
        seat.drain()
        deadline_ms = world.loop.now_ms + PATIENCE_MS
        while not world.faults.are_over and (seat.has_others_than(stage) or not seat.is_ready):
            if world.loop.now_ms > deadline_ms:
                seat.end_others_than(stage)
            await asyncio.sleep(0.02)
