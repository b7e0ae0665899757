"""The loops of a compactor: paced, woken, patient with failures, ended in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from compactor.loop import CompactorLoop, Pace
from metadata.contract.errors import MetadataUnavailableError, WentBackError
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime


class Sleepless(ManualClock):
    """Records the requested sleeps; every sleep lasts until `tick`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []
        self._ticks = asyncio.Semaphore(0)

    async def sleep_ms(self, duration_ms: float) -> None:
        self.asked.append(duration_ms)
        await self._ticks.acquire()

    async def tick(self) -> None:
        self._ticks.release()
        await settle()


class World:
    def __init__(self) -> None:
        self.clock = Sleepless()
        self.metrics = Metrics()
        self.fatal: list[BaseException] = []
        self.started: list[CompactorLoop] = []

    def start(self, body: Callable[[], Awaitable[bool]], **options: Any) -> CompactorLoop:
        loop = CompactorLoop(
            "plan",
            body,
            pace=Pace(interval_ms=100, **options),
            runtime=Runtime(clock=self.clock, ids=SystemIds(seed=3), metrics=self.metrics),
            on_fatal=self.fatal.append,
        )
        self.started.append(loop)
        loop.start()
        return loop

    @property
    def errors(self) -> float:
        return self.metrics.registry.get_sample_value("siltstone_compactor_errors_total", {"loop": "plan"}) or 0


class Script:
    """A body that follows a script: True, False, or an error to raise; after its end, False."""

    def __init__(self, *steps: bool | BaseException) -> None:
        self.steps = list(steps)
        self.rounds = 0

    async def __call__(self) -> bool:
        self.rounds += 1
        step = self.steps.pop(0) if self.steps else False
        if isinstance(step, BaseException):
            raise step
        return step


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for rounds in world.started:
        await rounds.cancel()


async def test_a_loop_that_finds_nothing_looks_ever_more_rarely_up_to_five_times_the_interval(world: World) -> None:
    world.start(Script(), patient=True)
    for _ in range(8):
        await world.clock.tick()
    assert 90 <= world.clock.asked[0] <= 165
    assert world.clock.asked[-1] == pytest.approx(500, rel=0.11)
    assert world.clock.asked == sorted(world.clock.asked) or world.clock.asked[3] > 2 * world.clock.asked[0]


async def test_a_loop_that_is_not_patient_keeps_its_interval(world: World) -> None:
    world.start(Script())
    for _ in range(8):
        await world.clock.tick()
    assert all(pause == pytest.approx(100, rel=0.11) for pause in world.clock.asked)


async def test_an_eager_loop_goes_on_at_once_while_it_finds_something(world: World) -> None:
    script = Script(True, True, True)
    world.start(script, eager=True)
    await settle()
    assert script.rounds == 4 and len([pause for pause in world.clock.asked if pause > 0]) == 1


async def test_a_wake_begins_the_next_round_though_the_pause_is_not_over(world: World) -> None:
    script = Script()
    rounds = world.start(script)
    await settle()
    assert script.rounds == 1
    rounds.wake()
    await settle()
    assert script.rounds == 2


async def test_a_wake_during_a_round_is_not_lost(world: World) -> None:
    gate = asyncio.Event()
    rounds_done = 0

    async def body() -> bool:
        nonlocal rounds_done
        await gate.wait()
        rounds_done += 1
        return False

    rounds = world.start(body)
    await settle()
    rounds.wake()
    gate.set()
    await settle()
    assert rounds_done == 2


async def test_failures_are_counted_and_pauses_grow_and_no_wake_cuts_them_short(world: World) -> None:
    script = Script(*[MetadataUnavailableError("away")] * 6, True)
    rounds = world.start(script)
    await settle()
    rounds.wake()
    await settle()
    assert script.rounds == 1
    for _ in range(5):
        await world.clock.tick()
    assert (script.rounds, world.errors) == (6, 6)
    assert max(world.clock.asked) > 1_000
    await world.clock.tick()
    assert script.rounds == 7, "it went on"


async def test_a_fault_of_ours_does_not_end_the_loop(world: World) -> None:
    script = Script(ZeroDivisionError(), True)
    world.start(script)
    await settle()
    await world.clock.tick()
    assert script.rounds == 2 and world.fatal == []


async def test_a_store_that_went_back_in_time_halts(world: World) -> None:
    script = Script(WentBackError("restored"))
    world.start(script)
    await settle()
    await world.clock.tick()
    assert script.rounds == 1 and [type(error) for error in world.fatal] == [WentBackError]


async def test_end_lets_the_present_round_finish_and_begins_no_other(world: World) -> None:
    gate = asyncio.Event()
    rounds_done = 0

    async def body() -> bool:
        nonlocal rounds_done
        await gate.wait()
        rounds_done += 1
        return True

    rounds = world.start(body, eager=True)
    await settle()
    rounds.end()
    ended = asyncio.create_task(rounds.ended())
    await settle()
    assert not ended.done()
    gate.set()
    await ended
    assert rounds_done == 1
