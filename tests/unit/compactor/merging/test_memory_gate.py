"""Merges that run at the same time hold no more memory than the limit."""

from __future__ import annotations

import asyncio

import pytest

from compactor.merging.memory_gate import MemoryGate, TurnGivenUpError


class Holder:
    """A merge that holds its memory until it is told to end."""

    def __init__(self, gate: MemoryGate, size_bytes: int) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._hold(gate, size_bytes))

    async def _hold(self, gate: MemoryGate, size_bytes: int) -> None:
        async with gate.held(size_bytes):
            self.began.set()
            await self.may_end.wait()

    async def end(self) -> None:
        self.may_end.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_that_does_not_fit_waits_until_it_does() -> None:
    seen: list[float] = []
    gate = MemoryGate(100, on_change=seen.append)
    first, second = Holder(gate, 60), Holder(gate, 60)
    await settle()
    assert (first.began.is_set(), second.began.is_set(), gate.held_bytes) == (True, False, 60)
    await first.end()
    await settle()
    assert second.began.is_set()
    await second.end()
    assert gate.held_bytes == 0 and max(seen) == 60


async def test_small_ones_do_not_pass_a_large_one_for_ever() -> None:
    gate = MemoryGate(100)
    first, large, small = Holder(gate, 50), Holder(gate, 80), Holder(gate, 10)
    await settle()
    assert not large.began.is_set() and not small.began.is_set()
    await first.end()
    await settle()
    assert large.began.is_set() and small.began.is_set()
    for each in (large, small):
        await each.end()


async def test_one_that_is_larger_than_everything_runs_alone() -> None:
    gate = MemoryGate(100)
    huge, small = Holder(gate, 1_000), Holder(gate, 1)
    await settle()
    assert huge.began.is_set() and not small.began.is_set()
    await huge.end()
    await small.began.wait()
    await small.end()
    assert gate.held_bytes == 0


async def test_one_that_gives_up_waiting_lets_the_next_in() -> None:
    gate = MemoryGate(100)
    first, large, small = Holder(gate, 50), Holder(gate, 80), Holder(gate, 10)
    await settle()
    large.task.cancel()
    await asyncio.gather(large.task, return_exceptions=True)
    await settle()
    assert small.began.is_set()
    # and a merge that gives up in the moment in which its turn comes returns the memory
    late = Holder(gate, 60)
    await settle()
    first.may_end.set()
    await asyncio.sleep(0)
    late.task.cancel()
    await asyncio.gather(late.task, first.task, return_exceptions=True)
    await small.end()
    assert gate.held_bytes == 0


@pytest.mark.parametrize("gives_up", ["before", "with", "after"])
async def test_one_that_gives_up_in_the_tick_of_a_release_costs_nobody_anything(gives_up: str) -> None:
    # given a merge that holds all memory, one that waits, and one behind it
    gate = MemoryGate(100)
    first, second, third = Holder(gate, 100), Holder(gate, 100), Holder(gate, 100)
    await settle()
    # when the second is halted in the moment in which the first ends
    if gives_up == "before":
        second.task.cancel()
    first.may_end.set()
    if gives_up == "after":
        await asyncio.sleep(0)
    second.task.cancel()
    results = await asyncio.gather(first.task, second.task, return_exceptions=True)
    # then nothing else happens: the third gets the memory, and returns it
    assert results[0] is None and isinstance(results[1], asyncio.CancelledError)
    await settle()
    assert third.began.is_set() and gate.held_bytes == 100
    await third.end()
    assert gate.held_bytes == 0


async def test_one_that_is_halted_leaves_the_line_at_once_and_the_next_moves_up() -> None:
    gate = MemoryGate(100)
    halted = asyncio.Event()
    first, small = Holder(gate, 50), None
    await settle()

    async def wait() -> None:
        async with gate.held(80, halted=halted):
            raise AssertionError("it has no memory")

    waiting = asyncio.create_task(wait())
    await settle()
    small = Holder(gate, 10)
    await settle()
    assert not small.began.is_set()
    halted.set()
    with pytest.raises(TurnGivenUpError):
        await waiting
    await settle()
    assert small.began.is_set() and gate.held_bytes == 60
    await first.end()
    await small.end()
    assert gate.held_bytes == 0


async def test_one_that_is_halted_when_its_turn_comes_has_its_turn() -> None:
    """A merge that holds the memory notices the halt by itself, and returns the memory as usual."""
    gate = MemoryGate(100)
    halted, had = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        async with gate.held(80, halted=halted):
            had.set()

    first = Holder(gate, 100)
    await settle()
    waiting = asyncio.create_task(wait())
    await settle()
    first.may_end.set()
    await asyncio.sleep(0)
    halted.set()
    await asyncio.gather(first.task, waiting)
    assert had.is_set() and gate.held_bytes == 0
