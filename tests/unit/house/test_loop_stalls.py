"""The meter of stalls finds what keeps a loop, and nothing else."""

from __future__ import annotations

import asyncio
import time
import zlib

import pytest

from tests.fixtures.loop_stalls import TRIES, LoopStalls, assert_holds_up_nobody, lock_free_share, loop_stalls


def burn(cpu_s: float) -> None:
    ends = time.thread_time() + cpu_s
    while time.thread_time() < ends:
        pass


async def test_the_longest_callback_is_found_and_named() -> None:
    async def slow_step() -> None:
        await asyncio.sleep(0)
        burn(0.06)

    with loop_stalls() as stalls:
        await slow_step()
        asyncio.get_running_loop().call_later(0.001, burn, 0.12)
        await asyncio.sleep(0.2)

    assert stalls.longest_ms >= 120, stalls
    assert "burn" in stalls.longest
    assert stalls.busy_ms >= 180


async def test_waits_and_the_work_of_other_threads_are_no_stalls() -> None:
    with loop_stalls() as stalls:
        await asyncio.sleep(0.2)
        await asyncio.to_thread(burn, 0.2)

    assert stalls.callbacks >= 2
    assert stalls.longest_ms < 100, stalls


async def test_nothing_is_metered_after_the_end_not_even_after_an_error() -> None:
    with pytest.raises(KeyError), loop_stalls() as stalls:
        raise KeyError
    seen = stalls.callbacks
    await asyncio.sleep(0.01)
    assert stalls.callbacks == seen


@pytest.mark.parametrize("short_try", [1, TRIES, TRIES + 1])
async def test_work_that_is_long_in_each_try_is_found(short_try: int) -> None:
    tries = 0

    async def attempt() -> LoopStalls:
        nonlocal tries
        tries += 1
        with loop_stalls() as stalls:
            asyncio.get_running_loop().call_soon(burn, 0.001 if tries == short_try else 0.11)
            await asyncio.sleep(0.001)
        return stalls

    if short_try > TRIES:
        with pytest.raises(AssertionError, match="burn"):
            await assert_holds_up_nobody(attempt)
    else:
        await assert_holds_up_nobody(attempt)
    assert tries == min(short_try, TRIES)


def test_work_that_keeps_the_interpreters_lock_is_told_from_work_that_does_not() -> None:
    packed = zlib.compress(bytes(64 << 20))
    assert lock_free_share(lambda: sum(range(20_000_000))) < 0.25
    assert lock_free_share(lambda: zlib.decompress(packed)) > 0.25
