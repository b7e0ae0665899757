"""Inputs that units of a heavy merge cannot read now: the files that get the blame, and the time when they get it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from compactor.heavy.engine import UnitsMissingError
from compactor.heavy.failures import UnitFailedError, failure_told, stored_failures, stored_unread
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.run_unit import run_unit
from compactor.heavy.stored import stored_plans
from compactor.merging.kway_merge import InputUnavailableError, MergeInputError
from compactor.worker import Worker, WorkerMemory
from metadata.contract.jobs import JobState
from metadata.contract.leveled import LeveledExtent
from metadata.rules.jobs import GIVE_BACKS_MAX, UNREADABLE_RETRY_MS
from storage.objects import StoreUnavailableError
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.heavy_merges import HeavySystem


class DenyingStore(WrappedStore):
    """A store that answers every read of some objects with 403."""

    denied: frozenset[str] = frozenset()

    async def get(self, key: str) -> bytes:
        self._deny(key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._deny(key)
        return await super().get_range(key, start, length)

    def _deny(self, key: str) -> None:
        if key in self.denied:
            raise StoreUnavailableError(f"403 for {key}")


@pytest.fixture
async def system(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HeavySystem]:
    monkeypatch.setattr("tests.fixtures.heavy_merges.LIMIT_MS", 10**9)  # every sleep moves the clock
    system = HeavySystem()
    await system.begin()
    system.store = DenyingStore(system.store)  # type: ignore[assignment]
    yield system


def deny(system: HeavySystem, *extents: LeveledExtent) -> None:
    assert isinstance(system.store, DenyingStore)
    system.store.denied = frozenset(each.key for each in extents)


async def job_of(system: HeavySystem, how: str = "copied") -> tuple[int, list[LeveledExtent]]:
    """A job over six files of one partition."""
    topic = await system.topic("t", cleanup_policy="compact")
    for number in range(6):
        await system.write(topic, [[(b"k%d" % n, b"%d:%d" % (number, n)) for n in range(8)]])
    inputs = list(await system.extents(topic.partition_ids[0]))
    return await system.merge_all(topic, deduped=() if how == "copied" else topic.partition_ids), inputs


async def given_up_plan(system: HeavySystem) -> HeavyPlan:
    """The plan of a job whose driver never did anything."""
    job_id, _ = await job_of(system)
    lease = await system.metadata.compactors.register_compactor("a")
    with pytest.raises(UnitsMissingError):
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))
    await system.metadata.compactors.unregister_compactor(lease)
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    return plan


async def done_by_hand(system: HeavySystem, plan: HeavyPlan, unit: int) -> None:
    await run_unit(system.store, plan, unit, runtime=system.runtime, in_thread=False)


@pytest.mark.parametrize("how", ["copied", "deduped in slices"])
async def test_an_input_that_can_never_be_read_is_left_alone_after_so_many_tries_and_no_other(
    system: HeavySystem, how: str
) -> None:
    # given a job with one input that exists and cannot be read
    job_id, inputs = await job_of(system, how)
    deny(system, inputs[2])
    lease = await system.metadata.compactors.register_compactor("a")
    worker = Worker(
        metadata=system.metadata,
        engine=system.engine(lease, system.submitter(), **({} if how == "copied" else {"keyed_unit_bytes": 1})),
        lease=lease,
        memory=WorkerMemory(gate=None),
        runtime=system.runtime,
    )
    # when it is claimed as often as a job may be returned
    for _ in range(GIVE_BACKS_MAX):
        system.clock.advance_ms(60_000)
        await system.metadata.compactors.beat_compactor(lease)
        with pytest.raises(InputUnavailableError, match="cannot be read now: 403"):
            await worker.work_on(job_id)
    # then it has failed with the reason, and only that file is left alone, as after a merge in the compactor itself
    job = await system.metadata.compactors.job(job_id)
    assert job is not None and job.state is JobState.FAILED
    assert job.error.startswith("unit ") and inputs[2].key in job.error
    view = await system.metadata.compactors.compaction_view()
    rests = {each.file_id: each.trouble_until_ms - view.now_ms for each in view.files if each.trouble}
    assert list(rests) == [inputs[2].file_id]
    assert UNREADABLE_RETRY_MS - 60_000 < rests[inputs[2].file_id] <= UNREADABLE_RETRY_MS


async def test_an_input_that_can_be_read_again_is_nobodys_trouble(system: HeavySystem) -> None:
    _, inputs = await job_of(system)
    deny(system, inputs[2])
    lease = await system.metadata.compactors.register_compactor("a")
    claimed = await system.claim(lease)
    with pytest.raises(InputUnavailableError) as raised:
        await system.engine(lease, system.submitter()).run(claimed)
    assert raised.value.file_ids == (inputs[2].file_id,)
    # when the next attempt finishes units that had left a note
    deny(system)
    await system.metadata.compactors.commit_merge(await system.engine(lease, system.submitter()).run(claimed))


async def test_files_are_blamed_for_units_that_are_still_missing_alone(system: HeavySystem) -> None:
    plan = await given_up_plan(system)
    assert len(plan.units) >= 3
    first, second = plan.extents[0].file_id, plan.extents[-1].file_id
    for unit, file_id in ((0, first), (1, second)):
        with pytest.raises(InputUnavailableError):
            async with failure_told(system.store, plan, unit):
                raise InputUnavailableError("away", file_ids=[file_id])
    assert await stored_failures(system.store, plan) == []
    assert [each.file_ids for each in await stored_unread(system.store, plan)] == [(first,), (second,)]
    lease = await system.metadata.compactors.register_compactor("b")
    claimed = await system.claim(lease)

    async def blamed() -> tuple[int, ...]:
        with pytest.raises((InputUnavailableError, UnitsMissingError)) as raised:
            await system.engine(lease, system.submitter(units_max=0)).run(claimed)
        return raised.value.file_ids if isinstance(raised.value, InputUnavailableError) else ()

    # other units are missing without a note: after a failed unit a cluster need not begin them
    assert await blamed() == (first, second)
    await done_by_hand(system, plan, 0)
    assert await blamed() == (second,)
    await done_by_hand(system, plan, 1)
    assert await blamed() == ()


async def test_a_failure_for_good_counts_before_and_behind_an_input_that_could_not_be_read(system: HeavySystem) -> None:
    plan = await given_up_plan(system)
    errors = (
        InputUnavailableError("away", file_ids=[plan.extents[0].file_id]),
        MergeInputError("gone", file_ids=[plan.extents[1].file_id]),
    )
    for error in errors:
        with pytest.raises(type(error)):
            async with failure_told(system.store, plan, 0):
                raise error
    lease = await system.metadata.compactors.register_compactor("b")
    with pytest.raises(MergeInputError, match="unit 0: gone") as raised:
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))
    assert raised.value.file_ids == (plan.extents[1].file_id,)


async def test_a_failure_of_a_unit_that_was_done_since_does_not_end_the_merge_while_others_are_missing(
    system: HeavySystem,
) -> None:
    plan = await given_up_plan(system)
    with pytest.raises(UnitFailedError):
        async with failure_told(system.store, plan, 0):
            raise UnitFailedError("a host of an older release")
    await done_by_hand(system, plan, 0)
    lease = await system.metadata.compactors.register_compactor("b")
    with pytest.raises(UnitsMissingError, match=f"1 of {len(plan.units)} units"):
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))


async def test_failures_of_units_done_since_take_no_room_among_those_that_are_read(
    system: HeavySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.heavy.failures.FAILURES_READ_MAX", 1)
    plan = await given_up_plan(system)
    for unit in (0, 1):
        with pytest.raises(UnitFailedError):
            async with failure_told(system.store, plan, unit):
                raise UnitFailedError(f"failed {unit}")
    await done_by_hand(system, plan, 0)
    lease = await system.metadata.compactors.register_compactor("b")
    with pytest.raises(UnitFailedError, match="unit 1: failed 1"):
        await system.engine(lease, system.submitter(units_max=0)).run(await system.claim(lease))
