"""Groups whose owner was away, died with their members, or lost its client in the middle of a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agents.groups.events import GroupState
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import LEASE_MS
from metadata.contract.store import MetadataStore
from metadata.groups.contract import GroupLease
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.groups import GroupMember, fetch_offsets, meet, owner_and_other, stable_group
from tests.fixtures.waiting import until
from tests.integration.groups.test_groups import OPTIONS, deleted, described, groups_of, service_of
from wire.error_codes import ErrorCode
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


class Gated(Counted):
    """Beats and deletions wait for gates, and the delete of a group fails as often as asked for."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.beats, self.deletions = asyncio.Event(), asyncio.Event()
        self.beats.set()
        self.deletions.set()
        self.failure: BaseException | None = None

    async def heartbeat(self, *arguments: Any, **options: Any) -> int:
        await self.beats.wait()
        return await self.inner.agents.heartbeat(*arguments, **options)

    async def delete_group(self, lease: GroupLease) -> None:
        self.calls["delete_group"] += 1
        await self.deletions.wait()
        if self.failure is not None:
            raise self.failure
        await self.inner.groups.delete_group(lease)


@pytest.fixture
async def agents(start_agent: StartAgent) -> AsyncIterator[Fleet]:
    options = {**OPTIONS, "group_min_session_timeout_ms": 100}
    async with fleet(start_agent, 2, wrap=Gated, **options) as agents:
        await meet(agents.agents)
        yield agents
        for service in agents.services:
            service.beats.set()
            service.deletions.set()


@pytest.fixture
async def owner(agents: Fleet, dial: Dial) -> RunningAgent:
    owner, _ = owner_and_other(agents)
    await (await dial.kafka(owner.address)).create_topic("t", partitions=4)
    await agents.know_topic("t")
    return owner


@pytest.fixture
async def other(agents: Fleet) -> RunningAgent:
    return owner_and_other(agents)[1]


def away_for(running: RunningAgent, ms: float) -> None:
    """As if the last beat that succeeded were so long ago."""
    membership: Any = running.agent._membership
    membership._beat_ms -= ms


async def alone(running: RunningAgent) -> None:
    """For this one the other agent's lease has run out."""
    membership: Any = running.agent._membership
    agents = await running.metadata.agents.live_agents()
    membership._beats.cancel()
    membership._see([each for each in agents if each.writer_id == membership.node_id])


# ---- an owner that was away ----------------------------------------------------------------------------------------


async def test_an_owner_that_was_away_for_its_lease_answers_nothing_from_memory_and_reads_its_groups_anew(
    agents: Fleet, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    [old] = await stable_group(dial, owner.address, 1, instance_id="i")
    # given: no beat of the owner gets through; the member's process starts again and finds the other agent
    service_of(agents, owner).beats.clear()
    away_for(owner, LEASE_MS + 1)
    membership: Any = other.agent._membership
    everybody = membership.agents
    membership._see([each for each in everybody if each.writer_id == membership.node_id])
    new = GroupMember(await dial.kafka(other.address), instance_id="i")
    assert await new.join() is ErrorCode.NONE
    assert (await new.sync()).error_code == ErrorCode.NONE
    # then: the owner, whose list of agents is unchanged, does not claim that all is well
    assert await old.heartbeat() is ErrorCode.NOT_COORDINATOR
    assert (await described(old.client)).error_code == ErrorCode.NOT_COORDINATOR
    listed = await old.client.call(ListGroupsRequest(), ListGroupsResponse)
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
    assert groups_of(owner)._held == {}
    # and when it is back it knows what happened meanwhile
    membership._see(everybody)
    service_of(agents, owner).beats.set()
    await until(lambda: groups_of(owner).owns("g"))
    new.client = await dial.kafka(owner.address)
    assert await new.heartbeat() is ErrorCode.NONE
    assert await old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


async def test_a_beat_that_comes_too_late_gives_all_groups_up_before_anybody_asks(
    owner: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    membership: Any = owner.agent._membership
    away_for(owner, LEASE_MS + 1)
    # when
    await membership._beat(membership.current)
    # then
    assert groups_of(owner)._held == {}
    assert await member.heartbeat() is ErrorCode.NONE, "it goes on in the generation that was stored"


async def test_a_take_that_was_under_way_while_the_lease_ran_out_is_not_believed(
    owner: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    groups, service = groups_of(owner), owner.metadata
    groups._unload(groups._held["g"], ErrorCode.NOT_COORDINATOR)
    take = service.groups.take_group

    async def overtaken(*arguments: Any, **options: Any) -> Any:
        taken = await take(*arguments, **options)
        groups._lapsed()
        return taken

    groups.metadata.take_group = overtaken
    assert await member.heartbeat() is ErrorCode.NOT_COORDINATOR
    del groups.metadata.take_group
    assert await member.heartbeat() is ErrorCode.NONE


# ---- an owner whose list of agents does not show who had its group -------------------------------------------------


async def taken_unnoticed(other: RunningAgent, old: GroupMember, dial: Dial) -> GroupMember:
    """By an agent that came, or did not know the owner yet: the member's process starts again and finds that one."""
    await alone(other)
    new = GroupMember(await dial.kafka(other.address), instance_id=old.instance_id)
    assert await new.join() is ErrorCode.NONE
    assert (await new.sync()).error_code == ErrorCode.NONE
    await groups_of(other).drain()
    return new


async def test_a_group_that_another_agent_had_between_two_beats_is_read_anew(
    owner: RunningAgent, other: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.groups.coordinator.CHECKED_PER_CALL", 2)
    names = [name for number in range(99) if groups_of(owner).owns(name := f"n{number}")][:4]
    clients = [await dial.kafka(owner.address) for _ in range(2)]
    for name in names:
        assert await GroupMember(clients[0], group_id=name).commit({0: 1}) == {0: ErrorCode.NONE}
    [old] = await stable_group(dial, owner.address, 1, instance_id="i")
    groups_of(owner)._checks.cancel()
    new = await taken_unnoticed(other, old, dial)
    # given: the owner's list of agents is unchanged, and so are its groups
    new.client = clients[1]
    assert await new.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    # when
    await groups_of(owner).check()
    # then: that one is given up, and no other
    assert set(groups_of(owner)._held) == set(names)
    assert owner.metric("groups_fenced_total") == 1
    assert await new.heartbeat() is ErrorCode.NONE
    assert await old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert await new.commit({0: 9}) == {0: ErrorCode.NONE}


async def test_an_agent_looks_by_itself_whether_its_groups_are_its_own(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.groups.coordinator.BEAT_MS", 20.0)
    async with fleet(start_agent, 1, wrap=Gated, **OPTIONS) as agents:
        [agent], [service] = agents.agents, agents.services
        [member] = await stable_group(dial, agent.address, 1)
        held, membership = groups_of(agent)._held["g"], agent.agent._membership
        checks = service.calls["fenced_leases"]
        await until(lambda: service.calls["fenced_leases"] > checks + 1)
        assert groups_of(agent)._held["g"] is held, "nobody took it"
        await service.groups.take_group("g", owner=membership.current, create=False)  # type: ignore[union-attr]
        await until(lambda: groups_of(agent)._held == {})
        assert await member.heartbeat() is ErrorCode.NONE


async def test_what_could_not_be_asked_about_for_as_long_as_a_lease_is_given_up(
    agents: Fleet, owner: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    groups, takes = groups_of(owner), service_of(agents, owner).calls["take_group"]
    groups._checks.cancel()
    groups._checked_ms -= LEASE_MS - 4_000
    await groups.check()
    groups._checked_ms -= LEASE_MS - 4_000
    assert await member.heartbeat() is ErrorCode.NONE
    assert service_of(agents, owner).calls["take_group"] == takes
    groups._checked_ms -= 5_000
    assert await member.heartbeat() is ErrorCode.NONE
    assert service_of(agents, owner).calls["take_group"] == takes + 1, "it was read anew"
    assert await member.heartbeat() is ErrorCode.NONE
    assert service_of(agents, owner).calls["take_group"] == takes + 1, "once"


# ---- members that died with their owner ----------------------------------------------------------------------------


async def dies_with_its_members(owner: RunningAgent, other: RunningAgent, dial: Dial) -> None:
    [member] = await stable_group(dial, owner.address, 1, session_timeout_ms=2_000)
    assert await member.commit({0: 5}) == {0: ErrorCode.NONE}
    groups_of(owner)._unload(groups_of(owner)._held["g"], ErrorCode.NOT_COORDINATOR)
    await alone(other)


async def test_members_that_died_with_their_owner_are_out_although_nobody_asks_for_their_group(
    owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    await dies_with_its_members(owner, other, dial)
    # when: the other agent has seen the same agents for two rounds
    groups = groups_of(other)
    await groups.adopt()
    assert groups.state_of("g") is None, "agents came or went since the last round"
    await groups.adopt()
    assert groups.state_of("g") == "Stable"

    async def is_empty() -> bool:
        record = await other.metadata.groups.group("g")  # type: ignore[attr-defined]
        return not record.members

    await until(is_empty, 20)
    # then: they count no more, and the group is left alone
    assert await deleted(await dial.kafka(other.address), "g") == [ErrorCode.NONE]


async def test_groups_are_looked_for_round_by_round_and_those_of_others_left_alone(
    agents: Fleet, owner: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.groups.coordinator.ADOPTED_PER_SWEEP", 2)
    monkeypatch.setattr("agents.groups.coordinator.ADOPTION_PAGE_GROUPS", 5)
    groups = groups_of(owner)
    names = [f"g{number:02}" for number in range(24)]
    for name in names:
        at = next(each for each in agents.agents if groups_of(each).owns(name))
        member = GroupMember(await dial.kafka(at.address), group_id=name)
        assert await member.join() is ErrorCode.NONE
        await member.sync()
    ours = [name for name in names if groups.owns(name)]
    assert 3 < len(ours) < 24
    for held in list(groups._held.values()):
        groups._unload(held, ErrorCode.NOT_COORDINATOR)
    await groups.adopt()
    rounds = 0
    while set(groups._held) != set(ours):
        held_before = len(groups._held)
        await groups.adopt()
        assert len(groups._held) - held_before <= 2
        rounds += 1
        assert rounds < 30


async def test_an_agent_looks_by_itself_for_groups_of_the_dead_and_for_the_end_of_its_lease(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.groups.coordinator.SWEEP_MS", 50.0)
    async with fleet(start_agent, 1, wrap=Gated, **OPTIONS) as agents:
        [agent], [service] = agents.agents, agents.services
        [member] = await stable_group(dial, agent.address, 1)
        groups = groups_of(agent)
        held = groups._held["g"]
        groups._unload(held, ErrorCode.NOT_COORDINATOR)
        await until(lambda: groups.state_of("g") == "Stable")
        service.beats.clear()  # or the next beat would find that the lease has ended
        away_for(agent, LEASE_MS + 1)
        await until(lambda: groups._held == {}, 20)
        service.beats.set()
        await until(lambda: groups.state_of("g") == "Stable")
        assert await member.heartbeat() is ErrorCode.NONE


async def test_who_describes_a_group_of_the_dead_makes_their_sessions_end(
    owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    await dies_with_its_members(owner, other, dial)
    client = await dial.kafka(other.address)
    assert (await described(client)).group_state == "Stable"

    async def is_empty() -> bool:
        return (await described(client)).group_state == "Empty"

    await until(is_empty, 20)


# ---- deletions -----------------------------------------------------------------------------------------------------


async def test_a_group_is_deleted_although_the_client_that_asked_is_gone(
    agents: Fleet, owner: RunningAgent, dial: Dial
) -> None:
    client, gone = await dial.kafka(owner.address), await dial.kafka(owner.address)
    assert await GroupMember(client).commit({0: 5}) == {0: ErrorCode.NONE}
    service = service_of(agents, owner)
    service.deletions.clear()
    asking = asyncio.create_task(deleted(gone, "g"))
    await until(lambda: service.calls["delete_group"])
    # when: it goes, and another asks for the same
    asking.cancel()
    await gone.close()
    again = asyncio.create_task(deleted(await dial.kafka(owner.address), "g"))
    assert await GroupMember(client).commit({0: 6}) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    service.deletions.set()
    # then
    assert await again == [ErrorCode.NONE]
    assert service.calls["delete_group"] == 1
    assert groups_of(owner)._held == {}
    assert await fetch_offsets(client, "g") == {}
    assert await GroupMember(client).commit({0: 7}) == {0: ErrorCode.NONE}


@pytest.mark.parametrize("failure", [MetadataUnavailableError("away"), asyncio.CancelledError()])
async def test_a_deletion_that_comes_to_nothing_leaves_no_dead_group_behind(
    agents: Fleet, owner: RunningAgent, dial: Dial, failure: BaseException
) -> None:
    client = await dial.kafka(owner.address)
    assert await GroupMember(client).commit({0: 5}) == {0: ErrorCode.NONE}
    service = service_of(agents, owner)
    service.failure = failure
    deleting = asyncio.create_task(groups_of(owner).delete("g"))
    await asyncio.wait([deleting])
    assert deleting.cancelled() or deleting.exception() is not None
    service.failure = None
    # then
    assert groups_of(owner)._held == {}
    assert await fetch_offsets(client, "g") == {("t", 0): 5}
    assert await GroupMember(client).commit({0: 6}) == {0: ErrorCode.NONE}
    assert await deleted(client, "g") == [ErrorCode.NONE]


async def test_a_dead_group_is_not_held_on_to(owner: RunningAgent, dial: Dial) -> None:
    client = await dial.kafka(owner.address)
    assert await GroupMember(client).commit({0: 5}) == {0: ErrorCode.NONE}
    machine = groups_of(owner)._held["g"].machine
    machine._group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert machine.state is GroupState.DEAD
    assert await GroupMember(client).commit({0: 6}) == {0: ErrorCode.NONE}
