"""The contract of transactions: what a compactor sees of them, and what its commits make the store forget."""

from __future__ import annotations

from metadata.contract.compactors import PartitionView
from metadata.contract.jobs import CleanedPartition
from metadata.transactions.contract import AbortedTransaction
from tests.contract.merges import claim, commit_of, job
from tests.contract.metadata_worlds import World
from tests.contract.transactions import Coordinator


async def compacted_partition(world: World) -> tuple[Coordinator, int]:
    coordinator = await Coordinator.register(world.service)
    topic = await world.service.agents.create_topic("users", partitions=1, configs={"cleanup.policy": "compact"})
    return coordinator, topic.partition_ids[0]


async def seen(world: World) -> PartitionView:
    (view,) = (await world.service.compactors.compaction_view()).partitions
    return view


async def test_the_view_lists_what_is_aborted_below_the_stable_offset_wherever_its_marker_lies(world: World) -> None:
    # given T1 at 0, T2 at 1 (open), T1 again at 2 and T3 at 3; then T1 aborts at 4 and T3 at 5
    coordinator, partition_id = await compacted_partition(world)
    one, two, three = [await coordinator.producer(name) for name in "abc"]
    for producer in (one, two, one, three):
        await producer.write(partition_id)
    ids = one.producer_id, three.producer_id
    for producer in (one, three):
        await producer.end(commit=False)
    # then the records of T1 below the stable offset are known as aborted ones, those of T3 lie above it
    view = await seen(world)
    assert (view.last_stable_offset, view.high_watermark) == (1, 6)
    assert list(view.aborted) == [(ids[0], 0, 4)]
    # when T2 commits, then all are known, by first offset
    await two.end()
    view = await seen(world)
    assert (view.last_stable_offset, list(view.aborted)) == (7, [(ids[0], 0, 4), (ids[1], 3, 5)])


async def test_a_commit_takes_off_the_list_what_its_pass_reports_gone_and_nothing_else(world: World) -> None:
    coordinator, partition_id = await compacted_partition(world)
    producers = [await coordinator.producer(name) for name in "ab"]
    for producer in producers:
        await producer.write(partition_id)
    ids = [each.producer_id for each in producers]
    for producer in producers:
        await producer.end(commit=False)
    view = await world.service.compactors.compaction_view()
    # then files that no object holds are told, and come with their bytes
    assert [(each.is_inline, each.size_bytes) for each in view.files if each.is_inline] == [(True, 78), (True, 78)]
    files = [each.file_id for each in view.files]
    claimed = await claim(world.service, job(l0_file_ids=files))
    assert [len(each.inline) for each in claimed.l0_files] == [0, 0, 78, 78]
    # when a merge reports one of the two gone
    cleaned = CleanedPartition(
        partition_id=partition_id, cleaned_through_offset=4, passes_needed=1, aborted_gone=[2, 77]
    )
    commit = commit_of(claimed, cleaned=[cleaned])
    first = await world.service.compactors.commit_merge(commit)
    # then the other one stays, also after the answer was lost
    assert await world.service.compactors.commit_merge(commit) == first
    left = AbortedTransaction(partition_id, ids[1], 1, 3)
    assert await world.service.agents.aborted_transactions({partition_id: 0}) == [left]
    window = await world.service.readers.leveled_window(partition_id, 0)
    assert (len(window.extents), list(window.aborted)) == (1, [left])
    assert list((await seen(world)).aborted) == [(ids[1], 1, 3)]
