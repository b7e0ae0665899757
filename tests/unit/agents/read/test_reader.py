"""The reader gives the bytes of a request back to the budget, however the request ends."""

from __future__ import annotations

import asyncio
import contextlib

from agents.read.path import ReadPath
from agents.read.reader import Want
from agents.tail.log_index import FileRef, LogIndex
from agents.yielding import PARTS_PER_TURN
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import IndexRow
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.format.file_format import ExtentSource, build_file
from storage.keys import file_key
from storage.memory import MemoryStore
from storage.parts import Parts
from tests.fixtures.hand_merges import HandMerger
from wire.batch import iter_headers
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


async def test_a_merged_file_that_knows_more_than_the_high_watermark_gives_no_batch_above_it() -> None:
    # given: two batches of ten records, merged into one extent
    runtime = Runtime()
    metadata, store = MemoryMetadata(runtime=runtime), MemoryStore()
    topic = await metadata.agents.create_topic("t", partitions=1, configs={})
    [partition_id] = topic.partition_ids
    lease = await metadata.agents.register_agent(AgentAddress(host="h", port=1))
    batches = [build_batch([NewRecord(1_000, None, b"v")] * 10) for _ in range(2)]
    source = ExtentSource(
        topic_id=topic.topic_id,
        partition=0,
        chunks=batches,
        record_count=20,
        min_timestamp_ms=1_000,
        max_timestamp_ms=1_000,
    )
    file = build_file([source], level=0, created_ms=0)
    key = file_key(level=0, writer_id=1, epoch=0, created_ms=0, file_uuid=runtime.ids.uuid7(0))
    await store.put_if_absent(key, file.body, crc32c=file.crc32c)
    rows = [
        L0Batch(
            partition_id=partition_id,
            position=file.positions[0] + at,
            length=head.size_bytes,
            record_count=10,
            min_timestamp_ms=1_000,
            max_timestamp_ms=1_000,
        )
        for at, head in iter_headers(b"".join(batches))
    ]
    await metadata.agents.commit_l0(
        CommitL0(lease=lease, seq=1, key=key, size_bytes=len(file.body), crc32c=file.crc32c, batches=rows)
    )
    merger = await HandMerger.start(metadata, store, runtime=runtime)
    await merger.merge(l0_files=await merger.live_l0())

    async def catch_up() -> None:
        raise AssertionError

    for end, expected in ((10, [0]), (15, [0]), (20, [0, 10])):
        # when: the agent has heard of the log up to `end`, and its answer names that as the high watermark
        index = LogIndex()
        index.open_partition(partition_id, start=0, end=end)
        reads = ReadPath(
            settings=Settings(),
            index=index,
            store=store,
            metadata=metadata.readers,
            catch_up=catch_up,
            runtime=runtime,
        )
        reading = await reads.reader.read([Want(partition_id, 0, 1 << 20)], bytes_max=1 << 20)
        # then: a consumer would take records above it for lost when it is told the watermark
        data = b"".join(bytes(each) for each in reading.taken[0].buffers)
        assert [head.base_offset for _, head in iter_headers(data)] == expected, end
        reading.release()
        await reads.close()
