"""Heavy merges that fail, and tasks that outlive them: their leftovers are swept without an operator, and the last copy
of a record never is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from compactor.deletion.janitor import TooManyOrphansError
from compactor.deletion.orphans import is_copy
from compactor.heavy.engine import UnitsMissingError
from compactor.heavy.leftovers import plan_makers
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, decode_result
from compactor.heavy.plan.codec import decode_plan, sealed
from compactor.heavy.plan.frames import load_json
from compactor.heavy.plan.units import HeavyPlan, PlanError
from compactor.heavy.run_unit import run_unit
from compactor.heavy.stored import LATE_SLACK_MS, PlanOverError, plan_key, store_plan, stored_plans
from compactor.heavy.submitter import Phase, SubmissionState
from compactor.merging.memory_gate import MemoryGate
from compactor.worker import Worker, WorkerMemory
from metadata.contract.files import FileState
from metadata.contract.jobs import JobLostError, JobState
from metadata.contract.leases import WriterLease
from metadata.contract.topics import Topic
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.keys import unit_key
from tests.fixtures.heavy_merges import LIMIT_MS, Driver, HeavySystem, InProcessSubmitter
from wire.crc import crc32c

HOUR_MS = 3_600_000
ALLOWED = 5


@pytest.fixture
async def system() -> AsyncIterator[HeavySystem]:
    system = HeavySystem()
    await system.begin()
    yield system


async def plain(system: HeavySystem, *, files: int = 5) -> Topic:
    topic = await system.topic("plain", partitions=2)
    for number in range(files):
        await system.write(topic, [[(None, b"%d:%d:%d" % (p, number, n)) for n in range(8)] for p in range(2)])
    return topic


async def out_of_time(system: HeavySystem, topic: Topic) -> WriterLease:
    """A job with some units not done, failed because its time limit was over."""
    job_id = await system.merge_all(topic)
    lease = await system.metadata.compactors.register_compactor("slow")
    claimed = await system.claim(lease)
    with pytest.raises(UnitsMissingError):
        await system.engine(lease, system.submitter(units_max=ALLOWED + 3), unit_bytes=1).run(claimed)
    system.clock.advance_ms(LIMIT_MS + 1)
    with pytest.raises(JobLostError):
        await system.metadata.compactors.beat_job(job_id, claimed.job.epoch)
    assert len(await system.keys("l2/")) == ALLOWED + 3
    return lease


async def test_what_a_merge_out_of_time_has_left_is_swept_though_it_is_much(system: HeavySystem) -> None:
    topic = await plain(system)
    await out_of_time(system, topic)
    system.clock.advance_ms(HOUR_MS)
    swept = await system.janitor(orphan_refuse_files=ALLOWED).sweep_orphans()
    assert swept.deleted == ALLOWED + 3
    assert await system.keys("l2/") == set()
    assert await system.records(topic.partition_ids[0]) == system.written[topic.partition_ids[0]]


async def test_it_is_swept_also_when_the_merge_was_planned_anew_and_its_inputs_are_long_deleted(
    system: HeavySystem,
) -> None:
    topic = await plain(system)
    lease = await out_of_time(system, topic)
    await system.merge_all(topic)
    commit = await system.engine(lease, system.submitter()).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    system.clock.advance_ms(HOUR_MS)
    janitor = system.janitor(orphan_refuse_files=ALLOWED)
    await janitor.sweep()
    assert await system.keys("l1/") == set()
    assert (await janitor.sweep_orphans()).deleted == ALLOWED + 3
    assert await system.keys("l2/") == {file.key for file in commit.outputs}
    assert await system.records(topic.partition_ids[0]) == system.written[topic.partition_ids[0]]


@pytest.mark.parametrize("gone", ["all", "one"])
async def test_it_is_counted_where_inputs_that_should_live_are_not_there(system: HeavySystem, gone: str) -> None:
    """As after a restore: in the lost history the merge had committed, and its inputs were deleted."""
    topic = await plain(system)
    await out_of_time(system, topic)
    live = sorted({each.key for id_ in topic.partition_ids for each in await system.extents(id_)})
    left = await system.keys("l2/")
    await system.store.delete_many(live if gone == "all" else live[1:])
    system.clock.advance_ms(HOUR_MS)
    with pytest.raises(TooManyOrphansError):
        await system.janitor(orphan_refuse_files=2).sweep_orphans()
    assert await system.keys("l2/") == left


async def test_it_is_counted_where_nobody_knows_its_inputs(system: HeavySystem) -> None:
    """As with a database from before the files were written, or with another database, whose jobs have the same ids."""
    await out_of_time(system, await plain(system))
    other = HeavySystem()
    other.ids = SystemIds(2)
    await other.begin()
    await out_of_time(other, await plain(other))
    other.store = system.store
    system.clock.advance_ms(HOUR_MS)
    other.clock.advance_ms(HOUR_MS)
    with pytest.raises(TooManyOrphansError):
        await other.janitor(orphan_refuse_files=ALLOWED).sweep_orphans()


@pytest.mark.parametrize(
    ("inputs", "copied"),
    [
        ([], False),
        ([(None, False)], False),
        ([(None, True)], False),
        ([(FileState.LIVE, True)], True),
        ([(FileState.LIVE, False)], False),
        ([(FileState.DEAD, False), (FileState.DELETED, False), (FileState.LIVE, True)], True),
        ([(FileState.DELETED, False), (FileState.LIVE, False)], False),
        ([(FileState.ABORTED, False)], False),
    ],
)
def test_a_file_is_a_copy_where_each_of_its_inputs_is_accounted_for(
    inputs: list[tuple[FileState | None, bool]], copied: bool
) -> None:
    assert is_copy(inputs) is copied


# ---- tasks have an end


async def planned(system: HeavySystem, *, units_max: int = 0) -> HeavyPlan:
    job_id = await system.merge_all(await plain(system))
    lease = await system.metadata.compactors.register_compactor("a")
    with pytest.raises(UnitsMissingError):
        await system.engine(lease, system.submitter(units_max=units_max)).run(await system.claim(lease))
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    return plan


async def unit(system: HeavySystem, plan: HeavyPlan, number: int = 0) -> UnitResult:
    return await run_unit(system.store, plan, number, runtime=system.runtime, in_thread=False)


async def test_no_unit_is_begun_when_the_time_of_its_plan_is_over(system: HeavySystem) -> None:
    plan = await planned(system)
    system.clock.advance_ms(plan.commit_by_ms + LATE_SLACK_MS - system.clock.wall_ms())
    await unit(system, plan)
    left = await system.keys()
    system.clock.advance_ms(1)
    await unit(system, plan)  # its manifest is there
    with pytest.raises(PlanOverError, match="is over"):
        await unit(system, plan, 1)
    assert await system.keys() == left  # and it leaves no failure note


async def test_no_unit_is_begun_when_the_janitor_has_taken_its_plan(system: HeavySystem) -> None:
    plan = await planned(system)
    await system.store.delete_many([plan_key(plan)])
    with pytest.raises(PlanOverError, match="the job is over"):
        await unit(system, plan)
    assert await system.keys("l2/") == await system.keys("jobs/") == set()


async def test_a_unit_that_ends_when_the_time_of_its_plan_is_over_is_not_told(system: HeavySystem) -> None:
    plan = await planned(system)

    class Slow:
        """A clock that jumps past the end of the plan once the unit has begun."""

        def __init__(self) -> None:
            self.asked = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(system.clock, name)

        def wall_ms(self) -> int:
            self.asked += 1
            return plan.claimed_ms if self.asked == 1 else plan.commit_by_ms + LATE_SLACK_MS + 1

    with pytest.raises(PlanOverError):
        await run_unit(system.store, plan, 0, runtime=Runtime(clock=Slow(), ids=system.ids), in_thread=False)
    assert unit_key(plan.job_id, plan.fingerprint, 0) not in await system.keys("jobs/")


# ---- the owner of a driver, and the driver's report


class Stuck(InProcessSubmitter):
    """Drivers wait for ever and report the reason."""

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> Driver:
        self.tokens.append(token)
        driver = Driver(self, plan_url)
        frames = "\n\tat org.apache.spark.Foo.bar(Foo.scala:1)\n\t... 1 more"
        driver._state = SubmissionState(Phase.RUNNING, f"WARN x\nConnection refused: spark://there:7077{frames}")
        self.drivers.append(driver)
        return driver


async def test_a_driver_is_left_to_whoever_claimed_the_job_since_and_cancelled_when_time_is_over(
    system: HeavySystem,
) -> None:
    await system.merge_all(await plain(system))
    lease = await system.metadata.compactors.register_compactor("a")
    stuck = Stuck(system.store, system.clock, system.ids)
    claimed = await system.claim(lease)
    asked = 0

    def lost() -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise JobLostError("another has it")

    with pytest.raises(JobLostError):
        await system.engine(lease, stuck).run(claimed, keep_going=lost)
    assert (stuck.drivers[0].let_be, stuck.drivers[0].cancelled) == (True, False)

    def late() -> None:
        if system.clock.wall_ms() > (claimed.job.deadline_ms or 0):
            raise JobLostError("the merge did not end")

    with pytest.raises(JobLostError):
        await system.engine(lease, stuck).run(claimed, keep_going=late)
    assert (stuck.drivers[1].let_be, stuck.drivers[1].cancelled) == (False, True)


async def test_the_error_of_a_merge_that_was_ended_by_its_limit_says_what_its_driver_waited_for(
    system: HeavySystem,
) -> None:
    job_id = await system.merge_all(await plain(system))
    lease = await system.metadata.compactors.register_compactor("a")
    stuck = Stuck(system.store, system.clock, system.ids)
    await worker(system, lease, stuck).work_on(job_id)
    failed = await system.metadata.compactors.job(job_id)
    assert failed is not None and failed.state is JobState.FAILED
    assert "past its time limit" in failed.error
    assert failed.error.endswith("Connection refused: spark://there:7077")
    with pytest.raises(UnitsMissingError, match="time of the plan was over; Connection refused"):
        await system.merge_all(topic := (await system.metadata.agents.list_topics())[0])
        await system.engine(lease, stuck).run(await system.claim(lease))
    assert topic.name == "plain"


def worker(system: HeavySystem, lease: WriterLease, submitter: InProcessSubmitter) -> Worker:
    return Worker(
        metadata=system.metadata,
        engine=system.engine(lease, submitter),
        lease=lease,
        memory=WorkerMemory(gate=MemoryGate(1 << 40)),
        runtime=system.runtime,
    )


async def test_a_merge_of_which_nothing_is_left_is_committed_without_a_cluster(system: HeavySystem) -> None:
    plan = await planned(system, units_max=2)
    await system.metadata.compactors.give_back_job(plan.job_id, 1)
    (topic,) = await system.metadata.agents.list_topics()
    await system.metadata.agents.delete_topic(topic.topic_id)
    lease = await system.metadata.compactors.register_compactor("b")
    submitter = system.submitter()
    commit = await system.engine(lease, submitter).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    assert (submitter.tokens, commit.outputs) == ([], ())
    done = await system.metadata.compactors.job(plan.job_id)
    assert done is not None and done.state is JobState.DONE


# ---- forbidden contents of a manifest and a plan


@pytest.mark.parametrize("stored", [b"[" * 200_000, b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b"\xff\xfe{"])
def test_json_that_is_not_ours_is_an_error_of_ours(stored: bytes) -> None:
    with pytest.raises(ValueError):
        load_json(stored)
    compressed = zstandard.ZstdCompressor().compress(stored)
    with pytest.raises(PlanError):
        decode_plan(compressed)
    with pytest.raises(ManifestMismatchError):
        decode_result(compressed)


@pytest.mark.parametrize(
    "summary",
    [
        {"records_in": 10**400},
        {"records_in": 2**63},
        {"unreadable": "x"},
        {"unreadable": [{"a": 1}]},
        {"unreadable": [{"partition_id": [], "batches": 1}]},
        {"unreadable": [{"partition_id": 1, "batches": 1e9}]},
    ],
    ids=["huge", "64 bits", "text", "nothing of ours", "no partition", "no count"],
)
async def test_a_summary_that_cannot_be_added_up_is_an_error(system: HeavySystem, summary: dict[str, Any]) -> None:
    result = await unit(system, await planned(system))
    assert decode_result(result.encode()).summary == result.summary
    with pytest.raises(ManifestMismatchError):
        decode_result(replace(result, summary={**result.summary, **summary}).encode())


@pytest.mark.parametrize("seconds", [10**400, -1, "1", float("nan"), float("inf"), 1e300], ids=range(6))
async def test_a_time_that_no_unit_takes_is_an_error(system: HeavySystem, seconds: Any) -> None:
    result = await unit(system, await planned(system))
    with pytest.raises(ManifestMismatchError):
        decode_result(replace(result, seconds=seconds).encode())


async def test_a_deep_plan_of_a_live_job_is_left_alone_and_halts_no_sweep(system: HeavySystem) -> None:
    plan = await planned(system)
    body = zstandard.ZstdCompressor().compress(b"[" * 200_000)
    key = plan_key(plan).replace(plan.fingerprint, "ab" * 16)
    await system.store.put_if_absent(key, body, crc32c=crc32c(body))
    await system.janitor().sweep_orphans()
    assert len(await stored_plans(system.store, plan.job_id, cluster_id=system.cluster_id)) == 1


# ---- necessary comparisons


@pytest.mark.parametrize("changed", ["size_bytes", "crc32c"])
async def test_an_output_that_is_not_the_object_of_its_manifest_is_not_committed(
    system: HeavySystem, changed: str
) -> None:
    plan = await planned(system)
    result = await unit(system, plan)
    file = result.outputs[0]
    wrong = replace(result, outputs=(replace(file, **{changed: getattr(file, changed) + 1}), *result.outputs[1:]))
    key, body = unit_key(plan.job_id, plan.fingerprint, 0), wrong.encode()
    await system.store.delete_many([key])
    await system.store.put_if_absent(key, body, crc32c=crc32c(body))
    await system.metadata.compactors.give_back_job(plan.job_id, 1)
    lease = await system.metadata.compactors.register_compactor("b")
    with pytest.raises(ManifestMismatchError, match="is not the object that"):
        await system.engine(lease, system.submitter()).run(await system.claim(lease))


async def test_a_maker_of_two_plans_counts_as_at_work_since_the_first(system: HeavySystem) -> None:
    plan = await planned(system)
    for later_ms in (5_000, 9_000):
        await store_plan(system.store, sealed(replace(plan, claimed_ms=plan.claimed_ms + later_ms)))
    system.clock.advance_ms(20_000)
    makers = await plan_makers(system.store, system.metadata)
    assert makers.at_work == {plan.lease.writer_id: system.clock.wall_ms() - plan.claimed_ms}
