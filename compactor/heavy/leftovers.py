"""Heavy merges as the janitor sees them: their objects to delete, and the outputs that may still be committed.

Keys of unit outputs contain the id of the compactor whose claim made the plan. That compactor may have died, or may
have given the job back, but its finished units are still good: the next claim continues with them. So while a job
lives, the makers of its stored plans count as at work since those claims. Nothing is deleted or written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compactor.deletion.orphans import ATTEMPT_OUTLIVES_JOB_MS, HARD_BOUND_MS
from compactor.heavy.plan.units import PlanError
from compactor.heavy.stored import plan_keys, read_plan_head
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.store import MetadataStore
from runtime.logging import get_logger
from storage.keys import JOBS_PREFIX, BadKeyError, parse_job_key
from storage.objects import ObjectStat, ObjectStore

_log = get_logger(__name__)


class PlanMakers(NamedTuple):
    at_work: Mapping[int, int]
    """Node id -> the age, in ms, of its oldest outputs that may still be committed."""
    unreadable: Sequence[str]
    """Plans of live jobs that cannot be read, perhaps because another release wrote them. Their makers are unknown."""


async def plan_makers(store: ObjectStore, metadata: MetadataStore) -> PlanMakers:
    now_ms = await metadata.now_ms()
    at_work: dict[int, int] = {}
    unreadable: list[str] = []
    lives: dict[int, bool] = {}
    async for key in plan_keys(store, JOBS_PREFIX):
        job_id = parse_job_key(key).job_id
        if job_id not in lives:
            job = await metadata.compactors.job(job_id)
            lives[job_id] = job is not None and job.state in (JobState.READY, JobState.RUNNING)
        if not lives[job_id]:
            continue
        try:
            plan = await read_plan_head(store, key)
        except PlanError as error:
            _log.warning("a plan of a live job cannot be read", key=key, error=str(error))
            unreadable.append(key)
        else:
            maker = plan.lease.writer_id
            at_work[maker] = max(at_work.get(maker, 0), now_ms - plan.claimed_ms)
    return PlanMakers(at_work, unreadable)


async def keys_of_jobs_over(store: ObjectStore, metadata: MetadataStore) -> Sequence[str]:
    """Objects of heavy merges that no process will read again: those of jobs that have ended, and those of unknown jobs
    once they are older than any merge can be. A driver that does not know of the end may add more objects; a later
    sweep finds these."""
    by_job: defaultdict[int, list[ObjectStat]] = defaultdict(list)
    async for stat in store.list(JOBS_PREFIX):
        try:
            by_job[parse_job_key(stat.key).job_id].append(stat)
        except BadKeyError:
            continue  # not a key that a compactor makes: never delete foreign objects
    if not by_job:
        return ()
    now_ms = await metadata.now_ms()
    over: list[str] = []
    for job_id, stats in by_job.items():
        job = await metadata.compactors.job(job_id)
        # No row tells when such a job ended, so only the age of its objects counts.
        if job is None:
            over += [each.key for each in stats if 0 < each.last_modified_ms < now_ms - HARD_BOUND_MS]
        elif job.state in (JobState.DONE, JobState.FAILED) and _ended_long_ago(job, now_ms):
            over += [each.key for each in stats]
    return over


def _ended_long_ago(job: MergeJob, now_ms: int) -> bool:
    return (job.finished_ms or 0) < now_ms - ATTEMPT_OUTLIVES_JOB_MS
