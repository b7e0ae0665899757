"""A follower whose polls the test begins and holds up, and the commits and merges of its agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.own_files import own_file
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.agents import AgentMetadata
from metadata.contract.files import L0File
from metadata.contract.jobs import CommitMerge, NewJob, OutputExtent, OutputFile
from metadata.contract.l0_commit import CommitL0, Committed, L0Batch
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.leveled import FileClass
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import iter_index
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.keys import file_key
from tests.fixtures.metadata_parts import Part

NOW_MS = SystemClock().wall_ms()


class Gated(Part):
    """Tails are read at once, and returned when the gate opens. A test can make the next tail a cold one."""

    def __init__(self, inner: AgentMetadata) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.files_gate = asyncio.Event()
        self.files_gate.set()
        self.cold = False
        self.tails = 0

    async def snapshot(self) -> Snapshot:
        answer = await self.inner.snapshot()
        await self.gate.wait()
        return answer

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        files = await self.inner.live_files(snapshot, after)
        await self.files_gate.wait()
        return files

    async def tail(self, cursor: Cursor) -> Tail:
        self.tails += 1
        if self.cold:
            self.cold = False
            return Tail(files=(), changes=(), cursor=cursor, cold=True)
        answer = await self.inner.tail(cursor)
        await self.gate.wait()
        return answer


class Following:
    """A follower without its loop: the test decides when it polls."""

    def __init__(self, metadata: MemoryMetadata) -> None:
        self.compactors, self.index, self.topic_cache = metadata.compactors, LogIndex(), TopicCache()
        self.metadata = Gated(metadata.agents)
        self.follower = Follower(
            metadata=self.metadata,
            topic_cache=self.topic_cache,
            index=self.index,
            parked_readers=ParkedReaders(),
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(on_fatal=_fail),
            runtime=Runtime(),
        )
        self.lease = WriterLease(writer_id=0, epoch=0)
        self.seq = 0

    async def commit(self, *, seen: bool = True) -> tuple[str, Committed]:
        """This agent commits one record, and the follower takes in the answer."""
        self.seq += 1
        key = f"l0/00/2024010100/{self.lease.writer_id}-{self.lease.epoch}-{UUID(int=self.seq)}.silt"
        batch = L0Batch(partition_id=1, position=0, length=70, record_count=1, min_timestamp_ms=0, max_timestamp_ms=0)
        committed: Committed = await self.metadata.commit_l0(
            CommitL0(lease=self.lease, seq=self.seq, key=key, size_bytes=70, crc32c=0, batches=[batch])
        )
        if seen:
            self.follower.saw_own(own_file(self.lease, self.seq, key, 70, committed))
        return key, committed

    @property
    def end(self) -> int:
        log = self.index.partition(1)
        return -1 if log is None else log.end


def _fail(error: Exception) -> None:
    raise AssertionError(error)


async def following() -> Following:
    metadata = MemoryMetadata()
    await metadata.agents.create_topic("t", partitions=1, configs={})
    started = Following(metadata)
    started.lease = await metadata.agents.register_agent(AgentAddress(host="h", port=1))
    await started.follower.start()
    return started


async def merge(agent: Following, *file_ids: int) -> None:
    """Merge as the compactor does. No test reads the records; the output covers the range of the inputs."""
    compactors = agent.compactors
    lease = await compactors.register_compactor("c")
    await compactors.create_job(NewJob(kind="level", spec={}, l0_file_ids=file_ids, limit_ms=60_000))
    claimed = await compactors.claim_job(lease)
    assert claimed is not None
    rows = [row for file in claimed.l0_files for row in iter_index(file.index)]
    extents = [
        OutputExtent(
            partition_id=row.partition_id,
            base_offset=row.base_offset,
            last_offset=row.last_offset,
            position=0,
            length=0,
            block_index_position=0,
            block_index_length=0,
            record_count=0,
            crc32c=0,
            min_timestamp_ms=-1,
            max_timestamp_ms=-1,
            has_tombstones=False,
        )
        for row in rows
    ]
    key = file_key(level=1, writer_id=9, epoch=0, created_ms=NOW_MS, file_uuid=SystemIds().uuid7(NOW_MS))
    output = OutputFile(
        key=key,
        level=1,
        file_class=FileClass.PLAIN,
        size_bytes=0,
        crc32c=0,
        config_version=1,
        extents=extents,
    )
    covered = [(row.base_offset, row.last_offset) for row in rows]
    await compactors.commit_merge(
        CommitMerge(job_id=claimed.job.job_id, epoch=claimed.job.epoch, outputs=[output], covered={1: covered})
    )


def held(agent: Following) -> list[int]:
    return [extent.file_id for extent in agent.index.extents_from(1, 0)]
