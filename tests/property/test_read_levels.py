"""A partition in any layout over L0, L1 and L2 reads as the plain list of its batches does.

Histories are random. Files are written, merged with gaps, empty and flagged extents, merged again, and deleted from the
log start; their objects are swept. The index is up to date or not, and look-ups are cached. Reads begin anywhere and
ask for any number of bytes. The model is the list of all batches ever written, and of those that merges have kept.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.read.path import ReadPath
from agents.read.reader import Taken, Want
from agents.read.timestamps.budget import LookUpBudget
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.own_files import own_file
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.leveled import LeveledExtent
from metadata.memory.store import MemoryMetadata
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.format.file_format import ExtentSource, build_file
from storage.keys import file_key
from storage.memory import MemoryStore
from tests.fixtures.chance import examples
from tests.fixtures.hand_merges import HandMerger, Stretch
from wire.batch import iter_headers, read_header
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch, walk

BLOCK_BYTES = 700
READ_BYTES_MIN = 200
PARTITIONS = 2
METRICS = Metrics()


@contextmanager
def small_blocks() -> Iterator[None]:
    """Small blocks, so that a few records fill several blocks of a file and of the cache."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("agents.read.plan", "agents.read.timestamps.search", "storage.format.file_writer"):
            patch.setattr(f"{module}.BLOCK_BYTES", BLOCK_BYTES)
        for module in ("agents.read.cache", "agents.read.blocks", "agents.read.ahead"):
            patch.setattr(f"{module}.BLOCK_BYTES", BLOCK_BYTES // 2)
        patch.setattr("agents.read.plan.READ_BYTES_MIN", READ_BYTES_MIN)
        patch.setattr("agents.read.reader.READ_BYTES_MIN", READ_BYTES_MIN)
        patch.setattr("agents.read.leveled.EXTENTS_PER_LOOK_UP", 2)
        patch.setattr("agents.read.timestamps.search.EXTENTS_PER_LOOK_UP", 2)
        yield


@dataclass
class Model:
    """One partition. Batches are (base offset, last offset) -> bytes as a reader should get them."""

    written: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    kept: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """The batches that no merge removed, in no flagged extent and not below the log start."""
    flagged: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    start: int = 0
    end: int = 0

    def next_kept(self, offset: int, end: int) -> tuple[int, int] | None:
        """The batch that a read from `offset` must find."""
        found = [each for each in self.kept if each[1] >= offset and each[1] < end]
        return min(found, default=None)

    def next_flagged(self, offset: int) -> int | None:
        return min((base for base, last in self.flagged if last >= offset), default=None)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.runtime = Runtime(clock=self.clock, ids=SystemIds(seed), metrics=METRICS)
        self.metadata = MemoryMetadata(runtime=self.runtime)
        self.store = MemoryStore(self.clock)
        self.index, self.seq = LogIndex(), 0
        self.models = {number: Model() for number in range(1, PARTITIONS + 1)}
        self.follower = Follower(
            metadata=self.metadata.agents,
            topic_cache=TopicCache(),
            index=self.index,
            parked_readers=ParkedReaders(),
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(on_fatal=_fail),
            runtime=self.runtime,
        )
        self.reads = ReadPath(
            settings=Settings(cache_cold_bytes=self.random.choice([0, 2_000, 100_000])),
            index=self.index,
            store=self.store,
            metadata=self.metadata.readers,
            catch_up=self.follower.catch_up,
            runtime=self.runtime,
        )

    async def begin(self) -> None:
        topic = await self.metadata.agents.create_topic("t", partitions=PARTITIONS, configs={})
        assert list(topic.partition_ids) == list(self.models)
        self.topic_id = topic.topic_id
        self.lease: WriterLease = await self.metadata.agents.register_agent(AgentAddress(host="h", port=1))
        self.merger = await HandMerger.start(self.metadata, self.store, runtime=self.runtime)
        await self.follower.catch_up()  # not started: the history decides when it looks

    async def end(self) -> None:
        await self.reads.close()

    # ---- events

    async def write(self) -> None:
        """One L0 file with batches of some partitions."""
        chosen = [number for number in self.models if self.random.random() < 0.8] or [1]
        batches = {number: [self._batch() for _ in range(self.random.randint(1, 6))] for number in chosen}
        sources = [
            ExtentSource(
                topic_id=self.topic_id,
                partition=number - 1,
                chunks=of_partition,
                record_count=0,
                min_timestamp_ms=-1,
                max_timestamp_ms=-1,
            )
            for number, of_partition in batches.items()
        ]
        file = build_file(sources, level=0, created_ms=0)
        self.seq += 1
        now_ms = self.clock.wall_ms()
        key = file_key(level=0, writer_id=1, epoch=0, created_ms=now_ms, file_uuid=self.runtime.ids.uuid7(now_ms))
        await self.store.put_if_absent(key, file.body, crc32c=file.crc32c)
        rows: list[L0Batch] = []
        for number, position in zip(batches, file.positions, strict=True):
            for batch in batches[number]:
                rows.append(_row(number, position, batch))
                position += len(batch)
        request = CommitL0(
            lease=self.lease, seq=self.seq, key=key, size_bytes=len(file.body), crc32c=file.crc32c, batches=rows
        )
        committed = await self.metadata.agents.commit_l0(request)
        for row, result in zip(rows, committed.results, strict=True):
            model, base = self.models[row.partition_id], result.base_offset
            place = (base, base + row.record_count - 1)
            model.written[place] = file.body[row.position : row.position + row.length]
            model.kept.add(place)
            model.end = place[1] + 1
        if self.random.random() < 0.5:
            self.follower.saw_own(own_file(self.lease, self.seq, key, len(file.body), committed))

    def _batch(self) -> bytes:
        size = self.random.choice([0, 10, 100, 1_500])
        stamps = [self.random.randint(1, 1_000) for _ in range(self.random.randint(1, 4))]
        return build_batch([NewRecord(stamp, b"k", bytes(size)) for stamp in stamps])

    async def merge_l0(self) -> None:
        live = await self.merger.live_l0()
        chosen = [each for each in live if self.random.random() < 0.7]
        if chosen:
            await self.merger.merge(l0_files=chosen, shape=self.shape)

    async def merge_leveled(self) -> None:
        found: list[LeveledExtent] = []
        for number in self.models:
            found += await self.metadata.readers.leveled_extents(number, 0, limit=1_000)
        chosen = [each.extent_id for each in found if self.random.random() < 0.5]
        if chosen:
            await self.merger.merge(extents=chosen, level=2, shape=self.shape)

    def shape(self, stretch: Stretch) -> list[Stretch]:
        """Remove some batches, cut extents at random places between the others, and flag some extents."""
        model = self.models[stretch.partition_id]
        pieces: list[Stretch] = [Stretch(stretch.partition_id, stretch.base_offset, stretch.last_offset, [])]
        goes = self.random.choice([0.0, 0.3, 0.9, 1.0])
        for batch in stretch.batches:
            header = read_header(batch)
            if self.random.random() < 0.2 and header.base_offset > pieces[-1].base_offset:
                pieces[-1].last_offset = header.base_offset - 1
                pieces.append(Stretch(stretch.partition_id, header.base_offset, stretch.last_offset, []))
            if self.random.random() < goes:
                model.kept.discard((header.base_offset, header.last_offset))
            else:
                pieces[-1].batches.append(batch)
        for piece in pieces:
            if piece.batches and self.random.random() < 0.05:
                piece.flagged = "damaged"
                model.flagged.append((piece.base_offset, piece.last_offset))
                model.kept = {each for each in model.kept if not piece.base_offset <= each[0] <= piece.last_offset}
        return pieces

    async def delete_records(self) -> None:
        number = self.random.choice(list(self.models))
        model = self.models[number]
        low = await self.metadata.agents.delete_records(number, self.random.randint(model.start, model.end))
        model.start = low
        model.kept = {each for each in model.kept if each[1] >= low}
        model.flagged = [each for each in model.flagged if each[1] >= low]

    async def sweep(self) -> None:
        """End the grace period of everything that is dead."""
        await self.store.delete_many([file.key for file in await self.metadata.deletion.dead_files(grace_ms=0)])
        self.clock.advance_ms(self.random.choice([0, 20_000, 100_000]))

    async def catch_up(self) -> None:
        await self.follower.catch_up()

    # ---- checks

    async def read(self) -> None:
        wants: list[Want] = []
        for number in self.random.sample(list(self.models), self.random.randint(1, PARTITIONS)):
            log = self.index.partition(number)
            assert log is not None
            if log.start < log.end:
                offset = self.random.randint(log.start, log.end - 1)
                wants.append(Want(number, offset, self.random.choice([0, 100, 1_000, 10_000])))
        bytes_max = self.random.choice([0, 500, 5_000, 100_000])
        reading = await self.reads.reader.read(wants, bytes_max=bytes_max)
        reading.release()
        # With records at hand, a partition whose file has just gone may have to be requested again.
        nothing = not any(taken.buffers for taken in reading.taken)
        is_first = True
        for want, taken in zip(wants, reading.taken, strict=True):
            limit = min(want.bytes_max, bytes_max)
            self.check(want, taken, must_have=nothing, limit=limit, is_first=is_first)
            is_first = is_first and not taken.buffers

    def check(self, want: Want, taken: Taken, *, must_have: bool, limit: int, is_first: bool = True) -> int:
        """Read once. Returns the offset to go on from."""
        model, offset = self.models[want.partition_id], want.offset
        log = self.index.partition(want.partition_id)
        assert log is not None
        if taken.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            assert offset < model.start, "only deleted offsets are out of range"
            return model.start
        data = b"".join(bytes(each) for each in taken.buffers)
        assert len(data) == taken.size_bytes
        needed, damaged = model.next_kept(max(offset, model.start), log.end), model.next_flagged(offset)
        if taken.error is ErrorCode.CORRUPT_MESSAGE:
            assert not data
            is_damaged = damaged is not None and (needed is None or damaged <= needed[0])
            assert is_damaged or offset < model.start, "nothing readable comes before it"
            return -1
        assert taken.error is ErrorCode.NONE
        batches = [(head, data[at : at + head.size_bytes]) for at, head in iter_headers(data)]
        if must_have and not batches and needed is not None:
            assert damaged is not None and damaged < needed[0], f"{needed} was not found from {offset} on"
        assert len(data) <= limit or (is_first and len(batches) == 1)
        for head, whole in batches:
            place = (head.base_offset, head.last_offset)
            assert whole[16:] == model.written[place][16:], "as it was written"
            assert head.last_offset < log.end
            skipped = [each for each in model.kept if offset <= each[1] < head.base_offset and each[0] >= model.start]
            assert not skipped, f"{skipped} were skipped"
            assert head.last_offset >= offset, "no batch twice, none from before"
            offset = head.last_offset + 1
        return offset

    async def read_through(self) -> None:
        """Read everything that is left, front to back, in answers of any size."""
        await self.follower.catch_up()
        for number, model in self.models.items():
            offset = model.start
            while offset < model.end:
                want = Want(number, offset, self.random.choice([1, 1_000, 5_000]))
                reading = await self.reads.reader.read([want], bytes_max=100_000)
                reading.release()
                after = self.check(want, reading.taken[0], must_have=True, limit=want.bytes_max)
                if after < 0:
                    after = min(last for _, last in model.flagged if last >= offset) + 1
                elif after == offset:
                    assert model.next_kept(offset, model.end) is None
                    break
                offset = after

    async def timestamps(self) -> None:
        """Single records in offset order, as in the list of records."""
        await self.follower.catch_up()
        for number, model in self.models.items():
            records = [
                (place[0] + record.offset_delta, header.base_timestamp_ms + record.timestamp_delta_ms)
                for place in sorted(model.kept)
                for header in [read_header(model.written[place])]
                for record in walk(memoryview(model.written[place]))
                if place[0] + record.offset_delta >= model.start
            ]
            for asked in (0, self.random.randint(1, 1_000), 1_001):
                expected = next((each for each in records if each[1] >= asked), None)
                found = await self.reads.timestamps.first_at(number, asked, LookUpBudget())
                assert (None if found is None else (found.offset, found.timestamp_ms)) == expected
            expected = min(records, key=lambda each: (-each[1], each[0]), default=None)
            found = await self.reads.timestamps.largest(number, LookUpBudget())
            assert (None if found is None else (found.offset, found.timestamp_ms)) == expected


def _fail(error: Exception) -> None:
    raise AssertionError(error)


def _row(number: int, position: int, batch: bytes) -> L0Batch:
    header = read_header(batch)
    return L0Batch(
        partition_id=number,
        position=position,
        length=len(batch),
        record_count=header.last_offset_delta + 1,
        min_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )


async def history(seed: int, steps: int = 60) -> None:
    world = World(seed)
    await world.begin()
    try:
        for _ in range(steps):
            step = world.random.choices(
                [
                    world.write,
                    world.merge_l0,
                    world.merge_leveled,
                    world.delete_records,
                    world.sweep,
                    world.catch_up,
                    world.read,
                    world.timestamps,
                ],
                weights=[8, 4, 3, 1, 2, 6, 16, 2],
            )[0]
            await step()
        await world.timestamps()
        await world.read_through()
    finally:
        await world.end()


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_layout_reads_as_the_list_of_its_batches(seed: int) -> None:
    with small_blocks():
        asyncio.run(history(seed))
