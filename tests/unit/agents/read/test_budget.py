"""The bound on the bytes of all Fetch answers: it is never passed, first come is first served, nothing is lost on the
way, and a store that does not answer holds up no other fetch.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from agents.read.budget import ByteBudget, Source


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
        first()  # its turn has come, and it is cancelled before it can notice
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
        release = await budget.take(chance.randrange(0, 1500), chance.choice(list(Source)))
        try:
            assert 0 <= budget.taken <= 1000
            await asyncio.sleep(0)
        finally:
            release()

    tasks = [asyncio.create_task(take()) for _ in range(200)]
    for task in chance.sample(tasks, 40):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.taken == 0


async def test_reads_that_wait_for_the_store_leave_the_rest_to_those_that_do_not() -> None:
    budget = ByteBudget(100)
    # given: the store does not answer, and fetches of old records hold the bytes they asked for
    old = await budget.take(1_000, Source.HISTORY)
    assert budget.taken == 50
    waiting = [asyncio.create_task(budget.take(50, Source.HISTORY)) for _ in range(10)]
    await asyncio.sleep(0)
    # then: the tail and bytes in memory go on
    tail = await asyncio.wait_for(budget.take(25, Source.TAIL), 1)
    more = asyncio.create_task(budget.take(10, Source.TAIL))
    await asyncio.sleep(0)
    assert not more.done(), "the tail and old records share three quarters"
    memory = await asyncio.wait_for(budget.take(25), 1)
    assert budget.taken == 100
    for release in (memory, tail, old):
        release()
    for each in (*waiting, more):
        (await asyncio.wait_for(each, 1))()
    assert budget.taken == 0


async def test_nobody_overtakes_one_who_waits_for_the_whole_budget() -> None:
    budget = ByteBudget(100)
    first = await budget.take(90)
    old = asyncio.create_task(budget.take(40, Source.HISTORY))
    await asyncio.sleep(0)
    small = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    assert (old.done(), small.done()) == (False, False)
    first()
    (await old)()
    (await small)()


async def test_one_who_goes_frees_those_who_waited_behind() -> None:
    budget = ByteBudget(100)
    first = await budget.take(90)
    gone, small = asyncio.create_task(budget.take(50)), asyncio.create_task(budget.take(5))
    await asyncio.sleep(0)
    gone.cancel()
    (await asyncio.wait_for(small, 1))()
    first()
    assert budget.taken == 0
