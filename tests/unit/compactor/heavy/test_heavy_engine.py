"""Heavy merges from claim to commit, over real stores, kernels and commits. Tasks of this process stand for the
cluster.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from compactor.heavy.engine import UnitsMissingError
from compactor.heavy.manifest import ManifestMismatchError, decode_result
from compactor.heavy.plan.codec import sealed
from compactor.heavy.plan.units import HeavyPlan, PlanError, Unit
from compactor.heavy.run_unit import run_unit
from compactor.heavy.stored import StoredPlan, store_plan, store_time_ms, stored_plans
from compactor.merging.execute import Progress
from compactor.worker import StoppedError
from metadata.contract.jobs import JobLostError, JobState
from metadata.contract.topics import Topic
from metadata.rules.jobs import PAST_LIMIT
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.cluster import ClusterFile, encode_cluster_file
from storage.keys import CLUSTER_KEY, PLAN_NAME, job_key, parse_file_key, unit_key
from storage.memory import MemoryStore
from tests.fixtures.heavy_merges import LIMIT_MS, HeavySystem, latest
from wire.crc import crc32c

JOB_LEASE_MS = 10_000
HOUR_MS = 3_600_000


@pytest.fixture
async def system() -> AsyncIterator[HeavySystem]:
    system = HeavySystem()
    await system.begin()
    yield system


async def plain(system: HeavySystem, *, files: int = 6) -> Topic:
    """Two partitions of records without keys, in `files` L1 files."""
    topic = await system.topic("plain", partitions=2)
    for number in range(files):
        await system.write(topic, [[(None, b"%d:%d:%d" % (p, number, n)) for n in range(8)] for p in range(2)])
    return topic


async def keyed(system: HeavySystem, *, files: int = 6) -> Topic:
    topic = await system.topic("keyed", cleanup_policy="compact")
    for number in range(files):
        await system.write(topic, [[(b"k%d" % ((n * number) % 11), b"%d:%d" % (number, n)) for n in range(8)]])
    return topic


@pytest.mark.parametrize("seed", range(4))
async def test_units_in_any_order_some_twice_some_dying_make_one_merge_as_the_embedded_engine_does(
    system: HeavySystem, seed: int
) -> None:
    one, two = await plain(system), await keyed(system)
    (compacted,) = two.partition_ids
    job_id = await system.merge_all(one, two, deduped=[compacted])
    lease = await system.metadata.compactors.register_compactor("a")
    claimed = await system.claim(lease)
    # the commit that the embedded engine would have made
    by_hand = await system.embedded(lease).run(claimed)
    submitter = system.submitter(chance=random.Random(seed), dies=0.3, twice=0.4)
    seen: list[Progress] = []

    commit = await system.engine(lease, submitter).run(claimed, progress=seen.append)
    committed = await system.metadata.compactors.commit_merge(commit)

    assert {id_: list(ranges) for id_, ranges in commit.covered.items()} == by_hand.covered
    assert list(commit.cleaned) == list(by_hand.cleaned)
    assert commit.summary["units"] > 4
    for name in ("records_in", "records_out", "bytes_in", "keys", "deduped_partitions"):
        assert commit.summary[name] == by_hand.summary[name]
    assert committed.trimmed_extents == 0
    for partition_id in one.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]
    assert await system.records(compacted) == latest(system.written[compacted])
    done = await system.metadata.compactors.job(job_id)
    assert done is not None
    assert (done.state, done.result["engine"]) == (JobState.DONE, "in-process")
    assert len(submitter.tokens) == 1
    assert submitter.drivers[0].cancelled  # it holds no memory any more
    assert all(0 <= each.fraction <= 1 for each in seen)


async def test_a_partition_with_more_keys_than_the_buffer_holds_is_left_with_one_record_per_key(
    system: HeavySystem,
) -> None:
    topic = await keyed(system)
    (compacted,) = topic.partition_ids
    await system.merge_all(topic, deduped=[compacted])
    lease = await system.metadata.compactors.register_compactor("a")
    commit = await system.engine(lease, system.submitter(), keys_max=3).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    assert await system.records(compacted) == latest(system.written[compacted])
    assert (commit.summary["clears"], commit.cleaned[0].passes_needed) == (0, 4)


async def test_small_merges_and_those_of_l0_files_stay_in_the_process(system: HeavySystem) -> None:
    topic = await plain(system)
    await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("a")
    submitter = system.submitter()
    claimed = await system.claim(lease)
    engine = system.engine(lease, submitter, bytes_min=1 << 30)
    assert not engine.takes(claimed)
    await system.metadata.compactors.commit_merge(await engine.run(claimed))
    assert submitter.tokens == []
    heavy = system.engine(lease, submitter)
    assert heavy.takes(claimed)
    for kind in ("level", "erase"):
        assert not heavy.takes(replace(claimed, job=replace(claimed.job, kind=kind)))
    assert await system.keys("jobs/") == set()


async def test_what_retention_takes_while_units_run_is_trimmed_by_the_commit(system: HeavySystem) -> None:
    topic = await plain(system)
    first, second = topic.partition_ids
    await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("a")
    submitter = system.submitter()
    claimed = await system.claim(lease)
    commit = await system.engine(lease, submitter).run(claimed)
    await system.metadata.agents.delete_records(first, 40)
    await system.metadata.agents.delete_topic((await system.topic("other")).topic_id)
    committed = await system.metadata.compactors.commit_merge(commit)
    assert committed.trimmed_extents > 0
    assert [each for each in await system.records(first) if each[0] >= 40] == system.written[first][40:]
    assert await system.records(second) == system.written[second]


# ---- the compactor dies, another goes on


async def test_a_killed_compactors_finished_units_are_in_the_commit_of_the_one_that_goes_on(
    system: HeavySystem,
) -> None:
    one, two = await plain(system), await keyed(system)
    (compacted,) = two.partition_ids
    job_id = await system.merge_all(one, two, deduped=[compacted])
    # given a compactor that dies when half of the units are done, and its driver with it
    dead = await system.metadata.compactors.register_compactor("dead")
    with pytest.raises(UnitsMissingError):
        await system.engine(dead, system.submitter(units_max=3)).run(await system.claim(dead))
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    done = await manifests(system, plan)
    assert len(done) == 3
    system.clock.advance_ms(JOB_LEASE_MS + 1)

    # when another compactor claims the job
    again = await system.metadata.compactors.register_compactor("again")
    claimed = await system.claim(again)
    commit = await system.engine(again, system.submitter()).run(claimed)
    committed = await system.metadata.compactors.commit_merge(commit)

    # then it continues with that plan and uses the finished units unchanged
    assert (claimed.job.epoch, commit.epoch, commit.commit_by_ms) == (2, 2, plan.commit_by_ms)
    assert len(await stored_plans(system.store, job_id, cluster_id=system.cluster_id)) == 1
    keys = [file.key for file in commit.outputs]
    for number, stored in done.items():
        assert (await manifests(system, plan))[number] == stored
        assert {file.key for file in decode_result(stored).outputs} <= set(keys)
    assert {parse_file_key(key).writer_id for key in keys} == {dead.writer_id}
    assert await system.keys("l2/") == set(keys)  # and nothing was done twice
    assert committed.trimmed_extents == 0
    assert await system.records(compacted) == latest(system.written[compacted])
    for partition_id in one.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]


async def test_a_driver_that_ends_too_soon_is_followed_by_another_under_a_token_of_its_own(
    system: HeavySystem,
) -> None:
    topic = await plain(system)
    job_id = await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("a")
    submitter = system.submitter(units_max=3)
    with pytest.raises(UnitsMissingError, match="driver failed: TaskDiedError"):
        await system.engine(lease, submitter).run(await system.claim(lease))
    assert len(set(submitter.tokens)) == 3
    assert all(len(token) <= 64 and token.startswith(f"{job_id}-") for token in submitter.tokens)
    # and the next claim submits the same drivers with the same tokens
    system.clock.advance_ms(JOB_LEASE_MS + 1)
    submitter.units_max = None
    await system.metadata.compactors.commit_merge(await system.engine(lease, submitter).run(await system.claim(lease)))
    assert submitter.tokens[3] == submitter.tokens[0]


async def test_a_driver_that_fails_behind_the_last_manifest_has_done_its_work(system: HeavySystem) -> None:
    topic = await plain(system)
    await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("a")
    submitter = system.submitter(units_max=10_000)  # it fails at its end
    commit = await system.engine(lease, submitter).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    assert len(submitter.tokens) == 1


async def test_a_plan_whose_time_is_nearly_over_is_not_gone_on_with(system: HeavySystem) -> None:
    topic = await plain(system)
    job_id = await system.merge_all(topic)
    first = await system.metadata.compactors.register_compactor("first")
    with pytest.raises(UnitsMissingError):
        await system.engine(first, system.submitter(units_max=3)).run(await system.claim(first))
    system.clock.advance_ms(0.9 * LIMIT_MS)
    second = await system.metadata.compactors.register_compactor("second")
    commit = await system.engine(second, system.submitter()).run(await system.claim(second))
    assert len(await stored_plans(system.store, job_id, cluster_id=system.cluster_id)) == 2
    assert {parse_file_key(file.key).writer_id for file in commit.outputs} == {second.writer_id}
    await system.metadata.compactors.commit_merge(commit)


async def test_past_the_time_of_the_first_claim_nothing_is_committed(system: HeavySystem) -> None:
    topic = await plain(system)
    job_id = await system.merge_all(topic)
    first = await system.metadata.compactors.register_compactor("first")
    with pytest.raises(UnitsMissingError):
        await system.engine(first, system.submitter(units_max=3)).run(await system.claim(first))
    system.clock.advance_ms(0.5 * LIMIT_MS)
    second = await system.metadata.compactors.register_compactor("second")
    claimed = await system.claim(second)
    commit = await system.engine(second, system.submitter()).run(claimed)
    system.clock.advance_ms(0.6 * LIMIT_MS)  # within the time of the second claim
    assert system.clock.wall_ms() < (claimed.job.deadline_ms or 0)
    with pytest.raises(JobLostError, match="limit"):
        await system.metadata.compactors.commit_merge(commit)
    failed = await system.metadata.compactors.job(job_id)
    assert failed is not None
    assert (failed.state, failed.error) == (JobState.FAILED, PAST_LIMIT)
    assert {each.level for each in await system.extents(topic.partition_ids[0])} == {1}


async def test_two_compactors_on_one_job_use_one_plan_and_one_of_them_commits(system: HeavySystem) -> None:
    topic = await plain(system)
    job_id = await system.merge_all(topic)
    sleepy, awake = [await system.metadata.compactors.register_compactor(name) for name in ("sleepy", "awake")]
    claimed = await system.claim(sleepy)
    late = await system.engine(sleepy, system.submitter(twice=1.0)).run(claimed)
    system.clock.advance_ms(JOB_LEASE_MS + 1)
    again = await system.engine(awake, system.submitter(twice=1.0)).run(await system.claim(awake))
    assert (again.outputs, again.commit_by_ms) == (late.outputs, late.commit_by_ms)
    with pytest.raises(JobLostError):
        await system.metadata.compactors.commit_merge(late)
    await system.metadata.compactors.commit_merge(again)
    assert await system.records(topic.partition_ids[0]) == system.written[topic.partition_ids[0]]
    assert len(await stored_plans(system.store, job_id, cluster_id=system.cluster_id)) == 1


async def test_a_compactor_that_is_told_to_stop_cancels_its_driver(system: HeavySystem) -> None:
    topic = await plain(system)
    await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("a")
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    def keep_going() -> None:
        if stopping:
            raise StoppedError("told to stop")

    submitter = system.submitter(before_unit=stop)
    with pytest.raises(StoppedError):
        await system.engine(lease, submitter).run(await system.claim(lease), keep_going=keep_going)
    assert submitter.drivers[0].cancelled


# ---- errors


async def planned(system: HeavySystem, **options: Any) -> tuple[HeavyPlan, str]:
    """A heavy job of a plain topic whose driver never did anything."""
    job_id = await system.merge_all(await plain(system))
    lease = await system.metadata.compactors.register_compactor("a")
    with pytest.raises(UnitsMissingError):
        await system.engine(lease, system.submitter(units_max=0), **options).run(await system.claim(lease))
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    return plan, await store_plan(system.store, plan)


async def manifests(system: HeavySystem, plan: HeavyPlan) -> dict[int, bytes]:
    keys = {unit.number: unit_key(plan.job_id, plan.fingerprint, unit.number) for unit in plan.units}
    there = await system.keys("jobs/")
    return {number: await system.store.get(key) for number, key in keys.items() if key in there}


@pytest.mark.parametrize("wrong", ["another unit", "no manifest", "a unit too many", "an output that is not there"])
async def test_a_manifest_that_disagrees_ends_the_merge_and_nothing_is_committed(
    system: HeavySystem, wrong: str
) -> None:
    plan, _ = await planned(system)
    result = await run_unit(system.store, plan, 0, runtime=system.runtime, in_thread=False)
    number, body = 1, result.encode()
    if wrong == "no manifest":
        body = zstandard.ZstdCompressor().compress(b"{}")
    elif wrong == "a unit too many":
        number = len(plan.units)
    elif wrong == "an output that is not there":
        await system.store.delete_many([unit_key(plan.job_id, plan.fingerprint, 0), result.outputs[0].key])
        number = 0
    await system.store.put_if_absent(unit_key(plan.job_id, plan.fingerprint, number), body, crc32c=crc32c(body))
    system.clock.advance_ms(JOB_LEASE_MS + 1)
    lease = await system.metadata.compactors.register_compactor("b")
    submitter = system.submitter()
    with pytest.raises(ManifestMismatchError):
        await system.engine(lease, submitter).run(await system.claim(lease))
    assert {each.level for each in await system.extents(1)} == {1}
    assert submitter.tokens == []


async def test_a_task_refuses_a_plan_of_another_cluster_or_one_that_is_gone(system: HeavySystem) -> None:
    plan, key = await planned(system)
    stored = await StoredPlan.opened(system.store, key)
    assert await stored.whole() == plan
    assert await stored.with_unit(2) == replace(plan, stretches={plan.units[2].stretch: plan.stretch_of(plan.units[2])})
    elsewhere = MemoryStore(system.clock)
    with pytest.raises(PlanError, match=r"cluster\.json"):
        await StoredPlan.opened(elsewhere, key)
    body = encode_cluster_file(ClusterFile(cluster_id="other"))
    await elsewhere.put_if_absent(CLUSTER_KEY, body, crc32c=crc32c(body))
    with pytest.raises(PlanError, match="there is no plan"):
        await StoredPlan.opened(elsewhere, key)
    await store_plan(elsewhere, sealed(plan))
    with pytest.raises(PlanError, match="cluster other's"):
        await StoredPlan.opened(elsewhere, key)
    with pytest.raises(PlanError, match="none is number 99"):
        await run_unit(system.store, plan, 99, runtime=system.runtime, in_thread=False)


@pytest.mark.parametrize(("ahead_ms", "within"), [(5_000, 5_000), (-HOUR_MS, 0), (LIMIT_MS + 59_000, LIMIT_MS)])
async def test_a_task_whose_clock_is_wrong_writes_keys_within_the_time_of_the_plan(
    system: HeavySystem, ahead_ms: int, within: int
) -> None:
    plan, _ = await planned(system)
    clock = ManualClock(plan.claimed_ms + ahead_ms)
    assert store_time_ms(plan, clock) == plan.claimed_ms + within
    result = await run_unit(system.store, plan, 0, runtime=Runtime(clock=clock, ids=SystemIds(9)), in_thread=False)
    made_ms = [parse_file_key(file.key).file_uuid.int >> 80 for file in result.outputs]
    assert made_ms == [plan.claimed_ms + within] * len(made_ms)


# ---- left-overs


async def test_files_of_lost_tries_are_swept_and_those_of_finished_units_spared_while_the_job_lives(
    system: HeavySystem,
) -> None:
    topic = await plain(system)
    job_id = await system.merge_all(topic)
    # given a compactor that died with its driver, with finished units and files of lost attempts
    dead = await system.metadata.compactors.register_compactor("dead")
    with pytest.raises(UnitsMissingError):
        submitter = system.submitter(units_max=4, dies=0.5, chance=random.Random(2))
        await system.engine(dead, submitter).run(await system.claim(dead))
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    kept = {file.key for stored in (await manifests(system, plan)).values() for file in decode_result(stored).outputs}
    written = await system.keys("l2/")
    assert kept < written  # lost attempts left files too
    await system.metadata.compactors.unregister_compactor(dead)  # the job is ready, and no compactor holds it
    system.clock.advance_ms(0.3 * LIMIT_MS)

    # when the janitor comes
    janitor = system.janitor()
    assert (await janitor.sweep_orphans()).deleted == 0
    await janitor.sweep()
    assert await system.keys("l2/") == written
    # then the next compactor continues with the finished units, and commits
    again = await system.metadata.compactors.register_compactor("again")
    commit = await system.engine(again, system.submitter(dies=0.3)).run(await system.claim(again))
    await system.metadata.compactors.commit_merge(commit)
    live = {file.key for file in commit.outputs}
    assert kept <= live
    # and when the job is over, the lost files go a while later, and the plan and manifests too
    await janitor.sweep()
    assert await system.keys("jobs/")
    system.clock.advance_ms(HOUR_MS)
    await janitor.sweep_orphans()
    await janitor.sweep()
    assert await system.keys("l2/") == live
    assert await system.keys("jobs/") == set()
    assert await system.records(topic.partition_ids[0]) == system.written[topic.partition_ids[0]]


async def test_a_plan_of_the_release_before_is_given_up_and_the_merge_planned_again(system: HeavySystem) -> None:
    topic = await system.topic("plain", partitions=2)
    for number in range(4):
        await system.write(topic, [[(None, b"%d:%d" % (p, number))] for p in range(2)])
    job_id = await system.merge_all(topic)
    old = {"version": 3, "file_format": 1, "cluster_id": system.cluster_id, "job_id": job_id, "units": []}
    body = zstandard.ZstdCompressor().compress(json.dumps(old).encode())
    key = job_key(job_id, "ab" * 16, PLAN_NAME)
    await system.store.put_if_absent(key, body, crc32c=crc32c(body))
    # a driver that was submitted for it says why it does nothing
    with pytest.raises(PlanError, match="older release"):
        await StoredPlan.opened(system.store, key)
    lease = await system.metadata.compactors.register_compactor("new")
    commit = await system.engine(lease, system.submitter()).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    assert await system.records(topic.partition_ids[0]) == system.written[topic.partition_ids[0]]
    system.clock.advance_ms(HOUR_MS)
    await system.janitor().sweep()
    assert await system.keys("jobs/") == set()


async def test_while_a_plan_of_a_live_job_cannot_be_read_no_merges_file_goes(system: HeavySystem) -> None:
    plan, key = await planned(system)
    await run_unit(system.store, plan, 0, runtime=system.runtime, in_thread=False)
    await system.store.delete_many([key])
    body = zstandard.ZstdCompressor().compress(b'{"version": 99}')
    await system.store.put_if_absent(key, body, crc32c=crc32c(body))
    await system.metadata.compactors.unregister_compactor(plan.lease)
    system.clock.advance_ms(HOUR_MS)
    assert (await system.janitor().sweep_orphans()).deleted == 0
    assert await system.keys("l2/")


async def test_objects_of_jobs_that_nobody_knows_go_when_they_are_old_and_what_is_not_ours_stays(
    system: HeavySystem,
) -> None:
    for key in (f"jobs/999/{'0' * 32}/plan.json.zst", f"jobs/999/{'0' * 32}/survivors/p1", "jobs/notes.txt"):
        await system.store.put_if_absent(key, b"x", crc32c=crc32c(b"x"))
    janitor = system.janitor()
    system.clock.advance_ms(23 * HOUR_MS)
    await janitor.sweep()
    assert len(await system.keys("jobs/")) == 3
    system.clock.advance_ms(2 * HOUR_MS)
    await janitor.sweep()
    assert await system.keys("jobs/") == {"jobs/notes.txt"}


async def test_the_driver_is_told_units_by_number_alone(system: HeavySystem) -> None:
    plan, _ = await planned(system)
    first: Unit = plan.units[0]
    assert [unit.number for unit in plan.units] == list(range(len(plan.units)))
    assert plan.claimed(first).extents == tuple(plan.extents_of(first))
    assert plan.claimed(first).now_ms == plan.claimed_ms
