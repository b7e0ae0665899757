"""One topic at one instant: its ranges on every level. And pins, which belong to their takers."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.readers import PartitionSnapshot
from metadata.contract.topics import UnknownTopicError
from tests.contract.merges import claim, commit_of, job, merge
from tests.contract.metadata_worlds import World, Writer, batch, new_topic


def ranges(partition: PartitionSnapshot) -> list[tuple[int, int, int]]:
    """(level, base offset, last offset) of each range, by offset."""
    l0 = [(0, each.base_offset, each.last_offset) for each in partition.l0]
    merged = [(each.level, each.base_offset, each.last_offset) for each in partition.extents]
    return sorted(l0 + merged, key=lambda one: one[1])


async def test_a_snapshot_holds_all_levels_of_one_topic_and_nothing_of_another(world: World) -> None:
    # given two topics whose batches share files, with the older file merged
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=2, configs={"retention.ms": "5"})
    other = await new_topic(world.service, "others")
    first, second = topic.partition_ids
    old = await writer.commit(batch(first, 3), batch(second, 2), batch(other.partition_ids[0], 4))
    await merge(world.service, l0=[old.file_id])
    young = await writer.commit(batch(first, 5), batch(other.partition_ids[0], 6))

    # when
    found = await world.service.readers.topic_snapshot("orders")

    # then
    assert found.topic == topic
    assert [(each.partition, each.partition_id) for each in found.partitions] == [(0, first), (1, second)]
    assert [ranges(each) for each in found.partitions] == [[(1, 0, 2), (0, 3, 7)], [(1, 0, 1)]]
    assert [(p.log_start_offset, p.last_stable_offset, p.high_watermark) for p in found.partitions] == [
        (0, 8, 8),
        (0, 2, 2),
    ]
    assert [list(each.aborted) for each in found.partitions] == [[], []]
    (row,) = found.partitions[0].l0
    files = {file.file_id: file for file in await world.service.operators.files()}
    assert (row.key, row.file_size_bytes) == (files[young.file_id].key, files[young.file_id].size_bytes)
    assert (row.partition_id, row.length, row.min_timestamp_ms, row.max_timestamp_ms) == (first, 100, 10, 20)
    assert row.created_ms == young.created_ms <= found.taken_ms
    assert list(found.partitions[0].extents) == list(await world.service.readers.leveled_extents(first, 0))


async def test_what_lies_below_the_log_start_is_left_out_and_an_extent_across_it_stays(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    (id_,) = topic.partition_ids
    merged = await writer.commit(batch(id_, 4))
    await merge(world.service, l0=[merged.file_id])
    await writer.commit(batch(id_, 4))
    await writer.commit(batch(id_, 4))

    await world.service.agents.delete_records(id_, 2)
    (across,) = (await world.service.readers.topic_snapshot("orders")).partitions
    await world.service.agents.delete_records(id_, 8)
    (whole,) = (await world.service.readers.topic_snapshot("orders")).partitions

    assert (across.log_start_offset, ranges(across)) == (2, [(1, 0, 3), (0, 4, 7), (0, 8, 11)])
    assert (whole.log_start_offset, ranges(whole)) == (8, [(0, 8, 11)])


async def test_an_unknown_topic_is_refused_with_names_that_are_spelt_like_it(world: World) -> None:
    for name in ("flights", "Flight-plans", "orders"):
        await new_topic(world.service, name)

    with pytest.raises(UnknownTopicError, match="no topic 'flihgts'") as close:
        await world.service.readers.topic_snapshot("flihgts")
    with pytest.raises(UnknownTopicError) as far:
        await world.service.readers.topic_snapshot("weather")

    assert "'flights'" in close.value.remedy
    assert "orders" not in close.value.remedy
    assert far.value.remedy == "`siltstone topics list` shows those that exist"


async def test_a_deleted_topic_is_unknown_and_one_of_the_same_name_is_empty(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    await writer.commit(batch(topic.partition_ids[0], 4))
    await world.service.agents.delete_topic(topic.topic_id)

    with pytest.raises(UnknownTopicError):
        await world.service.readers.topic_snapshot("orders")
    await new_topic(world.service)

    (partition,) = (await world.service.readers.topic_snapshot("orders")).partitions
    assert (partition.high_watermark, ranges(partition)) == (0, [])


async def test_snapshots_taken_while_merges_commit_hold_every_offset_once(world: World) -> None:
    # given a log of many small files, and merges that swap them while snapshots are taken
    writer = await Writer.register(world.service)
    (id_,) = (await new_topic(world.service)).partition_ids
    files = [(await writer.commit(batch(id_, 3))).file_id for _ in range(12)]
    reader = await world.another()
    done = asyncio.Event()

    async def merges() -> None:
        for at in range(0, len(files), 2):
            claimed = await claim(world.service, job(l0_file_ids=files[at : at + 2]))
            await world.service.compactors.commit_merge(commit_of(claimed))
            await writer.commit(batch(id_, 2))
            await asyncio.sleep(0)
        done.set()

    merging = asyncio.create_task(merges())
    levels: set[tuple[int, ...]] = set()

    # then
    while not done.is_set():
        (partition,) = (await reader.readers.topic_snapshot("orders")).partitions
        found = ranges(partition)
        assert [base for _, base, _ in found] == [0, *(last + 1 for _, _, last in found[:-1])]
        assert found[-1][2] + 1 == partition.high_watermark
        levels.add(tuple(level for level, _, _ in found))
        await asyncio.sleep(0)
    await merging
    assert len(levels) > 1  # the snapshots did see swaps


async def test_a_pin_lasts_a_day_at_most_unless_it_is_renewed(world: World) -> None:
    pin_id = await world.service.readers.pin("reader", ttl_ms=10**15)

    ((found, holder, created_ms, expires_ms),) = await world.service.operators.pins()

    assert (found, holder) == (pin_id, "reader")
    assert expires_ms - created_ms == 86_400_000
    assert await world.service.readers.beat_pin(pin_id, ttl_ms=10**15)
