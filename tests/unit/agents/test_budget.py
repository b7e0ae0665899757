"""The bound over the bytes of all Fetch answers: never passed, first come first served, nothing lost on the way."""

from __future__ import annotations

import asyncio
import random

import pytest

from agents.read.budget import ByteBudget


async def test_what_fits_is_given_at_once_and_the_rest_waits_its_turn() -> None:
    budget = ByteBudget(100)
    first = await budget.take(60)
    second = asyncio.create_task(budget.take(50))
    third = asyncio.create_task(budget.take(10))
    await asyncio.sleep(0)
    assert (second.done(), third.done()) == (False, False), "the small one may not overtake"
    first()
    (await second)()
    (await third)()
    assert budget.taken == 0


async def test_more_than_there_is_gets_all_of_it_alone() -> None:
    budget = ByteBudget(100)
    release = await budget.take(10_000)
    assert budget.taken == 100
    release()
    release()
    assert budget.taken == 0, "released once"


@pytest.mark.parametrize("late", [False, True])
async def test_one_who_is_cancelled_leaves_nothing_behind(late: bool) -> None:
    budget = ByteBudget(100)
    first = await budget.take(100)
    gone, stays = asyncio.create_task(budget.take(100)), asyncio.create_task(budget.take(30))
    await asyncio.sleep(0)
    if late:
        first()  # its turn has come, and it is told to go before it can notice
        gone.cancel()
    else:
        gone.cancel()
        await asyncio.sleep(0)
        first()
    with pytest.raises(asyncio.CancelledError):
        await gone
    (await stays)()
    assert budget.taken == 0


async def test_any_mix_of_takers_keeps_the_bound_and_ends() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, budget = random.Random(seed), ByteBudget(1000)

    async def take() -> None:
        release = await budget.take(chance.randrange(0, 1500))
        assert 0 <= budget.taken <= 1000
        await asyncio.sleep(0)
        release()

    tasks = [asyncio.create_task(take()) for _ in range(200)]
    for task in chance.sample(tasks, 40):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.taken == 0
