"""The reader gives the bytes of a request back to the budget, however the request ends."""

from __future__ import annotations

import asyncio
import contextlib

from agents.read.path import ReadPath
from agents.read.reader import Want
from agents.tail.log_index import FileRef, LogIndex
from agents.yielding import PARTS_PER_TURN
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import IndexRow
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.memory import MemoryStore
from storage.parts import Parts
from wire.records import NewRecord, build_batch


async def test_a_client_that_goes_away_while_a_gone_file_is_looked_up_again_gives_its_bytes_back() -> None:
    # given: a file that the index knows and the store does not have, and a look at the tail that does not end
    index, looks = LogIndex(), asyncio.Event()
    index.open_partition(1, start=0, end=0)
    index.add_file(1, FileRef("gone", 100, 1000), [IndexRow(1, 0, 9, 0, 100, 0, 0)])

    async def catch_up() -> None:
        looks.set()
        await asyncio.Event().wait()

    reads = ReadPath(
        settings=Settings(),
        index=index,
        store=MemoryStore(),
        metadata=MemoryMetadata().readers,
        catch_up=catch_up,
        runtime=Runtime(),
    )
    reading = asyncio.create_task(reads.reader.read([Want(1, 0, 1 << 20)], bytes_max=1 << 20))
    async with asyncio.timeout(10):
        await looks.wait()
    assert reads.reader._budget.taken == 100
    # when
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    # then
    assert reads.reader._budget.taken == 0
    await reads.close()


async def test_an_answer_of_many_small_batches_leaves_turns_to_others() -> None:
    # given: 10,000 batches of one record, in memory
    one = build_batch([NewRecord(0, None, b"v")])
    body, count = one * 10_000, 10_000
    index = LogIndex()
    index.open_partition(1, start=0, end=0)
    index.add_file(1, FileRef("here", len(body), 1000), [IndexRow(1, 0, count - 1, 0, len(body), 0, 0)])

    async def catch_up() -> None:
        raise AssertionError

    reads = ReadPath(
        settings=Settings(),
        index=index,
        store=MemoryStore(),
        metadata=MemoryMetadata().readers,
        catch_up=catch_up,
        runtime=Runtime(),
    )
    reads.hot_cache.put_file("here", Parts([memoryview(body)]))
    loop, turns, ticking = asyncio.get_running_loop(), [0], [True]

    def tick() -> None:
        turns[0] += 1
        if ticking:
            loop.call_soon(tick)

    tick()
    # when
    reading = await reads.reader.read([Want(1, 0, len(body))], bytes_max=len(body))
    ticking.clear()
    # then
    assert reading.taken[0].size_bytes == len(body)
    assert turns[0] >= 1 + count // PARTS_PER_TURN
    # and the file is pinned until the answer has left
    assert reads.hot_cache.pinned_bytes == len(body)
    reading.release()
    assert reads.hot_cache.pinned_bytes == 0
    await reads.close()
