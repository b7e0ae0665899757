"""Readers of committed records see all of every committed transaction and nothing of another, in any layout.

Histories are random. Producers write to some partitions and commit or abort; other records lie between theirs. Files
are merged, a dedupe takes the records of aborted transactions and then, much later, their markers; log starts move,
objects are swept. The agent hears of it or lags behind, and starts cold while all this goes on. Reads begin anywhere,
and their answers have any size. Two clients go by their own rules; each has the list of aborted transactions that came
with this answer, and nothing from the answer before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.read.path import ReadPath
from agents.read.reader import Taken, Want
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.transactions import Aborted
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.agents import AgentMetadata
from metadata.contract.files import L0File
from metadata.contract.jobs import CleanedPartition
from metadata.contract.leveled import LeveledExtent
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import iter_index
from metadata.transactions.contract import AbortedTransaction
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.memory import MemoryStore
from tests.fixtures.chance import examples
from tests.fixtures.hand_merges import HandMerger, Stretch
from tests.fixtures.metadata_parts import Part
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from tests.property.test_read_levels import small_blocks
from wire.batch import BatchHeader, iter_headers, read_header
from wire.error_codes import ErrorCode
from wire.markers import read_marker
from wire.records import NewRecord

PARTITIONS = 2
PRODUCERS = ("a", "b", "c")
METRICS = Metrics()


@dataclass
class Transaction:
    producer_id: int
    first_offset: int
    outcome: bool | None = None
    """None: it is open. True: committed."""
    marker: int = -1


@dataclass
class Log:
    """One partition."""

    batches: dict[tuple[int, int], Transaction | None] = field(
        default_factory=dict[tuple[int, int], Transaction | None]
    )
    """All data that was ever written."""
    transactions: list[Transaction] = field(default_factory=list[Transaction])
    start: int = 0
    end: int = 0

    def committed(self, offset: int, stable: int) -> list[int]:
        """Base offsets of the batches that a reader of committed records must get from `offset` on."""
        return sorted(
            base
            for (base, last), transaction in self.batches.items()
            if last >= offset and last < stable and (transaction is None or transaction.outcome)
        )


class Eventful(Part):
    """The history goes on between the reads of a cold start."""

    def __init__(self, inner: AgentMetadata, world: World) -> None:
        super().__init__(inner)
        self._world = world

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        await self._world.meanwhile()
        return await self.inner.live_files(snapshot, after)

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        await self._world.meanwhile()
        return await self.inner.aborted_transactions(bases)

    async def tail(self, cursor: Cursor) -> Tail:
        await self._world.meanwhile()
        return await self.inner.tail(cursor)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.runtime = Runtime(clock=self.clock, ids=SystemIds(seed), metrics=METRICS)
        self.metadata = MemoryMetadata(runtime=self.runtime)
        self.store = MemoryStore(self.clock)
        self.index = LogIndex()
        self.logs = {number: Log() for number in range(1, PARTITIONS + 1)}
        self.open: dict[str, dict[int, Transaction]] = {}
        """Producer -> its ongoing transaction on each partition."""
        self.gone: dict[tuple[int, int], float] = {}
        """(partition, marker) of aborted transactions that the store forgot, and when."""
        self.starting: asyncio.Task[Any] | None = None
        self.follower = Follower(
            metadata=Eventful(self.metadata.agents, self),  # type: ignore[arg-type]
            topic_cache=TopicCache(),
            index=self.index,
            parked_readers=ParkedReaders(),
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(on_fatal=_fail),
            runtime=self.runtime,
        )
        self.settings = Settings(cache_cold_bytes=self.random.choice([0, 2_000, 100_000]))
        self.reads = ReadPath(
            settings=self.settings,
            index=self.index,
            store=self.store,
            metadata=self.metadata.readers,
            catch_up=self.follower.catch_up,
            runtime=self.runtime,
        )

    async def begin(self) -> None:
        topic = await self.metadata.agents.create_topic("t", partitions=PARTITIONS, configs={})
        self.writer = await TransactionalWriter.start(self.metadata, self.store, topic, runtime=self.runtime)
        self.producers: dict[str, Producer] = {each: await self.writer.producer(each) for each in PRODUCERS}
        self.merger = await HandMerger.start(self.metadata, self.store, runtime=self.runtime)
        await self.follower.catch_up()

    # ---- events

    async def meanwhile(self) -> None:
        # A poll that a read left behind may be under way too: it does not make a second history.
        if self.starting is not None and asyncio.current_task() is self.starting:
            for _ in range(self.random.choice([0, 0, 1, 2])):
                await self.event()

    async def event(self) -> None:
        await self.random.choices(
            [self.write, self.end_some, self.merge_l0, self.dedupe, self.delete_records, self.sweep],
            weights=[8, 6, 4, 4, 0.5, 2],
        )[0]()

    async def write(self) -> None:
        writes: list[Write] = []
        for partition in range(PARTITIONS):
            for _ in range(self.random.randint(0, 5)):
                name = self.random.choice([None, *PRODUCERS])
                records = [
                    NewRecord(1, b"k", bytes(self.random.choice([0, 100]))) for _ in range(self.random.randint(1, 3))
                ]
                writes.append(Write(partition, records, None if name is None else self.producers[name]))
        if not writes:
            return
        own, results = await self.writer.write(writes)
        for number, write in enumerate(writes):
            log, base = self.logs[write.partition + 1], results[number].base_offset
            transaction = None
            if write.producer is not None:
                ongoing = self.open.setdefault(write.producer.name, {})
                if write.partition + 1 not in ongoing:
                    ongoing[write.partition + 1] = Transaction(write.producer.producer_id, base)
                    log.transactions.append(ongoing[write.partition + 1])
                transaction = ongoing[write.partition + 1]
            log.batches[base, base + len(write.records) - 1] = transaction
            log.end = base + len(write.records)
        self._saw(own)

    async def end_some(self) -> None:
        names = [each for each in self.open if self.random.random() < 0.5]
        if not names:
            return
        ends = [(self.producers[each], self.random.random() < 0.5) for each in names]
        own = await self.writer.end(ends)
        of_producer = dict(zip((self.producers[each].producer_id for each in names), names, strict=True))
        outcomes = {producer.name: commit for producer, commit in ends}
        for row in iter_index(own.index):
            marker = read_marker(memoryview(own.inline)[row.position :])
            assert marker is not None
            name = of_producer[marker.producer_id]
            ended = self.open[name].pop(row.partition_id)
            ended.outcome, ended.marker = outcomes[name], row.base_offset
            assert marker.commit is outcomes[name]
            self.logs[row.partition_id].end = row.last_offset + 1
        for name in names:
            assert not self.open.pop(name)
        self._saw(own)

    def _saw(self, own: L0File) -> None:
        if self.random.random() < 0.4:
            self.follower.saw_own(own)

    async def merge_l0(self) -> None:
        live = await self.merger.live_l0()
        chosen = [each for each in live[: self.random.randint(0, 12)] if self.random.random() < 0.9]
        if chosen:
            await self.merger.merge(l0_files=chosen)

    async def dedupe(self) -> None:
        """Takes records of aborted transactions. The store forgets those of which nothing is left, and their markers go
        half a grace later."""
        number = self.random.choice(list(self.logs))
        log = self.logs[number]
        found: list[LeveledExtent] = list(await self.metadata.readers.leveled_extents(number, 0, limit=1_000))
        if not found:
            return
        first = self.random.choice([0, 0, self.random.randrange(len(found))])
        chosen = found[first : self.random.randint(first + 1, len(found))]
        held = {offset for each in chosen for offset in range(each.base_offset, each.last_offset + 1)}
        cleaned: list[int] = []
        for each in log.transactions:
            span = range(max(each.first_offset, log.start), each.marker + 1)
            if each.outcome is False and held.issuperset(span) and each.marker >= log.start:
                cleaned.append(each.marker)
        listed = {
            each.last_offset for each in self.metadata.database.transactions.aborted if each.partition_id == number
        }
        due_ms = self.clock.monotonic_ms() - self.settings.gc_grace_ms / 2

        def shape(stretch: Stretch) -> list[Stretch]:
            kept = [batch for batch in stretch.batches if not self._goes(number, read_header(batch), listed, due_ms)]
            return [Stretch(number, stretch.base_offset, stretch.last_offset, kept)]

        claimed = await self.merger.claim(extents=[each.extent_id for each in chosen])
        commit, _ = await self.merger.write(claimed, level=2, shape=shape)
        passed = CleanedPartition(
            partition_id=number, cleaned_through_offset=None, passes_needed=1, aborted_gone=cleaned
        )
        await self.metadata.compactors.commit_merge(replace(commit, cleaned=[passed]))
        for marker in cleaned:
            self.gone.setdefault((number, marker), self.clock.monotonic_ms())

    def _goes(self, number: int, header: BatchHeader, listed: set[int], due_ms: float) -> bool:
        log, place = self.logs[number], (header.base_offset, header.last_offset)
        if header.is_control:
            gone_ms = self.gone.get((number, header.base_offset))
            return header.base_offset not in listed and gone_ms is not None and gone_ms <= due_ms
        transaction = log.batches[place]
        return transaction is not None and transaction.outcome is False

    async def delete_records(self) -> None:
        number = self.random.choice(list(self.logs))
        log = self.logs[number]
        log.start = await self.metadata.agents.delete_records(number, self.random.randint(log.start, log.end))

    async def sweep(self) -> None:
        """End the grace period of everything that is dead. An agent never lags by half a grace."""
        await self.store.delete_many([file.key for file in await self.metadata.deletion.dead_files(grace_ms=0)])
        later_ms = self.random.choice([0, 20_000, 100_000, self.settings.gc_grace_ms])
        if later_ms < 1_000 * 60 * 5:
            self.clock.advance_ms(later_ms)
        elif self.starting is None:
            await self.follower.catch_up()
            self.clock.advance_ms(later_ms)
            await self.follower.catch_up()

    async def catch_up(self) -> None:
        await self.follower.catch_up()

    async def start_cold(self) -> None:
        self.starting = asyncio.current_task()
        try:
            await self.follower._load_snapshot()
        finally:
            self.starting = None
        self.reads.forget(self.logs)

    # ---- checks

    async def read(self) -> None:
        wants: list[Want] = []
        for number in self.random.sample(list(self.logs), self.random.randint(1, PARTITIONS)):
            log = self.index.partition(number)
            assert log is not None
            if log.start < log.end:
                offset = self.random.randint(log.start, log.end - 1)
                wants.append(Want(number, offset, self.random.choice([0, 100, 1_000, 10_000]), committed_only=True))
        reading = await self.reads.reader.read(wants, bytes_max=self.random.choice([0, 500, 100_000]))
        reading.release()
        for want, taken in zip(wants, reading.taken, strict=True):
            self.check(want, taken)

    def check(self, want: Want, taken: Taken) -> int:
        """Returns the offset to go on from."""
        log, known = self.logs[want.partition_id], self.index.partition(want.partition_id)
        assert known is not None
        stable, offset = known.last_stable_offset, want.offset
        if taken.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            assert offset < log.start
            return log.start
        assert taken.error is ErrorCode.NONE
        data = b"".join(bytes(each) for each in taken.buffers)
        batches = [(head, memoryview(data)[at : at + head.size_bytes]) for at, head in iter_headers(data)]
        firsts = [each.first_offset for each in taken.aborted]
        assert firsts == sorted(set(firsts))
        if not batches:
            assert not taken.aborted
            return offset
        after = batches[-1][0].last_offset + 1
        assert offset < after <= stable
        assert all(each.first_offset < after and each.last_offset >= offset for each in taken.aborted)
        expected = log.committed(max(offset, log.start), after)
        for got in (java(batches, taken.aborted), librdkafka(batches, taken.aborted)):
            # Below a log start that the agent has not heard of, merges may have left something or not.
            assert [each for each in got if each >= log.start or each in expected] == expected
        return after

    async def read_through(self) -> None:
        """What is committed arrives, once and in order, up to the last stable offset."""
        await self.follower.catch_up()
        for number, log in self.logs.items():
            offset, known = log.start, self.index.partition(number)
            assert known is not None and known.end == log.end
            opens = [each.first_offset for each in log.transactions if each.outcome is None]
            stable = max(log.start, min(opens, default=log.end))
            assert known.last_stable_offset == stable
            while offset < stable:
                want = Want(number, offset, self.random.choice([1, 1_000, 5_000]), committed_only=True)
                reading = await self.reads.reader.read([want], bytes_max=100_000)
                reading.release()
                after = self.check(want, reading.taken[0])
                if after == offset:
                    assert not log.committed(offset, stable)
                    break
                offset = after


def java(batches: Sequence[tuple[BatchHeader, memoryview]], aborted: Sequence[Aborted]) -> list[int]:
    """Base offsets of the batches that the Java client keeps (`CompletedFetch.nextFetchedRecord`)."""
    kept: list[int] = []
    queue, leaving = list(aborted), set[int]()
    for header, body in batches:
        while queue and queue[0].first_offset <= header.last_offset:
            leaving.add(queue.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(body)
            assert marker is not None
            if not marker.commit:
                leaving.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in leaving):
            kept.append(header.base_offset)
    return kept


def librdkafka(batches: Sequence[tuple[BatchHeader, memoryview]], aborted: Sequence[Aborted]) -> list[int]:
    """The same for librdkafka, which pops an entry of the producer with each ABORT marker."""
    kept: list[int] = []
    lists: dict[int, list[int]] = {}
    for each in aborted:
        lists.setdefault(each.producer_id, []).append(each.first_offset)
    for header, body in batches:
        firsts = lists.get(header.producer_id, [])
        if header.is_control:
            marker = read_marker(body)
            assert marker is not None
            if not marker.commit and firsts and firsts[0] <= header.base_offset:
                firsts.pop(0)
        elif not (header.is_transactional and firsts and firsts[0] <= header.base_offset):
            kept.append(header.base_offset)
    return kept


def _fail(error: Exception) -> None:
    raise AssertionError(error)


async def history(seed: int, steps: int = 120) -> None:
    world = World(seed)
    await world.begin()
    try:
        for _ in range(steps):
            step: Any = world.random.choices(
                [world.event, world.catch_up, world.start_cold, world.read], weights=[20, 5, 1, 14]
            )[0]
            await step()
        await world.read_through()
    finally:
        await world.reads.close()


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_committed_records_arrive_and_no_others(seed: int) -> None:
    with small_blocks():
        asyncio.run(history(seed))
