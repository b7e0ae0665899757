"""The contract of offsets that transactions commit for groups: pending until the end, and then all or none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from metadata.contract.store import MetadataStore
from metadata.groups.contract import ExpiredGroups, GroupLease, OffsetPlace, OffsetToCommit
from metadata.transactions.contract import (
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionEnded,
    TransactionState,
)
from tests.contract.groups import NOWHERE, STRANGE, Owner, at, committed, member, record, to_commit, violations
from tests.contract.metadata_worlds import DAY_MS, World, new_topic
from tests.contract.transactions import Coordinator, Producer
from wire.error_codes import ErrorCode

FENCED, INVALID, UNKNOWN = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.INVALID_PRODUCER_ID_MAPPING),
)
NOW_MS = 1_900_000_000_000
WEEK_MS = 7 * DAY_MS
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@dataclass
class Scene:
    """An agent that owns a group and coordinates transactions, and a topic of four partitions."""

    world: World
    coordinator: Coordinator
    owner: Owner
    lease: GroupLease
    places: list[OffsetPlace]

    @classmethod
    async def make(cls, world: World) -> Scene:
        coordinator = await Coordinator.register(world.service)
        topic = await new_topic(world.service, partitions=4)
        owner = Owner(service=world.service, lease=coordinator.writer.lease)
        return cls(world, coordinator, owner, await owner.lease_of(), [at(topic.topic_id, each) for each in range(4)])

    async def producer(self, name: str = "t", version: int = 2) -> Producer:
        producer = await self.coordinator.producer(name)
        producer.version = version
        return producer

    async def add(self, producer: Producer, group_id: str = "g") -> int:
        """AddOffsetsToTxn."""
        return await self.world.service.transactions.add_group(
            self.coordinator.leases[producer.name],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group_id,
        )

    def request(self, producer: Producer, *offsets: OffsetToCommit, **more: Any) -> TransactionalOffsets:
        """TxnOffsetCommit."""
        values: dict[str, Any] = {
            "group": self.lease,
            "transactional_id": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "adds": producer.version >= 2,
            "offsets": offsets,
            **more,
        }
        return TransactionalOffsets(**values)

    async def write_all(self, *requests: TransactionalOffsets) -> list[TransactionalOffsetsResult]:
        return list(await self.world.service.transactions.commit_offsets(requests))

    async def write(self, producer: Producer, *offsets: OffsetToCommit, **more: Any) -> TransactionalOffsetsResult:
        (result,) = await self.write_all(self.request(producer, *offsets, **more))
        return result

    async def hold(self, producer: Producer, offsets: Mapping[int, int]) -> None:
        """Let a transaction hold these offsets, by partition."""
        if producer.version < 2:
            assert await self.add(producer) == 0
        result = await self.write(producer, *(to_commit(self.places[each], at_) for each, at_ in offsets.items()))
        assert result == TransactionalOffsetsResult(error=0)

    async def plain(self, offsets: Mapping[int, int]) -> None:
        await self.owner.commit(self.lease, {self.places[each]: offset for each, offset in offsets.items()})

    async def stable(self, group_id: str = "g", partitions: list[int] | None = None) -> dict[int, int | str]:
        """By partition: the offset, or "pending"."""
        places = None if partitions is None else [self.places[each] for each in partitions]
        found = await self.world.service.groups.stable_offsets(group_id, places)
        assert found.offsets == await self.world.service.groups.offsets(group_id, places)
        shown: dict[int, int | str] = {place.partition: each.offset for place, each in found.offsets.items()}
        return {**shown, **{place.partition: "pending" for place in found.pending}}

    async def committed(self) -> dict[int, int]:
        return {place.partition: offset for place, offset in (await committed(self.world.service)).items()}


@pytest.fixture
async def scene(world: World) -> Scene:
    return await Scene.make(world)


# ---- until the end ---------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_are_pending_until_the_transaction_ends(scene: Scene, version: int, commit: bool) -> None:
    producer = await scene.producer(version=version)
    await scene.plain({0: 1, 1: 1})
    await scene.hold(producer, {1: 5, 2: 6})

    assert await scene.stable() == {0: 1, 1: "pending", 2: "pending"}
    assert await scene.stable(partitions=[0, 1, 3]) == {0: 1, 1: "pending"}
    assert await scene.stable(partitions=[]) == {}
    assert await scene.stable("another") == {}
    assert await scene.committed() == {0: 1, 1: 1}, "who does not ask for stable offsets sees the old ones"

    assert (await producer.end(commit=commit)).error == 0

    assert await scene.stable() == ({0: 1, 1: 5, 2: 6} if commit else {0: 1, 1: 1})
    assert await violations(scene.world.service) == []


async def test_all_that_was_committed_is_kept_and_the_last_of_a_place_counts(scene: Scene) -> None:
    producer = await scene.producer()
    place = scene.places[0]
    first, second = to_commit(place, 3), to_commit(place, 2**62, STRANGE, leader_epoch=7)
    assert (await scene.write(producer, first, second, to_commit(scene.places[1], 1))).error == 0
    assert (await scene.write(producer, to_commit(scene.places[1], 0))).error == 0

    await producer.end()

    found = await scene.world.service.groups.offsets("g")
    kept = found[place]
    assert (kept.offset, kept.metadata, kept.leader_epoch) == (2**62, STRANGE, 7)
    assert found[scene.places[1]].offset == 0


async def test_a_transaction_holds_thousands_of_offsets_of_several_groups(scene: Scene) -> None:
    wide = (await new_topic(scene.world.service, "wide", partitions=2_500)).topic_id
    producer = await scene.producer()
    other = await scene.owner.lease_of("h")
    offsets = [to_commit(at(wide, partition), partition) for partition in range(2_500)]

    assert (await scene.write(producer, *offsets)).error == 0
    assert (await scene.write(producer, *offsets[:2], group=other)).error == 0
    assert (await scene.coordinator.info()).group_ids == ("g", "h")
    await producer.end()

    assert await committed(scene.world.service) == {each.place: each.offset for each in offsets}
    assert await committed(scene.world.service, "h") == {each.place: each.offset for each in offsets[:2]}


@VERSIONS
async def test_the_next_transaction_begins_without_the_groups_of_the_last(scene: Scene, version: int) -> None:
    producer = await scene.producer(version=version)
    await scene.hold(producer, {0: 1})
    await producer.end()

    refused = await scene.write(producer, to_commit(scene.places[0], 9), adds=False)

    assert refused == TransactionalOffsetsResult(error=INVALID)
    await scene.hold(producer, {0: 2})
    assert await scene.stable() == {0: "pending"}
    await producer.end(commit=False)
    assert await scene.stable() == {0: 1}


async def test_many_requests_are_one_call_and_each_is_answered_alone(scene: Scene) -> None:
    one, two, old = await scene.producer("one"), await scene.producer("two"), await scene.producer("old", version=1)
    other, (a, b, c, _) = await scene.owner.lease_of("h"), scene.places
    taken = GroupLease(group_id="g", epoch=scene.lease.epoch - 1)
    beyond = OffsetPlace(a.topic_id, 9)
    assert await scene.add(old, "h") == 0

    results = await scene.write_all(
        scene.request(two, to_commit(a, 2)),
        scene.request(one, to_commit(a, 1), to_commit(beyond, 1)),
        scene.request(one, to_commit(b, 1), producer_epoch=one.epoch + 1),
        scene.request(two, to_commit(b, 2), group=taken),
        scene.request(old, to_commit(c, 3)),
        scene.request(old, to_commit(c, 3), group=other),
        scene.request(one, to_commit(b, 4), adds=False),
        scene.request(one, to_commit(b, 5), group=other, adds=False),
        scene.request(one, to_commit(b, 6)),
    )

    held = TransactionalOffsetsResult(error=0)
    refused = TransactionalOffsetsResult(error=INVALID)
    assert results == [
        held,
        TransactionalOffsetsResult(error=0, unknown=frozenset({beyond})),
        TransactionalOffsetsResult(error=FENCED),
        TransactionalOffsetsResult(error=0, fenced=True),
        refused,
        held,
        held,
        refused,
        held,
    ]
    assert (await scene.stable(), await scene.stable("h")) == ({0: "pending", 1: "pending"}, {2: "pending"})
    for producer in (one, two, old):  # of two that hold one for the same place, the one that came later wins
        assert (await producer.end()).error == 0
    assert (await scene.stable(), await scene.stable("h")) == ({0: 1, 1: 6}, {2: 3})
    assert await scene.write_all() == []


async def test_calls_over_the_same_transactions_and_groups_do_not_stop_each_other(scene: Scene) -> None:
    names = [str(number) for number in range(6)]
    producers = {name: await scene.producer(name) for name in names}
    leases = {name: await scene.owner.lease_of(f"group {name}") for name in names}
    services = [scene.world.service, await scene.world.another()]
    chance = random.Random(7)

    async def hold_some(service: MetadataStore, offset: int) -> None:
        requests = [
            scene.request(producers[name], to_commit(scene.places[0], offset), group=leases[chance.choice(names)])
            for name in chance.sample(names, 6)
        ]
        assert {each.error for each in await service.transactions.commit_offsets(requests)} == {0}

    async with asyncio.timeout(30):
        await asyncio.gather(*(hold_some(service, offset) for offset in range(20) for service in services))


# ---- who may ---------------------------------------------------------------------------------------------------------


async def test_only_the_present_producer_writes_and_only_for_a_group_of_its_transaction(scene: Scene) -> None:
    producer = await scene.producer(version=1)
    offset = to_commit(scene.places[0], 1)

    results = [
        await scene.write(producer, offset),  # AddOffsetsToTxn was not called
        await scene.write(producer, offset, producer_epoch=producer.epoch + 1),
        await scene.write(producer, offset, producer_id=producer.producer_id + 10**6),
        await scene.write(producer, offset, transactional_id="another"),
    ]
    assert await scene.add(producer, "another") == 0
    results.append(await scene.write(producer, offset))

    assert [(each.error, each.fenced) for each in results] == [
        (code, False) for code in (INVALID, FENCED, UNKNOWN, UNKNOWN, INVALID)
    ]
    assert await scene.stable() == {}


async def test_the_second_protocol_begins_a_transaction_with_its_offsets(scene: Scene) -> None:
    producer = await scene.producer()

    await scene.hold(producer, {})
    info = await scene.coordinator.info()
    stale = await scene.write(producer, to_commit(scene.places[0], 1), producer_epoch=producer.epoch + 1)

    assert (info.state, info.group_ids, info.client_version) == (TransactionState.ONGOING, ("g",), 2)
    assert stale.error == FENCED
    assert (await producer.end()).error == 0


async def test_a_zombie_whose_transaction_was_fenced_writes_nothing(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.hold(producer, {0: 5})
    end = scene.coordinator.end_of(producer, commit=False, fences=True)

    assert (await scene.coordinator.end_all(end)).results[0].error == 0
    late = await scene.write(producer, to_commit(scene.places[0], 6))

    assert late.error == FENCED
    assert await scene.stable() == {}


async def test_the_owner_of_a_group_that_was_taken_writes_nothing(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.owner.take()

    late = await scene.write(producer, to_commit(scene.places[0], 6))
    nobody = GroupLease(group_id="nobody", epoch=scene.lease.epoch)
    missing = await scene.write(producer, to_commit(scene.places[0], 6), group=nobody)

    assert late == missing == TransactionalOffsetsResult(error=0, fenced=True)
    assert (await scene.coordinator.info()).state is TransactionState.EMPTY
    assert await scene.stable() == {}


async def test_the_owner_may_change_between_the_offsets_and_the_end_and_they_count_once(scene: Scene) -> None:
    producer = await scene.producer(version=1)
    await scene.hold(producer, {0: 5})
    end = scene.coordinator.end_of(producer)
    scene.lease = await (await Owner.register(await scene.world.another(), 9093)).lease_of()

    assert await scene.stable() == {0: "pending"}
    assert (await scene.coordinator.end_all(end)).results[0].error == 0
    assert await scene.stable() == {0: 5}
    await scene.plain({0: 3})
    repeated = (await scene.coordinator.end_all(end)).results[0]

    assert repeated == TransactionEnded(0, producer.producer_id, producer.epoch)
    assert await scene.stable() == {0: 3}


# ---- what came later counts ------------------------------------------------------------------------------------------


async def test_of_a_plain_commit_and_one_in_a_transaction_the_later_stays(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.world.set_clock(NOW_MS)
    await scene.plain({0: 1, 1: 1})
    await scene.hold(producer, {0: 5, 1: 5})
    await scene.world.set_clock(NOW_MS + 1)
    await scene.plain({1: 2})

    await producer.end()

    assert await scene.stable() == {0: 5, 1: 2}


async def test_a_plain_commit_in_the_same_millisecond_stays(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.world.set_clock(NOW_MS)
    await scene.hold(producer, {0: 5})
    await scene.plain({0: 2})

    await producer.end()

    assert await scene.stable() == {0: 2}


async def test_offsets_count_although_the_clock_was_set_back(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.world.set_clock(NOW_MS)
    await scene.hold(producer, {0: 5, 1: 5})
    await producer.end()
    await scene.plain({1: 6})

    await scene.world.set_clock(NOW_MS - DAY_MS)
    for offset in (7, 8):
        await scene.hold(producer, {0: offset, 1: offset})
    await producer.end()

    assert await scene.stable() == {0: 8, 1: 8}


@pytest.mark.parametrize("first_ends", ["first", "second", "together", "together, the other way round"])
async def test_of_two_transactions_the_offset_that_was_written_later_stays(scene: Scene, first_ends: str) -> None:
    first, second = await scene.producer("one"), await scene.producer("two")
    await scene.world.set_clock(NOW_MS)
    await scene.hold(first, {0: 5, 1: 5})
    await scene.world.set_clock(NOW_MS - DAY_MS)
    await scene.hold(second, {0: 6})

    ends = [scene.coordinator.end_of(each) for each in (first, second)]
    if first_ends.startswith("together"):
        ended = await scene.coordinator.end_all(*(ends if first_ends == "together" else reversed(ends)))
        assert [each.error for each in ended.results] == [0, 0]
    else:
        for end in ends if first_ends == "first" else reversed(ends):
            assert await scene.stable() != {0: 6, 1: 5}
            assert (await scene.coordinator.end_all(end)).results[0].error == 0

    assert await scene.stable() == {0: 6, 1: 5}


async def test_an_abort_leaves_the_offsets_that_another_transaction_holds(scene: Scene) -> None:
    first, second = await scene.producer("one"), await scene.producer("two")
    await scene.hold(first, {0: 5})
    await scene.hold(second, {0: 6})

    await second.end(commit=False)
    assert await scene.stable() == {0: "pending"}
    await first.end()

    assert await scene.stable() == {0: 5}


# ---- what goes away --------------------------------------------------------------------------------------------------


async def test_partitions_that_do_not_exist_are_told_and_the_others_written(scene: Scene) -> None:
    producer = await scene.producer()
    beyond = OffsetPlace(scene.places[0].topic_id, 4)

    result = await scene.write(producer, *(to_commit(each, 1) for each in (scene.places[0], beyond, at(NOWHERE))))

    assert result == TransactionalOffsetsResult(error=0, unknown=frozenset({beyond, at(NOWHERE)}))
    await producer.end()
    assert await scene.stable() == {0: 1}


async def test_pending_offsets_of_a_topic_go_with_it(scene: Scene) -> None:
    producer = await scene.producer()
    other = at((await new_topic(scene.world.service, "other")).topic_id)
    await scene.hold(producer, {0: 1})
    assert (await scene.write(producer, to_commit(other, 2))).error == 0

    await scene.world.service.agents.delete_topic(scene.places[0].topic_id)
    found = await scene.world.service.groups.stable_offsets("g")
    again = (await new_topic(scene.world.service)).topic_id
    await producer.end()

    assert found.pending == {other}
    assert await committed(scene.world.service) == {other: 2}
    assert (await scene.world.service.groups.stable_offsets("g", [at(again)])).pending == frozenset()


async def test_deleted_offsets_do_not_come_back_at_the_end(scene: Scene) -> None:
    producer, other = await scene.producer(), await scene.owner.lease_of("h")
    await scene.plain({0: 1, 1: 1})
    await scene.hold(producer, {1: 5, 2: 5, 3: 5})
    assert (await scene.write(producer, to_commit(scene.places[2], 7), group=other)).error == 0

    for _ in range(2):
        await scene.world.service.groups.delete_offsets(scene.lease, [*scene.places[:3], at(NOWHERE)])

    assert await scene.stable() == {3: "pending"}
    await producer.end()
    assert await scene.stable() == {3: 5}
    assert await scene.stable("h") == {2: 7}


async def test_a_deleted_group_takes_its_pending_offsets_with_it(scene: Scene) -> None:
    producer = await scene.producer()
    await scene.plain({0: 1})
    await scene.hold(producer, {0: 5, 1: 5})

    await scene.world.service.groups.delete_group(scene.lease)
    assert await scene.stable() == {}
    scene.lease = await scene.owner.lease_of()
    await producer.end()

    assert await scene.stable() == {}
    assert await violations(scene.world.service) == []


@pytest.mark.parametrize("has_members", [True, False])
async def test_an_offset_does_not_expire_while_a_transaction_holds_another_for_its_place(
    scene: Scene, has_members: bool
) -> None:
    service = scene.world.service
    producer, fresh = await scene.producer(), await scene.owner.lease_of("fresh")
    if has_members:
        await service.groups.save_group(scene.lease, record(member(), topics=["another"]))
    await scene.plain({0: 1, 1: 1})
    await scene.hold(producer, {1: 5})
    assert (await scene.write(producer, to_commit(scene.places[0], 5), group=fresh)).error == 0
    for group_id in ("g", "fresh"):
        await scene.world.age_group(group_id, WEEK_MS)
        await scene.world.age_offsets(group_id, WEEK_MS)

    expired = await service.groups.expire_groups(offsets_retention_ms=WEEK_MS, idle_group_ms=WEEK_MS)
    again = await service.groups.expire_groups(offsets_retention_ms=WEEK_MS, idle_group_ms=WEEK_MS)

    assert (expired, again) == (ExpiredGroups(offsets=1, groups=0), ExpiredGroups(offsets=0, groups=0))
    assert await scene.stable() == {1: "pending"}
    assert await scene.stable("fresh") == {0: "pending"}
    await producer.end(commit=False)
    ended = await service.groups.expire_groups(offsets_retention_ms=WEEK_MS, idle_group_ms=WEEK_MS)
    assert ended == ExpiredGroups(offsets=1, groups=1 if has_members else 2)
