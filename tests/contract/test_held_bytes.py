"""The bytes of a partition in all files whose objects may exist: what "gone" is derived from."""

from __future__ import annotations

from metadata.contract.store import MetadataStore
from tests.contract.merges import claim, commit_of, job, l1_files, outputs_of, read_ranges, spans, two_extents
from tests.contract.metadata_worlds import World, Writer, batch, new_topic

Found = list[tuple[int, int, int, bool, bool]]


async def held(service: MetadataStore, *partition_ids: int) -> Found:
    """(level, base offset, last offset, bytes live, file lives), by file."""
    rows = await service.operators.held_bytes(partition_ids)
    return [
        (each.level, each.base_offset, each.last_offset, each.dead_ms is None, each.file_dead_ms is None)
        for each in sorted(rows, key=lambda each: each.file_id)
    ]


async def test_rows_of_live_and_dead_l0_files_are_held_until_the_object_is_deleted(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,), (two,) = [(await new_topic(world.service, name)).partition_ids for name in ("one", "two")]
    files = [(await writer.commit(batch(one, 10), batch(two, 3))).file_id, (await writer.commit(batch(one, 5))).file_id]

    assert await held(world.service, one) == [(0, 0, 9, True, True), (0, 10, 14, True, True)]

    claimed = await claim(world.service, job(l0_file_ids=files[:1]))
    await world.service.compactors.commit_merge(commit_of(claimed))
    assert await held(world.service, one) == [
        (0, 0, 9, False, False),
        (0, 10, 14, True, True),
        (1, 0, 9, True, True),
    ]

    await world.service.deletion.files_deleted(files[:1])
    assert await held(world.service, one) == [(0, 10, 14, True, True), (1, 0, 9, True, True)]
    assert await held(world.service, two) == [(1, 0, 2, True, True)]
    assert await held(world.service) == []


async def test_an_extent_that_died_is_held_by_its_live_file_and_by_its_dead_one(world: World) -> None:
    one, two = await two_extents(world)
    await world.service.agents.delete_records(one, 10)
    [first, second] = [each for each in await world.service.operators.held_bytes([one]) if each.level == 1]
    assert first.dead_ms is not None and first.file_dead_ms is None and second.dead_ms is None
    assert all(each.dead_ms is None for each in await world.service.operators.held_bytes([two]) if each.level == 1)

    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    await world.service.compactors.commit_merge(commit_of(claimed, outputs_of(read_ranges(claimed), join=False)))
    rows = await world.service.operators.held_bytes([one])
    [first, _] = [each for each in rows if each.level == 1 and each.file_dead_ms]
    # it died before its file did
    assert first.dead_ms is not None and first.file_dead_ms is not None and first.dead_ms <= first.file_dead_ms
    assert await spans(world.service, one) == [(10, 19)]


async def test_the_bytes_of_a_deleted_topic_are_held(world: World) -> None:
    one, two = await two_extents(world)
    topics = {topic.name: topic for topic in await world.service.agents.list_topics()}
    of_one = next(topic for topic in topics.values() if one in topic.partition_ids)
    await world.service.agents.delete_topic(of_one.topic_id)

    found = await held(world.service, one)
    assert [each for each in found if each[0] == 1] == [(1, 0, 9, False, True), (1, 10, 19, False, True)]
    assert all(each[3] for each in await held(world.service, two) if each[0] == 1)
