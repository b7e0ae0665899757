"""The view of transactions that the invariants read, in both stores: it shows what is there, and they hold."""

from __future__ import annotations

import asyncio

from metadata.contract.operators import EnteredPartition, OngoingTransaction
from metadata.rules.invariants.transactions import check_txn_1, check_txn_2, check_txn_3
from metadata.transactions.contract import AbortedTransaction
from tests.contract.metadata_worlds import World, new_topic
from tests.contract.transactions import two_partitions

WRITTEN_MIN, VIEWS_MIN = 60, 6


async def broken(world: World) -> list[str]:
    view = await world.service.operators.transactions_view()
    return [each.message for check in (check_txn_1, check_txn_2, check_txn_3) for each in check(view)]


async def test_the_view_shows_what_was_entered_and_what_was_aborted(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    aborting, ongoing, empty = [await coordinator.producer(name) for name in ("aborting", "ongoing", "empty")]
    aborted_id = aborting.producer_id
    await aborting.write(one, two)
    await aborting.end(commit=False)
    await ongoing.write(two, count=2)
    seq = await empty.enter(one)

    view = await world.service.operators.transactions_view()

    assert [(mark.partition_id, mark.last_stable_offset, mark.high_watermark) for mark in view.watermarks] == [
        (one, 2, 2),
        (two, 2, 4),
    ]
    assert view.ongoing == [
        OngoingTransaction("empty", empty.producer_id, 0, seq),
        OngoingTransaction("ongoing", ongoing.producer_id, 0, 1),
    ]
    assert view.entered == [
        EnteredPartition(one, empty.producer_id, 0, seq, None),
        EnteredPartition(two, ongoing.producer_id, 0, 1, 2),
    ]
    assert [row.transaction for row in view.aborted] == [
        AbortedTransaction(one, aborted_id, 0, 1),
        AbortedTransaction(two, aborted_id, 0, 1),
    ]
    assert {row.stable_offset for row in view.aborted} <= {2, None}
    assert await broken(world) == []


async def test_what_is_held_back_is_shown_for_ongoing_transactions_and_for_named_ids(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    ended, idle, ongoing, _ = [await coordinator.producer(name) for name in ("ended", "idle", "ongoing", "other")]
    await ended.write(two)
    await ended.end()
    await ongoing.write(two, count=2)
    await ongoing.enter(one)

    view = await world.service.operators.held_view(["nobody", "idle", "ended", "ongoing"])

    assert view.infos == await world.service.transactions.transactions(["ended", "idle", "ongoing"])
    assert [(each.transactional_id, dict(each.partitions)) for each in view.infos] == [
        ("ended", {}),
        ("idle", {}),
        ("ongoing", {one: None, two: 2}),
    ]
    assert view.entered == (await world.service.operators.transactions_view()).entered
    assert {each.partition_id for each in view.entered} == {one, two}
    marks = await world.service.agents.watermarks([one, two])
    assert view.watermarks == [marks[one], marks[two]]
    assert (marks[two].last_stable_offset, marks[two].high_watermark) == (2, 4)
    assert view.topics == await world.service.agents.list_topics()
    started_ms = view.infos[2].started_ms
    assert started_ms is not None and view.now_ms >= started_ms
    unnamed = await world.service.operators.held_view()
    assert [each.transactional_id for each in unnamed.infos] == ["ongoing"]
    assert idle.producer_id not in {each.producer_id for each in unnamed.entered}


async def test_what_is_held_back_is_read_at_one_instant(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await coordinator.producer()
    views = 0

    async def write() -> None:
        written = 0
        while written < WRITTEN_MIN or views < VIEWS_MIN:
            written += 1
            await producer.write(one, two)
            await producer.end()
            await asyncio.sleep(0)  # the memory store never waits

    writing = asyncio.create_task(write())
    while not writing.done():
        view = await world.service.operators.held_view()
        await asyncio.sleep(0)
        views += 1
        open_ = {each.partition_id: each.first_offset for each in view.entered if each.first_offset is not None}
        stable = {each.partition_id: each.last_stable_offset for each in view.watermarks}
        assert {id_: stable[id_] for id_ in open_} == open_
        assert {id_: at for each in view.infos for id_, at in each.partitions.items() if at is not None} == open_
    await writing


async def test_a_deleted_partition_is_shown_as_entered_and_has_no_marks(world: World) -> None:
    coordinator, kept, _ = await two_partitions(world)
    topic = await new_topic(world.service, "gone")
    producer = await coordinator.producer()
    await producer.write(kept, *topic.partition_ids)
    await world.service.agents.delete_topic(topic.topic_id)
    await producer.enter(*topic.partition_ids)  # by an agent that has not heard of the deletion

    view = await world.service.operators.held_view()

    assert {*topic.partition_ids, kept} == {each.partition_id for each in view.entered} == {*view.infos[0].partitions}
    assert [each.partition_id for each in view.watermarks] == [kept]


async def test_a_partition_may_be_entered_just_after_its_deletion(world: World) -> None:
    coordinator, kept, _ = await two_partitions(world)
    topic = await new_topic(world.service, "gone")
    await world.service.agents.delete_topic(topic.topic_id)
    producer = await coordinator.producer()

    # when an agent enters it that has not heard of the deletion
    await producer.enter(kept, *topic.partition_ids)

    assert await broken(world) == []
    assert (await producer.end()).error == 0
    assert await broken(world) == []


async def test_the_invariants_hold_amid_transactions_that_overlap(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producers = [await coordinator.producer(f"t{number}") for number in range(4)]
    for turn in range(3):
        for producer in producers:
            await producer.write(one, two)
            assert await broken(world) == []
        for number, producer in enumerate(producers):
            if number != turn:  # one stays open, and goes on in the next turn
                await producer.end(commit=number % 2 == 0)
                assert await broken(world) == []
    await world.service.agents.delete_records(one, 9)
    assert await broken(world) == []
    assert (await world.service.operators.transactions_view()).aborted


async def test_inline_files_hold_no_bytes_in_objects(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    await producer.end()
    held = await world.service.operators.held_bytes([one])
    assert [(each.base_offset, each.last_offset) for each in held] == [(0, 0)]


async def test_of_two_ends_in_one_call_the_first_does_not_hide_the_second_from_a_search(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    first, second = [await coordinator.producer(name) for name in ("first", "second")]
    await first.write(one)
    await second.write(one)

    ends = [coordinator.end_of(each, commit=False) for each in (first, second)]
    assert [each.error for each in (await coordinator.end_all(*ends)).results] == [0, 0]

    # The second begins at 1, so a search for what has records from there on must go past the first.
    view = await world.service.operators.transactions_view()
    assert [row.transaction.last_offset for row in view.aborted] == [2, 3]
    assert view.aborted[0].stable_offset in (1, None)
    assert await broken(world) == []
