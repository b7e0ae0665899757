"""The contract of consumer groups: owners, records, and the fencing of older owners."""

from __future__ import annotations

import pytest

from metadata.groups.contract import GROUP_ID_BYTES_MAX, GroupIdTooLongError, GroupLease, GroupRecord
from metadata.rules.refusals import group_fenced, owner_not_live
from tests.contract.groups import (
    STRANGE,
    Owner,
    at,
    batch_of,
    committed,
    member,
    record,
    registered,
    violations,
)
from tests.contract.metadata_worlds import World, new_topic, raises_exactly

MINUTE_MS = 60_000

# ---- owners ----------------------------------------------------------------------------------------------------------


async def test_a_group_is_made_by_the_first_who_takes_it_and_only_when_asked_to(world: World) -> None:
    owner = await registered(world.service)

    assert await world.service.groups.take_group("g", owner=owner, create=False) is None
    assert (await world.service.groups.group("g"), list(await world.service.groups.list_groups())) == (None, [])
    made = await world.service.groups.take_group("g", owner=owner, create=True)

    assert made is not None
    assert made.record == GroupRecord() == await world.service.groups.group("g")
    again = await world.service.groups.take_group("g", owner=owner, create=False)
    assert again is not None
    assert (again.lease.epoch > made.lease.epoch, again.record) == (True, made.record)


async def test_epochs_are_given_once_not_even_again_after_the_group_was_deleted(world: World) -> None:
    owner = await Owner.register(world.service)
    epochs = [(await owner.lease_of(group_id)).epoch for group_id in ("a", "b", "a")]
    lease = await owner.lease_of("a")
    await world.service.groups.delete_group(lease)

    epochs += [lease.epoch, (await owner.lease_of("a")).epoch]

    assert epochs == sorted(set(epochs))
    assert (await world.service.operators.groups_view()).last_epoch == epochs[-1]


async def test_the_next_owner_finds_what_the_last_one_saved_and_offsets_where_they_were(world: World) -> None:
    topic = await new_topic(world.service)
    first, second = await Owner.register(world.service), await Owner.register(await world.another(), port=9093)
    lease = await first.lease_of()
    saved = record(member("m1", instance_id="i1"), member("m2"), generation=7, topics=["orders", "gone"])
    await world.service.groups.save_group(lease, saved)
    await first.commit(lease, {at(topic.topic_id): 5})

    taken = await second.take()

    assert taken.record == saved == await world.service.groups.group("g")
    assert await committed(second.service) == {at(topic.topic_id): 5}
    (summary,) = await world.service.groups.list_groups()
    assert (summary.epoch, summary.owner_id) == (taken.lease.epoch, second.lease.writer_id)
    assert (summary.generation, summary.members, summary.offsets) == (7, 2, 1)
    assert (summary.protocol_type, summary.empty_since_ms) == ("consumer", None)


async def test_an_owner_whose_group_was_taken_changes_nothing_more(world: World) -> None:
    topic = await new_topic(world.service)
    place = at(topic.topic_id)
    owner = await Owner.register(world.service)
    old = await owner.lease_of()
    new = (await owner.take()).lease
    await world.service.groups.save_group(new, record(member()))
    await owner.commit(new, {place: 5})
    before = (
        await world.service.groups.list_groups(),
        await world.service.groups.group("g"),
        await world.service.groups.offsets("g"),
    )

    (result,) = await world.service.groups.commit_offsets([batch_of(old, {place: 9, at(topic.topic_id, 8): 9})])
    with raises_exactly(group_fenced(old)):
        await world.service.groups.save_group(old, record())
    with raises_exactly(group_fenced(old)):
        await world.service.groups.delete_offsets(old, [place])
    with raises_exactly(group_fenced(old)):
        await world.service.groups.delete_group(old)

    assert (result.fenced, result.unknown) == (True, frozenset())
    assert before == (
        await world.service.groups.list_groups(),
        await world.service.groups.group("g"),
        await world.service.groups.offsets("g"),
    )


async def test_an_owner_is_told_which_of_its_groups_were_taken_or_deleted(world: World) -> None:
    owner, other = await Owner.register(world.service), await Owner.register(world.service, port=9093)
    kept, taken, deleted, made_anew, strange = [await owner.lease_of(id_) for id_ in ("k", "t", "d", "m", STRANGE)]
    leases = (kept, taken, deleted, made_anew, strange)
    assert list(await world.service.groups.fenced_leases(leases)) == []
    for lease in (deleted, made_anew):
        await world.service.groups.delete_group(lease)
    now = [await owner.lease_of("m"), await other.lease_of("t"), await other.lease_of(STRANGE)]

    fenced = await world.service.groups.fenced_leases([*leases, *now])

    assert set(fenced) == {taken, deleted, made_anew, strange}
    assert list(await world.service.groups.fenced_leases([])) == []


@pytest.mark.parametrize("made_anew", [False, True])
async def test_the_owner_of_a_deleted_group_is_fenced(world: World, made_anew: bool) -> None:
    topic = await new_topic(world.service)
    owner = await Owner.register(world.service)
    lease = await owner.lease_of()
    await world.service.groups.delete_group(lease)
    if made_anew:
        await owner.take()

    (result,) = await world.service.groups.commit_offsets([batch_of(lease, {at(topic.topic_id): 1})])
    with raises_exactly(group_fenced(lease)):
        await world.service.groups.save_group(lease, record(member()))
    with raises_exactly(group_fenced(lease)):
        await world.service.groups.delete_group(lease)

    assert result.fenced
    assert await committed(world.service) == {}
    assert len(await world.service.groups.list_groups()) == int(made_anew)


async def test_only_an_agent_with_a_running_lease_takes_groups(world: World) -> None:
    service = world.service
    late = await registered(service)
    await world.expire_leases()
    older = await registered(service, port=9093)
    await registered(service, port=9093, instead_of=older)
    ended = await registered(service, port=9094)
    await service.agents.unregister_agent(ended)

    for owner in (late, older, ended):
        for create in (False, True):
            with raises_exactly(owner_not_live(owner)):
                await service.groups.take_group("g", owner=owner, create=create)

    assert list(await service.groups.list_groups()) == []
    await service.agents.heartbeat(late)
    assert await service.groups.take_group("g", owner=late, create=True) is not None


async def test_an_agent_that_was_refused_fences_nobody(world: World) -> None:
    late, owner = await registered(world.service), await Owner.register(world.service, port=9093)
    await world.service.agents.unregister_agent(late)
    lease = await owner.lease_of()

    with raises_exactly(owner_not_live(late)):
        await world.service.groups.take_group("g", owner=late, create=False)

    await world.service.groups.save_group(lease, record(member()))


async def test_an_agent_that_drains_takes_nothing_but_finishes_what_it_holds(world: World) -> None:
    topic = await new_topic(world.service)
    owner = await Owner.register(world.service)
    lease = await owner.lease_of()
    await world.service.agents.heartbeat(owner.lease, draining=True)

    with raises_exactly(owner_not_live(owner.lease)):
        await owner.take()
    await world.service.groups.save_group(lease, record(member()))
    await owner.commit(lease, {at(topic.topic_id): 3})
    await world.service.agents.unregister_agent(owner.lease)
    await owner.commit(lease, {at(topic.topic_id): 4})

    assert await committed(world.service) == {at(topic.topic_id): 4}


# ---- records ---------------------------------------------------------------------------------------------------------


async def test_a_record_is_kept_byte_for_byte_whatever_clients_put_in_it(world: World) -> None:
    owner = await Owner.register(world.service)
    every_byte = bytes(range(256)) * 40
    members = [
        member(
            f"{STRANGE}{number}",
            instance_id=STRANGE if number == 0 else None,
            client_id=STRANGE,
            client_host="",
            session_timeout_ms=2**31 - 1,
            rebalance_timeout_ms=-1,
            protocols=((STRANGE, every_byte), ("", b"")),
            assignment=every_byte,
        )
        for number in range(50)
    ]
    saved = GroupRecord(
        protocol_type=STRANGE,
        generation=2**31 - 1,
        protocol=STRANGE,
        leader=members[3].member_id,
        members=tuple(members),
        subscribed_topics=frozenset({STRANGE, "", "orders"}),
    )
    lease = await owner.lease_of(STRANGE)
    await world.service.groups.save_group(lease, saved)

    assert await world.service.groups.group(STRANGE) == saved
    assert (await owner.take(STRANGE)).record == saved
    assert [summary.group_id for summary in await world.service.groups.list_groups()] == [STRANGE]
    assert await violations(world.service) == []


@pytest.mark.parametrize("topics", [None, (), ("a",)])
async def test_not_to_know_the_topics_is_not_to_have_none(world: World, topics: tuple[str, ...] | None) -> None:
    saved = record(member(), topics=topics)
    await world.service.groups.save_group(await (await Owner.register(world.service)).lease_of(), saved)
    assert await world.service.groups.group("g") == saved


async def test_a_group_is_empty_since_its_last_member_left(world: World) -> None:
    service = world.service

    async def empty_since_ms() -> int | None:
        (summary,) = await service.groups.list_groups()
        return summary.empty_since_ms

    lease = await (await Owner.register(service)).lease_of()
    made_ms = await empty_since_ms()
    assert made_ms is not None
    await world.age_group("g", MINUTE_MS)
    await service.groups.save_group(lease, record())
    assert await empty_since_ms() == made_ms - MINUTE_MS
    await service.groups.save_group(lease, record(member()))
    assert await empty_since_ms() is None
    await service.groups.save_group(lease, record(generation=2))
    left_ms = await empty_since_ms()
    assert left_ms is not None
    assert left_ms >= made_ms
    await world.age_group("g", MINUTE_MS)
    await service.groups.save_group(lease, record(generation=2))

    assert await empty_since_ms() == left_ms - MINUTE_MS
    assert await violations(service) == []


# ---- lists -----------------------------------------------------------------------------------------------------------


async def test_groups_are_listed_in_pages_by_code_points(world: World) -> None:
    owner = await Owner.register(world.service)
    ids = ["", "A", "Z", "a", "a\0", "a b", "aa", "é", "￿", "\U0001f600", "\udfff"]
    for group_id in ids:
        await owner.take(group_id)

    seen: list[str] = []
    after = None
    while page := await world.service.groups.list_groups(after=after, limit=3):
        assert len(page) <= 3
        seen += [summary.group_id for summary in page]
        after = seen[-1]

    assert seen == sorted(ids)


async def test_groups_with_members_are_found_in_pages_without_the_others(world: World) -> None:
    owner = await Owner.register(world.service)
    for group_id in ("c", "a", "b", "empty"):
        lease = await owner.lease_of(group_id)
        if group_id != "empty":
            await world.service.groups.save_group(lease, record(member()))
    assert list(await world.service.groups.groups_with_members()) == ["a", "b", "c"]
    assert list(await world.service.groups.groups_with_members(limit=2)) == ["a", "b"]
    assert list(await world.service.groups.groups_with_members(after="b")) == ["c"]


async def test_a_group_id_may_be_long_but_not_without_end(world: World) -> None:
    topic = await new_topic(world.service)
    owner = await Owner.register(world.service)
    longest = "".join(chr(0x4E00 + number) for number in range(GROUP_ID_BYTES_MAX // 3)) + "ab"
    assert len(longest.encode()) == GROUP_ID_BYTES_MAX

    await owner.commit(await owner.lease_of(longest), {at(topic.topic_id): 1})
    for create in (False, True):
        with pytest.raises(GroupIdTooLongError):
            await world.service.groups.take_group(longest + "c", owner=owner.lease, create=create)

    assert await committed(world.service, longest) == {at(topic.topic_id): 1}
    assert await world.service.groups.group(longest + "c") is None
    assert await committed(world.service, longest + "c") == {}
    (result,) = await world.service.groups.commit_offsets([batch_of(GroupLease(group_id="x" * 9999, epoch=1), {})])
    assert result.fenced


async def test_of_many_names_those_that_groups_have_are_known(world: World) -> None:
    owner = await Owner.register(world.service)
    for group_id in ("a", "", "ü\x00"):
        await owner.take(group_id)

    asked = ["a", "b", "", "ü\x00", "ü", *(f"x{number}" for number in range(2_000))]

    assert sorted(await world.service.groups.known_groups(asked)) == ["", "a", "ü\x00"]
    assert list(await world.service.groups.known_groups([])) == []
