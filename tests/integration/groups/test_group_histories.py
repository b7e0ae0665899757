"""Consumer groups in Postgres against the memory store: random histories must get the same answers from both.

Ids of topics and epochs differ between the stores, so places are named by a topic's number and leases by the order in
which they were given; times are compared by whether they are there, and moved by days where an age decides.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from metadata.contract.leases import AgentAddress, WriterFencedError, WriterLease
from metadata.contract.topics import UnknownTopicError
from metadata.groups.contract import GroupFencedError, GroupLease, OffsetCommitBatch, OffsetPlace, OffsetToCommit
from tests.contract.groups import NOWHERE, STRANGE, member, record, violations
from tests.contract.metadata_worlds import DAY_MS, MemoryWorld, PostgresWorld, World

STEPS = 150
GROUPS = ("", "a", "b\0", "\U0001f600", "￿")
TOPICS, PARTITIONS, AGENTS = 4, 3, 3
RETENTION_DAYS, IDLE_DAYS = 7, 3
Place = tuple[int, int]
"""(number of the topic, partition)"""
Step = tuple[Any, ...]
"""The name of a method of `Store`, and its arguments."""


@dataclass(slots=True)
class Store:
    world: World
    topics: list[Any] = field(default_factory=list[Any])
    agents: list[WriterLease] = field(default_factory=list[WriterLease])
    leases: dict[str, list[GroupLease]] = field(default_factory=dict[str, list[GroupLease]])

    async def open(self) -> None:
        await self.world.service.open()
        for number in range(TOPICS):
            await self.create_topic(f"t{number}")
        for port in range(AGENTS):
            address = AgentAddress(host="a", port=port + 1)
            self.agents.append(await self.world.service.agents.register_agent(address))

    async def beat(self) -> None:
        for lease in self.agents:
            await self.world.service.agents.heartbeat(lease)

    # -- steps, each with an answer to compare

    async def take(self, group_id: str, agent: int, create: bool) -> Any:
        try:
            taken = await self.world.service.groups.take_group(group_id, owner=self.agents[agent], create=create)
        except WriterFencedError as error:
            return type(error)
        if taken is None:
            return None
        before = self.leases.setdefault(group_id, [])
        assert all(lease.epoch < taken.lease.epoch for lease in before)
        before.append(taken.lease)
        return taken.record

    async def save(self, group_id: str, back: int, saved: Any) -> Any:
        return await self._fenced(self.world.service.groups.save_group(self.lease(group_id, back), saved))

    async def delete_offsets(self, group_id: str, back: int, places: Sequence[Place]) -> Any:
        where = [self.place(place) for place in places]
        return await self._fenced(self.world.service.groups.delete_offsets(self.lease(group_id, back), where))

    async def delete_group(self, group_id: str, back: int) -> Any:
        return await self._fenced(self.world.service.groups.delete_group(self.lease(group_id, back)))

    async def commit(self, batches: Sequence[tuple[str, int, Sequence[tuple[Place, int, int, str]]]]) -> Any:
        results = await self.world.service.groups.commit_offsets(
            [
                OffsetCommitBatch(
                    lease=self.lease(group_id, back),
                    offsets=[
                        OffsetToCommit(place=self.place(place), offset=offset, leader_epoch=epoch, metadata=metadata)
                        for place, offset, epoch, metadata in offsets
                    ],
                )
                for group_id, back, offsets in batches
            ]
        )
        return [(result.fenced, {self.name(place) for place in result.unknown}) for result in results]

    async def expire(self) -> Any:
        return await self.world.service.groups.expire_groups(
            offsets_retention_ms=RETENTION_DAYS * DAY_MS, idle_group_ms=IDLE_DAYS * DAY_MS
        )

    async def age_group(self, group_id: str, days: int) -> None:
        if await self.world.service.groups.group(group_id) is not None:
            await self.world.age_group(group_id, days * DAY_MS)

    async def age_offsets(self, group_id: str, days: int) -> None:
        if await self.world.service.groups.group(group_id) is not None:
            await self.world.age_offsets(group_id, days * DAY_MS)

    async def drain(self, agent: int, draining: bool) -> None:
        await self.world.service.agents.heartbeat(self.agents[agent], draining=draining)

    async def recreate_topic(self, number: int) -> Any:
        try:
            await self.world.service.agents.delete_topic(self.topics[number].topic_id)
        except UnknownTopicError as error:
            return type(error)
        await self.create_topic(f"t{number}", number)
        return None

    # -- what is there

    async def everything(self) -> Any:
        service = self.world.service
        groups = await service.groups.list_groups()
        found: Mapping[str, Any] = {group.group_id: await service.groups.offsets(group.group_id) for group in groups}
        return [
            (
                replace(group, epoch=0, empty_since_ms=None),
                group.empty_since_ms is None,
                await service.groups.group(group.group_id),
                {
                    self.name(place): (offset.offset, offset.leader_epoch, offset.metadata)
                    for place, offset in found[group.group_id].items()
                },
            )
            for group in groups
        ]

    # -- names

    async def create_topic(self, name: str, number: int | None = None) -> None:
        topic = await self.world.service.agents.create_topic(name, partitions=PARTITIONS, configs={})
        if number is None:
            self.topics.append(topic)
        else:
            self.topics[number] = topic

    def lease(self, group_id: str, back: int) -> GroupLease:
        """The last epoch given, or one before it; if there is none, one that was never given."""
        given = self.leases.get(group_id, [])
        return given[-1 - back] if back < len(given) else GroupLease(group_id=group_id, epoch=10**9)

    def place(self, place: Place) -> OffsetPlace:
        number, partition = place
        return OffsetPlace(NOWHERE if number == TOPICS else self.topics[number].topic_id, partition)

    def name(self, place: OffsetPlace) -> Place:
        numbers = {topic.topic_id: number for number, topic in enumerate(self.topics)}
        return numbers.get(place.topic_id, TOPICS), place.partition

    async def _fenced(self, call: Awaitable[None]) -> Any:
        try:
            return await call
        except GroupFencedError as error:
            return type(error)


def step(chance: random.Random) -> Step:
    group_id, back = chance.choice(GROUPS), chance.choice([0, 0, 0, 0, 1])

    def places() -> list[Place]:
        count = chance.randint(0, 6)
        return [(chance.randint(0, TOPICS), chance.choice([0, 1, 2, 2, 3])) for _ in range(count)]

    def batch() -> tuple[str, int, list[tuple[Place, int, int, str]]]:
        offsets = [
            (place, chance.randint(0, 99), chance.choice([-1, -1, 5]), chance.choice(["", "", STRANGE]))
            for place in places()
        ]
        return chance.choice(GROUPS), chance.choice([0, 0, 0, 1]), offsets

    def saved() -> Any:
        members = [
            member(f"m{number}", assignment=chance.randbytes(9)) for number in range(chance.choice([0, 0, 1, 3]))
        ]
        topics = chance.choice([None, (), ("t0", STRANGE), ("t0", "t1", "t2")])
        return record(*members, generation=chance.randint(0, 99), topics=topics)

    makers: list[tuple[int, Callable[[], Step]]] = [
        (8, lambda: ("take", group_id, chance.randrange(AGENTS), chance.random() < 0.7)),
        (6, lambda: ("save", group_id, back, saved())),
        (12, lambda: ("commit", [batch() for _ in range(chance.randint(0, 5))])),
        (2, lambda: ("delete_offsets", group_id, back, places())),
        (1, lambda: ("delete_group", group_id, back)),
        (2, lambda: ("age_group", group_id, chance.choice([1, 3, 7]))),
        (2, lambda: ("age_offsets", group_id, chance.choice([1, 3, 7]))),
        (4, lambda: ("expire",)),
        (1, lambda: ("drain", chance.randrange(AGENTS), chance.random() < 0.4)),
        (1, lambda: ("recreate_topic", chance.randrange(TOPICS))),
    ]
    weights, made = zip(*makers, strict=True)
    return chance.choices(made, weights)[0]()


@pytest.mark.parametrize("seed", range(4))
async def test_both_stores_answer_a_random_history_of_groups_alike(postgres_url: str, seed: int) -> None:
    chance = random.Random(seed)
    model, tables = Store(MemoryWorld()), Store(PostgresWorld(postgres_url))
    for store in (model, tables):
        await store.open()
    told: dict[str, set[bool]] = {}
    try:
        for number in range(STEPS):
            if number % 10 == 0:  # a lease runs by the real clock of one of the two
                for store in (model, tables):
                    await store.beat()
            name, *arguments = step(chance)
            expected, found = [await getattr(store, name)(*arguments) for store in (model, tables)]

            what = f"step {number}: {name} {arguments}"
            assert found == expected, what
            if number % 5 == 4:
                assert await tables.everything() == await model.everything(), what
                assert await violations(tables.world.service) == [], what
            told.setdefault(name, set()).add(bool(expected))
    finally:
        for store in (model, tables):
            await store.world.close()
    assert told["commit"] == {True, False}
    assert len(told) > 6
