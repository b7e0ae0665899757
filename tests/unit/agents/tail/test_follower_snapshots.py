"""The follower when it starts again from a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

import agents.yielding
from agents.tail.own_files import own_file
from agents.yielding import LOAD_SLICE
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import L0File
from metadata.contract.tail import Snapshot
from tests.unit.agents.tail.following import following, held, merge


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
    agent.follower.saw_own(own_file(lease, seq, key, 70, committed))
    agent.metadata.gate.set()
    await polling
    assert (agent.end, held(agent), agent.index.files) == (2, [1], 1)
    await agent.follower.stop()


async def test_while_a_large_snapshot_is_taken_in_others_run_and_see_what_was_known_before() -> None:
    agent = await following()
    await agent.commit()
    # given: a topic of many partitions, and a cold start
    large = await agent.metadata.create_topic("large", partitions=5 * LOAD_SLICE, configs={})
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
        assert (held(agent), agent.end) == ([4], 4)
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
