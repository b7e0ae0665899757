"""Plans and manifests in the object store: who writes them, who reads them, and which of two manifests counts.

A plan is written before anything of it is asked for, a manifest after all outputs of its unit are complete; both are
written once. A crash between leaves outputs that nothing names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from compactor.heavy.manifest import UnitResult, decode_result
from compactor.heavy.units import HeavyPlan, PlanError, decode_plan
from runtime.clock import Clock
from runtime.errors import UnavailableError
from runtime.logging import get_logger
from storage.cluster import decode_cluster_file
from storage.keys import CLUSTER_KEY, JOBS_PREFIX, PLAN_NAME, BadKeyError, job_key, parse_job_key, unit_key
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from wire.crc import crc32c

_log = get_logger(__name__)

LATE_SLACK_MS = 60_000
"""Between a task's clock and the metadata store's. One that is further ahead ends its plans a little early."""


class PlanOverError(UnavailableError):
    """Nobody waits for its units any more, by the clock or because the plan is gone: what they write is left over.
    A clock that is wrong may be right in the next task."""


def store_time_ms(plan: HeavyPlan, clock: Clock) -> int:
    """The metadata store's time, as well as a task can know it: the machine's, within what the plan says it can be."""
    return max(plan.claimed_ms, min(clock.wall_ms(), plan.commit_by_ms))


def check_time(plan: HeavyPlan, clock: Clock) -> None:
    """Raises PlanOverError when nothing that is begun now can be committed any more."""
    late_ms = clock.wall_ms() - plan.commit_by_ms
    if late_ms > LATE_SLACK_MS:
        raise PlanOverError(f"the time of the plan of job {plan.job_id} is over for {late_ms / 1000:.0f} s")


async def check_stands(store: ObjectStore, plan: HeavyPlan, clock: Clock) -> None:
    """Before a unit is begun, and before it is told. Raises PlanOverError when its plan is out of time, or was taken
    by the janitor: its job is over then."""
    check_time(plan, clock)
    try:
        await store.head(plan_key(plan))
    except ObjectNotFoundError as error:
        raise PlanOverError(f"the plan of job {plan.job_id} is gone: the job is over") from error


def plan_key(plan: HeavyPlan) -> str:
    return job_key(plan.job_id, plan.fingerprint, PLAN_NAME)


async def store_plan(store: ObjectStore, plan: HeavyPlan) -> str:
    """Its key. One that is there already is the same: the key holds its fingerprint."""
    key, body = plan_key(plan), plan.encode()
    with suppress(ObjectExistsError):
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    return key


async def load_plan(store: ObjectStore, key: str) -> HeavyPlan:
    """For a task. Raises PlanError for a plan that is gone, of another cluster than the store's, or of another
    version; BadKeyError for a key that is no plan's."""
    said = parse_job_key(key)
    if said.name != PLAN_NAME:
        raise BadKeyError(f"{key!r} is not the key of a plan")
    try:
        cluster = decode_cluster_file(await store.get(CLUSTER_KEY))
    except ObjectNotFoundError as error:
        raise PlanError(
            f"the object store holds no {CLUSTER_KEY}", remedy="give the task the object store of the compactor"
        ) from error
    return await read_plan(store, key, cluster.cluster_id)


async def read_plan(store: ObjectStore, key: str, cluster_id: str | None = None) -> HeavyPlan:
    """Raises PlanError."""
    said = parse_job_key(key)
    try:
        stored = await store.get(key)
    except ObjectNotFoundError as error:
        raise PlanError(f"there is no plan {key!r}", remedy="its job is over, and the janitor took it") from error
    plan = decode_plan(stored, cluster_id=cluster_id, fingerprint=said.fingerprint)
    if plan.job_id != said.job_id:
        raise PlanError(f"the plan {key!r} is of job {plan.job_id}")
    return plan


async def stored_plans(store: ObjectStore, job_id: int, *, cluster_id: str) -> Sequence[HeavyPlan]:
    """Those of one job that can be read here, the latest first."""
    plans: list[HeavyPlan] = []
    async for key in plan_keys(store, f"{JOBS_PREFIX}{job_id}/"):
        try:
            plans.append(await read_plan(store, key, cluster_id))
        except PlanError as error:
            _log.warning("a plan is left alone", key=key, error=str(error))
    return sorted(plans, key=lambda each: each.claimed_ms, reverse=True)


async def plan_keys(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    """Keys of plans below `prefix`."""
    async for stat in store.list(prefix):
        try:
            if parse_job_key(stat.key).name == PLAN_NAME:
                yield stat.key
        except BadKeyError:
            continue


async def read_result(store: ObjectStore, plan: HeavyPlan, number: int) -> UnitResult | None:
    """What the manifest of a unit says; None where there is none. Raises ManifestMismatchError."""
    try:
        return decode_result(await store.get(unit_key(plan.job_id, plan.fingerprint, number)))
    except ObjectNotFoundError:
        return None


async def settle(store: ObjectStore, plan: HeavyPlan, result: UnitResult) -> UnitResult:
    """Write the manifest of a unit that is done. The result that counts: ours, or that of whoever was first."""
    key, body = unit_key(plan.job_id, plan.fingerprint, result.unit), result.encode()
    try:
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    except ObjectExistsError:
        _log.info("a unit was done by another", job=plan.job_id, unit=result.unit)
        return decode_result(await store.get(key))
    return result
