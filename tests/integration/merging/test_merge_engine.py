"""Merges over real bytes in a memory store: leveling, plain merges, the cuts of extents and files, and the bytes
read.
"""

from __future__ import annotations

import pytest

from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import CommitMerge
from metadata.contract.leveled import FileClass
from storage.format.file_format import EXTENT_MAY_HAVE_TOMBSTONES, read_file
from storage.format.file_properties import TopicProperty, decode_properties
from tests.fixtures.merge_inputs import MergeWorld, Sent, a_batch, extents_of, ranges_of
from tests.fixtures.record_batches import NOW_MS

DAY_MS = 86_400_000


async def leveled(world: MergeWorld, *, output_bytes: int = MIB) -> CommitMerge:
    return await world.engine().run(world.claim(output_bytes=output_bytes))


async def merged(world: MergeWorld, *, output_bytes: int = MIB, cursor_bytes: int = 256 * MIB) -> CommitMerge:
    claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=output_bytes)
    return await world.engine(cursor_bytes=cursor_bytes).run(claimed)


async def test_leveling_stamps_offsets_and_leaves_out_what_was_refused() -> None:
    # given files with refused batches in the middle of an extent
    world = MergeWorld()
    world.add_partition(1)
    world.add_partition(2, partition=1)
    first = [Sent(1, a_batch(3)), Sent(1, a_batch(2), accepted=False), Sent(1, a_batch(4)), Sent(2, a_batch(1))]
    await world.add_l0(first)
    await world.add_l0([Sent(2, a_batch(5), accepted=False), Sent(1, a_batch(2)), Sent(1, a_batch(1))])
    # when they are leveled
    commit = await leveled(world)
    # then one file holds every accepted batch at its offset
    assert await world.log_of(commit) == world.model_log()
    assert (ranges_of(commit, 1), ranges_of(commit, 2)) == ([(0, 9)], [(0, 0)])
    assert commit.covered == {1: [(0, 9)], 2: [(0, 0)]}
    assert [(output.level, output.file_class) for output in commit.outputs] == [(1, FileClass.PLAIN)]
    assert (commit.job_id, commit.epoch, list(commit.cleaned)) == (77, 1, [])
    assert commit.summary["records_in"] == commit.summary["records_out"] == 11
    assert (commit.summary["outputs"], commit.summary["passes"], commit.summary["gets"]) == (1, 1, 2)


async def test_leveling_sets_the_leader_epoch_that_producers_leave_at_minus_one() -> None:
    world = MergeWorld()
    world.add_partition(1)
    batch = a_batch(2)
    await world.add_l0([Sent(1, batch[:12] + b"\xff\xff\xff\xff" + batch[16:])])
    log = (await world.log_of(await leveled(world)))[1]
    assert log == batch


async def test_an_l0_file_that_is_mostly_dead_is_read_in_live_stretches() -> None:
    # given a file in which two stretches of a partition are live, far apart
    world = MergeWorld()
    world.add_partition(1)
    dead = Sent(1, a_batch(1, value_bytes=MIB), accepted=False)
    await world.add_l0([Sent(1, a_batch(3)), dead, dead, Sent(1, a_batch(2))])
    # when it is leveled
    commit = await leveled(world)
    # then dead bytes were not read
    assert await world.log_of(commit) == world.model_log()
    assert [length for _, _, length in world.store.reads] == [len(a_batch(3)), len(a_batch(2))]


async def test_rows_below_the_log_start_and_of_deleted_topics_are_left_out() -> None:
    world = MergeWorld()
    world.add_partition(1)
    world.add_partition(2, topic="gone")
    await world.add_l0([Sent(1, a_batch(3)), Sent(2, a_batch(3))])
    await world.add_l0([Sent(1, a_batch(3))])
    await world.add_l0([Sent(1, a_batch(3))])
    # given: records were deleted up to the middle of the second file, and a topic
    del world.partitions[2]
    model = world.partitions[1]
    model.info = type(model.info)(
        **{**{n: getattr(model.info, n) for n in model.info.__slots__}, "log_start_offset": 4}
    )
    # when they are leveled
    commit = await leveled(world)
    # then an extent with a live record stays whole
    assert commit.covered == {1: [(3, 8)]}
    assert await world.log_of(commit) == {1: b"".join(model.batches[1:])}


async def test_a_merge_whose_inputs_all_died_writes_nothing() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_l0([Sent(1, a_batch(3))])
    before = await world.keys()
    world.partitions.clear()
    commit = await leveled(world)
    assert (list(commit.outputs), commit.covered, commit.summary["outputs"]) == ([], {}, 0)
    assert await world.keys() == before


async def test_extents_never_cover_a_gap_in_their_inputs() -> None:
    # given extents of one partition of which the second is not an input
    world = MergeWorld()
    world.add_partition(1)
    for count in (3, 4, 5, 6):
        await world.add_leveled({1: [a_batch(count)]})
    world.extents = [extent for extent in world.extents if extent.base_offset != 3]
    # when they are merged
    commit = await merged(world)
    # then there are two extents with the gap between them
    assert ranges_of(commit, 1) == [(0, 2), (7, 17)]
    assert commit.covered == {1: [(0, 2), (7, 17)]}
    assert await world.log_of(commit) == {
        1: b"".join(batch for n, batch in enumerate(world.partitions[1].batches) if n != 1)
    }


async def test_empty_extents_are_carried_on() -> None:
    # given three extents, of which the middle one lost all its batches to an earlier merge
    world = MergeWorld()
    world.add_partition(1)
    for _ in range(3):
        await world.add_leveled({1: [a_batch(2)]})
    empty = {"length": 0, "record_count": 0, "crc32c": 0, "block_index_length": 0, "block_index_position": 0}
    world.extents[1] = world.extents[1]._replace(**empty)
    commit = await merged(world)
    assert ranges_of(commit, 1) == [(0, 5)]
    # and an empty extent that stands alone stays an extent without bytes
    world.extents = [world.extents[1]]
    (extent,) = extents_of(await merged(world), 1)
    assert (extent.base_offset, extent.last_offset, extent.length, extent.record_count) == (2, 3, 0, 0)
    assert (extent.block_index_length, extent.max_timestamp_ms) == (0, -1)


async def test_extents_are_cut_by_time_so_that_old_records_expire() -> None:
    # given a topic that keeps eight days, and records of three days in order
    world = MergeWorld()
    world.add_partition(1, retention_ms=str(8 * DAY_MS))
    for day in (0, 0.5, 1.2, 1.9, 2.6):
        await world.add_l0([Sent(1, a_batch(2, timestamp_ms=NOW_MS + int(day * DAY_MS)))])
    commit = await leveled(world)
    # then no extent spans more than a day, and their ranges tile
    assert ranges_of(commit, 1) == [(0, 3), (4, 7), (8, 9)]
    assert await world.log_of(commit) == world.model_log()
    spans = [extent.max_timestamp_ms - extent.min_timestamp_ms for extent in extents_of(commit, 1)]
    assert max(spans) <= DAY_MS


async def test_extents_are_cut_at_segment_bytes_between_batches() -> None:
    world = MergeWorld()
    size = len(a_batch(3, value_bytes=100))
    world.add_partition(1, segment_bytes=str(2 * size + 10))
    await world.add_l0([Sent(1, a_batch(3, value_bytes=100)) for _ in range(5)])
    commit = await leveled(world)
    assert ranges_of(commit, 1) == [(0, 5), (6, 11), (12, 14)]
    assert await world.log_of(commit) == world.model_log()


async def test_an_extent_that_was_cut_goes_on_to_count_over_windows() -> None:
    # given a long extent that passes in several windows, and segments of 5 batches
    world = MergeWorld()
    batch = a_batch(1, value_bytes=MIB)
    world.add_partition(1, segment_bytes=str(5 * len(batch)))
    await world.add_leveled({1: [batch] * 21})
    commit = await merged(world, output_bytes=64 * MIB)
    assert ranges_of(commit, 1) == [(0, 4), (5, 9), (10, 14), (15, 19), (20, 20)]


async def test_the_two_classes_never_share_a_file() -> None:
    # given L0 files with a compacted topic between two plain ones
    world = MergeWorld()
    world.add_partition(1, topic="a")
    world.add_partition(2, topic="b", cleanup_policy="compact")
    world.add_partition(3, topic="c", cleanup_policy="delete")
    for _ in range(2):
        await world.add_l0([Sent(partition, a_batch(2)) for partition in (1, 2, 3)])
    commit = await leveled(world)
    assert await world.log_of(commit) == world.model_log()
    classes = {output.file_class: {extent.partition_id for extent in output.extents} for output in commit.outputs}
    assert classes == {FileClass.PLAIN: {1, 3}, FileClass.COMPACTED: {2}}


async def test_files_are_cut_by_partition_range_near_their_size() -> None:
    world = MergeWorld()
    for partition in range(10):
        world.add_partition(partition, partition=partition)
    batch = a_batch(1, value_bytes=30_000)
    for _ in range(2):
        await world.add_leveled({partition: [batch] for partition in range(10)})
    commit = await merged(world, output_bytes=200_000)
    # 60 KB a partition: three come nearest to 200 KB, and none is divided
    assert [sorted({each.partition_id for each in output.extents}) for output in commit.outputs] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9],
    ]
    assert await world.log_of(commit) == world.model_log()


async def test_a_partition_larger_than_a_file_is_divided_at_extents() -> None:
    world = MergeWorld()
    world.add_partition(1)
    for _ in range(5):
        await world.add_leveled({1: [a_batch(2, value_bytes=20_000) for _ in range(3)]})
    commit = await merged(world, output_bytes=100_000)
    assert len(commit.outputs) > 3
    assert all(output.size_bytes < 150_000 for output in commit.outputs)
    assert await world.log_of(commit) == world.model_log()


async def test_a_file_says_what_merge_wrote_it() -> None:
    world = MergeWorld()
    world.add_partition(1, topic="orders", partition=4)
    file = await world.add_l0([Sent(1, a_batch(2))])
    (output,) = (await leveled(world)).outputs
    body = await world.inner.get(output.key)
    index = read_file(body)
    section = next(each for each in index.sections if each.kind == 2)
    properties = decode_properties(body[section.position : section.position + section.length])
    info = world.partitions[1].info
    assert (properties.job_id, properties.kind, properties.epoch, properties.level) == (77, "level", 1, 1)
    assert (properties.file_class, properties.inputs) == ("plain", ((file.file_id, file.key),))
    assert properties.topics == {info.topic_id: TopicProperty(name="orders", config_version=1)}
    assert (index.extents[0].partition, index.extents[0].flags) == (4, EXTENT_MAY_HAVE_TOMBSTONES)
    assert output.config_version == 1


async def test_a_long_extent_passes_in_windows_and_its_batches_lie_across_reads() -> None:
    # given an extent of 34 MB whose batches cross every window border, one of them longer than a window
    world = MergeWorld()
    world.add_partition(1)
    batches = [a_batch(1, value_bytes=700_001) for _ in range(18)]
    batches.insert(5, a_batch(1, value_bytes=20 * MIB))
    await world.add_leveled({1: batches})
    await world.add_leveled({1: [a_batch(3)]})
    commit = await merged(world, output_bytes=64 * MIB)
    assert await world.log_of(commit) == world.model_log()
    assert ranges_of(commit, 1) == [(0, 21)]
    # 33 MiB in reads of 16 MiB, and one read of the small file
    assert len(world.store.reads) == commit.summary["gets"] == 4


async def test_more_inputs_than_windows_fit_are_read_in_smaller_windows_each_byte_once() -> None:
    # given ten files that are all open until the end, and cursors of 20 MiB together
    world = MergeWorld()
    for partition in range(4):
        world.add_partition(partition, partition=partition)
    for _ in range(10):
        await world.add_leveled({n: [a_batch(1, value_bytes=800_000)] for n in range(4)})
    files = {
        extent.key: sum(each.length for each in world.extents if each.key == extent.key) for extent in world.extents
    }
    # when they are merged
    commit = await merged(world, output_bytes=16 * MIB, cursor_bytes=20 * MIB)
    # then windows have 2 MiB, and no byte was read twice
    assert await world.log_of(commit) == world.model_log()
    lengths: dict[str, int] = {}
    for key, _, length in world.store.reads:
        lengths[key] = lengths.get(key, 0) + length
        assert length <= 2 * MIB
    assert lengths == files


async def test_requests_are_at_most_one_a_file_and_one_for_8_mib() -> None:
    world = MergeWorld()
    for partition in range(30):
        world.add_partition(partition, partition=partition)
    for _ in range(12):
        await world.add_leveled({n: [a_batch(2, value_bytes=20_000)] for n in range(30)})
    read_bytes = sum(extent.length for extent in world.extents)
    await merged(world, output_bytes=8 * MIB)
    assert len(world.store.reads) <= 12 + read_bytes // (8 * MIB)


async def test_a_dead_stretch_between_live_extents_is_not_read() -> None:
    world = MergeWorld()
    for partition in range(3):
        world.add_partition(partition, partition=partition)
    await world.add_leveled({n: [a_batch(2, value_bytes=1000)] for n in range(3)})
    dead = world.extents.pop(1)
    commit = await merged(world)
    assert set(commit.covered) == {0, 2}
    assert all(
        start + length <= dead.position or start >= dead.position + dead.length
        for _, start, length in world.store.reads
    )


@pytest.mark.parametrize("cursor_bytes", [MIB, 256 * MIB])
async def test_a_second_merge_of_outputs_gives_the_same_log(cursor_bytes: int) -> None:
    world = MergeWorld()
    for partition in range(3):
        world.add_partition(partition, partition=partition, cleanup_policy="compact" if partition == 1 else "delete")
    for number in range(6):
        await world.add_l0([Sent(n, a_batch(1 + (number + n) % 3, value_bytes=5_000)) for n in range(3)])
    world.adopt(await leveled(world, output_bytes=20_000))
    commit = await merged(world, cursor_bytes=cursor_bytes)
    assert await world.log_of(commit) == world.model_log()
    assert {output.level for output in commit.outputs} == {2}
    assert {extent.has_tombstones for output in commit.outputs for extent in output.extents} == {True}
