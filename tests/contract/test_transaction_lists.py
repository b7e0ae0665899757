"""The contract of transactions: which there are."""

from __future__ import annotations

import asyncio

from tests.contract.metadata_worlds import World, new_topic
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
    assert await world.service.transactions.ongoing() == (0, 0)
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
