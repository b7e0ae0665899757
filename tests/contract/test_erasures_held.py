"""The contract of erasures with open transactions below their marks: they neither rest nor end before these end."""

from __future__ import annotations

import pytest

from metadata.contract.topics import Topic
from metadata.erasures.contract import ErasurePendingError, ErasureStage, HoldingTransaction
from tests.contract.erasing import delete_dead, erase_file, erasure, mark, new_erasure, pending, request
from tests.contract.merges import merge
from tests.contract.metadata_worlds import World, batch, new_topic
from tests.contract.transactions import Coordinator, Producer

HOUR_MS = 3_600_000


async def erased_once(world: World, number: int) -> None:
    """All merges that the erasure needs, and the deletion of what they replaced."""
    files = await world.service.operators.files()
    await merge(world.service, l0=[each.file_id for each in files if each.level == 0])
    await delete_dead(world.service)
    for each in await world.service.erasures.pending_files(number):
        await erase_file(world.service, each.file_id)
    await delete_dead(world.service)
    assert await pending(world.service, number) == []


async def topic_with(world: World, *names: str) -> tuple[Topic, Coordinator, list[Producer]]:
    """Two partitions with a record of nobody at 0."""
    coordinator = await Coordinator.register(world.service)
    topic = await new_topic(world.service, partitions=2)
    await coordinator.writer.commit(*(batch(id_) for id_ in topic.partition_ids))
    return topic, coordinator, [await coordinator.producer(name) for name in names]


@pytest.mark.parametrize("commits", [True, False])
async def test_an_erasure_ends_after_the_transactions_that_began_below_its_marks(world: World, commits: bool) -> None:
    topic, coordinator, (one, late) = await topic_with(world, "one", "late")
    first = topic.partition_ids[0]
    await one.write(first)
    await coordinator.writer.commit(batch(first))
    number = await request(world.service, topic, mark("a", 3))
    # given a transaction that begins above the marks, which holds nothing
    await late.write(first)
    await erased_once(world, number)
    held = [HoldingTransaction(0, one.producer_id, 1, "one")]
    assert await world.service.erasures.holding_transactions(number) == held

    with pytest.raises(ErasurePendingError, match=f"transaction 'one' of producer {one.producer_id}.*offset 1 of part"):
        await world.service.erasures.finish_erasure(number, {})
    assert (await erasure(world.service, number)).stage is ErasureStage.ERASING

    await one.end(commit=commits)
    assert await world.service.erasures.holding_transactions(number) == []
    await world.service.erasures.finish_erasure(number, {})
    assert (await erasure(world.service, number)).stage is ErasureStage.DONE


async def test_a_tombstone_rests_from_the_time_on_at_which_readers_of_committed_records_get_to_it(world: World) -> None:
    topic, coordinator, (one,) = await topic_with(world, "one")
    first = topic.partition_ids[0]
    await one.write(first)
    await coordinator.writer.commit(batch(first))  # the tombstone, at 2
    number = await request(world.service, topic, mark("a", 2, tombstone=True), rest_ms=HOUR_MS)
    await erased_once(world, number)
    (found,) = await world.service.erasures.advance_erasures()
    assert (found.stage, found.erases_tombstones) == (ErasureStage.ERASING, False)

    await one.end()
    (found,) = await world.service.erasures.advance_erasures()
    assert (found.stage, found.erases_tombstones) == (ErasureStage.RESTING, True)
    assert found.next_ms > await world.service.now_ms()


async def test_a_transaction_that_begins_at_the_tombstone_holds_and_one_behind_it_does_not(world: World) -> None:
    topic, _, (one, two) = await topic_with(world, "one", "two")
    first = topic.partition_ids[0]
    await one.write(first)
    await two.write(first)
    at, below = [
        await request(world.service, topic, mark("a", 1, tombstone=tombstone), rest_ms=0) for tombstone in (True, False)
    ]
    assert [each.transactional_id for each in await world.service.erasures.holding_transactions(at)] == ["one"]
    assert await world.service.erasures.holding_transactions(below) == []


async def test_those_of_all_its_partitions_are_told_and_no_others(world: World) -> None:
    topic, _, (one, two) = await topic_with(world, "one", "two\ud800")
    other = await new_topic(world.service, "other")
    first, second = topic.partition_ids
    await one.write(first, second, other.partition_ids[0])
    await two.write(second)
    both = await world.service.erasures.request_erasure(new_erasure(topic, {0: [mark("a", 2)], 1: [mark("a", 3)]}))
    # and one that entered a partition without a record there
    await two.enter(first)

    held = [
        HoldingTransaction(0, one.producer_id, 1, "one"),
        HoldingTransaction(1, one.producer_id, 1, "one"),
        HoldingTransaction(1, two.producer_id, 2, "two\ud800"),
    ]
    assert await world.service.erasures.holding_transactions(both) == held
    assert await world.service.erasures.holding_transactions(both, limit=2) == held[:2]
    assert await world.service.erasures.holding_transactions(both + 1) == []


async def test_the_transactions_of_a_deleted_topic_hold_nothing(world: World) -> None:
    topic, _, (one,) = await topic_with(world, "one")
    await one.write(topic.partition_ids[0])
    number = await request(world.service, topic, mark("a", 2))
    await world.service.agents.delete_topic(topic.topic_id)
    assert await world.service.erasures.holding_transactions(number) == []
