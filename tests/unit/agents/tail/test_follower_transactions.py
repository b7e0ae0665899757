"""The follower and transactions: own files, the tail, and the order of reads of a cold start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex, PartitionLog
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.agents import AgentMetadata
from metadata.contract.files import L0File
from metadata.contract.jobs import CleanedPartition
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.memory.store import MemoryMetadata
from metadata.transactions.contract import AbortedTransaction
from runtime.runtime import Runtime
from storage.memory import MemoryStore
from tests.fixtures.hand_merges import HandMerger, Stretch
from tests.fixtures.metadata_parts import Part
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from wire.records import NewRecord


class Told(Part):
    """Notes the reads of a follower; something may happen before one of them."""

    def __init__(self, inner: AgentMetadata) -> None:
        super().__init__(inner)
        self.reads: list[str] = []
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.is_forgetful = False

    async def _note(self, name: str) -> None:
        self.reads.append(name)
        if (happens := self.before.pop(name, None)) is not None:
            await happens()

    async def snapshot(self) -> Snapshot:
        await self._note("snapshot")
        return await self.inner.snapshot()

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        await self._note("files")
        return await self.inner.live_files(snapshot, after)

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        await self._note(f"aborted {dict(bases)}")
        return await self.inner.aborted_transactions(bases)

    async def tail(self, cursor: Cursor) -> Tail:
        await self._note("tail")
        if self.is_forgetful:
            self.is_forgetful = False
            return Tail(files=(), changes=(), cursor=cursor, cold=True)
        return await self.inner.tail(cursor)


class World:
    """A topic of one partition, a writer, and a follower that the test starts."""

    def __init__(self) -> None:
        self.metadata, self.store, self.index = MemoryMetadata(), MemoryStore(), LogIndex()
        self.agents = Told(self.metadata.agents)
        self.merged: list[str] = []
        self.live_files: list[int] = []
        self.parked = ParkedReaders()
        self.follower = Follower(
            metadata=self.agents,  # type: ignore[arg-type]
            topic_cache=TopicCache(),
            index=self.index,
            parked_readers=self.parked,
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(
                on_fatal=_fail, on_merged=self.merged.extend, on_live_files=self.live_files.append
            ),
            runtime=Runtime(),
        )

    async def begin(self) -> World:
        topic = await self.metadata.agents.create_topic("t", partitions=1, configs={})
        self.writer = await TransactionalWriter.start(self.metadata, self.store, topic)
        self.producer = await self.writer.producer("id")
        self.merger = await HandMerger.start(self.metadata, self.store)
        return self

    async def write(self, producer: Producer | None = None) -> L0File:
        own, _ = await self.writer.write([Write(0, [NewRecord(1, b"k", b"v")], producer)])
        return own

    @property
    def log(self) -> PartitionLog:
        log = self.index.partition(1)
        assert log is not None
        return log

    def seen(self) -> tuple[int, int, list[tuple[int, int]]]:
        """(last stable offset, end, aborted transactions)"""
        transactions = self.log.transactions
        aborted = [each[1:3] for each in transactions.aborted] if transactions is not None else []
        return self.log.last_stable_offset, self.log.end, aborted


def _fail(error: Exception) -> None:
    raise AssertionError(error)


async def test_transactions_come_with_own_files_and_with_those_of_others() -> None:
    world = await World().begin()
    await world.follower.catch_up()
    for is_own in (True, False):
        base = world.log.end
        written = await world.write(world.producer)
        if is_own:
            world.follower.saw_own(written)
        await world.follower.catch_up()
        assert world.seen()[:2] == (base, base + 1)
        ended = await world.writer.end([(world.producer, False)])
        if is_own:
            world.follower.saw_own(ended)
        await world.follower.catch_up()
        assert world.seen()[:2] == (base + 2, base + 2)
    assert world.seen()[2] == [(0, 1), (2, 3)]
    assert world.live_files[-1] == 2, "files of markers stall nobody"


async def test_own_markers_that_come_before_older_records_end_nothing_early() -> None:
    world = await World().begin()
    world.follower.saw_own(await world.write(world.producer))
    other = await world.writer.producer("other")
    await world.write(other)  # of another agent, as far as this one can tell
    world.follower.saw_own(await world.writer.end([(world.producer, False)]))
    await world.follower.catch_up()
    assert world.seen() == (1, 3, [(0, 2)])


async def test_a_parked_reader_wakes_when_a_transaction_ends() -> None:
    world = await World().begin()
    await world.write(world.producer)
    await world.follower.catch_up()
    waiting = asyncio.create_task(world.parked.wait([1], 10_000))
    await asyncio.sleep(0)
    world.follower.saw_own(await world.writer.end([(world.producer, True)]))
    assert await waiting
    assert world.seen() == (2, 2, [])


async def test_a_cold_start_asks_from_the_lowest_offset_in_l0_and_then_for_what_was_merged() -> None:
    world = await World().begin()
    for _ in range(2):
        await world.write(world.producer)
        await world.writer.end([(world.producer, False)])
    await world.merger.merge(l0_files=(await world.merger.live_l0())[:1])
    await world.write(world.producer)
    await world.follower.start()
    await world.follower.stop()
    assert world.agents.reads == ["snapshot", "files", "files", "aborted {1: 1}", "tail"]
    assert world.seen() == (4, 5, [(0, 1), (2, 3)])


async def test_a_cold_start_without_files_in_l0_asks_no_more() -> None:
    world = await World().begin()
    await world.follower.start()
    await world.follower.stop()
    assert world.agents.reads == ["snapshot", "files"]


async def test_what_was_merged_and_forgotten_during_a_cold_start_is_not_read_from_l0() -> None:
    world = await World().begin()
    written = await world.write(world.producer)
    await world.writer.end([(world.producer, False)])
    late = await world.write()

    async def dedupe() -> None:
        await world.merger.merge(l0_files=(await world.merger.live_l0())[:2])
        [extent] = await world.metadata.readers.leveled_extents(1, 0)
        claimed = await world.merger.claim(extents=[extent.extent_id])
        commit, _ = await world.merger.write(claimed, level=2, shape=lambda each: [Stretch(1, 0, 1, [])])
        gone = CleanedPartition(partition_id=1, cleaned_through_offset=None, passes_needed=1, aborted_gone=[1])
        await world.metadata.compactors.commit_merge(replace(commit, cleaned=[gone]))
        assert not world.metadata.database.transactions.aborted

    # given: a merge and a dedupe after the files were read, before the aborted transactions are asked for
    world.agents.before["aborted {1: 0}"] = dedupe
    await world.follower.start()
    await world.follower.stop()
    # then: nobody reads the aborted record, of which no list says anything any more
    assert [each.file_id for each in world.index.extents_from(1, 0)] == [late.file_id]
    assert written.key in world.merged
    assert world.seen() == (3, 3, [])


async def test_a_log_start_that_moves_during_a_cold_start_is_heard_of_before_anybody_reads() -> None:
    world = await World().begin()
    await world.write(world.producer)
    await world.writer.end([(world.producer, False)])
    await world.write()

    async def delete() -> None:
        await world.metadata.agents.delete_records(1, 2)

    world.agents.before["aborted {1: 0}"] = delete
    await world.follower.start()
    await world.follower.stop()
    assert (world.log.start, world.seen()) == (2, (3, 3, []))


async def test_a_snapshot_that_is_too_old_by_the_time_it_was_taken_in_is_replaced_by_another() -> None:
    world = await World().begin()
    await world.write(world.producer)
    world.agents.is_forgetful = True
    await world.follower.start()
    await world.follower.stop()
    assert world.agents.reads == ["snapshot", "files", "files", "aborted {1: 0}", "tail"] * 2
    assert world.seen() == (0, 1, [])


async def test_own_ends_during_a_cold_start_are_kept() -> None:
    world = await World().begin()
    await world.write(world.producer)
    await world.follower.catch_up()

    async def end() -> None:
        world.follower.saw_own(await world.writer.end([(world.producer, False)]))
        assert world.seen() == (2, 2, [(0, 1)])

    world.agents.before["files"] = end
    await world.follower._load_snapshot()
    assert world.seen() == (2, 2, [(0, 1)])
    await world.follower.catch_up()
    assert (world.seen(), world.index.gaps) == ((2, 2, [(0, 1)]), 0)
