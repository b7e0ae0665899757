"""Consumer groups at an agent that has not heard yet what became of a topic: offsets are neither missed nor refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agents.topics import present
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.store import MetadataStore
from metadata.contract.tail import Cursor, Tail
from metadata.groups.contract import OffsetCommitBatch, OffsetPlace, OffsetToCommit
from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.groups import GroupMember, fetch_offsets, meet, owner_and_other
from tests.integration.groups.test_transactional_offsets import NEWEST, coordinator_at, fetched, hold, producer_of
from wire.error_codes import ErrorCode
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

PARTITION = 3
"""One that the topic has only after it has changed, or has again."""


class Deaf(Counted):
    """Its agent hears of nothing by itself, and looks when it wants to, if that works."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.hears, self.answers = asyncio.Event(), asyncio.Event()
        self.hears.set()
        self.answers.set()
        self.is_away = False
        self._waits = asyncio.Event()

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self.inner.agents.wait_for_news(timeout_ms)
        self._waits.set()
        await self.hears.wait()

    async def turn_deaf(self) -> None:
        """From the return on; a look that was under way has ended."""
        self.hears.clear()
        self._waits.clear()
        async with asyncio.timeout(10):
            await self._waits.wait()

    async def tail(self, cursor: Cursor) -> Tail:
        self.calls["tail"] += 1
        if self.is_away:
            raise MetadataUnavailableError("the store is away")
        await self.answers.wait()
        return await self.inner.agents.tail(cursor)


class World:
    def __init__(self, agents: Fleet, client: KafkaClient, elsewhere: KafkaClient) -> None:
        self.agents = agents
        self.client, self.elsewhere = client, elsewhere
        self.owner, self.other = owner_and_other(agents)
        self.service: Deaf = agents.services[agents.agents.index(self.owner)]
        self.member = GroupMember(client)

    async def change(self, what: str) -> None:
        """Through the other agent, unheard."""
        if what != "made":
            await self.elsewhere.create_topic("t", partitions=2 if what == "grown" else 4)
            await self.agents.know_topic("t")
        await self.service.turn_deaf()
        if what == "grown":
            grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=4)], timeout_ms=5_000)
            answer = await self.elsewhere.call(grown, CreatePartitionsResponse)
            assert answer.results[0].error_code == ErrorCode.NONE
            return
        if what == "made anew":
            await self.elsewhere.delete_topic("t")
        await self.elsewhere.create_topic("t", partitions=4)

    async def store(self, offset: int) -> None:
        """Commit behind the owner's back, as the owner before it would have."""
        other: Any = self.other.agent
        topic = other._topic_cache.topic("t")
        metadata: Any = self.other.metadata
        taken = await metadata.groups.take_group("g", owner=other._membership.current, create=True)
        committed = OffsetToCommit(
            place=OffsetPlace(topic.topic_id, PARTITION), offset=offset, leader_epoch=-1, metadata=""
        )
        await metadata.groups.commit_offsets([OffsetCommitBatch(lease=taken.lease, offsets=(committed,))])

    async def delete(self) -> tuple[int, int]:
        partitions = [OffsetDeleteRequestPartition(partition_index=PARTITION)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
        answer = await self.client.call(OffsetDeleteRequest(group_id="g", topics=topics), OffsetDeleteResponse)
        return answer.error_code, answer.topics[0].partitions[0].error_code if answer.topics else 0


@pytest.fixture
async def world(start_agent: StartAgent, dial: Dial, agent_metadata_url: str) -> AsyncIterator[World]:
    async with fleet(start_agent, 2, metadata_url=agent_metadata_url, wrap=Deaf) as agents:
        await meet(agents.agents)
        owner, other = owner_and_other(agents)
        yield World(agents, await dial.kafka(owner.address), await dial.kafka(other.address))
        for service in agents.services:
            service.hears.set()
            service.answers.set()
            service.is_away = False


@pytest.mark.parametrize("what", ["made", "grown", "made anew"])
async def test_an_offset_is_found_in_a_topic_whose_change_is_unheard_of(world: World, what: str) -> None:
    await world.change(what)
    await world.store(7)
    assert await fetch_offsets(world.client, "g", [PARTITION]) == {("t", PARTITION): 7}


@pytest.mark.parametrize("what", ["made", "grown", "made anew"])
async def test_a_commit_reaches_a_topic_whose_change_is_unheard_of(world: World, what: str) -> None:
    await world.change(what)
    assert await world.member.commit({PARTITION: 8, 9: 1}) == {
        PARTITION: ErrorCode.NONE,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    world.service.hears.set()
    assert await fetch_offsets(world.client, "g", [PARTITION]) == {("t", PARTITION): 8}


@pytest.mark.parametrize("what", ["made", "grown", "made anew"])
async def test_offsets_of_a_transaction_reach_a_topic_whose_change_is_unheard_of(
    world: World, dial: Dial, what: str
) -> None:
    producer = await producer_of(await coordinator_at(world.other), NEWEST)
    raw = await dial.raw(world.owner.address)
    await world.change(what)
    assert await hold(raw, producer, {PARTITION: 8, 9: 1}) == {
        PARTITION: ErrorCode.NONE,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await fetched(raw, [PARTITION]) == {PARTITION: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    assert (await producer.end()).error == 0
    world.service.hears.set()
    assert await fetched(raw) == {PARTITION: 8}


@pytest.mark.parametrize("what", ["made", "grown", "made anew"])
async def test_an_offset_is_deleted_from_a_topic_whose_change_is_unheard_of(world: World, what: str) -> None:
    await world.change(what)
    await world.store(7)
    assert await world.delete() == (ErrorCode.NONE, ErrorCode.NONE)
    assert await fetch_offsets(world.client) == {}


@pytest.mark.parametrize("what", ["made", "grown", "made anew"])
@pytest.mark.parametrize("trouble", ["away", "silent"])
async def test_what_cannot_be_looked_for_is_neither_there_nor_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, trouble: str
) -> None:
    # given offsets at places that this agent has not heard of, and a store that does not tell
    await world.change(what)
    await world.store(7)
    monkeypatch.setattr(present, "LOOK_MS_MAX", 50.0)
    world.service.is_away = trouble == "away"
    world.service.answers.clear()
    # then all may come again
    assert await fetch_offsets(world.client, "g", [PARTITION]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if what != "grown":
        assert await fetch_offsets(world.client) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await world.member.commit({PARTITION: 8}) == {PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert await world.delete() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    # and find what was there
    world.service.is_away = False
    world.service.answers.set()
    assert await fetch_offsets(world.client, "g", [PARTITION]) == {("t", PARTITION): 7}


async def test_what_was_never_committed_costs_a_request_one_look(world: World) -> None:
    await world.elsewhere.create_topic("t", partitions=4)
    await world.agents.know_topic("t")
    await world.service.turn_deaf()
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1, 9]) for name in ("t", "gone")]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=topics) for name in _owned_by(world.owner, 3)]
    looks = world.service.calls["tail"]
    answer = await world.client.call(OffsetFetchRequest(groups=groups), OffsetFetchResponse)
    assert [group.error_code for group in answer.groups] == [ErrorCode.NONE] * 3
    assert {
        each.committed_offset for group in answer.groups for topic in group.topics for each in topic.partitions
    } == {-1}
    assert world.service.calls["tail"] - looks <= 1


def _owned_by(running: RunningAgent, count: int) -> list[str]:
    groups: Any = running.agent._groups
    return [name for number in range(100) if groups.owns(name := f"g{number}")][:count]
