"""Takes and commits that the store holds up while a group, its owner or its lease goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from agents.groups.coordinator import LOADS_MAX
from metadata.contract.store import MetadataStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.groups import GroupMember, fetch_offsets, meet, owner_and_other, stable_group
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

OPTIONS: Mapping[str, Any] = {"group_initial_rebalance_delay_ms": 50}


class Gated(Counted):
    """Commits and saves wait for gates before they reach the store; takes of groups have reached it, and wait behind
    one."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.commits, self.takes, self.saves = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for gate in (self.commits, self.takes, self.saves):
            gate.set()

    async def commit_offsets(self, batches: Any) -> Any:
        self.calls["commit_offsets"] += 1
        await self.commits.wait()
        return await self.inner.groups.commit_offsets(batches)

    async def save_group(self, *arguments: Any) -> None:
        self.calls["save_group"] += 1
        await self.saves.wait()
        await self.inner.groups.save_group(*arguments)

    async def take_group(self, *arguments: Any, **options: Any) -> Any:
        taken = await self.inner.groups.take_group(*arguments, **options)
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
            service.saves.set()


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
    """A commit of offset 5, by a consumer outside of any generation, accepted and held up before the store."""
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


async def test_offsets_are_deleted_behind_the_commits_that_were_accepted_before(
    owner: RunningAgent, dial: Dial, service: Any
) -> None:
    client = await dial.kafka(owner.address)
    commit = await commit_on_its_way(owner, dial, service)
    # when
    parts = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=parts)])
    deletion = asyncio.create_task(client.call(request, OffsetDeleteResponse))
    # then: it waits, or an offset that was committed before it was asked for would be there after it
    assert await not_done(deletion)
    assert service.calls["delete_offsets"] == 0
    service.commits.set()
    assert await commit == {0: ErrorCode.NONE}
    assert (await deletion).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert await fetch_offsets(client) == {}


async def test_a_commit_that_is_fenced_does_not_end_the_group_that_was_taken_anew(
    owner: RunningAgent, dial: Dial, service: Any
) -> None:
    # given: a commit on its way under a lease that is given up, and the group taken again by the same agent
    commit = await commit_on_its_way(owner, dial, service)
    groups_of(owner)._unload(groups_of(owner)._held["g"], ErrorCode.NOT_COORDINATOR)
    asking = GroupMember(await dial.kafka(owner.address), member_id="nobody", generation=1)
    assert await asking.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert service.calls["take_group"] == 2
    # when
    service.commits.set()
    # then: it is refused, and no other commit is affected
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
    alive = await service.agents.live_agents()
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


def of_owner(owner: RunningAgent, count: int) -> list[str]:
    """Groups that are the owner's."""
    return [name for number in range(200) if groups_of(owner).owns(name := f"o{number}")][:count]


async def test_a_group_that_moved_while_it_waited_to_be_taken_is_left_alone(
    agents: Fleet, owner: RunningAgent, dial: Dial, service: Any
) -> None:
    # given: as many takes under way as may be, and one that waits for its turn
    *before, last = of_owner(owner, LOADS_MAX + 1)
    service.takes.clear()
    joins = [asyncio.create_task(GroupMember(await dial.kafka(owner.address), group_id=id_).join()) for id_ in before]
    await until(lambda: service.calls["take_group"] == LOADS_MAX)
    joins.append(asyncio.create_task(GroupMember(await dial.kafka(owner.address), group_id=last).join()))
    await until(lambda: last in groups_of(owner)._loading)
    # when: meanwhile all are the other's
    membership: Any = owner.agent._membership
    membership._see([each for each in membership.agents if each.writer_id != membership.node_id])
    service.takes.set()
    # then: the other one is not fenced without need
    assert await asyncio.gather(*joins) == [ErrorCode.NOT_COORDINATOR] * len(joins)
    assert service.calls["take_group"] == LOADS_MAX


async def test_groups_that_nobody_asks_for_are_let_be_as_soon_as_agents_come_or_go(
    owner: RunningAgent, dial: Dial, service: Any
) -> None:
    groups, names = groups_of(owner), of_owner(owner, 3)
    for name in names:
        [_] = await stable_group(dial, owner.address, 1, group_id=name)
    for held in list(groups._held.values()):
        groups._unload(held, ErrorCode.NOT_COORDINATOR)
    groups._sweeps.cancel()
    await groups.adopt()
    taken = service.calls["take_group"]
    service.takes.clear()
    adopting = asyncio.create_task(groups.adopt())
    await until(lambda: service.calls["take_group"] > taken)
    # when: the other one goes while the first of them is taken
    membership: Any = owner.agent._membership
    membership._see([each for each in membership.agents if each.writer_id == membership.node_id])
    service.takes.set()
    await adopting
    # then
    assert service.calls["take_group"] == taken + 1
    assert len(groups._held) == 1


async def test_of_saves_that_wait_the_last_is_stored(owner: RunningAgent, dial: Dial, service: Any) -> None:
    # given: static members of a stable group, the first of which starts again; its save is under way
    old = [GroupMember(await dial.kafka(owner.address), instance_id=f"i{number}") for number in range(3)]
    assert set(await asyncio.gather(*(member.join() for member in old))) == {ErrorCode.NONE}
    assert {answer.error_code for answer in await asyncio.gather(*(member.sync() for member in old))} == {0}
    service.saves.clear()
    before = service.calls["save_group"]
    new = [GroupMember(await dial.kafka(owner.address), instance_id=member.instance_id) for member in old]
    joins: list[asyncio.Task[ErrorCode]] = []
    for number, member in enumerate(new):
        joins.append(asyncio.create_task(member.join()))
        saves = groups_of(owner)._held["g"].machine._group.saves
        await until(lambda saves=saves, count=number + 1: len(saves) == count)
    await until(lambda: service.calls["save_group"] > before)
    # when
    service.saves.set()
    assert await asyncio.gather(*joins) == [ErrorCode.NONE] * 3
    # then: two saves for three, and what all were told is stored
    assert service.calls["save_group"] == before + 2
    record = await service.groups.group("g")
    assert {member.member_id for member in record.members} == {member.member_id for member in new}


async def test_who_joins_makes_room_of_groups_that_nobody_uses(
    owner: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, [idle] = groups_of(owner), of_owner(owner, 1)
    await stable_group(dial, owner.address, 1)
    assert await GroupMember(await dial.kafka(owner.address), group_id=idle).commit({0: 4}) == {0: ErrorCode.NONE}
    assert set(groups._held) == {"g", idle}
    monkeypatch.setattr("agents.groups.coordinator.BYTES_MAX", groups._bytes - 1)
    member = GroupMember(await dial.kafka(owner.address))
    assert (await member.try_join()).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert set(groups._held) == {"g"}
    # and if there is no such save
    monkeypatch.setattr("agents.groups.coordinator.BYTES_MAX", groups._bytes - 1)
    assert (await member.try_join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


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
