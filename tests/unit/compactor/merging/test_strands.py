"""Strands and their turns, and the memory for keys that they share."""

from __future__ import annotations

import asyncio

import pytest

from compactor.cleaning.dedupe_buffer import DedupeBuffer, bytes_of_keys
from compactor.merging.key_memory import KeyMemory, first_fit
from compactor.merging.strands import Turn, side_by_side


async def test_items_begin_in_order_and_write_one_after_the_other() -> None:
    said: list[str] = []

    async def work(item: int, turn: Turn) -> int:
        said.append(f"begin {item}")
        await asyncio.sleep(0)
        await turn.come()
        said.append(f"write {item}")
        await asyncio.sleep(0)
        said.append(f"wrote {item}")
        return item * item

    assert await side_by_side(range(7), work, strands=3) == [n * n for n in range(7)]
    assert [each for each in said if each.startswith("w")] == [
        f"{done} {item}" for item in range(7) for done in ("write", "wrote")
    ]
    assert said.index("begin 2") < said.index("write 0")  # three at once
    assert said.index("begin 3") > said.index("wrote 0")  # and never four


async def test_the_first_error_is_raised_when_all_strands_have_ended() -> None:
    ended: list[int] = []

    async def work(item: int, turn: Turn) -> None:
        try:
            if item == 1:
                raise ValueError("the first")
            await turn.come()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        await side_by_side(range(5), work, strands=3)
    assert sorted(ended) == [0, 1, 2]


async def test_no_items_and_one_item_need_no_strands() -> None:
    async def work(item: int, turn: Turn) -> int:
        await turn.come()
        return item

    assert await side_by_side([], work, strands=4) == []
    assert await side_by_side([5], work, strands=4) == [5]


def test_the_first_free_stretch_that_is_large_enough_is_taken() -> None:
    assert first_fit([], 100, 100) == (0, 100)
    assert first_fit([], 101, 100) is None
    assert first_fit([(0, 60)], 100, 200) == (64, 164)
    assert first_fit([(64, 128), (192, 256)], 64, 256) == (0, 64)
    assert first_fit([(0, 64), (128, 192)], 65, 257) == (192, 257)
    assert first_fit([(0, 64), (128, 192)], 65, 256) is None


async def test_small_dedupes_share_the_memory_and_a_large_one_has_its_turn() -> None:
    memory = KeyMemory(100)
    order: list[str] = []
    first_may_end = asyncio.Event()

    async def dedupe(name: str, records: int) -> None:
        async with memory.buffer(records) as buffer:
            order.append(name)
            assert buffer.keys_max == min(records, 100)
            if name == "first":
                await first_may_end.wait()

    running: list[asyncio.Task[None]] = []
    for name, records in (("first", 20), ("second", 20), ("whole", 10_000), ("last", 20)):
        running.append(asyncio.create_task(dedupe(name, records)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    # The last one would fit, but it came after the one that needs everything.
    assert order == ["first", "second"]
    first_may_end.set()
    await asyncio.gather(*running)
    assert order == ["first", "second", "whole", "last"]


async def test_a_dedupe_that_is_cancelled_while_it_waits_leaves_the_memory_to_the_others() -> None:
    memory = KeyMemory(100)
    async with memory.buffer(60):
        whole = asyncio.create_task(_entered(memory, 100))
        await asyncio.sleep(0)
        small = asyncio.create_task(_entered(memory, 10))
        await asyncio.sleep(0)
        assert not small.done()
        whole.cancel()
        assert await small == 10
    assert await _entered(memory, 100) == 100


async def test_a_dedupe_that_is_cancelled_when_its_turn_comes_gives_it_back() -> None:
    memory = KeyMemory(100)
    async with memory.buffer(100):
        waiting = asyncio.create_task(_entered(memory, 100))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await _entered(memory, 100) == 100


async def _entered(memory: KeyMemory, records: int) -> int:
    async with memory.buffer(records) as buffer:
        return buffer.keys_max


def test_a_table_needs_memory_of_its_size() -> None:
    assert DedupeBuffer(100).bytes_allocated == bytes_of_keys(100)
