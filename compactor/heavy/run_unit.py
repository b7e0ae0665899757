"""One unit of a heavy merge, wherever a task runs: its manifest is there, or it is merged, written and told.

Order: the manifest (done already: nothing is merged) -> the merge, under unique keys -> the manifest, if there is none.
A crash anywhere leaves outputs that nothing names, and the unit is done again by the next try. Two tries at once both
end well: the manifest that was first counts. Tasks hear of no end of their job: so a unit is neither begun nor told
when the time of its plan is over, or when the plan is gone, which the janitor takes when the job has ended. A unit that
cannot be done leaves why (`compactor/heavy/failures.py`).

Keys and footers carry the metadata store's time as well as a task can know it: the machine's clock, but never before
the claim nor after the last moment at which the plan may be committed, which are that store's own times. So a clock
that is wrong makes no key whose hour the metadata have forgotten.
"""

from __future__ import annotations

from dataclasses import replace

from compactor.heavy.failures import failure_told
from compactor.heavy.manifest import UnitResult, check_result
from compactor.heavy.rewrite_slice import open_slice
from compactor.heavy.stored import check_stands, read_result, settle, store_time_ms
from compactor.heavy.units import HeavyPlan, PlanError, Unit, UnitKind
from compactor.merging.execute import MergeEngine
from runtime.clock import Clock
from runtime.ids import IdSource
from storage.objects import ObjectStore


async def run_unit(
    store: ObjectStore, plan: HeavyPlan, number: int, *, clock: Clock, ids: IdSource, in_thread: bool = True
) -> UnitResult:
    """What counts as done for a MERGE or REWRITE unit, by us or another.

    `in_thread` runs kernel calls on threads. Raises PlanError for a number that is no such unit's and for a REWRITE
    unit whose keys were not grouped yet; PlanOverError; MergeInputError, StoreUnavailableError and the like as
    `MergeEngine.run`; ManifestMismatchError and SurvivorsError for what is there and is not the unit's.
    """
    unit = plan.unit(number)
    if unit.kind is UnitKind.KEYS:
        raise PlanError(f"unit {number} of job {plan.job_id} reads keys, which go elsewhere than into a file")
    async with failure_told(store, plan, number):
        result = await read_result(store, plan, number)
        if result is None:
            await check_stands(store, plan, clock)
            began_ms = clock.monotonic_ms()
            done = await _merge(store, plan, unit, clock=clock, ids=ids, in_thread=in_thread)
            await check_stands(store, plan, clock)
            seconds = round((clock.monotonic_ms() - began_ms) / 1000, 3)
            result = await settle(store, plan, replace(done, seconds=seconds))
        check_result(plan, unit, result)
        return result


async def _merge(
    store: ObjectStore, plan: HeavyPlan, unit: Unit, *, clock: Clock, ids: IdSource, in_thread: bool
) -> UnitResult:
    engine = MergeEngine(
        store=store,
        clock=clock,
        ids=ids,
        lease=plan.lease,
        keys_max=plan.keys_max,
        cursor_bytes=plan.cursor_bytes,
        in_thread=in_thread,
        kept_bytes_max=plan.kept_bytes_max,
    )
    slices = {} if unit.partition_id is None else {unit.partition_id: await open_slice(store, plan, unit)}
    commit = await engine.run(plan.claimed(unit), began_ms=store_time_ms(plan, clock), slices=slices)
    return UnitResult(
        plan=plan.fingerprint,
        unit=unit.number,
        kind=unit.kind,
        covered=commit.covered,
        outputs=commit.outputs,
        cleaned=commit.cleaned,
        summary=commit.summary,
        seconds=0.0,
    )
