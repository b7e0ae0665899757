"""A pass over one topic that this process plans and runs itself, on the engine that a person chose.

No request is stored, because a compactor that acted on it would merge by its own settings and on its own engine.
Instead this process asks the planner as if the request were in the view. It creates the jobs that concern the topic
with a rest, so that no other compactor claims them, and runs them one after the other: L0 files first, then the merges
that hold the topic's partitions.

Live jobs that hold inputs of the topic, such as one that an earlier pass left, are run before. Jobs that other
compactors run are waited for. A crash leaves at most one job; any compactor may claim it, on its own engine, when the
lease or the rest is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compactor.planning.options import plan_options
from compactor.planning.plan import explain_plan, new_job
from compactor.planning.spec import RUN_HERE, MergeKind, MergeSpec, PlanOptions
from compactor.worker import Worker
from metadata.contract.compactors import CompactionView
from metadata.contract.jobs import InputsBusyError, JobState, MergeJob
from runtime.errors import BadInputError
from runtime.logging import get_logger
from siltstone.ops.compaction import compact_now
from siltstone.ops.compaction.run_job import JobFailedError, Parts, check_limit
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions
from siltstone.processes.spark_note import EngineChoice

_log = get_logger(__name__)

REST_MS = 60_000
"""Other compactors leave a new job alone for this long. Claiming it takes far less."""
LOOK_MS = 200


async def compact_here(
    parts: Parts,
    worker: Worker,
    topic: str,
    timeout_ms: float,
    *,
    choice: EngineChoice,
    hints: HintOptions = NO_HINT_OPTIONS,
) -> compact_now.Compacted:
    """Clean every partition through its last stable offset at the call, as far as `min.compaction.lag.ms` allows.

    Raises NoSuchTopicError, NotCompactedError, JobFailedError, StillCompactingError.
    """
    asked = await compact_now.unstored_request(parts.metadata, topic, hints=hints)
    waiting = asyncio.create_task(
        compact_now.wait(parts.metadata, asked, clock=parts.runtime.clock, timeout_ms=timeout_ms), name="wait"
    )
    merging = asyncio.create_task(_merge_for_ever(parts, worker, asked, _options(parts, choice)), name="merge")
    try:
        await asyncio.wait({waiting, merging}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await merging  # ends only by an error, which this raises
        return await waiting
    finally:
        worker.stop()
        waiting.cancel()
        merging.cancel()
        await asyncio.gather(waiting, merging, return_exceptions=True)


def _options(parts: Parts, choice: EngineChoice) -> PlanOptions:
    """On Spark every merge's time limit must leave room for the start of a cluster.

    All merges here run on one engine, so they get the slots of both engines together.
    """
    options = plan_options(parts.settings)
    jobs_max = options.jobs_max + options.heavy_jobs_max
    if choice is EngineChoice.SPARK:
        return replace(options, spark=True, spark_bytes_min=1, heavy_jobs_max=jobs_max)
    return replace(options, spark=False, jobs_max=jobs_max)


async def _merge_for_ever(parts: Parts, worker: Worker, asked: compact_now.Request, options: PlanOptions) -> None:
    views = await parts.metadata.operators.partition_views(asked.topic.topic_id)
    through = {view.partition_id: asked.through[view.partition] for view in views if view.partition in asked.through}
    waited_for: set[int] = set()
    while True:
        await _run_what_is_left(parts, worker, asked, options, waited_for)
        view = await parts.metadata.compactors.compaction_view()
        for spec in await asyncio.to_thread(_specs, view, through, options):
            try:
                job_id = await parts.metadata.compactors.create_job(replace(new_job(spec), rest_ms=REST_MS))
            except InputsBusyError:
                continue  # another compactor took inputs since the view was read
            await _run(parts, worker, asked, job_id)
        await parts.runtime.clock.sleep_ms(LOOK_MS)


async def _run_what_is_left(
    parts: Parts, worker: Worker, asked: compact_now.Request, options: PlanOptions, waited_for: set[int]
) -> None:
    """Run the live jobs that hold inputs of the topic, because no new plan may take these inputs.

    Jobs that other compactors run are left to them, with one log line each.
    """
    live = [JobState.READY, JobState.RUNNING]
    found = await parts.metadata.operators.jobs(states=live, topic_id=asked.topic.topic_id, limit=compact_now.JOBS_READ)
    # All merges of L0 files are taken: they are small, and each serves all topics.
    found = [
        *found,
        *(each for each in await parts.metadata.operators.jobs(states=live) if each.kind == MergeKind.LEVEL),
    ]
    now_ms = await parts.metadata.now_ms()
    for job in sorted({each.job_id: each for each in found}.values(), key=lambda each: each.job_id):
        is_held = job.state is JobState.RUNNING and (job.lease_until_ms or 0) > now_ms
        if not is_held and _has_time(job, options) and await _run(parts, worker, asked, job.job_id):
            continue
        if job.job_id not in waited_for:
            waited_for.add(job.job_id)
            hosts = dict(await parts.metadata.compactors.live_compactors())
            _log.warning("waits for a merge of another compactor", who=compact_now.who_has(job, hosts))


def _has_time(job: MergeJob, options: PlanOptions) -> bool:
    """False for a job whose time limit is too short for a cluster to start: it is left to the compactors."""
    if not options.spark or job.kind in RUN_HERE:
        return True
    try:
        check_limit(job)
    except BadInputError:
        return False
    return True


async def _run(parts: Parts, worker: Worker, asked: compact_now.Request, job_id: int) -> bool:
    """Returns False if the job cannot be claimed. Raises JobFailedError."""
    if not await worker.work_on(job_id):
        return False
    job = await parts.metadata.compactors.job(job_id)
    if job is not None and job.state is not JobState.DONE:
        raise JobFailedError(
            f"job {job_id} ({job.kind}) is {job.state.value}: {job.error or 'it was given back'}",
            remedy=f"`siltstone jobs show {job_id}{asked.hints.places}` shows more",
        )
    return True


def _specs(view: CompactionView, through: Mapping[int, int], options: PlanOptions) -> Sequence[MergeSpec]:
    """The jobs that the planner would make if the topic's compaction was requested: L0 files, and its partitions.

    A partition that is cleaned through its target is left out: the wait would end and cut off a second pass over it.
    """
    partitions = [
        replace(each, requested_through_offset=through[each.partition_id])
        if each.cleaned_through_offset < through.get(each.partition_id, 0)
        else each
        for each in view.partitions
    ]
    plan = explain_plan(replace(view, partitions=partitions), options)
    return [
        spec for spec in plan.specs if spec.kind is MergeKind.LEVEL or not through.keys().isdisjoint(spec.partitions)
    ]
