"""Offsets that transactions commit for groups, request by request, over two agents and both metadata stores.

The coordinator of the transactions is the test: it calls the store as the agent of the transactional id would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from agents.request_context import ANONYMOUS
from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError
from metadata.contract.store import MetadataStore
from metadata.transactions.contract import TransactionalOffsets
from security.acls.values import Operation, ResourceType
from tests.contract.metadata_worlds import Writer
from tests.contract.transactions import Coordinator, Producer
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.groups import GroupMember, meet, owner_and_other, stable_group
from tests.fixtures.waiting import until
from tests.integration.groups.test_groups import OPTIONS, deleted, groups_of, service_of
from wire.error_codes import ErrorCode
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

NEWEST = 5
NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT


class Held(Counted):
    """Offsets of transactions wait for a gate before they reach the store. `failure` is raised once, before or after
    they were stored."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.fails_behind = False

    async def commit_offsets(self, asked: Any) -> Any:
        if not isinstance(asked[0], TransactionalOffsets):
            return await self.inner.groups.commit_offsets(asked)
        self.calls["held"] += 1
        await self.gate.wait()
        failure, self.failure = self.failure, None
        if failure is not None and not self.fails_behind:
            raise failure
        result = await self.inner.transactions.commit_offsets(asked)
        if failure is not None:
            raise failure
        return result


@pytest.fixture
async def agents(start_agent: StartAgent, agent_metadata_url: str) -> AsyncIterator[Fleet]:
    async with fleet(start_agent, 2, metadata_url=agent_metadata_url, wrap=Held, **OPTIONS) as agents:
        await meet(agents.agents)
        yield agents
        for service in agents.services:
            service.gate.set()


@pytest.fixture
async def owner(agents: Fleet, dial: Dial) -> RunningAgent:
    owner, _ = owner_and_other(agents)
    await (await dial.kafka(owner.address)).create_topic("t", partitions=4)
    await agents.know_topic("t")
    return owner


@pytest.fixture
async def other(agents: Fleet) -> RunningAgent:
    return owner_and_other(agents)[1]


@pytest.fixture
async def coordinator(other: RunningAgent) -> Coordinator:
    return await coordinator_at(other)


@pytest.fixture
async def raw(owner: RunningAgent, dial: Dial) -> RawConnection:
    return await dial.raw(owner.address)


async def coordinator_at(running: RunningAgent) -> Coordinator:
    membership: Any = running.agent._membership
    service: Any = running.metadata
    markers = await service.transactions.register_marker_writer(membership.current)
    return Coordinator(Writer(service=service, lease=membership.current), markers)


async def producer_of(coordinator: Coordinator, version: int, *, group_id: str = "g") -> Producer:
    """One with a transaction that `group_id` has entered, if the version of TxnOffsetCommit does not let it enter."""
    producer = await coordinator.producer()
    producer.version = 2 if version >= 5 else 1
    if version < 5:
        added = await coordinator.service.transactions.add_group(
            coordinator.leases[producer.name],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group_id,
        )
        assert added == 0
    return producer


def request_of(producer: Producer, offsets: Mapping[int, int], **more: Any) -> TxnOffsetCommitRequest:
    """Of version 3 and above a client that says nothing of its group."""
    topic, text = more.pop("topic", "t"), more.pop("text", "")
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=text)
        for index, offset in offsets.items()
    ]
    values: dict[str, Any] = {
        "transactional_id": producer.name,
        "group_id": "g",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "topics": [TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
        **more,
    }
    return TxnOffsetCommitRequest(**values)


async def hold(
    raw: RawConnection, producer: Producer, offsets: Mapping[int, int], version: int = NEWEST, **more: Any
) -> dict[int, ErrorCode]:
    """The result by partition."""
    answer = await raw.call(request_of(producer, offsets, **more), TxnOffsetCommitResponse, version)
    return {part.partition_index: ErrorCode(part.error_code) for part in answer.topics[0].partitions}


def of_member(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "generation_id": member.generation,
        "group_instance_id": member.instance_id,
    }


async def fetched(
    raw: RawConnection, partitions: Sequence[int] | None = None, *, version: int = 9, stable: bool = True
) -> dict[int, int | ErrorCode]:
    """By partition: the offset, or the error. None: of all partitions of the group."""
    groups: Any
    if version < 8:
        asked = None if partitions is None else [OffsetFetchRequestTopic(name="t", partition_indexes=[*partitions])]
        request = OffsetFetchRequest(group_id="g", topics=asked, require_stable=stable)
        groups = [await raw.call(request, OffsetFetchResponse, version)]
    else:
        topics = (
            None if partitions is None else [OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))]
        )
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], require_stable=stable
        )
        groups = (await raw.call(request, OffsetFetchResponse, version)).groups
    [group] = groups
    assert not group.error_code
    parts = [part for topic in group.topics for part in topic.partitions]
    assert all(part.committed_offset == -1 for part in parts if part.error_code)
    return {
        part.partition_index: ErrorCode(part.error_code) if part.error_code else part.committed_offset for part in parts
    }


# ---- both protocols --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(NEWEST + 1))
async def test_offsets_are_unstable_until_their_transaction_ends(
    raw: RawConnection, coordinator: Coordinator, version: int
) -> None:
    for commit in (False, True):
        producer = await producer_of(coordinator, version)
        before = dict.fromkeys((0, 1), -1)
        assert await hold(raw, producer, {0: 5, 1: 6}, version) == {0: NONE, 1: NONE}
        for fetch in (7, 8, 9):
            assert await fetched(raw, [0, 1, 2], version=fetch) == {0: UNSTABLE, 1: UNSTABLE, 2: -1}
            assert await fetched(raw, version=fetch) == {0: UNSTABLE, 1: UNSTABLE}
            assert await fetched(raw, [0, 1], version=fetch, stable=False) == before
        assert await fetched(raw, [0, 1], version=6, stable=False) == before

        assert (await producer.end(commit=commit)).error == 0

        assert await fetched(raw, [0, 1, 2]) == ({0: 5, 1: 6, 2: -1} if commit else {0: -1, 1: -1, 2: -1})
        assert await fetched(raw) == ({0: 5, 1: 6} if commit else {})


@pytest.mark.parametrize("version", range(NEWEST + 1))
async def test_a_producer_that_may_not_hears_it_in_the_words_of_its_version(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, version: int
) -> None:
    producer = await producer_of(coordinator, version, group_id="another")
    mapping, epoch = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH
    outside = {4: ErrorCode.TRANSACTION_ABORTABLE, 5: NONE}.get(version, ErrorCode.INVALID_TXN_STATE)

    async def held(**more: Any) -> ErrorCode:
        return (await hold(raw, producer, {0: 5}, version, **more))[0]

    assert await held(transactional_id="nobody") is mapping
    assert await held(transactional_id="") is mapping
    assert await held(producer_id=producer.producer_id + 10**6) is mapping
    assert await held(producer_epoch=producer.epoch + 1) is epoch
    assert await fetched(raw) == {}
    assert await held() is outside
    assert await fetched(raw) == ({0: UNSTABLE} if version == 5 else {})
    assert owner.metric("offset_commits_total", outcome="refused") == (4 if version == 5 else 5)


async def test_each_partition_is_answered_alone(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent
) -> None:
    producer = await producer_of(coordinator, NEWEST)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await hold(raw, producer, {0: 5, 3: 9, 7: 1}, text="m" * 4_096) == {0: NONE, 3: NONE, 7: missing}
    assert await hold(raw, producer, {0: 6}, text="m" * 4_097) == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert await hold(raw, producer, {0: 6}, topic="nope") == {0: missing}
    await producer.end()
    assert await fetched(raw) == {0: 5, 3: 9}
    assert owner.metric("committed_offsets_total") == 2


# ---- the group judges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_the_group_judges_the_member_of_a_producer(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial, version: int
) -> None:
    producer = await producer_of(coordinator, version)

    async def held(**more: Any) -> ErrorCode:
        return (await hold(raw, producer, {0: 5}, version, **more))[0]

    assert await held(generation_id=1, member_id="m") is ErrorCode.ILLEGAL_GENERATION, "there is no such group"
    static = GroupMember(await dial.kafka(owner.address), instance_id="i")
    assert await static.join() is NONE
    assert (await static.sync()).error_code == NONE
    me = of_member(static)
    assert await held(**{**me, "generation_id": 9}) is ErrorCode.ILLEGAL_GENERATION
    assert await held(**{**me, "member_id": "x"}) is ErrorCode.FENCED_INSTANCE_ID
    assert await held(generation_id=1, member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert await held(generation_id=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await fetched(raw) == {}
    assert await held() is NONE, "nothing is said of the group"
    assert await held(**me) is NONE
    assert await held(group_id="") is ErrorCode.INVALID_GROUP_ID
    assert await held(group_id="x" * 2_001) is ErrorCode.INVALID_GROUP_ID


async def test_old_producers_say_nothing_of_the_group_and_a_group_with_members_takes_it(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial
) -> None:
    await stable_group(dial, owner.address, 1)
    producer = await producer_of(coordinator, 0)
    assert await hold(raw, producer, {0: 5}, 0) == {0: NONE}
    assert await fetched(raw) == {0: UNSTABLE}


async def test_after_a_rebalance_the_offsets_are_unstable_until_the_end_and_the_zombie_is_out(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial
) -> None:
    [first] = await stable_group(dial, owner.address, 1)
    zombie = of_member(first)
    producer = await producer_of(coordinator, NEWEST)
    assert await first.commit({0: 1}) == {0: NONE}
    assert await hold(raw, producer, {0: 5}, **zombie) == {0: NONE}
    # when: another member comes, and the next generation begins
    second = GroupMember(await dial.kafka(owner.address))
    joining = asyncio.create_task(second.join())
    await until(lambda: groups_of(owner).state_of("g") == "PreparingRebalance")
    assert [await first.join(), await joining] == [NONE] * 2
    assert [(await each).error_code for each in [asyncio.create_task(m.sync()) for m in (first, second)]] == [NONE] * 2
    # then
    assert await fetched(raw, [0]) == {0: UNSTABLE}
    assert await hold(raw, producer, {0: 6}, **zombie) == {0: ErrorCode.ILLEGAL_GENERATION}
    assert (await producer.end()).error == 0
    assert await fetched(raw, [0]) == {0: 5}


async def test_a_new_generation_is_told_only_when_older_offsets_are_held(
    agents: Fleet, raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial
) -> None:
    [first] = await stable_group(dial, owner.address, 1)
    service, producer = service_of(agents, owner), await producer_of(coordinator, NEWEST)
    # given: offsets that were accepted and are on their way, and a second member
    service.gate.clear()
    holding = asyncio.create_task(hold(raw, producer, {0: 5}, **of_member(first)))
    await until(lambda: service.calls["held"])
    second = GroupMember(await dial.kafka(owner.address))
    joining = asyncio.create_task(second.join())
    await until(lambda: groups_of(owner).state_of("g") == "PreparingRebalance")
    assert [await first.join(), await joining] == [NONE] * 2
    syncing = [asyncio.create_task(member.sync()) for member in (first, second)]
    # then: nobody is told what to read before the offset is known to be unstable
    done, _ = await asyncio.wait(syncing, timeout=0.2)
    assert not done
    service.gate.set()
    assert [(await each).error_code for each in syncing] == [NONE] * 2
    fetching = await dial.raw(owner.address)
    assert await fetched(fetching) == {0: UNSTABLE}
    assert await holding == {0: NONE}


# ---- owners that change, and a store that is away --------------------------------------------------------------------


async def test_another_agent_refuses_and_takes_nothing(
    agents: Fleet, coordinator: Coordinator, other: RunningAgent, owner: RunningAgent, dial: Dial
) -> None:
    producer = await producer_of(coordinator, NEWEST)
    assert await hold(await dial.raw(other.address), producer, {0: 5}) == {0: ErrorCode.NOT_COORDINATOR}
    assert service_of(agents, other).calls["take_group"] == 0


async def test_a_fenced_owner_holds_nothing_and_forgets_the_group(
    agents: Fleet, raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    producer = await producer_of(coordinator, NEWEST)
    groups_of(owner)._checks.cancel()
    lease = other.agent._membership.current  # type: ignore[union-attr]
    await service_of(agents, other).groups.take_group("g", owner=lease, create=False)

    assert await hold(raw, producer, {0: 5}, **of_member(member)) == {0: ErrorCode.NOT_COORDINATOR}

    assert groups_of(owner).state_of("g") is None
    assert await fetched(raw) == {}
    assert owner.metric("groups_fenced_total") == 1
    # and while our list still says that we own the group we take it back, with the same member
    assert await hold(raw, producer, {0: 5}, **of_member(member)) == {0: NONE}


@pytest.mark.parametrize("version", [4, 5])
async def test_the_owner_moves_between_the_offsets_and_the_end_and_they_count_once(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, other: RunningAgent, dial: Dial, version: int
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    producer = await producer_of(coordinator, version)
    assert await hold(raw, producer, {0: 5, 1: 5}, version, **of_member(member)) == {0: NONE, 1: NONE}
    stopping = asyncio.create_task(owner.agent.stop())
    await until(lambda: groups_of(other).owns("g"))
    there = await dial.raw(other.address)
    end = coordinator.end_of(producer)

    assert await fetched(there) == {0: UNSTABLE, 1: UNSTABLE}
    assert await hold(there, producer, {1: 6}, version, **of_member(member)) == {1: NONE}
    assert (await coordinator.end_all(end)).results[0].error == 0
    assert await fetched(there) == {0: 5, 1: 6}
    member.client = await dial.kafka(other.address)
    assert await member.commit({0: 3}) == {0: NONE}
    assert (await coordinator.end_all(end)).results[0].error == 0

    assert await fetched(there) == {0: 3, 1: 6}
    await stopping


async def test_a_plain_commit_between_the_offsets_and_the_end_stays(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    producer = await producer_of(coordinator, NEWEST)
    assert await hold(raw, producer, {0: 5, 1: 5}, **of_member(member)) == {0: NONE, 1: NONE}
    assert await member.commit({0: 3}) == {0: NONE}
    await producer.end()
    assert await fetched(raw) == {0: 3, 1: 5}


@pytest.mark.parametrize("stored", [False, True])
async def test_offsets_of_unknown_outcome_are_sent_again(
    agents: Fleet, raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial, stored: bool
) -> None:
    [member] = await stable_group(dial, owner.address, 1)
    producer, service = await producer_of(coordinator, NEWEST), service_of(agents, owner)
    failure = MetadataInDoubtError if stored else MetadataUnavailableError
    service.failure, service.fails_behind = failure("the connection was lost"), stored

    assert await hold(raw, producer, {0: 5}, **of_member(member)) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert await fetched(raw) == ({0: UNSTABLE} if stored else {})
    assert await member.heartbeat() is NONE
    assert await hold(raw, producer, {0: 5}, **of_member(member)) == {0: NONE}
    await producer.end()

    assert await fetched(raw) == {0: 5}
    assert service.calls["take_group"] == 1, "the group stays"


async def test_an_agent_that_stops_holds_the_offsets_that_it_accepted(
    agents: Fleet, raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, other: RunningAgent, dial: Dial
) -> None:
    producer, service = await producer_of(coordinator, NEWEST), service_of(agents, owner)
    service.gate.clear()
    holding = asyncio.create_task(hold(raw, producer, {0: 5}))
    await until(lambda: service.calls["held"])
    stopping = asyncio.create_task(owner.agent.stop())
    await until(lambda: groups_of(other).owns("g"))
    service.gate.set()
    assert await holding == {0: NONE}
    await stopping
    assert await fetched(await dial.raw(other.address)) == {0: UNSTABLE}


# ---- what goes away --------------------------------------------------------------------------------------------------


async def test_a_deleted_group_and_deleted_offsets_do_not_come_back_at_the_end(
    raw: RawConnection, coordinator: Coordinator, owner: RunningAgent, dial: Dial
) -> None:
    client = await dial.kafka(owner.address)
    producer = await producer_of(coordinator, NEWEST)
    assert await hold(raw, producer, {0: 5, 1: 5}) == {0: NONE, 1: NONE}
    parts = [OffsetDeleteRequestPartition(partition_index=0)]
    asked = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=parts)])
    answer = await client.call(asked, OffsetDeleteResponse)
    assert answer.topics[0].partitions[0].error_code == NONE
    assert await fetched(raw) == {1: UNSTABLE}
    assert (await producer.end()).error == 0
    assert await fetched(raw) == {1: 5}

    assert await hold(raw, producer, {2: 7}) == {2: NONE}
    assert await deleted(client, "g") == [NONE]
    assert (await producer.end()).error == 0
    assert await fetched(raw) == {}


# ---- rights ----------------------------------------------------------------------------------------------------------


async def test_rights_are_asked_for_in_kafkas_order(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent(acl_mode="on")
    metadata: Any = running.metadata
    for name in ("t", "u"):
        await metadata.agents.create_topic(name, partitions=1, configs={})
    coordinator = await coordinator_at(running)
    producer, raw = await producer_of(coordinator, NEWEST), await dial.raw(running.address)
    rights = [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ResourceType.TRANSACTIONAL_ID, Operation.WRITE, "t"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ResourceType.GROUP, Operation.READ, "g"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ResourceType.TOPIC, Operation.READ, "t"),
    ]

    for error, kind, operation, name in rights:
        assert await hold(raw, producer, {0: 5}) == {0: error}
        running.agent.authorizer.change(added=[allow(operation, name, to=ANONYMOUS, resource_type=kind)])

    assert await hold(raw, producer, {0: 5}) == {0: NONE}
    assert await hold(raw, producer, {0: 5}, topic="u") == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
