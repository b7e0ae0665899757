"""The commit of a merge (`metadata/contract/jobs.py`) whose inputs partly died meanwhile: its outputs are trimmed."""

from __future__ import annotations

from metadata.contract.files import FileState
from metadata.contract.jobs import (
    MergeCommitted,
)
from tests.contract.merges import (
    broken,
    claim,
    commit_of,
    job,
    l1_files,
    output_extent,
    output_file,
    outputs_of,
    read_ranges,
    spans,
    two_extents,
)
from tests.contract.metadata_worlds import World, Writer, batch, new_topic


async def test_what_delete_records_killed_meanwhile_is_trimmed(world: World) -> None:
    one, two = await two_extents(world)
    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    await world.service.agents.delete_records(one, 10)

    committed = await world.service.compactors.commit_merge(
        commit_of(claimed, outputs_of(read_ranges(claimed), join=False))
    )

    assert committed.trimmed_extents == 1
    assert await spans(world.service, one) == [(10, 19)]
    assert await spans(world.service, two) == [(0, 9), (10, 19)]
    assert await broken(world.service) == []


async def test_an_output_that_reaches_over_the_new_log_start_lives(world: World) -> None:
    one, _ = await two_extents(world)
    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    await world.service.agents.delete_records(one, 15)

    committed = await world.service.compactors.commit_merge(commit_of(claimed))

    assert committed.trimmed_extents == 0
    assert await spans(world.service, one) == [(0, 19)]
    assert await broken(world.service) == []


async def test_what_delete_records_killed_of_l0_is_trimmed(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [(await writer.commit(batch(one, 10))).file_id for _ in range(2)]
    claimed = await claim(world.service, job(l0_file_ids=files))
    await world.service.agents.delete_records(one, 10)

    committed = await world.service.compactors.commit_merge(
        commit_of(claimed, outputs_of(read_ranges(claimed), join=False))
    )

    assert committed.trimmed_extents == 1
    assert await spans(world.service, one) == [(10, 19)]
    assert await broken(world.service) == []


async def test_what_retention_killed_meanwhile_is_trimmed(world: World) -> None:
    one, two = await two_extents(world, configs={"retention.bytes": "100", "retention.ms": "-1"})
    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    assert (await world.service.deletion.expire()).extents == 3  # one by size, those of `others` by time

    committed = await world.service.compactors.commit_merge(
        commit_of(claimed, outputs_of(read_ranges(claimed), join=False))
    )

    assert committed.trimmed_extents == 3
    assert await spans(world.service, one) == [(10, 19)]
    assert await spans(world.service, two) == []
    assert await broken(world.service) == []


async def test_what_the_deletion_of_a_topic_killed_meanwhile_is_trimmed_and_an_output_of_nothing_else_is_dead(
    world: World,
) -> None:
    one, two = await two_extents(world)
    topics = {topic.name: topic for topic in await world.service.agents.list_topics()}
    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    await world.service.agents.delete_topic(topics["orders"].topic_id)

    committed = await world.service.compactors.commit_merge(
        commit_of(claimed, output_file(output_extent(one, 0, 19)), output_file(output_extent(two, 0, 19)))
    )

    assert committed.trimmed_extents == 1
    files = {file.file_id: file for file in await world.service.operators.files()}
    gone, kept = (files[id_] for id_ in committed.file_ids)
    assert (gone.state, gone.live_extents, gone.dead_ms is None) == (FileState.DEAD, 0, False)
    assert (kept.state, kept.live_extents, kept.dead_ms) == (FileState.LIVE, 1, None)
    assert await spans(world.service, two) == [(0, 19)]
    assert await broken(world.service) == []


async def test_l0_rows_of_a_topic_that_is_gone_at_the_claim_need_not_be_read(world: World) -> None:
    writer = await Writer.register(world.service)
    topic, other = await new_topic(world.service, "gone"), await new_topic(world.service)
    file = await writer.commit(batch(topic.partition_ids[0], 5), batch(other.partition_ids[0], 5))
    await world.service.agents.delete_topic(topic.topic_id)

    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    assert list(claimed.partitions) == [other.partition_ids[0]]
    await world.service.compactors.commit_merge(commit_of(claimed))

    assert await broken(world.service) == []
    assert await spans(world.service, other.partition_ids[0]) == [(0, 4)]


async def test_a_merge_of_which_nothing_is_left_writes_nothing_and_kills_its_inputs(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 5))
    await world.service.agents.delete_records(one, -1)

    committed = await merge_nothing(world, file.file_id)

    assert committed == MergeCommitted(file_ids=(), trimmed_extents=0)
    assert [info.state for info in await world.service.operators.files()] == [FileState.DEAD]
    assert await broken(world.service) == []


async def merge_nothing(world: World, file_id: int) -> MergeCommitted:
    return await world.service.compactors.commit_merge(
        commit_of(await claim(world.service, job(l0_file_ids=[file_id])))
    )


async def test_inputs_that_died_before_the_claim_are_left_out(world: World) -> None:
    one, two = await two_extents(world)
    lease = await world.service.compactors.register_compactor("host")
    await world.service.compactors.create_job(job(file_ids=await l1_files(world)))
    await world.service.agents.delete_records(one, 10)

    claimed = await world.service.compactors.claim_job(lease)

    assert claimed is not None
    assert [(extent.partition_id, extent.base_offset) for extent in claimed.extents] == [(one, 10), (two, 0), (two, 10)]
    await world.service.compactors.commit_merge(commit_of(claimed))
    assert await broken(world.service) == []
