"""The compactor's contract: the views of the planner and the readers, and requests for compaction."""

from __future__ import annotations

import pytest

from metadata.rules.refusals import not_compacted, unknown_topic_id
from tests.contract.merges import (
    claim,
    commit_of,
    extents_of,
    job,
    merge,
    output_extent,
    output_file,
    outputs_of,
    read_ranges,
)
from tests.contract.metadata_worlds import World, Writer, batch, new_topic, raises_exactly
from tests.contract.transactions import Coordinator

DAY_MS = 86_400_000


# ---- the planner's view ----------------------------------------------------------------------------------------------


async def test_only_compacted_partitions_are_shown_with_their_extents(world: World) -> None:
    writer = await Writer.register(world.service)
    plain = await new_topic(world.service, "plain")
    keyed = await world.service.agents.create_topic("keyed", partitions=2, configs={"cleanup.policy": "compact,delete"})
    empty = await world.service.agents.create_topic("none", partitions=1, configs={"cleanup.policy": ""})
    file = await writer.commit(*(batch(topic.partition_ids[0], 4) for topic in (plain, keyed, empty)))
    await merge(world.service, l0=[file.file_id])

    view = await world.service.compactors.compaction_view()

    assert [(each.topic_name, each.partition, len(each.extents)) for each in view.partitions] == [
        ("keyed", 0, 1),
        ("keyed", 1, 0),
    ]
    first = view.partitions[0]
    assert (first.topic_id, first.partition_id) == (keyed.topic_id, keyed.partition_ids[0])
    assert (first.log_start_offset, first.last_stable_offset, first.high_watermark) == (0, 4, 4)
    assert (first.configs, first.config_version) == ({"cleanup.policy": "compact,delete"}, 1)
    assert (first.cleaned_through_offset, first.last_cleaned_ms, first.last_forced_ms) == (0, None, None)
    assert (first.passes_needed, first.requested_through_offset) == (1, None)
    await world.service.agents.alter_configs(keyed.topic_id, {"cleanup.policy": "delete"})
    assert list((await world.service.compactors.compaction_view()).partitions) == []
    (shown, _) = await world.service.operators.partition_views(keyed.topic_id)
    assert (shown.config_version, list(shown.extents)) == (2, list(first.extents))


async def test_the_planner_and_merges_see_what_a_merge_knew_of_its_extents(world: World) -> None:
    keyed = await world.service.agents.create_topic("keyed", partitions=1, configs={"cleanup.policy": "compact"})
    (partition_id,) = keyed.partition_ids
    writer = await Writer.register(world.service)
    facts = {"uncompressed_bytes": 2**40, "committed_ms": 77, "earliest_horizon_ms": 99, "erased_through": 2**35}
    file = await writer.commit(batch(partition_id, 4))
    (file_id,) = (await merge(world.service, l0=[file.file_id], **facts)).file_ids
    await merge(world.service, l0=[(await writer.commit(batch(partition_id, 4))).file_id])

    view = await world.service.compactors.compaction_view()
    known, unknown = view.partitions[0].extents
    assert {name: getattr(known, name) for name in facts} == facts
    assert [getattr(unknown, name) for name in facts] == [None, None, None, 0]
    (shown,) = await world.service.operators.partition_views(keyed.topic_id)
    assert list(shown.extents) == [known, unknown]
    claimed = await claim(world.service, job(file_ids=[file_id]))
    assert [{name: getattr(each, name) for name in facts} for each in claimed.extents] == [facts]
    files = {each.file_id: each for each in view.files if each.level}
    assert files[file_id].cap_bytes == 2**40
    assert [each.cap_bytes for each in files.values()] == [2**40, sum(each.length for each in (unknown,))]
    # and readers, whose roles an older release made, do without
    assert [each.uncompressed_bytes for each in await extents_of(world.service, partition_id)] == [None, None]


@pytest.mark.parametrize(
    ("configs", "after_ms"),
    [
        ({}, 7 * DAY_MS),
        ({"retention.ms": "5"}, 5),
        ({"retention.ms": "-1"}, None),
        ({"cleanup.policy": "compact"}, None),
        ({"cleanup.policy": ""}, None),
        ({"cleanup.policy": "compact, delete", "retention.ms": " 7 "}, 7),
    ],
    ids=str,
)
async def test_a_file_says_when_retention_will_have_taken_all_of_it(
    world: World, configs: dict[str, str], after_ms: int | None
) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("some", partitions=1, configs=configs)
    other = await world.service.agents.create_topic("other", partitions=1, configs={"retention.ms": "1"})
    file = await writer.commit(batch(topic.partition_ids[0], 4), batch(other.partition_ids[0], 4))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    early, late = output_extent(other.partition_ids[0], 0, 3), output_extent(topic.partition_ids[0], 0, 3)
    late = output_extent(topic.partition_ids[0], 0, 3, max_timestamp_ms=1_000)
    await world.service.compactors.commit_merge(commit_of(claimed, output_file(early, late)))

    (shown,) = (await world.service.compactors.compaction_view()).files

    assert shown.expires_ms == (None if after_ms is None else 1_000 + after_ms)
    assert shown.max_timestamp_ms == 1_000


async def test_timestamps_as_large_as_can_be_do_not_overflow(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("t", partitions=1, configs={"retention.ms": str(2**63 - 1)})
    file = await writer.commit(batch(topic.partition_ids[0], 4, max_timestamp_ms=2**63 - 1))
    await merge(world.service, l0=[file.file_id], max_timestamp_ms=2**63 - 1)

    (shown,) = (await world.service.compactors.compaction_view()).files

    assert shown.expires_ms == 2**63 - 1
    assert (await world.service.deletion.expire()).extents == 0


async def test_the_system_view_shows_live_extents_counts_inputs_and_pins(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [(await writer.commit(batch(one, 4))).file_id for _ in range(3)]
    merged = (await merge(world.service, l0=files[:1], uncompressed_bytes=900)).file_ids[0]
    claimed = await claim(world.service, job(l0_file_ids=files[1:2], file_ids=[merged]))
    pins = [await world.service.readers.pin("reader", ttl_ms=60_000) for _ in range(3)]
    # A renewed pin is another row version in Postgres, behind the others in its table.
    assert await world.service.readers.beat_pin(pins[0], ttl_ms=60_000)

    view = await world.service.operators.system_view()

    extent_id = view.extents[0].extent_id
    assert [(extent.base_offset, extent.last_offset) for extent in view.extents] == [(0, 3)]
    assert [file.file_id for file in view.l0_files] == files[1:]
    assert view.live_extents == {merged: 1}
    assert sorted(view.job_inputs, key=str) == sorted(
        [(claimed.job.job_id, files[1], None), (claimed.job.job_id, merged, extent_id)], key=str
    )
    assert view.extents[0].uncompressed_bytes is None
    assert list(view.pins) == [created_ms for _, _, created_ms, _ in await world.service.operators.pins()]


# ---- requests --------------------------------------------------------------------------------------------------------


async def test_a_request_reaches_to_the_high_watermark_and_is_cleared_when_there_is_nothing_to_do(
    world: World,
) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("keyed", partitions=2, configs={"cleanup.policy": "compact"})
    one, two = topic.partition_ids
    await writer.commit(batch(one, 4))

    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 4, two: 0}

    first, second = await world.service.operators.partition_views(topic.topic_id)
    assert (first.requested_through_offset, second.requested_through_offset) == (4, None)
    await writer.commit(batch(one, 4))
    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 8, two: 0}
    await world.service.agents.delete_records(one, 8)
    first, _ = await world.service.operators.partition_views(topic.topic_id)
    assert first.requested_through_offset is None


async def test_a_request_reaches_no_further_than_the_compaction_lag_allows(world: World) -> None:
    writer = await Writer.register(world.service)
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(DAY_MS)}
    topic = await world.service.agents.create_topic("keyed", partitions=2, configs=configs)
    one, two = topic.partition_ids
    now_ms = await world.service.now_ms()
    first = await writer.commit(batch(one, 4), batch(two, 4, max_timestamp_ms=now_ms))
    await merge(world.service, l0=[first.file_id], max_timestamp_ms=now_ms - 2 * DAY_MS)
    await writer.commit(batch(one, 4), batch(two, 1))
    await writer.commit(batch(one, 4, max_timestamp_ms=now_ms))

    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 8, two: 5}


async def test_a_request_reaches_no_further_than_the_first_open_transaction(world: World) -> None:
    coordinator = await Coordinator.register(world.service)
    configs = {"cleanup.policy": "compact"}
    topic = await world.service.agents.create_topic("keyed", partitions=2, configs=configs)
    one, two = topic.partition_ids
    await coordinator.writer.commit(batch(one, 4))
    producer = await coordinator.producer()
    await producer.write(one, two)
    await coordinator.writer.commit(batch(one, 4), batch(two, 4))

    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 4, two: 0}

    first, second = await world.service.operators.partition_views(topic.topic_id)
    assert (first.requested_through_offset, second.requested_through_offset) == (4, None)
    # and to the end when it has ended, its marker included
    await producer.end()
    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 10, two: 6}
    first, second = await world.service.operators.partition_views(topic.topic_id)
    assert (first.requested_through_offset, second.requested_through_offset) == (10, 6)


async def test_a_request_for_what_cannot_be_compacted_is_refused(world: World) -> None:
    plain = await new_topic(world.service)
    with raises_exactly(not_compacted("orders")):
        await world.service.operators.request_compaction(plain.topic_id)
    await world.service.agents.delete_topic(plain.topic_id)
    with raises_exactly(unknown_topic_id(plain.topic_id)):
        await world.service.operators.request_compaction(plain.topic_id)
    with raises_exactly(unknown_topic_id(plain.topic_id)):
        await world.service.operators.partition_views(plain.topic_id)


# ---- reading ---------------------------------------------------------------------------------------------------------


async def test_extents_are_found_by_offset_and_by_timestamp(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    times = [50, 90, 20, 90, 70]
    for time_ms in times:
        file = await writer.commit(batch(one, 10), batch(two, 1))
        await merge(world.service, l0=[file.file_id], max_timestamp_ms=time_ms)
    bases = [extent.base_offset for extent in await extents_of(world.service, one)]
    assert bases == [0, 10, 20, 30, 40]

    async def by_offset(offset: int, limit: int) -> list[int]:
        return [each.base_offset for each in await world.service.readers.leveled_extents(one, offset, limit=limit)]

    async def by_time(timestamp_ms: int, **more: int) -> list[int]:
        found = await world.service.readers.leveled_extents_by_timestamp(one, timestamp_ms, **more)
        return [each.base_offset for each in found]

    assert await by_offset(0, 2) == [0, 10]
    assert await by_offset(19, 9) == [10, 20, 30, 40]
    assert await by_offset(20, 1) == [20]
    assert await by_offset(50, 9) == []
    assert await by_time(60) == [10, 30, 40]
    assert await by_time(60, from_offset=20) == [30, 40]
    assert await by_time(60, from_offset=19, limit=1) == [10]
    assert await by_time(91) == []
    largest = await world.service.readers.largest_leveled_timestamp(one)
    assert largest is not None
    assert (largest.base_offset, largest.max_timestamp_ms) == (10, 90)
    assert await world.service.readers.largest_leveled_timestamp(two + 1) is None


async def test_an_extent_without_records_is_found_by_offset_alone(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 10))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    await world.service.compactors.commit_merge(
        commit_of(claimed, outputs_of(read_ranges(claimed), record_count=0, length=0, max_timestamp_ms=99))
    )

    assert [extent.length for extent in await extents_of(world.service, one)] == [0]
    assert await world.service.readers.leveled_extents_by_timestamp(one, 50) == []
    assert await world.service.readers.largest_leveled_timestamp(one) is None
