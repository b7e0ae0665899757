"""The simulation's own loop: the effects of a kill, a sleep and a trigger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.simulation.loop import Process, SimulationLoop, StuckError


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    simulated = SimulationLoop(random.Random(1), shuffles=False)
    yield simulated
    simulated.end()


async def tick_for_ever(ticks: list[float], loop: SimulationLoop) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            ticks.append(loop.time())
    finally:
        ticks.append(-1)


def test_an_hour_passes_at_once(loop: SimulationLoop) -> None:
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(3600), timeout=7200))
    assert 3600 <= loop.time() < 3601


def test_of_a_killed_process_not_even_a_finally_runs(loop: SimulationLoop) -> None:
    # given a process at work
    ticks: list[float] = []
    process = Process(loop, "victim")
    process.spawn(tick_for_ever(ticks, loop))
    # when it is killed
    loop.after(2_500, loop.outside, process.kill)
    loop.run_until_complete(asyncio.sleep(10))
    # then nothing more of it runs
    assert len(ticks) == 2
    assert -1 not in ticks


def test_a_sleeper_goes_on_where_it_was_when_it_wakes(loop: SimulationLoop) -> None:
    # given a process at work
    ticks: list[float] = []
    process = Process(loop, "sleeper")
    process.spawn(tick_for_ever(ticks, loop))
    # when it is put to sleep for five seconds
    loop.after(2_500, loop.outside, process.freeze)
    loop.after(7_500, loop.outside, process.thaw)
    loop.run_until_complete(asyncio.sleep(9.5))
    # then the timer that rang meanwhile is heard at its end
    assert [round(tick) for tick in ticks] == [1, 2, 8, 9]


def test_a_trigger_strikes_before_a_chosen_callback(loop: SimulationLoop) -> None:
    # given a process that would tick for ever, with two callbacks per tick (the timer, and the task it wakes)
    ticks: list[float] = []
    process = Process(loop, "victim")
    process.spawn(tick_for_ever(ticks, loop))
    # when it is to be killed before its sixth callback
    process.strike_after(5, process.kill)
    loop.run_until_complete(asyncio.sleep(10))
    # then it has begun and ticked twice
    assert len(ticks) == 2


def test_a_run_that_waits_for_nothing_is_an_error(loop: SimulationLoop) -> None:
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())
