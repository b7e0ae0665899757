"""The follower when its answers and its own agent's commits cross."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import pytest

from agents.tail import log_index
from agents.tail.own_files import own_file
from metadata.contract.tail import Change, Cursor, Tail
from metadata.memory.store import MemoryMetadata
from runtime.logging import About, log_context
from tests.fixtures.log_lines import LogLines
from tests.unit.agents.tail.following import Following, following, held, merge


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
    agent.follower.saw_own(own_file(lease, seq, key, 70, committed))
    assert committed.file_id in held(agent)
    agent.metadata.gate.set()
    await polling
    assert (held(agent), agent.end) == ([1], 2)
    # and the other way round: the answer comes last
    agent.follower.saw_own(own_file(lease, seq, key, 70, committed))
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
                agent.follower.saw_own(own_file(lease, seq, key, 70, committed))
            slices += 1
            yield

    agent.index.drop_files = drop  # type: ignore[method-assign]
    await agent.follower.catch_up()
    assert slices
    assert (held(agent), agent.end, agent.index.files) == ([], 4, 0)
    await agent.follower.catch_up()
    assert (held(agent), agent.end, agent.index.files) == ([], 4, 0)
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


async def test_users_and_acls_are_taken_in_before_the_files_of_the_same_answer() -> None:
    agent = await following()
    await agent.commit()
    ends: list[int] = []

    class Watching:
        async def load(self) -> None: ...

        async def take_in(self, changes: Iterable[Change]) -> None:
            ends.append(agent.end)
            await asyncio.sleep(0)
            ends.append(agent.end)

        def heard(self, sent_ms: float) -> None: ...

    agent.follower._callbacks = replace(agent.follower._callbacks, security=Watching())
    await agent.commit(seen=False)
    await agent.follower.catch_up()
    assert ends == [1, 1] and agent.end == 2
    await agent.follower.stop()
