"""What is on its way when a group, its owner or its lease goes: takes and commits that the store holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from metadata.service import MetadataService
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet, until
from tests.fixtures.groups import GroupMember, fetch_offsets, meet, owner_and_other
from wire.error_codes import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

OPTIONS: Mapping[str, Any] = {"group_initial_rebalance_delay_ms": 50}


class Gated(Counted):
    """Commits wait for a gate before they reach the store; takes of groups have reached it, and wait behind one."""

    def __init__(self, inner: MetadataService) -> None:
        super().__init__(inner)
        self.commits, self.takes = asyncio.Event(), asyncio.Event()
        self.commits.set()
        self.takes.set()

    async def commit_offsets(self, batches: Any) -> Any:
        self.calls["commit_offsets"] += 1
        await self.commits.wait()
        return await self.inner.commit_offsets(batches)  # type: ignore[attr-defined]

    async def take_group(self, *arguments: Any, **options: Any) -> Any:
        taken = await self.inner.take_group(*arguments, **options)  # type: ignore[attr-defined]
        self.calls["take_group"] += 1
        await self.takes.wait()
        return taken


@pytest.fixture
async def agents(start_agent: StartAgent) -> AsyncIterator[Fleet]:
    async with fleet(start_agent, 2, wrap=Gated, **OPTIONS) as agents:
        await meet(agents.agents)
        yield agents
        for service in agents.services:
            service.commits.set()  # or nothing drains
            service.takes.set()


@pytest.fixture
async def owner(agents: Fleet, dial: Dial) -> RunningAgent:
    owner, _ = owner_and_other(agents)
    await (await dial.kafka(owner.address)).create_topic("t", partitions=4)
    await agents.know_topic("t")
    return owner


@pytest.fixture
async def service(agents: Fleet, owner: RunningAgent) -> Any:
    return agents.services[agents.agents.index(owner)]


def groups_of(running: RunningAgent) -> Any:
    return running.agent._groups


async def commit_on_its_way(owner: RunningAgent, dial: Dial, service: Any) -> asyncio.Task[dict[int, ErrorCode]]:
    """Of offset 5, by a consumer outside of any generation, accepted and held up before the store."""
    before = service.calls["commit_offsets"]
    service.commits.clear()
    commit = asyncio.create_task(GroupMember(await dial.kafka(owner.address)).commit({0: 5}))
    await until(lambda: service.calls["commit_offsets"] > before)
    return commit


async def not_done(task: asyncio.Task[Any]) -> bool:
    done, _ = await asyncio.wait([task], timeout=0.2)
    return not done


async def test_a_group_is_deleted_behind_the_commits_that_were_accepted_before(
    owner: RunningAgent, dial: Dial, service: Any
) -> None:
    client = await dial.kafka(owner.address)
    commit = await commit_on_its_way(owner, dial, service)
    # when
    request = DeleteGroupsRequest(groups_names=["g"])
    deletion = asyncio.create_task(client.call(request, DeleteGroupsResponse))
    # then: it waits, or a commit that was accepted would be refused by a group that is no more
    assert await not_done(deletion)
    assert service.calls["delete_group"] == 0
    service.commits.set()
    assert await commit == {0: ErrorCode.NONE}
    assert [result.error_code for result in (await deletion).results] == [ErrorCode.NONE]
    assert await fetch_offsets(client) == {}


async def test_a_commit_that_is_fenced_does_not_end_the_group_that_was_taken_anew(
    owner: RunningAgent, dial: Dial, service: Any
) -> None:
    # given: a commit on its way under a lease that is given up, and the group taken anew by the same agent
    commit = await commit_on_its_way(owner, dial, service)
    groups_of(owner)._unload(groups_of(owner)._held["g"], ErrorCode.NOT_COORDINATOR)
    asking = GroupMember(await dial.kafka(owner.address), member_id="nobody", generation=1)
    assert await asking.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert service.calls["take_group"] == 2
    # when
    service.commits.set()
    # then: it is refused, and nobody else notices
    assert await commit == {0: ErrorCode.NOT_COORDINATOR}
    assert groups_of(owner).state_of("g") == "Empty"
    assert owner.metric("groups_fenced_total") == 0
    asking.member_id, asking.generation = "", -1
    assert await asking.commit({0: 6}) == {0: ErrorCode.NONE}
    assert service.calls["take_group"] == 2


async def test_a_group_that_moved_while_it_was_taken_is_not_held(agents: Fleet, dial: Dial) -> None:
    # given: an agent that has not heard of the other one yet, and takes a group that is the other's
    owner, other = owner_and_other(agents)
    service = agents.services[agents.agents.index(other)]
    service.takes.clear()
    alive = await service.live_agents()
    other.agent._membership._see([each for each in alive if each.writer_id == other.agent._membership.node_id])  # type: ignore[union-attr]
    member = GroupMember(await dial.kafka(other.address))
    join = asyncio.create_task(member.join())
    await until(lambda: service.calls["take_group"])
    # when: it hears of the other one before the store has answered
    await meet([other])
    service.takes.set()
    # then
    assert await join is ErrorCode.NOT_COORDINATOR
    assert groups_of(other).state_of("g") is None
    assert groups_of(owner).owns("g")


async def test_an_owner_that_drains_writes_the_commits_that_it_accepted(
    agents: Fleet, owner: RunningAgent, dial: Dial, service: Any
) -> None:
    commit = await commit_on_its_way(owner, dial, service)
    # when
    _, other = owner_and_other(agents)
    client = await dial.kafka(other.address)
    stopping = asyncio.create_task(owner.agent.stop())
    await until(lambda: groups_of(other).owns("g") and groups_of(owner)._stopped)
    # then
    assert await not_done(stopping)
    service.commits.set()
    assert await commit == {0: ErrorCode.NONE}
    assert await fetch_offsets(client) == {("t", 0): 5}
    await stopping
