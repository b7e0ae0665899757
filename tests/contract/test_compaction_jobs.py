"""The compactor's contract (`metadata/contract/compactors.py`): the life of a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.contract.jobs import JOB_ATTEMPTS_MAX, ClaimedJob, CleanedPartition, InputsBusyError, JobState
from metadata.rules.jobs import (
    EXHAUSTED_AGAIN_RETRY_MS,
    EXHAUSTED_RETRY_MS,
    GIVE_BACKS_MAX,
    UNREADABLE,
    UNREADABLE_RETRY_MS,
    UNWRITTEN_RETRY_MS,
    given_up,
    inputs_held,
    inputs_not_live,
    job_late,
    job_lost,
    past_limit,
)
from tests.contract.merges import broken, claim, commit_of, extents_of, job, merge, spans
from tests.contract.metadata_worlds import DAY_MS, World, Writer, batch, new_topic, raises_exactly
from tests.fixtures.waiting import until


async def l0_files(world: World, count: int) -> tuple[int, list[int]]:
    """(partition id, ids of `count` L0 files, each with ten of the partition's offsets)."""
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    return one, [(await writer.commit(batch(one, 10))).file_id for _ in range(count)]


# ---- creating --------------------------------------------------------------------------------------------------------


async def test_a_job_is_created_claimed_beaten_and_shown(world: World) -> None:
    one, files = await l0_files(world, 2)
    lease = await world.service.compactors.register_compactor("host")
    job_id = await world.service.compactors.create_job(
        job("level", l0_file_ids=files, input_bytes=200, spec={"a": [1, "b"]})
    )

    ready = await world.service.compactors.job(job_id)
    assert ready is not None
    assert (ready.state, ready.epoch, ready.holder, ready.attempts) == (JobState.READY, 0, None, 0)
    assert (ready.kind, ready.spec, ready.input_files, ready.input_bytes) == ("level", {"a": [1, "b"]}, 2, 200)
    assert await world.service.compactors.claim_job(lease, kinds=["forced"]) is None
    claimed = await world.service.compactors.claim_job(lease, kinds=["forced", "level"])
    assert claimed is not None
    assert (claimed.job.state, claimed.job.epoch, claimed.job.holder) == (JobState.RUNNING, 1, lease.writer_id)
    assert claimed.job.deadline_ms is not None
    assert abs(claimed.job.deadline_ms - claimed.now_ms - 60_000) <= 5
    assert [file.file_id for file in claimed.l0_files] == files
    assert list(claimed.partitions) == [one]
    assert (claimed.partitions[one].topic_name, claimed.partitions[one].high_watermark) == ("orders", 20)
    assert await world.service.compactors.claim_job(lease) is None

    await world.service.compactors.beat_job(job_id, 1, progress={"fraction": 0.5, "step": "reading"})
    beaten = await world.service.compactors.job(job_id)
    assert beaten is not None
    assert beaten.progress == {"fraction": 0.5, "step": "reading"}
    assert [shown.job_id for shown in await world.service.operators.jobs(states=[JobState.RUNNING])] == [job_id]
    assert await world.service.operators.jobs(states=[JobState.DONE, JobState.FAILED]) == []
    assert await world.service.compactors.job(job_id + 1) is None


async def test_two_live_jobs_never_share_an_input(world: World) -> None:
    _, files = await l0_files(world, 3)
    await world.service.compactors.create_job(job(l0_file_ids=files[:2]))
    with raises_exactly(inputs_held()):
        await world.service.compactors.create_job(job(l0_file_ids=files[1:]))

    view = await world.service.compactors.compaction_view()
    assert view.busy_files == {*files[:2]}
    assert await world.service.compactors.create_job(job(l0_file_ids=files[2:]))
    assert await broken(world.service) == []


async def test_an_extent_is_input_of_one_job_whether_named_by_itself_or_by_its_file(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    file = await writer.commit(batch(one, 5), batch(two, 5))
    merged = (await merge(world.service, l0=[file.file_id])).file_ids[0]
    (of_one,), (of_two,) = await extents_of(world.service, one), await extents_of(world.service, two)

    await world.service.compactors.create_job(job("forced", extent_ids=[of_one.extent_id], forced_partition_ids=[one]))

    for new in (job(file_ids=[merged]), job(extent_ids=[of_one.extent_id])):
        with raises_exactly(inputs_held()):
            await world.service.compactors.create_job(new)
    view = await world.service.compactors.compaction_view()
    assert (view.busy_files, view.busy_extents) == ({merged}, {of_one.extent_id})
    await world.service.compactors.create_job(job("purge", extent_ids=[of_two.extent_id]))
    assert await broken(world.service) == []


async def test_what_is_not_live_is_no_input(world: World) -> None:
    one, files = await l0_files(world, 2)
    await merge(world.service, l0=files[:1])
    (extent,) = await extents_of(world.service, one)
    await world.service.agents.delete_records(one, 10)

    for new, missing in (
        (job(l0_file_ids=files[:1]), files[0]),
        (job(l0_file_ids=[files[1] + 1_000]), files[1] + 1_000),
        (job(file_ids=[extent.file_id]), extent.file_id),
        (job(extent_ids=[extent.extent_id]), extent.extent_id),
        (job(file_ids=[files[1]]), files[1]),
        (job(l0_file_ids=[extent.file_id]), extent.file_id),
    ):
        with raises_exactly(inputs_not_live([missing])):
            await world.service.compactors.create_job(new)
    assert await world.service.operators.jobs(states=[JobState.READY]) == []


async def test_of_two_jobs_made_at_once_for_one_input_one_is_made(world: World) -> None:
    _, files = await l0_files(world, 8)
    other = await world.another()

    for first in range(7):
        pair = files[first : first + 2]
        calls = [
            world.service.compactors.create_job(job(l0_file_ids=pair)),
            other.compactors.create_job(job(l0_file_ids=list(reversed(pair)))),
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        made = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert len(made) == 1, outcomes
        assert [type(outcome) for outcome in outcomes if not isinstance(outcome, int)] == [InputsBusyError]
        claimed = await world.service.compactors.claim_job(await world.service.compactors.register_compactor("host"))
        assert claimed is not None
        await world.service.compactors.fail_job(made[0], claimed.job.epoch, error="enough")


async def test_a_forced_job_says_when_its_partition_was_forced_last_and_is_found_by_topic(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("keyed", partitions=2, configs={"cleanup.policy": "compact"})
    other = await new_topic(world.service)
    file = await writer.commit(batch(topic.partition_ids[0], 5), batch(other.partition_ids[0], 5))
    await merge(world.service, l0=[file.file_id])
    (extent,) = await extents_of(world.service, topic.partition_ids[0])

    forced = await world.service.compactors.create_job(
        job("forced", extent_ids=[extent.extent_id], forced_partition_ids=[topic.partition_ids[0]])
    )

    first, second = await world.service.operators.partition_views(topic.topic_id)
    assert first.last_forced_ms is not None
    assert second.last_forced_ms is None
    assert [shown.job_id for shown in await world.service.operators.jobs(topic_id=topic.topic_id)] == [forced]
    assert await world.service.operators.jobs(topic_id=other.topic_id) == []


async def test_the_time_of_a_pass_is_kept_and_that_of_other_merges_is_not(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("keyed", partitions=1, configs={"cleanup.policy": "compact"})
    (partition_id,) = topic.partition_ids
    file = await writer.commit(batch(partition_id, 5))
    cleaned = CleanedPartition(partition_id=partition_id, cleaned_through_offset=5, passes_needed=1)
    await merge(world.service, l0=[file.file_id], cleaned=[cleaned])
    (shown,) = await world.service.operators.partition_views(topic.topic_id)
    assert shown.last_pass_took_ms is None

    (extent,) = await extents_of(world.service, partition_id)
    forced = job("forced", extent_ids=[extent.extent_id], forced_partition_ids=[partition_id])
    claimed = await claim(world.service, forced)
    await world.service.compactors.commit_merge(commit_of(claimed, cleaned=[cleaned]))
    (shown,) = await world.service.operators.partition_views(topic.topic_id)
    took_ms = shown.last_pass_took_ms
    assert took_ms is not None and 0 <= took_ms < 600_000
    (file_id,) = (await merge(world.service, files=[shown.extents[0].file_id], cleaned=[cleaned])).file_ids
    (shown,) = await world.service.operators.partition_views(topic.topic_id)
    assert (shown.last_pass_took_ms, shown.extents[0].file_id) == (took_ms, file_id)


# ---- claims, leases, ends --------------------------------------------------------------------------------------------


async def test_the_oldest_job_is_claimed_first_and_each_once(world: World) -> None:
    _, files = await l0_files(world, 4)
    made = [await world.service.compactors.create_job(job(l0_file_ids=[file])) for file in files]
    services = [world.service, await world.another()]
    lease = await world.service.compactors.register_compactor("host")

    first = await world.service.compactors.claim_job(lease)
    rest = await asyncio.gather(*(services[n % 2].compactors.claim_job(lease) for n in range(5)))

    assert first is not None
    assert first.job.job_id == made[0]
    assert sorted(claimed.job.job_id for claimed in rest if claimed) == made[1:]


async def test_a_lapsed_job_is_claimed_by_another_and_its_zombie_can_do_nothing(world: World) -> None:
    one, files = await l0_files(world, 1)
    zombie = await claim(world.service, job(l0_file_ids=files))
    other = await world.service.compactors.register_compactor("other")
    assert await world.service.compactors.claim_job(other) is None
    await world.lapse_jobs()

    again = await world.service.compactors.claim_job(other)

    assert again is not None
    assert (again.job.job_id, again.job.epoch, again.job.attempts) == (zombie.job.job_id, 2, 2)
    for call in (
        world.service.compactors.commit_merge(commit_of(zombie)),
        world.service.compactors.beat_job(zombie.job.job_id, zombie.job.epoch),
    ):
        with raises_exactly(job_lost(zombie.job.job_id, zombie.job.epoch)):
            await call
    await world.service.compactors.give_back_job(zombie.job.job_id, zombie.job.epoch)
    await world.service.compactors.fail_job(zombie.job.job_id, zombie.job.epoch, error="zombie")
    still = await world.service.compactors.job(again.job.job_id)
    assert still is not None
    assert still.state is JobState.RUNNING
    await world.service.compactors.commit_merge(commit_of(again))
    assert await spans(world.service, one) == [(0, 9)]


async def test_a_job_that_is_given_back_is_ready_and_counts_no_attempt(world: World) -> None:
    _, files = await l0_files(world, 1)
    lease = await world.service.compactors.register_compactor("host")
    first = await claim(world.service, job(l0_file_ids=files), lease=lease)

    await world.service.compactors.give_back_job(first.job.job_id, first.job.epoch)
    with raises_exactly(job_lost(first.job.job_id, first.job.epoch)):
        await world.service.compactors.commit_merge(commit_of(first))
    second = await world.service.compactors.claim_job(lease)
    assert second is not None
    assert (second.job.epoch, second.job.attempts) == (2, 1)
    await world.service.compactors.unregister_compactor(lease)
    third = await world.service.compactors.claim_job(await world.service.compactors.register_compactor("other"))
    assert third is not None
    assert (third.job.epoch, third.job.attempts) == (3, 1)


async def test_a_job_is_claimed_by_its_id_though_it_rests_and_though_it_is_not_the_oldest(world: World) -> None:
    _, files = await l0_files(world, 3)
    lease = await world.service.compactors.register_compactor("host")
    oldest = await world.service.compactors.create_job(job(l0_file_ids=files[:1]))
    kept = await world.service.compactors.create_job(job(l0_file_ids=files[1:2], rest_ms=60_000))
    # given that the oldest job is claimed, and the only other one is reserved by its creator
    first = await world.service.compactors.claim_job(lease)
    assert first is not None and first.job.job_id == oldest
    assert await world.service.compactors.claim_job(lease) is None
    # when the reserved job is claimed by its id
    claimed = await world.service.compactors.claim_job(lease, job_id=kept)
    # then the claim succeeds, once
    assert claimed is not None and (claimed.job.job_id, claimed.job.state) == (kept, JobState.RUNNING)
    assert await world.service.compactors.claim_job(lease, job_id=kept) is None
    assert await world.service.compactors.claim_job(lease, job_id=oldest) is None
    assert await world.service.compactors.claim_job(lease, job_id=99_999) is None
    # and a claim by id that names another kind gets nothing
    last = await world.service.compactors.create_job(job(l0_file_ids=files[2:]))
    assert await world.service.compactors.claim_job(lease, kinds=["forced"], job_id=last) is None


async def test_jobs_are_claimed_by_their_planned_bytes_the_oldest_first(world: World) -> None:
    _, files = await l0_files(world, 4)
    lease = await world.service.compactors.register_compactor("host")
    new = [job(l0_file_ids=[file], input_bytes=size) for file, size in zip(files, (500, 100, 99, 0), strict=True)]
    jobs = [await world.service.compactors.create_job(each) for each in new]

    async def claimed(**which: Any) -> int | None:
        found = await world.service.compactors.claim_job(lease, **which)
        return None if found is None else found.job.job_id

    assert [await claimed(bytes_below=100) for _ in range(3)] == [jobs[2], jobs[3], None]
    assert [await claimed(bytes_min=100) for _ in range(3)] == [jobs[0], jobs[1], None]


async def test_a_job_that_its_maker_kept_for_himself_is_anybodys_after_its_rest(world: World) -> None:
    _, files = await l0_files(world, 1)
    lease = await world.service.compactors.register_compactor("host")
    kept = await world.service.compactors.create_job(job(l0_file_ids=files, rest_ms=60_000))
    assert await world.service.compactors.claim_job(lease) is None
    await world.end_rests()
    claimed = await world.service.compactors.claim_job(lease)
    assert claimed is not None and claimed.job.job_id == kept


async def test_a_job_given_back_for_trouble_rests_for_longer_each_time_and_others_are_claimed(world: World) -> None:
    _, files = await l0_files(world, 2)
    lease = await world.service.compactors.register_compactor("host")
    sick, well = [await world.service.compactors.create_job(job(l0_file_ids=[file])) for file in files]
    rests: list[int] = []

    for _ in range(GIVE_BACKS_MAX - 1):
        claimed = await world.service.compactors.claim_job(lease)
        assert claimed is not None and claimed.job.job_id == sick
        assert (claimed.job.attempts, claimed.job.error) == (1, "")
        await world.service.compactors.give_back_job(sick, claimed.job.epoch, trouble="no answer", file_ids=files[:1])
        resting = await world.service.compactors.job(sick)
        assert resting is not None
        assert (resting.state, resting.attempts, resting.error) == (JobState.READY, 0, "no answer")
        rests.append(resting.not_before_ms - await world.service.now_ms())
        # the resting job is the oldest, so a claim takes the other one
        other = await world.service.compactors.claim_job(lease)
        assert other is not None and other.job.job_id == well
        assert await world.service.compactors.claim_job(lease) is None
        # a holder that only stops gives its job back without trouble, so the job does not rest
        await world.service.compactors.give_back_job(well, other.job.epoch)
        await world.end_rests()

    wanted = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert [most - 900 < rest <= most for rest, most in zip(rests, wanted, strict=True)] == [True] * len(wanted), rests


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_job_given_back_for_trouble_over_and_over_is_failed_and_planned_around(
    world: World, is_known: bool
) -> None:
    _, files = await l0_files(world, 2)
    lease = await world.service.compactors.register_compactor("host")
    job_id = await world.service.compactors.create_job(job(l0_file_ids=files))

    for _ in range(GIVE_BACKS_MAX):
        await world.end_rests()
        claimed = await world.service.compactors.claim_job(lease)
        assert claimed is not None
        blamed = files[1:] if is_known else []
        await world.service.compactors.give_back_job(job_id, claimed.job.epoch, trouble="no answer", file_ids=blamed)

    failed = await world.service.compactors.job(job_id)
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, "no answer")
    view = await world.service.compactors.compaction_view()
    assert view.busy_files == frozenset()
    rests = [max(file.trouble_until_ms - view.now_ms, 0) for file in view.files]
    wanted = [0, UNREADABLE_RETRY_MS] if is_known else [UNWRITTEN_RETRY_MS] * 2
    assert [most - 5_000 < rest <= most for rest, most in zip(rests, wanted, strict=True)] == [True, True], rests


async def test_a_rest_from_before_the_clock_went_back_is_over(world: World) -> None:
    _, files = await l0_files(world, 1)
    lease = await world.service.compactors.register_compactor("host")
    claimed: ClaimedJob | None = await claim(world.service, job(l0_file_ids=files), lease=lease)
    assert claimed is not None
    await world.service.compactors.give_back_job(claimed.job.job_id, claimed.job.epoch, trouble="no answer")
    assert await world.service.compactors.claim_job(lease) is None

    await world.end_rests(later_ms=DAY_MS)

    assert await world.service.compactors.claim_job(lease) is not None


async def test_a_job_whose_holders_all_vanish_is_failed_and_its_inputs_are_left_alone_for_a_while(world: World) -> None:
    _, files = await l0_files(world, 2)
    lease = await world.service.compactors.register_compactor("host")

    async def rests_after_vanishing(l0_files: list[int]) -> list[int]:
        """The time in ms for which each file is left alone."""
        job_id = await world.service.compactors.create_job(job(l0_file_ids=l0_files))
        for _ in range(JOB_ATTEMPTS_MAX):
            assert await world.service.compactors.claim_job(lease) is not None
            await world.lapse_jobs()
        assert await world.service.compactors.claim_job(lease) is None
        failed = await world.service.compactors.job(job_id)
        assert failed is not None
        assert failed.state is JobState.FAILED
        assert failed.error == given_up(JOB_ATTEMPTS_MAX)
        view = await world.service.compactors.compaction_view()
        assert view.busy_files == frozenset()
        return [file.trouble_until_ms - view.now_ms for file in view.files]

    first, untouched = await rests_after_vanishing(files[:1])
    assert EXHAUSTED_RETRY_MS - 5_000 < first <= EXHAUSTED_RETRY_MS and untouched < 0
    # one exhausted job may be bad luck; a file in a second one within the hour is left alone for longer
    again, new = await rests_after_vanishing(files)
    assert EXHAUSTED_AGAIN_RETRY_MS - 5_000 < again <= EXHAUSTED_AGAIN_RETRY_MS
    assert EXHAUSTED_RETRY_MS - 5_000 < new <= EXHAUSTED_RETRY_MS


async def test_a_failed_job_frees_its_inputs_and_names_the_files_in_trouble(world: World) -> None:
    _, files = await l0_files(world, 2)
    claimed = await claim(world.service, job(l0_file_ids=files))

    await world.service.compactors.fail_job(
        claimed.job.job_id, claimed.job.epoch, error="no object", file_ids=files[:1], retry_after_ms=60_000
    )

    failed = await world.service.compactors.job(claimed.job.job_id)
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, "no object")
    view = await world.service.compactors.compaction_view()
    assert view.busy_files == frozenset()
    assert [file.trouble_until_ms > view.now_ms for file in view.files] == [True, False]
    assert [file.trouble for file in view.files] == ["no object", ""]
    with raises_exactly(job_lost(claimed.job.job_id, claimed.job.epoch)):
        await world.service.compactors.beat_job(claimed.job.job_id, claimed.job.epoch)
    await world.service.compactors.create_job(job(l0_file_ids=files))


@pytest.mark.parametrize("step", ["commit", "beat"])
async def test_a_job_past_its_limit_is_lost_and_failed(world: World, step: str) -> None:
    one, files = await l0_files(world, 1)
    claimed = await claim(world.service, job(l0_file_ids=files))
    await world.pass_deadlines()

    with raises_exactly(job_late(claimed.job.job_id)):
        if step == "commit":
            await world.service.compactors.commit_merge(commit_of(claimed))
        else:
            await world.service.compactors.beat_job(claimed.job.job_id, claimed.job.epoch, progress={"step": "waits"})

    failed = await world.service.compactors.job(claimed.job.job_id)
    assert failed is not None
    assert failed.state is JobState.FAILED
    assert failed.error == past_limit({"step": "waits"} if step == "beat" else None)
    assert failed.progress == ({"step": "waits"} if step == "beat" else {})
    view = await world.service.compactors.compaction_view()
    assert (view.busy_files, view.files[0].trouble_until_ms) == (frozenset(), 0)
    assert await extents_of(world.service, one) == []


async def test_who_holds_a_running_job_is_at_work_for_as_long_as_the_oldest_of_them(world: World) -> None:
    _, files = await l0_files(world, 2)
    holder = await world.service.compactors.register_compactor("host")
    first = await claim(world.service, job(l0_file_ids=files[:1]), lease=holder)

    async def ages() -> tuple[int, int]:
        """(age of the holder's work as the store reports it, time since the first claim), in ms."""
        [(node_id, ms)] = (await world.service.deletion.writers_at_work()).items()
        assert node_id == holder.writer_id
        return ms, await world.service.now_ms() - first.now_ms

    async def is_told() -> bool:
        said_ms, ms = await ages()
        assert said_ms <= ms < said_ms + 5_000
        return said_ms >= 20

    await until(is_told)
    second = await claim(world.service, job(l0_file_ids=files[1:]), lease=holder)
    assert (await ages())[0] >= 20
    # an expired lease does not stop the holder from committing, so its work still counts
    await world.lapse_jobs()
    assert (await ages())[0] >= 20
    # the holder can never commit a job that it gave back or that has ended
    await world.service.compactors.give_back_job(first.job.job_id, first.job.epoch)
    assert (await world.service.deletion.writers_at_work())[
        holder.writer_id
    ] <= await world.service.now_ms() - second.now_ms
    await world.service.compactors.fail_job(second.job.job_id, second.job.epoch, error="over")
    assert await world.service.deletion.writers_at_work() == {}


async def test_ended_jobs_and_lapsed_compactors_are_forgotten(world: World) -> None:
    _, files = await l0_files(world, 2)
    await merge(world.service, l0=files[:1])
    kept = await claim(world.service, job(l0_file_ids=files[1:]))
    alive = await world.service.compactors.register_compactor("alive")

    await world.forget_rows()

    assert [shown.job_id for shown in await world.service.operators.jobs()] == [kept.job.job_id]
    assert (alive.writer_id, "alive") in await world.service.compactors.live_compactors()
    assert await broken(world.service) == []


async def test_a_job_that_met_unreadable_batches_is_remembered_as_long_as_what_it_wrote_lives(world: World) -> None:
    # given a job that met unreadable batches, and one that did not
    one, files = await l0_files(world, 2)
    told = [{"partition_id": one, "batches": 1, "first_offset": 3}]
    met = await claim(world.service, job(l0_file_ids=files[:1]))
    await world.service.compactors.commit_merge(commit_of(met, summary={UNREADABLE: told}))
    await merge(world.service, l0=files[1:])
    # then the first is found by its result, and outlasts the other
    [found] = await world.service.operators.jobs(states=[JobState.DONE], result=UNREADABLE)
    assert (found.job_id, found.result) == (met.job.job_id, {UNREADABLE: told})
    await world.forget_rows()
    assert [each.job_id for each in await world.service.operators.jobs()] == [met.job.job_id]
    # until its output is merged
    await merge(world.service, files=[each.file_id for each in await extents_of(world.service, one)], level=2)
    await world.forget_rows()
    assert await world.service.operators.jobs() == []
