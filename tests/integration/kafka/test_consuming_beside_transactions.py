"""Members of `siltstone consume --group` begin at no offset that an open transaction may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from siltstone.kafka.groups import consuming as consuming_in_group
from tests.contract.transactions import Producer
from tests.fixtures.agents import Dial, RawConnection, StartAgent
from tests.fixtures.fleet import Fleet, fleet
from tests.fixtures.groups import meet, owner_and_other
from tests.fixtures.waiting import until
from tests.integration.groups.test_groups import OPTIONS
from tests.integration.groups.test_transactional_offsets import coordinator_at, hold, producer_of
from tests.integration.kafka.test_consuming_in_group import Reading, committed, places, stop, write
from wire.error_codes import ErrorCode

NEWEST = 5
WAITING = "group g: waiting for the end of a transaction with offsets of t 1"


@dataclass
class Scene:
    agents: Fleet
    raw: RawConnection
    producer: Producer

    async def hold(self) -> None:
        """Offset 3 of partition 1, by a transaction."""
        assert await hold(self.raw, self.producer, {1: 3}) == {1: ErrorCode.NONE}


@pytest.fixture
async def scene(start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Five records on each of four partitions."""
    for name in ("HEARTBEAT_MS", "COMMIT_MS", "IDLE_MS"):
        monkeypatch.setattr(consuming_in_group, name, 50)
    async with fleet(start_agent, 2, **OPTIONS) as agents:
        await meet(agents.agents)
        owner, other = owner_and_other(agents)
        client = await dial.kafka(owner.address)
        await client.create_topic("t", partitions=4)
        await agents.know_topic("t")
        await write(client)
        producer = await producer_of(await coordinator_at(other), NEWEST)
        yield Scene(agents, await dial.raw(owner.address), producer)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_member_waits_for_the_transaction_and_begins_where_that_left_the_offset(
    scene: Scene, commit: bool
) -> None:
    await scene.hold()
    reading = Reading(scene.agents, to_end=True)
    task = asyncio.create_task(reading.run())
    await until(lambda: WAITING in reading.told)
    assert (task.done(), reading.taken, await committed(reading)) == (False, [], [])

    await scene.producer.end(commit=commit)

    await task
    begun = [(partition, offset) for partition, offset in places(0, 5) if partition != 1 or offset >= 3 * commit]
    assert sorted(reading.taken) == begun
    assert await committed(reading) == [5] * 4
    assert reading.told.count(WAITING) == 1


async def test_a_member_that_waits_lets_others_join(scene: Scene) -> None:
    await scene.hold()
    first = Reading(scene.agents)
    waits = asyncio.create_task(first.run())
    await until(lambda: WAITING in first.told)

    second = Reading(scene.agents)
    joins = asyncio.create_task(second.run())
    # then each has two partitions, although the offset is held still, and the partitions beside it are read
    await until(lambda: {first.has, second.has} == {"t 0,1", "t 2,3"})
    free = first if first.has == "t 2,3" else second
    await until(lambda: len(free.taken) == 10)
    await scene.producer.end()

    held = second if free is first else first
    await until(lambda: len(held.taken) == 7)
    assert sorted(first.taken + second.taken) == [each for each in places(0, 5) if each[0] != 1 or each[1] >= 3]
    await stop(waits)
    await stop(joins)
