"""The note of a unit that cannot be done, and the end of its merge, on real stores, kernels and units."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import zstandard

from compactor.heavy.engine import UnitsMissingError
from compactor.heavy.failures import (
    UnitFailedError,
    UnitFailure,
    decode_failure,
    failure_of_all,
    failure_told,
    stored_failures,
)
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.stored import stored_plans
from compactor.merging.execute import Progress
from compactor.merging.kway_merge import MergeInputError
from compactor.worker import Worker, WorkerMemory
from metadata.contract.jobs import JobState
from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Topic
from storage.keys import failed_key
from storage.objects import StoreUnavailableError
from tests.fixtures.heavy_merges import JOB_KINDS, HeavySystem
from wire.crc import crc32c


@pytest.fixture
async def system() -> AsyncIterator[HeavySystem]:
    system = HeavySystem()
    await system.begin()
    yield system


async def topic_of(system: HeavySystem, files: int = 6) -> Topic:
    topic = await system.topic("t", cleanup_policy="compact")
    for number in range(files):
        await system.write(topic, [[(b"k%d" % n, b"%d:%d" % (number, n)) for n in range(8)]])
    return topic


async def failed_plan(system: HeavySystem) -> HeavyPlan:
    """The plan of a job whose driver never did anything."""
    job_id = await system.merge_all(await topic_of(system))
    lease = await system.metadata.compactors.register_compactor("a")
    with pytest.raises(UnitsMissingError):
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    return plan


async def trouble(system: HeavySystem, inputs: Sequence[LeveledExtent]) -> dict[int, str]:
    view = await system.metadata.compactors.compaction_view()
    wanted = {each.file_id for each in inputs}
    return {each.file_id: each.trouble for each in view.files if each.file_id in wanted and each.trouble}


@pytest.mark.parametrize("how", ["copied", "deduped whole", "deduped in slices"])
async def test_a_missing_input_fails_the_job_at_once_with_that_file_to_blame(system: HeavySystem, how: str) -> None:
    # given a job with one input that is gone
    topic = await topic_of(system)
    inputs = await system.extents(topic.partition_ids[0])
    lost = inputs[2]
    job_id = await system.merge_all(topic, deduped=() if how == "copied" else topic.partition_ids)
    await system.store.delete_many([lost.key])
    lease = await system.metadata.compactors.register_compactor("a")
    submitter = system.submitter()
    options = {"keyed_unit_bytes": 1} if how == "deduped in slices" else {}
    worker = Worker(
        metadata=system.metadata,
        engine=system.engine(lease, submitter, **options),
        lease=lease,
        memory=WorkerMemory(gate=None),
        runtime=system.runtime,
    )
    # when a compactor runs it on the cluster
    assert await worker.work(JOB_KINDS)
    # then one driver was enough, the job has failed with the reason, and only that file is left alone for a while
    job = await system.metadata.compactors.job(job_id)
    assert job is not None
    assert job.state is JobState.FAILED
    assert lost.key in job.error and "is not in the object store" in job.error and job.error.startswith("unit ")
    assert len(submitter.tokens) == 1
    assert list(await trouble(system, inputs)) == [lost.file_id]
    assert list(await system.extents(topic.partition_ids[0])) == list(inputs)


async def test_a_failure_of_a_unit_that_another_try_has_done_says_nothing(system: HeavySystem) -> None:
    plan = await failed_plan(system)
    (lost, *_) = plan.extents
    for unit in plan.units:
        with pytest.raises(MergeInputError):
            async with failure_told(system.store, plan, unit.number):
                raise MergeInputError("as if it were gone", file_ids=[lost.file_id])
    assert len(await stored_failures(system.store, plan)) == len(plan.units)
    system.clock.advance_ms(10_001)
    lease = await system.metadata.compactors.register_compactor("b")
    # while units are missing and drivers die, that is the error; with all units done there is no error
    with pytest.raises(MergeInputError, match="unit 0: as if it were gone"):
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))
    await system.metadata.compactors.unregister_compactor(lease)
    lease = await system.metadata.compactors.register_compactor("c")
    await system.metadata.compactors.commit_merge(
        await system.engine(lease, system.submitter()).run(await system.claim(lease))
    )


async def test_what_another_try_may_heal_leaves_no_failure_and_of_two_failures_the_first_stays(
    system: HeavySystem,
) -> None:
    plan = await failed_plan(system)
    with pytest.raises(StoreUnavailableError):
        async with failure_told(system.store, plan, 0):
            raise StoreUnavailableError("away")
    assert await stored_failures(system.store, plan) == []
    for said in ("first", "second"):
        with pytest.raises(UnitFailedError):
            async with failure_told(system.store, plan, 1):
                raise UnitFailedError(said)
    assert await stored_failures(system.store, plan) == [
        UnitFailure(plan=plan.fingerprint, unit=1, kind="UnitFailedError", message="first")
    ]


def test_inputs_to_blame_come_before_other_failures_and_are_named_all() -> None:
    def failure(unit: int, *file_ids: int) -> UnitFailure:
        return UnitFailure(plan="", unit=unit, kind="E", message=f"m{unit}", file_ids=file_ids)

    assert failure_of_all([]) is None
    blaming = failure_of_all([failure(1), failure(2, 8), failure(3, 7)])
    assert isinstance(blaming, MergeInputError)
    assert (blaming.file_ids, blaming.message) == ((7, 8), "unit 2: m2")
    other = failure_of_all([failure(1)])
    assert isinstance(other, UnitFailedError) and other.message == "unit 1: m1 [E]"


@pytest.mark.parametrize(
    "body",
    [
        b"not zstd",
        zstandard.ZstdCompressor().compress(b"[]"),
        zstandard.ZstdCompressor().compress(b'{"version": 9}'),
        UnitFailure(plan="other", unit=0, kind="", message="").encode(),
        UnitFailure(plan="", unit=0, kind="", message="", file_ids=[99_999]).encode(),
    ],
    ids=["no zstd", "no object", "newer", "another plan", "no plan"],
)
async def test_a_failure_that_is_none_of_the_plan_is_refused(system: HeavySystem, body: bytes) -> None:
    plan = await failed_plan(system)
    await system.store.put_if_absent(failed_key(plan.job_id, plan.fingerprint, 0), body, crc32c=crc32c(body))
    with pytest.raises(ManifestMismatchError):
        await stored_failures(system.store, plan)
    stranger = UnitFailure(plan=plan.fingerprint, unit=0, kind="", message="", file_ids=[99_999])
    with pytest.raises(ManifestMismatchError, match="no inputs"):
        decode_failure(stranger.encode(), plan, 0)


async def test_a_merge_elsewhere_says_who_runs_it_and_how_many_units_are_done(system: HeavySystem) -> None:
    await system.merge_all(await topic_of(system))
    lease = await system.metadata.compactors.register_compactor("a")
    seen: list[Progress] = []
    commit = await system.engine(lease, system.submitter()).run(await system.claim(lease), progress=seen.append)
    units = commit.summary["units"]
    assert {each.engine for each in seen} == {"in-process"}
    assert seen[0].step == "in-process: making the plan"
    assert seen[-1].step.startswith("in-process: ") and seen[-1].step.endswith(f"{units} of {units} units done")
    assert seen[-1].fraction == 1.0
