"""One unit of a heavy merge, run by a task on any machine.

Order: read the manifest (if there is one, the unit is done) -> merge, under unique keys -> write the manifest, unless
there is one by now. A crash anywhere leaves outputs that nothing names, and the next try does the unit again. Two tries
at once both succeed: the first manifest counts. Tasks are not told when their job ends. So a task neither begins a unit
nor writes its manifest when the time of the plan is over, or when the plan is gone because the janitor deleted it after
the end of the job. A unit that cannot be done leaves a note with the reason (`compactor/heavy/failures.py`).

Keys and footers contain the metadata store's time as well as a task can know it: the machine's clock, but never before
the claim nor after `commit_by_ms`, which are times of that store. So a wrong clock cannot make a key whose hour is so
old that the metadata refuses it.
"""

from __future__ import annotations

from dataclasses import replace

from compactor.heavy.failures import failure_told
from compactor.heavy.manifest import UnitResult, check_result, parts_read
from compactor.heavy.plan.units import HeavyPlan, PlanError, Unit, UnitKind
from compactor.heavy.rewrite_slice import open_slice
from compactor.heavy.stored import check_stands, read_result, settle, store_time_ms
from compactor.merging.execute import MergeEngine
from compactor.merging.windows import PartCrcs
from runtime.runtime import Runtime
from storage.objects import ObjectStore


async def run_unit(
    store: ObjectStore, plan: HeavyPlan, number: int, *, runtime: Runtime, in_thread: bool = True
) -> UnitResult:
    """The result that counts of a MERGE or REWRITE unit: of this try, or of an earlier one.

    `in_thread`: run kernel calls on threads. Raises PlanError for a number that is no such unit's and for a REWRITE
    unit whose keys are not grouped yet; PlanOverError; MergeInputError, StoreUnavailableError and the other errors of
    `MergeEngine.run`; ManifestMismatchError and SurvivorsError for stored objects that do not belong to the unit.
    """
    unit = plan.unit(number)
    if unit.kind is UnitKind.KEYS:
        raise PlanError(f"unit {number} of job {plan.job_id} reads keys and writes no file; run its scan instead")
    async with failure_told(store, plan, number):
        result = await read_result(store, plan, number)
        if result is None:
            await check_stands(store, plan, runtime.clock)
            began_ms = runtime.clock.monotonic_ms()
            done = await _merge(store, plan, unit, runtime=runtime, in_thread=in_thread)
            # Again after the merge, which may have taken hours: a manifest of a job that is over would be read by
            # nobody.
            await check_stands(store, plan, runtime.clock)
            seconds = round((runtime.clock.monotonic_ms() - began_ms) / 1000, 3)
            result = await settle(store, plan, replace(done, seconds=seconds))
        check_result(plan, unit, result)
        return result


async def _merge(store: ObjectStore, plan: HeavyPlan, unit: Unit, *, runtime: Runtime, in_thread: bool) -> UnitResult:
    engine = MergeEngine(
        store=store,
        runtime=runtime,
        lease=plan.lease,
        memory=plan.memory,
        in_thread=in_thread,
    )
    slices = {} if unit.partition_id is None else {unit.partition_id: await open_slice(store, plan, unit)}
    crcs: PartCrcs = {}
    commit = await engine.run(
        plan.claimed(unit), began_ms=store_time_ms(plan, runtime.clock), slices=slices, part_crcs=crcs
    )
    return UnitResult(
        plan=plan.fingerprint,
        unit=unit.number,
        kind=unit.kind,
        covered=commit.covered,
        outputs=commit.outputs,
        cleaned=commit.cleaned,
        summary=commit.summary,
        seconds=0.0,
        parts=parts_read(plan.extents_of(unit), crcs),
    )
