"""Consumer groups over two agents, request by request: who answers, what is stored, what survives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from agents.groups import expiry
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.store import MetadataStore
from metadata.groups.contract import GroupLease, GroupRecord
from metadata.memory import groups as memory_groups
from siltstone.kafka.client import KafkaClient
from storage.memory import MemoryStore
from storage.objects import Body
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.groups import (
    GroupMember,
    coordinator_of,
    fetch_offsets,
    meet,
    owner_and_other,
    stable_group,
)
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from wire.records import NewRecord, build_batch

OPTIONS: Mapping[str, Any] = {"group_initial_rebalance_delay_ms": 50}


class Lossy(Counted):
    """Saves of groups are done, and their answers lost, as often as asked for. Commits wait for a gate."""

    answers_to_lose = 0

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.commits = asyncio.Event()
        self.commits.set()

    async def commit_offsets(self, batches: Any) -> Any:
        self.calls["commit_offsets"] += 1
        await self.commits.wait()
        return await self.inner.groups.commit_offsets(batches)

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        await self.inner.groups.save_group(lease, record)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise MetadataUnavailableError("the connection was lost")


@pytest.fixture
async def agents(start_agent: StartAgent, agent_metadata_url: str) -> AsyncIterator[Fleet]:
    async with fleet(start_agent, 2, metadata_url=agent_metadata_url, wrap=Lossy, **OPTIONS) as agents:
        await meet(agents.agents)
        yield agents
        for service in agents.services:
            service.commits.set()  # or nothing drains


@pytest.fixture
async def owner(agents: Fleet, dial: Dial) -> RunningAgent:
    owner, _ = owner_and_other(agents)
    await (await dial.kafka(owner.address)).create_topic("t", partitions=4)
    await agents.know_topic("t")
    return owner


@pytest.fixture
async def other(agents: Fleet) -> RunningAgent:
    return owner_and_other(agents)[1]


def service_of(agents: Fleet, running: RunningAgent) -> Any:
    return agents.services[agents.agents.index(running)]


def groups_of(running: RunningAgent) -> Any:
    return running.agent._groups


async def listed(running: RunningAgent, dial: Dial, **filters: Sequence[str]) -> dict[str, str]:
    client = await dial.kafka(running.address)
    answer = await client.call(ListGroupsRequest(**filters), ListGroupsResponse)  # type: ignore[arg-type]
    return {group.group_id: group.group_state for group in answer.groups}


async def described(client: KafkaClient, group_id: str = "g") -> Any:
    answer = await client.call(DescribeGroupsRequest(groups=[group_id]), DescribeGroupsResponse)
    return answer.groups[0]


async def deleted(client: KafkaClient, *group_ids: str) -> list[ErrorCode]:
    answer = await client.call(DeleteGroupsRequest(groups_names=list(group_ids)), DeleteGroupsResponse)
    return [ErrorCode(result.error_code) for result in answer.results]


# ---- who answers ---------------------------------------------------------------------------------------------------


async def test_all_agents_name_the_same_coordinator_and_others_refuse(
    agents: Fleet, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    clients = [await dial.kafka(each.address) for each in agents.agents]
    for group_id in ("g", "", "\x00", "h" * 2_000):
        assert len({await coordinator_of(client, group_id) for client in clients}) == 1
    stranger = GroupMember(await dial.kafka(other.address))
    assert await stranger.join() is ErrorCode.NOT_COORDINATOR
    assert await stranger.heartbeat() is ErrorCode.NOT_COORDINATOR
    assert (await stranger.sync()).error_code == ErrorCode.NOT_COORDINATOR
    assert await stranger.leave() is ErrorCode.NOT_COORDINATOR
    assert await stranger.commit({0: 1}) == {0: ErrorCode.NOT_COORDINATOR}
    assert await fetch_offsets(stranger.client) is ErrorCode.NOT_COORDINATOR
    assert (await described(stranger.client)).error_code == ErrorCode.NOT_COORDINATOR
    assert await deleted(stranger.client, "g") == [ErrorCode.NOT_COORDINATOR]
    assert service_of(agents, other).calls["take_group"] == 0


async def test_members_need_a_group_id_that_can_be_stored(owner: RunningAgent, dial: Dial) -> None:
    client = await dial.kafka(owner.address)
    for group_id in ("", "x" * 2_001):
        member = GroupMember(client, group_id=group_id)
        assert await member.join() is ErrorCode.INVALID_GROUP_ID
        assert await member.heartbeat() is ErrorCode.INVALID_GROUP_ID
    answer = await client.call(FindCoordinatorRequest(coordinator_keys=["x" * 2_001]), FindCoordinatorResponse)
    assert answer.coordinators[0].error_code == ErrorCode.INVALID_GROUP_ID


# ---- a group's life ------------------------------------------------------------------------------------------------


async def test_a_group_forms_is_described_and_ends(
    agents: Fleet, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    leader, follower = members = await stable_group(dial, owner.address, 2)
    assert [await member.heartbeat() for member in members] == [ErrorCode.NONE] * 2
    group = await described(leader.client)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert {each.member_id: bytes(each.member_assignment) for each in group.members} == {
        member.member_id: member.member_id.encode() for member in members
    }
    assert {(each.client_host, each.client_id) for each in group.members} == {("/127.0.0.1", "siltstone")}
    assert await listed(owner, dial) == {"g": "Stable"}
    assert await listed(other, dial) == {}
    assert await listed(owner, dial, states_filter=["empty"]) == {}
    assert await listed(owner, dial, types_filter=["consumer"]) == {}
    # when: one leaves, the other must join again
    assert await follower.leave() is ErrorCode.NONE
    assert await leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert await leader.join() is ErrorCode.NONE
    assert leader.generation == 2
    await leader.sync()
    assert await leader.leave() is ErrorCode.NONE
    assert await listed(owner, dial, states_filter=["EMPTY"]) == {"g": "Empty"}
    assert owner.metric("group_rebalances_total") == 2
    assert owner.metric("groups", state="Empty") == 1


async def test_a_member_that_falls_silent_is_out_when_its_session_ends(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, **OPTIONS, group_min_session_timeout_ms=100) as agents:
        [member] = await stable_group(dial, agents[0].address, 1, session_timeout_ms=200)
        await until(lambda: groups_of(agents[0]).state_of("g") == "Empty", 5)
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_join_that_waits_leaves_nothing_when_its_client_goes(owner: RunningAgent, dial: Dial) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    # given: another member's join waits for the first to come
    gone = GroupMember(await dial.kafka(owner.address))
    joining = asyncio.create_task(gone.join())
    held = groups_of(owner)._held["g"]
    await until(lambda: len(held._waiting) == 1)
    joining.cancel()
    await gone.client.close()
    await until(lambda: not held._waiting)
    # then: the group goes on, with the member that was heard of, until its session ends
    assert await member.join() is ErrorCode.NONE
    assert member.generation == 2


async def test_members_leave_together_by_id_or_by_instance_and_each_is_told_of_itself(
    owner: RunningAgent, dial: Dial
) -> None:
    one, other = await stable_group(dial, owner.address, 2)
    static = GroupMember(await dial.kafka(owner.address), instance_id="i")
    joining = asyncio.create_task(static.join())
    await until(lambda: groups_of(owner).state_of("g") == "PreparingRebalance")
    assert await asyncio.gather(one.join(), other.join(), joining) == [ErrorCode.NONE] * 3
    leaving = [(one.member_id, None), ("", "i"), ("nobody", None), ("", "no instance"), ("", None)]
    members = [MemberIdentity(member_id=member_id, group_instance_id=instance) for member_id, instance in leaving]
    answer = await one.client.call(LeaveGroupRequest(group_id="g", members=members), LeaveGroupResponse)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.error_code == ErrorCode.NONE
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == leaving
    assert [each.error_code for each in answer.members] == [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown, unknown]
    assert await other.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert await one.heartbeat() is unknown


# ---- offsets -------------------------------------------------------------------------------------------------------


async def test_offsets_are_committed_one_by_one_and_read_back(owner: RunningAgent, dial: Dial) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    assert await member.commit({0: 5, 3: 9, 7: 1}, text="m" * 4_096) == {
        0: ErrorCode.NONE,
        3: ErrorCode.NONE,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await member.commit({0: 6}, text="m" * 4_097) == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert await member.commit({0: 6}, topic="nope") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    client = member.client
    assert await fetch_offsets(client) == {("t", 0): 5, ("t", 3): 9}
    assert await fetch_offsets(client, partitions=[0, 1, 9]) == {("t", 0): 5, ("t", 1): -1, ("t", 9): -1}
    assert await fetch_offsets(client, partitions=[0], topic="nope") == {("nope", 0): -1}
    assert owner.metric("committed_offsets_total") == 2
    assert owner.metric("offset_commits_total", outcome="committed") == 3


async def test_the_group_judges_who_may_commit(agents: Fleet, owner: RunningAgent, dial: Dial) -> None:
    client = await dial.kafka(owner.address)
    nobody = GroupMember(client)
    # a consumer outside of any generation makes a group that keeps offsets and no more; one within needs its group
    nobody.generation = 3
    assert await nobody.commit({0: 1}) == {0: ErrorCode.GROUP_ID_NOT_FOUND}
    nobody.generation = -1
    assert await nobody.commit({0: 1}) == {0: ErrorCode.NONE}
    [member] = await stable_group(dial, owner.address, 1)
    assert await nobody.commit({0: 2}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    member.generation += 1
    assert await member.commit({0: 3}) == {0: ErrorCode.ILLEGAL_GENERATION}
    assert await fetch_offsets(client) == {("t", 0): 1}
    assert owner.metric("offset_commits_total", outcome="refused") == 2


async def test_a_fenced_owner_commits_nothing_and_forgets_the_group(
    agents: Fleet, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    assert await member.commit({0: 1}) == {0: ErrorCode.NONE}
    # given: an agent that knows better who is alive takes the group, and the owner has not looked
    groups_of(owner)._checks.cancel()
    lease = other.agent._membership.current  # type: ignore[union-attr]
    taken = await service_of(agents, other).groups.take_group("g", owner=lease, create=False)
    assert taken.record.generation == 1
    assert [each.member_id for each in taken.record.members] == [member.member_id]
    # then
    assert await member.heartbeat() is ErrorCode.NONE, "which harms nobody"
    assert await member.commit({0: 2}) == {0: ErrorCode.NOT_COORDINATOR}
    assert groups_of(owner).state_of("g") is None
    assert await fetch_offsets(member.client) == {("t", 0): 1}
    assert owner.metric("groups_fenced_total") == 1
    # and while our list still says that we own it we take it back, with the same member in the same generation
    assert await member.heartbeat() is ErrorCode.NONE
    assert await member.commit({0: 2}) == {0: ErrorCode.NONE}


async def test_offsets_of_topics_that_are_read_stay_and_others_can_be_deleted(owner: RunningAgent, dial: Dial) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    await member.client.create_topic("u", partitions=2)
    for topic in ("t", "u"):
        assert await member.commit({0: 1, 1: 1}, topic=topic) == dict.fromkeys((0, 1), ErrorCode.NONE)

    async def delete(group_id: str, *topics: str) -> OffsetDeleteResponse:
        parts = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
        asked = [OffsetDeleteRequestTopic(name=name, partitions=parts) for name in topics]
        return await member.client.call(OffsetDeleteRequest(group_id=group_id, topics=asked), OffsetDeleteResponse)

    answer = await delete("g", "t", "u")
    assert [[part.error_code for part in topic.partitions] for topic in answer.topics] == [
        [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert await fetch_offsets(member.client) == {("t", 0): 1, ("t", 1): 1, ("u", 1): 1}
    await member.leave()
    await delete("g", "t")
    assert await fetch_offsets(member.client) == {("t", 1): 1, ("u", 1): 1}


async def test_a_group_is_deleted_when_it_has_no_members_and_its_offsets_with_it(
    owner: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    assert await member.commit({0: 1}) == {0: ErrorCode.NONE}
    assert await deleted(member.client, "g") == [ErrorCode.NON_EMPTY_GROUP]
    await member.leave()
    assert await deleted(member.client, "g") == [ErrorCode.NONE]
    assert await deleted(member.client, "g") == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert await fetch_offsets(member.client) == {}
    assert (await described(member.client)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await listed(owner, dial) == {}


async def test_offsets_that_nobody_keeps_expire(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "CHECK_INTERVAL_MS", 50)
    async with fleet(start_agent, 2, **OPTIONS, offsets_retention_ms=1) as agents:
        await meet(agents.agents)
        owner, _ = owner_and_other(agents)
        client = await dial.kafka(owner.address)
        await client.create_topic("t", partitions=1)
        assert await GroupMember(client).commit({0: 1}) == {0: ErrorCode.NONE}

        async def gone() -> bool:
            return await fetch_offsets(client) == {}

        await until(gone, 5)
        done = [service.calls["expire_groups"] for service in agents.services]
        assert min(done) == 0 and max(done) > 0, f"one agent does it for all: {done}"


async def test_one_round_of_expiry_goes_on_until_nothing_is_left(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "GONE_PER_CALL", 2)
    monkeypatch.setattr(memory_groups, "EXPIRED_MAX", 2)
    running = await start_agent()
    metadata: Any = running.metadata
    # given: groups that have become nothing, and no offsets
    for number in range(5):
        await metadata.groups.take_group(f"g{number}", owner=running.agent._membership.current, create=True)  # type: ignore[union-attr]
        metadata.database.groups[f"g{number}"].empty_since_ms = 0
    # when
    await running.agent._new_expiry(running.agent._groups).expire()  # type: ignore[arg-type]
    # then
    assert await metadata.groups.list_groups() == []


async def test_a_new_generation_is_told_only_when_older_commits_are_written(
    agents: Fleet, owner: RunningAgent, dial: Dial
) -> None:
    [first] = await stable_group(dial, owner.address, 1)
    service = service_of(agents, owner)
    # given: a commit that was accepted and is on its way, and a second member
    service.commits.clear()
    committing = GroupMember(await dial.kafka(owner.address), member_id=first.member_id, generation=1)
    commit = asyncio.create_task(committing.commit({0: 5}))
    await until(lambda: service.calls["commit_offsets"])
    second = GroupMember(await dial.kafka(owner.address))
    joining = asyncio.create_task(second.join())
    await until(lambda: groups_of(owner).state_of("g") == "PreparingRebalance")
    assert [await first.join(), await joining] == [ErrorCode.NONE] * 2
    syncing = [asyncio.create_task(member.sync()) for member in (first, second)]
    # then: nobody is told what to read before that offset can be read
    done, _ = await asyncio.wait(syncing, timeout=0.2)
    assert not done
    service.commits.set()
    assert [(await each).error_code for each in syncing] == [ErrorCode.NONE] * 2
    assert await fetch_offsets(first.client) == {("t", 0): 5}
    assert await commit == {0: ErrorCode.NONE}


# ---- when something goes -------------------------------------------------------------------------------------------


async def test_a_save_in_doubt_gives_the_group_up_and_members_go_on_from_what_is_stored(
    agents: Fleet, owner: RunningAgent, dial: Dial
) -> None:
    member = GroupMember(await dial.kafka(owner.address))
    assert await member.join() is ErrorCode.NONE
    # given: the record is stored, and nobody knows
    service_of(agents, owner).answers_to_lose = 1
    assert (await member.sync()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    # then: the same agent takes it again, under a new epoch, and the generation is there
    answer = await member.sync()
    assert (answer.error_code, bytes(answer.assignment)) == (ErrorCode.NONE, member.member_id.encode())
    assert await member.commit({0: 1}) == {0: ErrorCode.NONE}
    assert service_of(agents, owner).calls["take_group"] == 2


async def test_an_owner_that_drains_sends_its_members_on_in_the_same_generation(
    agents: Fleet, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    members = await stable_group(dial, owner.address, 2)
    generation = members[0].generation
    newcomer = GroupMember(await dial.kafka(owner.address))
    joining = asyncio.create_task(newcomer.join())
    await until(lambda: groups_of(owner).state_of("g") == "PreparingRebalance")
    # when: it is told to go, while a join waits
    stopping = asyncio.create_task(owner.agent.stop())
    await until(lambda: groups_of(other).owns("g"))
    # then: waiting members are sent away, and the next owner knows the members as they were stored
    assert await joining is ErrorCode.NOT_COORDINATOR
    for member in members:
        member.client = await dial.kafka(other.address)
        assert await member.heartbeat() is ErrorCode.NONE
        assert member.generation == generation
        assert await member.commit({0: 7}) == {0: ErrorCode.NONE}
    await stopping


async def test_an_agent_that_comes_takes_its_groups_over(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, **OPTIONS) as agents:
        first = agents[0]
        await (await dial.kafka(first.address)).create_topic("t", partitions=1)
        groups = {
            f"g{number}": GroupMember(await dial.kafka(first.address), group_id=f"g{number}") for number in range(8)
        }
        assert set(await asyncio.gather(*(member.join() for member in groups.values()))) == {ErrorCode.NONE}
        await asyncio.gather(*(member.sync() for member in groups.values()))
        second = await start_agent(store=first.store, metadata=agents.services[0].inner, **OPTIONS)
        await meet([first])
        moved = [group_id for group_id in groups if groups_of(second).owns(group_id)]
        assert 0 < len(moved) < 8
        for group_id, member in groups.items():
            expected = ErrorCode.NOT_COORDINATOR if group_id in moved else ErrorCode.NONE
            assert await member.heartbeat() is expected
            if group_id in moved:
                member.client = await dial.kafka(second.address)
                assert await member.heartbeat() is ErrorCode.NONE
        assert set(groups_of(first)._held) == groups.keys() - moved


async def test_a_group_without_members_is_forgotten_and_found_again(
    owner: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = GroupMember(await dial.kafka(owner.address))
    [active] = await stable_group(dial, owner.address, 1)
    assert await active.heartbeat() is ErrorCode.NONE
    member.group_id = next(name for name in (f"s{number}" for number in range(99)) if groups_of(owner).owns(name))
    assert await member.commit({0: 4}) == {0: ErrorCode.NONE}
    # when
    groups_of(owner)._forget_idle(0.0)
    # then
    assert set(groups_of(owner)._held) == {"g"}
    assert groups_of(owner)._bytes == groups_of(owner)._held["g"].bytes > 0
    assert await listed(owner, dial) == {"g": "Stable", member.group_id: "Empty"}
    assert await member.commit({1: 4}) == {1: ErrorCode.NONE}
    assert await fetch_offsets(member.client, member.group_id) == {("t", 0): 4, ("t", 1): 4}


async def test_a_slow_object_store_does_not_stop_groups(start_agent: StartAgent, dial: Dial) -> None:
    class Stuck(MemoryStore):
        async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
            await asyncio.Event().wait()

    running = await start_agent(
        store=Stuck(), produce_buffer_bytes_max=20_000, produce_file_bytes=10_000, produce_early_bytes=1_000,
        message_max_bytes=15_000, drain_timeout_ms=100, **OPTIONS,
    )  # fmt: skip
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    # given: producers whose records do not get through, up to the bound
    batch = build_batch([NewRecord(int(time.time() * 1000), None, b"x" * 9_000)])
    producers = [await dial.kafka(running.address) for _ in range(4)]
    waiting = [asyncio.create_task(producer.produce("t", 0, batch)) for producer in producers]
    server = running.agent._server
    assert server is not None
    await until(lambda: server.produce_is_full)
    # then
    members = await stable_group(dial, running.address, 2)
    assert await members[0].commit({0: 0}) == {0: ErrorCode.NONE}
    assert [await member.heartbeat() for member in members] == [ErrorCode.NONE] * 2
    assert not any(each.done() for each in waiting)
    for each in waiting:
        each.cancel()
