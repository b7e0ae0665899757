"""Agents that lose the metadata while they still talk to clients and neighbours, one at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.access.access import Access
    from tests.simulation.world import World

SHORT_MS = (50.0, 3_000.0)
LEASE_AND_MORE_MS = (10_500.0, 12_500.0)
ALONE_MS = (13_000.0, 16_000.0)
"""Without other faults, which would kill the agent, or keep the change from being answered while it is cut off."""


class Cuts:
    def __init__(self, world: World, access: Access) -> None:
        self._world = world
        self._rng = access.rng
        self._is_on = self._rng.random() < 0.5
        self._may_be_long = self._rng.random() < 0.6

    async def run(self) -> None:
        while self._is_on:
            await asyncio.sleep(self._rng.uniform(100, 2_500) / 1000)
            if self._world.faults.are_over:
                return
            is_long = self._may_be_long and self._rng.random() < 0.5
            # Once is enough: it takes as long as three other runs.
            self._may_be_long = self._may_be_long and not is_long
            is_alone = is_long and self._rng.random() < 0.6
            duration_ms = self._rng.uniform(*(ALONE_MS if is_alone else LEASE_AND_MORE_MS if is_long else SHORT_MS))
            seat = self._rng.choice(self._world.seats)
            self._world.faults.count(Fault.CUT_OFF_PAST_LEASE if is_long else Fault.CUT_OFF)
            seat.cut_off(duration_ms)
            if is_long:
                self._world.extend(duration_ms)
            if is_alone:
                self._world.faults.are_held_back = True
                await asyncio.sleep(duration_ms / 1000)
                self._world.faults.are_held_back = False
