"""The contract of consumer groups: committed offsets, their deletion and their expiry."""

from __future__ import annotations

import uuid

import pytest

from metadata.groups.contract import ExpiredGroups, GroupLease, OffsetCommitBatch, OffsetCommitResult, OffsetPlace
from tests.contract.groups import (
    NOWHERE,
    STRANGE,
    Owner,
    at,
    batch_of,
    committed,
    member,
    record,
    to_commit,
    violations,
)
from tests.contract.metadata_worlds import DAY_MS, World, new_topic

WRITTEN = OffsetCommitResult(fenced=False, unknown=frozenset())
FENCED = OffsetCommitResult(fenced=True, unknown=frozenset())
WEEK_MS = 7 * DAY_MS


async def owned(world: World, *group_ids: str) -> tuple[Owner, list[GroupLease], uuid.UUID]:
    """An owner, its groups, and the id of a topic of 4 partitions."""
    topic = await new_topic(world.service, partitions=4)
    owner = await Owner.register(world.service)
    return owner, [await owner.lease_of(group_id) for group_id in group_ids or ("g",)], topic.topic_id


# ---- commits ---------------------------------------------------------------------------------------------------------


async def test_offsets_of_many_groups_are_committed_in_one_call_and_answered_in_its_order(world: World) -> None:
    owner, (a, b, c), topic = await owned(world, "a", "b", "c")
    taken_b = await owner.lease_of("b")

    results = await world.service.groups.commit_offsets(
        [
            batch_of(c, {at(topic, 0): 1, at(topic, 1): 2}),
            batch_of(b, {at(topic, 0): 3}),
            batch_of(a, {at(topic, 0): 4, at(topic, 9): 5, at(NOWHERE): 6}),
            batch_of(taken_b, {at(topic, 1): 7}),
            batch_of(c, {}),
            batch_of(GroupLease(group_id="nobody", epoch=a.epoch), {at(topic): 8}),
        ]
    )

    strange = OffsetCommitResult(fenced=False, unknown=frozenset({at(topic, 9), at(NOWHERE)}))
    assert list(results) == [WRITTEN, FENCED, strange, WRITTEN, WRITTEN, FENCED]
    assert await committed(world.service, "a") == {at(topic, 0): 4}
    assert await committed(world.service, "b") == {at(topic, 1): 7}
    assert await committed(world.service, "c") == {at(topic, 0): 1, at(topic, 1): 2}
    assert await committed(world.service, "nobody") == {}
    assert list(await world.service.groups.commit_offsets([])) == []
    assert await violations(world.service) == []


async def test_all_that_was_committed_is_kept(world: World) -> None:
    _, (lease,), topic = await owned(world)
    long = STRANGE + "x" * 4096
    offsets = [
        to_commit(at(topic, 0), 2**63 - 1, long, leader_epoch=2**31 - 1),
        to_commit(at(topic, 1), 0, leader_epoch=0),
        to_commit(at(topic, 2), -1),
    ]

    await world.service.groups.commit_offsets([OffsetCommitBatch(lease=lease, offsets=offsets)])

    found = await world.service.groups.offsets("g")
    assert {place: (one.offset, one.leader_epoch, one.metadata) for place, one in found.items()} == {
        at(topic, 0): (2**63 - 1, 2**31 - 1, long),
        at(topic, 1): (0, 0, ""),
        at(topic, 2): (-1, -1, ""),
    }
    assert len({one.committed_ms for one in found.values()}) == 1


async def test_a_later_commit_replaces_all_of_an_earlier_one_forwards_and_backwards(world: World) -> None:
    _, (lease,), topic = await owned(world)
    for offset, metadata, leader_epoch in ((5, "five", 3), (9, "", -1), (2, "two", 1)):
        one = to_commit(at(topic), offset, metadata, leader_epoch=leader_epoch)
        await world.service.groups.commit_offsets([OffsetCommitBatch(lease=lease, offsets=[one])])
        found = (await world.service.groups.offsets("g"))[at(topic)]
        assert (found.offset, found.metadata, found.leader_epoch) == (offset, metadata, leader_epoch)


async def test_a_place_named_twice_takes_the_last_in_one_request_and_in_two(world: World) -> None:
    _, (lease,), topic = await owned(world)
    twice = [to_commit(at(topic, 0), 1), to_commit(at(topic, 1), 2), to_commit(at(topic, 0), 3)]
    missing = [to_commit(at(topic, 9), 1), to_commit(at(topic, 9), 2)]

    results = await world.service.groups.commit_offsets(
        [
            OffsetCommitBatch(lease=lease, offsets=[*twice, *missing]),
            batch_of(lease, {at(topic, 1): 4}),
            batch_of(lease, {at(topic, 9): 5}),
        ]
    )

    assert await committed(world.service) == {at(topic, 0): 3, at(topic, 1): 4}
    gone = OffsetCommitResult(fenced=False, unknown=frozenset({at(topic, 9)}))
    assert list(results) == [gone, WRITTEN, gone]


async def test_a_commit_may_be_repeated(world: World) -> None:
    _, (lease,), topic = await owned(world)
    batches = [batch_of(lease, {at(topic, 0): 5, at(topic, 7): 6})]

    first, again = [await world.service.groups.commit_offsets(batches) for _ in range(2)]

    assert first == again
    assert await committed(world.service) == {at(topic, 0): 5}


async def test_partitions_that_were_added_take_offsets(world: World) -> None:
    owner, (lease,), topic = await owned(world)
    await world.service.agents.create_partitions(topic, 6)
    await owner.commit(lease, {at(topic, 5): 1})
    assert await committed(world.service) == {at(topic, 5): 1}


async def test_thousands_of_offsets_are_one_commit(world: World) -> None:
    topic = (await new_topic(world.service, partitions=500)).topic_id
    owner = await Owner.register(world.service)
    leases = [await owner.lease_of(f"g{number}") for number in range(10)]
    for offset in (1, 2):
        everywhere = {at(topic, partition): offset for partition in range(500)}
        results = await world.service.groups.commit_offsets([batch_of(lease, everywhere) for lease in leases])
        assert set(results) == {WRITTEN}
        assert await committed(world.service, "g7") == everywhere


# ---- reading and deleting --------------------------------------------------------------------------------------------


async def test_offsets_are_read_at_the_places_asked_for(world: World) -> None:
    owner, (lease,), topic = await owned(world)
    await owner.commit(lease, {at(topic, 0): 1, at(topic, 1): 2, at(topic, 2): 3})

    async def found(*places: OffsetPlace) -> dict[OffsetPlace, int]:
        return {place: one.offset for place, one in (await world.service.groups.offsets("g", places)).items()}

    assert await found(at(topic, 1), at(topic, 3), at(NOWHERE), at(topic, 1)) == {at(topic, 1): 2}
    assert await found() == {}
    assert len(await world.service.groups.offsets("g")) == 3
    assert (
        await world.service.groups.offsets("nobody") == await world.service.groups.offsets("nobody", [at(topic)]) == {}
    )


async def test_offsets_are_deleted_one_by_one_or_with_their_group(world: World) -> None:
    owner, (a, b), topic = await owned(world, "a", "b")
    for lease in (a, b):
        await owner.commit(lease, {at(topic, 0): 1, at(topic, 1): 2})

    for _ in range(2):
        await world.service.groups.delete_offsets(a, [at(topic, 0), at(topic, 3), at(NOWHERE)])
    assert await committed(world.service, "a") == {at(topic, 1): 2}
    await world.service.groups.delete_group(a)

    assert await committed(world.service, "a") == {}
    assert await committed(world.service, "b") == {at(topic, 0): 1, at(topic, 1): 2}
    assert [(summary.group_id, summary.offsets) for summary in await world.service.groups.list_groups()] == [("b", 2)]
    assert (await owner.take("a")).record.members == ()
    assert await committed(world.service, "a") == {}


async def test_the_offsets_of_a_topic_go_with_it_and_do_not_come_back_with_its_name(world: World) -> None:
    owner, (a, b), topic = await owned(world, "a", "b")
    other = (await new_topic(world.service, "other")).topic_id
    for lease in (a, b):
        await owner.commit(lease, {at(topic): 1, at(other): 2})

    await world.service.agents.delete_topic(topic)
    again = (await new_topic(world.service)).topic_id

    (result,) = await world.service.groups.commit_offsets([batch_of(a, {at(topic): 9, at(again): 3})])
    assert result.unknown == {at(topic)}
    assert await committed(world.service, "a") == {at(other): 2, at(again): 3}
    assert await committed(world.service, "b") == {at(other): 2}
    assert await violations(world.service) == []


# ---- expiry ----------------------------------------------------------------------------------------------------------


async def expire(world: World, *, idle_group_ms: int = 10 * WEEK_MS) -> ExpiredGroups:
    return await world.service.groups.expire_groups(offsets_retention_ms=WEEK_MS, idle_group_ms=idle_group_ms)


@pytest.mark.parametrize(
    ("history", "empty_for_ms", "committed_for_ms", "goes"),
    [
        ("never had members", WEEK_MS, WEEK_MS - DAY_MS, False),
        ("never had members", 0, WEEK_MS, True),
        ("had members", WEEK_MS - DAY_MS, 2 * WEEK_MS, False),
        ("had members", WEEK_MS, 2 * WEEK_MS, True),
        ("had members", 2 * WEEK_MS, WEEK_MS - DAY_MS, False),
        ("had members", 2 * WEEK_MS, WEEK_MS, True),
        ("is subscribed", 0, 9 * WEEK_MS, False),
        ("is subscribed to another topic", 0, WEEK_MS - DAY_MS, False),
        ("is subscribed to another topic", 0, WEEK_MS, True),
        ("has members of unknown subscription", 0, 9 * WEEK_MS, False),
    ],
)
async def test_an_offset_expires_by_the_rules_of_kip_211(
    world: World, history: str, empty_for_ms: int, committed_for_ms: int, goes: bool
) -> None:
    owner, (lease,), topic = await owned(world)
    saved = {
        "had members": [record(member()), record()],
        "is subscribed": [record(member(), topics=["orders"])],
        "is subscribed to another topic": [record(member(), topics=["another"])],
        "has members of unknown subscription": [record(member(), topics=None)],
    }
    for each in saved.get(history, []):
        await world.service.groups.save_group(lease, each)
    await owner.commit(lease, {at(topic, 0): 1, at(topic, 1): 1})
    await world.age_group("g", empty_for_ms)
    await world.age_offsets("g", committed_for_ms)
    await owner.commit(lease, {at(topic, 2): 2})

    expired = await expire(world)

    young = {at(topic, 2): 2}
    left = young if goes else {**young, at(topic, 0): 1, at(topic, 1): 1}
    assert (expired, await committed(world.service)) == (ExpiredGroups(offsets=2 * goes, groups=0), left)
    await owner.commit(lease, {at(topic): 3})


async def test_a_group_goes_when_it_has_become_nothing_and_its_owner_is_fenced(world: World) -> None:
    owner, (_, bare, young, has_members, keeps_offsets), topic = await owned(
        world, "taken again", "bare", "young", "members", "offsets"
    )
    await world.service.groups.save_group(has_members, record(member()))
    await owner.commit(keeps_offsets, {at(topic): 1})
    for group_id in ("taken again", "bare", "members", "offsets"):
        await world.age_group(group_id, DAY_MS)
    await owner.take("taken again")

    assert await expire(world, idle_group_ms=DAY_MS) == ExpiredGroups(offsets=0, groups=2)

    assert [summary.group_id for summary in await world.service.groups.list_groups()] == ["members", "offsets", "young"]
    (result,) = await world.service.groups.commit_offsets([batch_of(bare, {at(topic): 1})])
    assert result.fenced
    await world.service.groups.save_group(young, record(member()))
    assert await expire(world, idle_group_ms=DAY_MS) == ExpiredGroups(offsets=0, groups=0)


async def test_the_last_offset_and_its_group_go_in_one_call(world: World) -> None:
    owner, (lease,), topic = await owned(world)
    await owner.commit(lease, {at(topic): 1})
    await world.age_group("g", WEEK_MS)
    await world.age_offsets("g", WEEK_MS)

    assert await expire(world, idle_group_ms=DAY_MS) == ExpiredGroups(offsets=1, groups=1)

    assert list(await world.service.groups.list_groups()) == []
    assert await violations(world.service) == []
