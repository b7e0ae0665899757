"""The contract of transactions: which there are."""

from __future__ import annotations

import asyncio

from tests.contract.metadata_worlds import World, batch, new_topic
from tests.contract.transactions import Coordinator


async def test_ids_are_found_by_their_present_producer_and_listed_in_pages(world: World) -> None:
    coordinator = await Coordinator.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    producers = [await coordinator.producer(name) for name in ("a", "b", "é")]
    await producers[1].write(one, two)
    calls = world.service.transactions

    found = await calls.transactions_of([producers[2].producer_id, producers[1].producer_id, 10**15])
    pages: list[list[str]] = []
    after: str | None = None
    for _ in range(3):
        page = await calls.list_transactions(after=after, limit=2)
        pages.append([each.transactional_id for each in page])
        after = page[-1].transactional_id if page else after

    assert [(each.transactional_id, each.partitions) for each in found] == [("b", {one: 0, two: 0}), ("é", {})]
    assert await calls.transactions_of([]) == []
    assert pages == [["a", "b"], ["é"], []]


async def test_the_ongoing_transactions_are_counted(world: World) -> None:
    coordinator = await Coordinator.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    assert await world.service.transactions.ongoing() == (0, 0, 0)
    first, second = await coordinator.producer("a"), await coordinator.producer("b")
    await first.write(one)
    await asyncio.sleep(20 / 1000)
    await second.write(one)

    both = await world.service.transactions.ongoing()
    await first.end()
    one_left = await world.service.transactions.ongoing()

    assert (both.open, one_left.open) == (2, 1)
    assert both.oldest_ms >= 20
    assert one_left.oldest_ms >= 0


async def test_the_most_offsets_that_are_held_back_on_a_partition_are_told(world: World) -> None:
    async def held_back() -> int:
        return (await world.service.transactions.ongoing()).held_back_max

    coordinator = await Coordinator.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    first, second = await coordinator.producer("a"), await coordinator.producer("b")
    await coordinator.writer.commit(batch(one, 10), batch(two, 3))
    assert await held_back() == 0
    await second.enter(two)
    assert await held_back() == 0, "it has no record there"
    await first.write(two)
    await second.write(one, two)
    assert await held_back() == 2
    await coordinator.writer.commit(batch(one, 10))
    assert await held_back() == 11
    # a log start inside a transaction counts, as for readers
    await world.service.agents.delete_records(one, 15)
    assert await held_back() == 6
    await second.end()
    assert await held_back() == 3, "the marker of the second one is held back by the first"
    await first.end(commit=False)
    assert await held_back() == 0
