"""The compactor's contract: the commit of a merge; its refusals and the cleaning marks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.contract.agents import each_live_file
from metadata.contract.files import FileState
from metadata.contract.jobs import (
    CleanedPartition,
    CommitMerge,
    JobState,
    MergeCommitted,
    MergeRefusedError,
)
from metadata.contract.tail import ChangeKind, Cursor
from metadata.rules.jobs import PAST_LIMIT, job_late, job_lost
from tests.contract.merges import (
    broken,
    claim,
    commit_of,
    extents_of,
    job,
    l1_files,
    merge,
    output_extent,
    output_file,
    output_key,
    outputs_of,
    read_ranges,
    spans,
    two_extents,
)
from tests.contract.metadata_worlds import World, Writer, batch, new_topic, raises_exactly


async def test_a_merge_replaces_l0_files_by_extents_and_tells_followers(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    first = await writer.commit(batch(one, 3), batch(two, 2))
    second = await writer.commit(batch(one, 4))
    newer = await writer.commit(batch(one, 1))
    start = (await world.service.agents.snapshot()).cursor

    committed = await merge(world.service, l0=[first.file_id, second.file_id], max_timestamp_ms=99)

    assert await spans(world.service, one) == [(0, 6)]
    assert await spans(world.service, two) == [(0, 1)]
    (of_one,) = await extents_of(world.service, one)
    assert (of_one.file_id, of_one.level, of_one.key.startswith("l1/")) == (committed.file_ids[0], 1, True)
    assert (of_one.length, of_one.record_count, of_one.file_size_bytes, of_one.max_timestamp_ms) == (70, 7, 90, 99)
    view = await world.service.compactors.compaction_view()
    l0, l1 = sorted(view.files, key=lambda file: file.level)
    assert (l0.file_id, l0.run_id, l0.lo, l0.hi, l0.file_class) == (newer.file_id,) * 4 + (None,)
    assert (l1.lo, l1.hi, l1.file_class, l1.live_bytes) == (first.file_id, second.file_id, "plain", 90)
    assert (l1.max_timestamp_ms, l1.oldest_dead_ms, l1.run_id) == (
        99,
        None,
        (await world.service.operators.jobs())[0].job_id,
    )

    tail = await world.service.agents.tail(start)
    assert [change.kind for change in tail.changes] == [ChangeKind.MERGED]
    assert tail.changes[0].topic_id is None
    assert tail.changes[0].detail == {"job_id": l1.run_id, "l0_files": [first.file_id, second.file_id], "deduped": []}
    from_zero = await world.service.agents.tail(Cursor())
    assert [file.live for file in from_zero.files] == [False, False, True]
    snapshot = await world.service.agents.snapshot()
    live = [file async for file in each_live_file(world.service.agents, snapshot)]
    assert [(file.file_id, file.live) for file in live] == [(newer.file_id, True)]
    assert await broken(world.service) == []


async def test_a_dedupe_tells_followers_of_the_partitions_whose_records_are_fewer_now(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service, partitions=1)).partition_ids
    l1 = await merge(world.service, l0=[(await writer.commit(batch(one, 5))).file_id])
    start = (await world.service.agents.snapshot()).cursor
    cleaned = CleanedPartition(partition_id=one, cleaned_through_offset=5, passes_needed=1)
    await merge(world.service, files=l1.file_ids, level=2, cleaned=[cleaned])
    (change,) = (await world.service.agents.tail(start)).changes
    assert (change.kind, change.detail["l0_files"], change.detail["deduped"]) == (ChangeKind.MERGED, [], [one])


async def test_a_merge_of_merged_files_appends_no_change_and_its_inputs_die_with_their_last_extent(
    world: World,
) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    merged = [
        (await merge(world.service, l0=[(await writer.commit(batch(one, 5), batch(two, 5))).file_id])).file_ids[0]
        for _ in range(2)
    ]
    start = (await world.service.agents.snapshot()).cursor

    # when only one partition of both files is merged
    claimed = await claim(
        world.service, job(extent_ids=[extent.extent_id for extent in await extents_of(world.service, one)])
    )
    output = outputs_of(read_ranges(claimed), level=2)
    forced = await world.service.compactors.commit_merge(commit_of(claimed, output))
    # then the other partition keeps the input files alive
    files = {file.file_id: file for file in await world.service.operators.files()}
    assert [(files[id_].state, files[id_].live_extents) for id_ in merged] == [(FileState.LIVE, 1)] * 2
    view = {file.file_id: file for file in (await world.service.compactors.compaction_view()).files}
    assert [view[id_].live_bytes for id_ in merged] == [50, 50]
    assert all(view[id_].oldest_dead_ms is not None for id_ in merged)
    assert (view[forced.file_ids[0]].lo, view[forced.file_ids[0]].hi) == (view[merged[0]].lo, view[merged[1]].hi)

    # when the other partition is merged too
    await merge(world.service, files=merged, level=2)
    # then the input files are dead
    files = {file.file_id: file for file in await world.service.operators.files()}
    assert [(files[id_].state, files[id_].live_extents) for id_ in merged] == [(FileState.DEAD, 0)] * 2
    assert (await world.service.agents.tail(start)).changes == []
    assert await spans(world.service, two) == [(0, 9)]
    assert await broken(world.service) == []


async def test_a_repeated_commit_gets_the_same_answer_and_does_nothing_twice(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 3))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    commit = commit_of(claimed)

    first = await world.service.compactors.commit_merge(commit)
    again = await (await world.another()).compactors.commit_merge(commit)

    assert first == again
    assert await spans(world.service, one) == [(0, 2)]
    done = await world.service.compactors.job(commit.job_id)
    assert done is not None
    assert (done.state, done.result) == (JobState.DONE, {"seconds": 1})
    assert len((await world.service.agents.tail(Cursor())).changes) == 2
    with raises_exactly(job_lost(commit.job_id, 2)):
        await world.service.compactors.commit_merge(replace(commit, epoch=2))
    with raises_exactly(job_lost(commit.job_id + 7, commit.epoch)):
        await world.service.compactors.commit_merge(replace(commit, job_id=commit.job_id + 7))


async def test_a_commit_past_the_time_of_its_horizons_is_lost_though_the_claim_is_young(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 3))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    with raises_exactly(job_late(claimed.job.job_id)):
        await world.service.compactors.commit_merge(commit_of(claimed, commit_by_ms=claimed.now_ms - 1))
    failed = await world.service.compactors.job(claimed.job.job_id)
    assert (failed and failed.error, await spans(world.service, one)) == (PAST_LIMIT, [])
    # a commit in time succeeds, and its repeat is answered at any time
    again = await claim(world.service, job(l0_file_ids=[file.file_id]))
    commit = commit_of(again, commit_by_ms=again.now_ms + 30_000)
    committed = await world.service.compactors.commit_merge(commit)
    assert await world.service.compactors.commit_merge(replace(commit, commit_by_ms=0)) == committed


async def test_one_commit_made_twice_at_once_happens_once(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 3))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    other = await world.another()

    answers = await asyncio.gather(
        *(
            service.compactors.commit_merge(
                commit_of(claimed, output_file(output_extent(one, 0, 2), key="l1/a7/2024010100/9-0-same.silt"))
            )
            for service in (world.service, other)
        )
    )

    assert answers[0] == answers[1]
    assert await spans(world.service, one) == [(0, 2)]
    assert await broken(world.service) == []


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans_written", "covered"),
    [
        ([(0, 18)], [(0, 19)]),
        ([(1, 19)], [(0, 19)]),
        ([(0, 9), (11, 19)], [(0, 19)]),
        ([(0, 10), (10, 19)], [(0, 19)]),
        ([(0, 20)], [(0, 20)]),
        ([(0, 9)], [(0, 9)]),
        ([], []),
        ([(0, 19)], [(0, 9)]),
    ],
    ids=str,
)
async def test_outputs_that_do_not_cover_what_the_inputs_hold_are_refused(
    world: World, spans_written: list[tuple[int, int]], covered: list[tuple[int, int]]
) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [(await writer.commit(batch(one, 10))).file_id for _ in range(2)]
    await writer.commit(batch(one, 10))
    claimed = await claim(world.service, job(l0_file_ids=files))
    output = output_file(*(output_extent(one, base, last) for base, last in spans_written))

    with pytest.raises(MergeRefusedError):
        await world.service.compactors.commit_merge(
            commit_of(claimed, output, covered={one: covered} if covered else {})
        )

    await assert_refused(world, claimed.job.job_id)
    assert [file.state for file in await world.service.operators.files()] == [FileState.LIVE] * 3


async def test_an_output_over_a_gap_between_its_inputs_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [(await writer.commit(batch(one, 10))).file_id for _ in range(3)]
    claimed = await claim(world.service, job(l0_file_ids=[files[0], files[2]]))

    with pytest.raises(MergeRefusedError, match="10 to 19 missing"):
        await world.service.compactors.commit_merge(commit_of(claimed, output_file(output_extent(one, 0, 29))))
    await assert_refused(world, claimed.job.job_id)

    again = await claim(world.service, job(l0_file_ids=[files[0], files[2]]))
    await world.service.compactors.commit_merge(commit_of(again))
    assert await spans(world.service, one) == [(0, 9), (20, 29)]
    assert await broken(world.service) == []


async def test_a_key_that_was_used_or_aborted_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 10))
    aborted = output_key()
    assert await world.service.deletion.abort_file(aborted)
    used = (await world.service.operators.files())[0].key

    for key in (aborted, used):
        claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
        with pytest.raises(MergeRefusedError, match="aborted or used"):
            await world.service.compactors.commit_merge(
                commit_of(claimed, output_file(output_extent(one, 0, 9), key=key))
            )
        await assert_refused(world, claimed.job.job_id)


async def test_a_key_as_old_as_a_forgotten_one_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 10))
    await world.service.deletion.abort_file(output_key(hour="2024010107"))
    await world.forget_rows()
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    output = output_file(output_extent(one, 0, 9), key=output_key(hour="2024010107"))

    with pytest.raises(MergeRefusedError, match="forgotten"):
        await world.service.compactors.commit_merge(commit_of(claimed, output))

    await assert_refused(world, claimed.job.job_id)


async def assert_refused(world: World, job_id: int) -> None:
    """Check that the job failed, its inputs are free, and no invariant is broken."""
    failed = await world.service.compactors.job(job_id)
    assert failed is not None
    assert failed.state is JobState.FAILED
    assert failed.error
    assert (await world.service.compactors.compaction_view()).busy_files == frozenset()
    assert await broken(world.service) == []


async def test_of_a_merge_and_an_abort_of_its_output_at_once_exactly_one_wins(world: World) -> None:
    writer = await Writer.register(world.service)
    janitor = await world.another()
    (one,) = (await new_topic(world.service)).partition_ids
    for number in range(12):
        file = await writer.commit(batch(one, 1))
        claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
        commit = commit_of(claimed)
        calls = [world.service.compactors.commit_merge(commit), janitor.deletion.abort_file(commit.outputs[0].key)]
        outcome = await asyncio.gather(*(calls if number % 2 else reversed(calls)), return_exceptions=True)
        merged, aborted = outcome if number % 2 else reversed(outcome)
        assert isinstance(merged, MergeCommitted) != aborted, f"{merged!r} and abort {aborted!r}"
    assert await broken(world.service) == []


# ---- cleaning marks --------------------------------------------------------------------------------------------------


async def test_cleaned_through_moves_by_passes_from_the_log_start_and_never_back(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("keyed", partitions=1, configs={"cleanup.policy": "compact"})
    (one,) = topic.partition_ids
    file = (await writer.commit(batch(one, 30))).file_id
    merged = list((await merge(world.service, l0=[file])).file_ids)
    await world.service.operators.request_compaction(topic.topic_id)

    async def pass_to(through: int | None, passes: int) -> tuple[int, bool, int, int | None]:
        cleaned = CleanedPartition(partition_id=one, cleaned_through_offset=through, passes_needed=passes)
        merged[:] = (await merge(world.service, files=merged, level=2, cleaned=[cleaned])).file_ids
        (state,) = await world.service.operators.partition_views(topic.topic_id)
        return (
            state.cleaned_through_offset,
            state.last_cleaned_ms is not None,
            state.passes_needed,
            state.requested_through_offset,
        )

    assert await pass_to(None, 3) == (0, False, 3, 30)
    assert await pass_to(None, 1) == (0, False, 3, 30)
    assert await pass_to(20, 1) == (20, True, 1, 30)
    assert await pass_to(10, 2) == (20, True, 2, 30)
    assert await pass_to(30, 1) == (30, True, 1, None)


async def test_a_pass_over_a_partition_that_is_gone_is_committed_without_it(world: World) -> None:
    one, two = await two_extents(world)
    topics = {topic.name: topic for topic in await world.service.agents.list_topics()}
    claimed = await claim(world.service, job(file_ids=await l1_files(world)))
    await world.service.agents.delete_topic(topics["orders"].topic_id)
    passes = [CleanedPartition(partition_id=id_, cleaned_through_offset=20, passes_needed=1) for id_ in (one, two)]

    commit: CommitMerge = commit_of(claimed, cleaned=passes)
    await world.service.compactors.commit_merge(commit)

    (other,) = await world.service.operators.partition_views(topics["others"].topic_id)
    assert other.cleaned_through_offset == 20


async def test_a_merge_may_write_thousands_of_files_and_clean_tens_of_thousands_of_partitions(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 2_400))
    claimed = await claim(world.service, job(l0_file_ids=[file.file_id]))
    start = (await world.service.agents.snapshot()).cursor
    outputs = [output_file(output_extent(one, offset, offset)) for offset in range(2_400)]
    passes = [CleanedPartition(partition_id=one + n, cleaned_through_offset=1, passes_needed=1) for n in range(33_000)]

    committed = await world.service.compactors.commit_merge(commit_of(claimed, *outputs, cleaned=passes))

    assert len(committed.file_ids) == 2_400
    (change,) = (await world.service.agents.tail(start)).changes
    assert change.detail["deduped"] == []
    files = {file.file_id: file for file in await world.service.operators.files(limit=10_000)}
    assert [files[file_id].key for file_id in committed.file_ids] == [output.key for output in outputs]
    assert await broken(world.service) == []


async def test_a_request_stands_until_a_pass_reaches_it_even_where_an_earlier_one_had(world: World) -> None:
    # given a clean partition, and a request for another pass, because tombstones wait in it
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("kv", partitions=1, configs={"cleanup.policy": "compact"})
    (one,) = topic.partition_ids
    merged = list((await merge(world.service, l0=[(await writer.commit(batch(one, 5))).file_id])).file_ids)

    async def clean(through: int) -> None:
        cleaned = CleanedPartition(partition_id=one, cleaned_through_offset=through, passes_needed=2)
        merged[:] = (await merge(world.service, files=merged, level=2, cleaned=[cleaned])).file_ids

    await clean(5)
    assert await world.service.operators.request_compaction(topic.topic_id) == {one: 5}
    # when a pass ends before the requested offset, because its buffer was cleared
    await clean(2)
    (view,) = await world.service.operators.partition_views(topic.topic_id)
    # then the request still stands, and a pass that reaches its offset fulfils it
    assert (view.cleaned_through_offset, view.requested_through_offset) == (5, 5)
    await clean(5)
    (view,) = await world.service.operators.partition_views(topic.topic_id)
    assert view.requested_through_offset is None
