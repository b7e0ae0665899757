"""The reader gives the bytes of a request back to the budget, however the request ends."""

from __future__ import annotations

import asyncio
import contextlib

from agents.read.path import ReadPath
from agents.read.reader import Want
from agents.tail.log_index import FileRef, LogIndex
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import IndexRow
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.memory import MemoryStore


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
