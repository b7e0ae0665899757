"""Plans and manifests in the object store: writing, reading, and the choice between two manifests of a unit.

A plan is written before its driver is submitted, a manifest after all outputs of its unit are complete. Both are
written once. A crash before the manifest leaves outputs that nothing names.
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
"""Allowed lead of a task's clock over the metadata store's. A clock further ahead ends its plans a little early."""


class PlanOverError(UnavailableError):
    """No compactor waits for the plan's units any more: its time is over, or the plan is gone. Further outputs would be
    orphans. The error counts as temporary, because the clock may be wrong here and right in the next task."""


def store_time_ms(plan: HeavyPlan, clock: Clock) -> int:
    """The metadata store's time as well as a task can know it: the machine's clock, kept within the plan's times."""
    return max(plan.claimed_ms, min(clock.wall_ms(), plan.commit_by_ms))


def check_time(plan: HeavyPlan, clock: Clock) -> None:
    """Raises PlanOverError when a unit begun now could not be committed any more."""
    late_ms = clock.wall_ms() - plan.commit_by_ms
    if late_ms > LATE_SLACK_MS:
        raise PlanOverError(f"the time of the plan of job {plan.job_id} is over: it ended {late_ms / 1000:.0f} s ago")


async def check_stands(store: ObjectStore, plan: HeavyPlan, clock: Clock) -> None:
    """Call before a unit begins and before its manifest is written.

    Raises PlanOverError when the plan's time is over, or when the janitor has deleted the plan because its job ended.
    """
    check_time(plan, clock)
    try:
        await store.head(plan_key(plan))
    except ObjectNotFoundError as error:
        raise PlanOverError(f"the plan of job {plan.job_id} is gone: the job is over") from error


def plan_key(plan: HeavyPlan) -> str:
    return job_key(plan.job_id, plan.fingerprint, PLAN_NAME)


async def store_plan(store: ObjectStore, plan: HeavyPlan) -> str:
    """Writes the plan and returns its key. A plan that is already there is the same, because the key contains the
    fingerprint."""
    key, body = plan_key(plan), plan.encode()
    with suppress(ObjectExistsError):
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    return key


async def load_plan(store: ObjectStore, key: str) -> HeavyPlan:
    """The plan, for a task. Raises PlanError for a plan that is gone, of another cluster than the store's, or of
    another version; BadKeyError for a key of something else."""
    if parse_job_key(key).name != PLAN_NAME:
        raise BadKeyError(f"{key!r} is not the key of a plan")
    try:
        cluster = decode_cluster_file(await store.get(CLUSTER_KEY))
    except ObjectNotFoundError as error:
        raise PlanError(
            f"the object store has no {CLUSTER_KEY}", remedy="give the task the compactor's object store"
        ) from error
    return await read_plan(store, key, cluster.cluster_id)


async def read_plan(store: ObjectStore, key: str, cluster_id: str | None = None) -> HeavyPlan:
    """Raises PlanError."""
    named = parse_job_key(key)
    try:
        stored = await store.get(key)
    except ObjectNotFoundError as error:
        raise PlanError(
            f"there is no plan {key!r}",
            remedy="nothing to do if its job has ended: the janitor deletes the plans of ended jobs",
        ) from error
    plan = decode_plan(stored, cluster_id=cluster_id, fingerprint=named.fingerprint)
    if plan.job_id != named.job_id:
        raise PlanError(f"the plan at {key!r} is of another job, {plan.job_id}")
    return plan


async def stored_plans(store: ObjectStore, job_id: int, *, cluster_id: str) -> Sequence[HeavyPlan]:
    """The plans of one job that this release can read, the latest first."""
    plans: list[HeavyPlan] = []
    async for key in plan_keys(store, f"{JOBS_PREFIX}{job_id}/"):
        try:
            plans.append(await read_plan(store, key, cluster_id))
        except PlanError as error:
            _log.warning("a stored plan cannot be used", key=key, error=str(error))
    # The latest first: it has the most time left.
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
    """The result in a unit's manifest; None if there is no manifest. Raises ManifestMismatchError."""
    try:
        return decode_result(await store.get(unit_key(plan.job_id, plan.fingerprint, number)))
    except ObjectNotFoundError:
        return None


async def settle(store: ObjectStore, plan: HeavyPlan, result: UnitResult) -> UnitResult:
    """Writes the manifest of a finished unit. Returns the result that counts: this one, or that of an earlier try."""
    key, body = unit_key(plan.job_id, plan.fingerprint, result.unit), result.encode()
    try:
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    except ObjectExistsError:
        _log.info("another try finished the unit first", job=plan.job_id, unit=result.unit)
        return decode_result(await store.get(key))
    return result
