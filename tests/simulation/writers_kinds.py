"""Two kinds of producers that the seal rule tells apart: those that wait for us, and trickles.

Both retry as `IdempotentProducer` does. A run with them has settings under which early seals are worth a look.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.simulation.book import TopicPartition
from tests.simulation.clients import Line
from tests.simulation.faults import Path
from tests.simulation.producers import IdempotentProducer

if TYPE_CHECKING:
    from tests.simulation.world import World

LARGE_BUDGET = 250
ROUNDS_MAX = 40
"""The rounds in which a blocked producer must be found out when nothing fails; six are usual."""


def seal_settings(rng: random.Random) -> tuple[dict[str, Any], float]:
    """Settings of all agents, and the tokens that a budget holds."""
    linger = {"produce_linger_ms": rng.choice((150, 250))}
    way = rng.choice(("large budget", "small budget", "stall"))
    if way == "small budget":
        return {**linger, "produce_early_per_second": rng.choice((1, 2))}, rng.choice((1.0, 2.0))
    stall = {"l0_stall_files": 5, "l0_refuse_files": 0} if way == "stall" else {}
    return {**linger, **stall, "produce_early_per_second": LARGE_BUDGET}, 600.0


class Trickle(IdempotentProducer):
    """Sends one batch, waits for its answer, and thinks for longer than a client that waits for us would."""

    is_trickle = True
    retry_pause_ms = (120, 200)
    refill_rate = 0.0

    def __init__(self, world: World, name: str, place: TopicPartition) -> None:
        super().__init__(world, name, place, world.rng.randint(3, 5))
        self._window = 1
        interval_ms = world.rng.choice((120, 150, 300))
        self.pause_ms = (interval_ms, interval_ms * 1.1)


class Blocked(IdempotentProducer):
    """Fills its window, and sends again within milliseconds of our answer."""

    pause_ms = (0, 3)
    hang_up_rate = 0.005

    def __init__(self, world: World, name: str, place: TopicPartition) -> None:
        super().__init__(world, name, place, world.rng.randint(12, 30))

    async def run(self) -> None:
        await super().run()
        settings = self.world.seats[0].settings
        if settings.produce_early_per_second == LARGE_BUDGET and settings.l0_stall_files > 1_000:
            await self._prove_progress(settings.produce_linger_ms)

    async def _prove_progress(self, linger_ms: float) -> None:
        """When all is healed: most rounds take less than the linger."""
        while not self.world.faults.are_over:
            await self.pause(50, 100)
        line: Line = await self.dial()
        quick: list[bool] = []
        for _ in range(ROUNDS_MAX):
            began_ms = self.world.loop.now_ms
            self._left += 0 if self._unresolved else self._window
            if await self._round(line):
                quick.append(self.world.loop.now_ms - began_ms < linger_ms)
            else:
                line.close()
                await self.pause(*self.retry_pause_ms)
                line = await self.dial()
                quick.clear()
            if sum(quick[-6:]) >= 4 and not (self._unresolved or self._left):
                self.world.faults.count(Path.BLOCKED_WENT_ON)
                break
            await self.pause(*self.pause_ms)
        else:
            self.world.violation(
                f"{self.name} waited for the linger in most of {ROUNDS_MAX} rounds though nothing fails"
            )
        line.close()
