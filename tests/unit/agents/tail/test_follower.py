"""The follower when its answers and its own agent's commits cross."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

import agents.yielding
from agents.tail import log_index
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from agents.yielding import LOAD_SLICE
from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError
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
from runtime.logging import About, log_context
from runtime.runtime import Runtime
from storage.keys import file_key
from tests.fixtures.log_lines import LogLines
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
            self.follower.saw_own(self.lease, self.seq, key, 70, committed)
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


async def test_an_own_commit_that_a_snapshot_just_missed_stays_in_sight() -> None:
    agent = await following()
    await agent.commit()
    # given: a cold start whose snapshot was read before the second commit and arrives after it
    agent.metadata.cold = True
    agent.metadata.gate.clear()
    polling = asyncio.create_task(agent.follower.catch_up())
    await asyncio.sleep(0.01)
    _, committed = await agent.commit()
    agent.metadata.gate.set()
    await polling
    # then: the view does not go back, though the snapshot does
    assert (agent.end, held(agent), agent.index.files) == (2, [1, 2], 2)
    # and the tail brings the second: it is not lost behind a third, and its merge is heard of
    await agent.commit()
    await merge(agent, committed.file_id)
    await agent.follower.catch_up()
    assert (agent.end, held(agent), agent.index.files) == (3, [1, 3], 2)
    await agent.follower.stop()


async def test_an_own_answer_that_crosses_a_snapshot_without_its_merged_file_does_not_bring_it_back() -> None:
    agent = await following()
    await agent.commit()
    # given: a snapshot that was read after the second commit and its merge, and arrives after the answer to the commit
    key, committed = await agent.commit(seen=False)
    lease, seq = agent.lease, agent.seq
    await merge(agent, committed.file_id)
    agent.metadata.cold = True
    agent.metadata.gate.clear()
    polling = asyncio.create_task(agent.follower.catch_up())
    await asyncio.sleep(0.01)
    agent.follower.saw_own(lease, seq, key, 70, committed)
    agent.metadata.gate.set()
    await polling
    assert (agent.end, held(agent), agent.index.files) == (2, [1], 1)
    await agent.follower.stop()


async def test_while_a_large_snapshot_is_taken_in_others_run_and_see_what_was_known_before() -> None:
    metadata = MemoryMetadata()
    await metadata.agents.create_topic("t", partitions=1, configs={})
    agent = Following(metadata)
    agent.lease = await metadata.agents.register_agent(AgentAddress(host="h", port=1))
    await agent.follower.start()
    await agent.commit()
    # given: a topic of many partitions, and a cold start
    large = await metadata.agents.create_topic("large", partitions=5 * LOAD_SLICE, configs={})
    agent.metadata.cold = True
    seen: list[tuple[bool, bool, int]] = []

    async def look() -> None:
        while True:
            known = agent.index.partition(large.partition_ids[-1]) is not None
            seen.append((agent.topic_cache.topic("large") is not None, known, agent.end))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    # when it is taken in
    await agent.follower.catch_up()
    looking.cancel()
    # then there were turns of the loop with the old state, and none with a part of the new one
    assert seen.count((False, False, 1)) >= 5 and set(seen) <= {(False, False, 1), (True, True, 1)}
    assert agent.topic_cache.topic("large") is not None and agent.end == 1
    await agent.follower.stop()


async def test_own_commits_between_the_slices_of_a_snapshot_and_of_a_tail_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents.yielding, "LOAD_SLICE", 1)
    agent = await following()
    await agent.commit()
    await agent.follower.catch_up()
    for is_cold in (True, False):
        agent.metadata.cold = is_cold
        # The tail has to bring one; before a cold start none is missed, so that each own commit moves the cursor.
        await agent.commit(seen=is_cold)
        polling = asyncio.create_task(agent.follower.catch_up())
        while not polling.done():
            await agent.commit()
            await asyncio.sleep(0)
        await polling
    await agent.follower.catch_up()
    assert agent.end == agent.seq and agent.index.gaps == 0 and agent.index.extents == agent.seq
    await agent.follower.stop()


async def test_what_a_poll_says_is_said_for_nobody_however_it_was_begun(log_lines: LogLines) -> None:
    agent = await following()
    for is_next in (False, True):
        agent.metadata.gate.set()
        if is_next:  # begun by a request that finds another poll under way
            agent.metadata.gate.clear()
            before = agent.metadata.tails
            first = asyncio.create_task(agent.follower.catch_up())
            while agent.metadata.tails == before:
                await asyncio.sleep(0)
        agent.metadata.cold = True
        with log_context(About(api="Fetch")):
            asked = asyncio.create_task(agent.follower.catch_up())
        await asyncio.sleep(0)
        agent.metadata.gate.set()
        await asked
        if is_next:
            await first
    said = log_lines.named("cursor too old, starting from a snapshot")
    assert ["api" in line for line in said] == [False, False]
    await agent.follower.stop()


async def test_a_file_whose_answer_never_came_is_seen_all_the_same() -> None:
    agent = await following()
    await agent.commit()
    await agent.commit(seen=False)
    await agent.commit()
    await agent.follower.catch_up()
    assert agent.end == 3
    await agent.follower.stop()


async def test_own_commits_in_a_row_are_not_read_again() -> None:
    agent = await following()
    await agent.commit()
    await agent.follower.catch_up()  # the first commit of an epoch comes with the tail
    for _ in range(5):
        await agent.commit()
    seen: list[Cursor] = []
    ask = agent.metadata.tail

    async def tail(cursor: Cursor) -> Tail:
        seen.append(cursor)
        return await ask(cursor)

    agent.metadata.tail = tail  # type: ignore[method-assign]
    await agent.follower.catch_up()
    assert seen[0].writers == {agent.lease.writer_id: (agent.lease.epoch, 6)}
    await agent.follower.stop()


async def test_any_number_who_want_the_present_share_one_poll_that_began_after_they_asked() -> None:
    agent = await following()
    agent.metadata.gate.clear()
    first = asyncio.create_task(agent.follower.catch_up())
    await asyncio.sleep(0)
    before = agent.metadata.tails
    late = [asyncio.create_task(agent.follower.catch_up()) for _ in range(50)]
    await asyncio.sleep(0)
    agent.metadata.gate.set()
    await asyncio.gather(first, *late)
    assert agent.metadata.tails == before + 1 + (before == 0)
    await agent.follower.stop()


async def test_polls_never_overlap_so_that_changes_are_taken_in_in_their_order() -> None:
    agent = await following()
    under_way = most = 0
    ask = agent.metadata.tail

    async def tail(cursor: Cursor) -> Tail:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        answer = await ask(cursor)
        await asyncio.sleep(0)
        under_way -= 1
        return answer

    agent.metadata.tail = tail  # type: ignore[method-assign]

    async def ask_often(pauses: int) -> None:
        for _ in range(100):
            await agent.follower.catch_up()
            for _ in range(pauses):
                await asyncio.sleep(0)

    await asyncio.gather(*(ask_often(pauses) for pauses in range(6)))
    assert most == 1
    await agent.follower.stop()


# ---- merges


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


async def test_a_merge_that_is_heard_of_drops_its_files_from_the_index() -> None:
    agent = await following()
    for _ in range(3):
        await agent.commit()
    await agent.follower.catch_up()
    await merge(agent, 1, 2)
    assert held(agent) == [1, 2, 3], "not heard of yet: its files stay for the grace"
    await agent.follower.catch_up()
    assert (held(agent), agent.end, agent.index.files) == ([3], 3, 1)
    await agent.follower.stop()


async def test_commits_and_their_merge_heard_of_at_once_only_move_the_end() -> None:
    agent = await following()
    for _ in range(3):
        await agent.commit(seen=False)
    await merge(agent, 1, 2, 3)
    await agent.follower.catch_up()
    assert (held(agent), agent.end, agent.index.files) == ([], 3, 0)
    await agent.follower.stop()


async def test_an_own_answer_that_crosses_the_merge_of_its_file_does_not_bring_it_back() -> None:
    agent = await following()
    await agent.commit()
    # given: a tail that was read after the second commit and its merge, and arrives after the answer to the commit
    agent.metadata.gate.clear()
    key, committed = await agent.commit(seen=False)
    lease, seq = agent.lease, agent.seq
    await merge(agent, committed.file_id)
    polling = asyncio.create_task(agent.follower.catch_up())
    await asyncio.sleep(0.01)
    agent.follower.saw_own(lease, seq, key, 70, committed)
    assert committed.file_id in held(agent)
    agent.metadata.gate.set()
    await polling
    assert (held(agent), agent.end) == ([1], 2)
    # and the other way round: the answer comes last
    agent.follower.saw_own(lease, seq, key, 70, committed)
    await agent.follower.catch_up()
    assert (held(agent), agent.end) == ([1], 2)
    await agent.follower.stop()


async def test_an_own_answer_that_comes_while_the_files_of_a_merge_are_dropped_does_not_bring_its_file_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_index, "DROP_SLICE", 1)  # others run after every file
    agent = await following()
    for _ in range(3):
        await agent.commit()
    await agent.follower.catch_up()
    key, committed = await agent.commit(seen=False)
    lease, seq = agent.lease, agent.seq
    await merge(agent, 1, 2, 3, committed.file_id)
    drop_files, slices = agent.index.drop_files, 0

    def drop(file_ids: Collection[int]) -> Iterator[None]:
        nonlocal slices
        for _ in drop_files(file_ids):
            if not slices:  # the answer to the commit comes after the news of the merge
                agent.follower.saw_own(lease, seq, key, 70, committed)
            slices += 1
            yield

    agent.index.drop_files = drop  # type: ignore[method-assign]
    await agent.follower.catch_up()
    assert slices
    assert (held(agent), agent.end, agent.index.files) == ([], 4, 0)
    await agent.follower.catch_up()
    assert (held(agent), agent.end, agent.index.files) == ([], 4, 0)
    await agent.follower.stop()


async def test_a_snapshot_holds_live_files_only_and_a_merge_after_it_is_heard_of() -> None:
    for is_before_its_files in (True, False):
        agent = await following()
        for _ in range(4):
            await agent.commit()
        await merge(agent, 1, 2)
        agent.metadata.cold = True
        gate = agent.metadata.gate if is_before_its_files else agent.metadata.files_gate
        gate.clear()
        # given: a merge after the snapshot, before or after its files are read, and a commit that it does not cover
        polling = asyncio.create_task(agent.follower.catch_up())
        await asyncio.sleep(0.01)
        await merge(agent, 3)
        _, later = await agent.commit(seen=False)
        gate.set()
        await polling
        assert (held(agent), agent.end) == ([4] if is_before_its_files else [3, 4], 4)
        await agent.follower.catch_up()
        assert (held(agent), agent.end, agent.index.gaps) == ([4, later.file_id], 5, 0)
        await agent.follower.stop()


async def test_a_file_committed_since_the_snapshot_with_a_lower_id_is_brought_by_the_tail() -> None:
    agent = await following()
    await agent.commit()
    snapshot = await agent.metadata.snapshot()
    await agent.commit(seen=False)
    # given: a file that drew its id before the snapshot and was committed after it
    (late,) = (await agent.metadata.tail(snapshot.cursor)).files
    await agent.follower._load(replace(snapshot, last_file_id=late.file_id))
    assert (held(agent), agent.end) == ([1], 1)
    await agent.follower.catch_up()
    assert (held(agent), agent.end, agent.index.gaps) == ([1, late.file_id], 2, 0)
    await agent.follower.stop()


async def test_a_load_that_fails_between_two_slices_of_files_leaves_what_was_known_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metadata.memory.agents.LIVE_FILES_MAX", 2)
    agent = await following()
    for _ in range(5):
        await agent.commit()
    await agent.follower.catch_up()
    # given: a store that goes away after the first slice
    agent.metadata.cold = True
    ask = agent.metadata.live_files

    async def live_files(snapshot: Snapshot, after: int) -> Sequence[L0File]:
        if after:
            raise MetadataUnavailableError("away")
        return await ask(snapshot, after)

    agent.metadata.live_files = live_files  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailableError):
        await agent.follower.catch_up()
    assert held(agent) == [1, 2, 3, 4, 5]
    # when it is back
    agent.metadata.live_files, agent.metadata.cold = ask, True  # type: ignore[method-assign]
    await agent.follower.catch_up()
    assert (held(agent), agent.end) == ([1, 2, 3, 4, 5], 5)
    await agent.follower.stop()


async def test_an_answer_that_was_taken_in_in_part_and_comes_again_takes_no_name_from_a_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a topic that is deleted and made anew, and a follower that fails once behind the changes
    metadata = MemoryMetadata()
    following = Following(metadata)
    await following.follower.catch_up()
    old = await metadata.agents.create_topic("t", partitions=1, configs={})
    await metadata.agents.delete_topic(old.topic_id)
    new = await metadata.agents.create_topic("t", partitions=1, configs={})

    async def fails(tail: Tail) -> None:
        raise RuntimeError("once")

    with monkeypatch.context() as patched:
        patched.setattr(following.follower, "_drop_merged", fails)
        with pytest.raises(RuntimeError):
            await following.follower.catch_up()
    # when
    await following.follower.catch_up()
    # then
    assert following.topic_cache.topic("t") == new
    assert following.topic_cache.topics() == [new]
    assert following.topic_cache.topic_by_id(old.topic_id) is None
    assert following.index.partition(new.partition_ids[0]) is not None
