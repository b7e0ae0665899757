"""Why a topic is not compacted further, partition by partition, and the remedies. Pure.

The planner's own functions and notes decide here too which records are dirty and which pass is due, so that the
explanation agrees with the next plan. The rules here and in `damage.py` choose rows of `texts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactor.merging.memory_gate import WAITS_FOR_MEMORY
from compactor.planning.notes import Blocker, Note
from compactor.planning.spec import MergeKind
from metadata.configs.topic import as_int, resolve
from metadata.contract.compactors import PartitionView
from metadata.contract.jobs import JobState, MergeJob
from metadata.rules.jobs import rests
from runtime.text import age_text, plural, size_text
from siltstone.ops.compaction import texts
from siltstone.ops.compaction.damage import flagged, in_trouble, uncovered_offsets, unreadable
from siltstone.ops.compaction.evidence import Case, Evidence, Reason, ago_text, reason_of
from siltstone.ops.compaction.report import PartitionState, deduped_partitions, is_compacted, job_text

NO_LIMIT_MS = 2**62
"""Lags above this mean "never" (Kafka's default of max.compaction.lag.ms is the largest long)."""


def explain(topic: str, states: Sequence[PartitionState], evidence: Evidence) -> Sequence[Reason]:
    """The reasons about the whole topic, then those of each partition in the order of `_RULES`.

    A partition to which no rule applies gets the one reason `clean`.
    """
    if not states:
        return [reason_of(texts.NO_PARTITIONS, topic, evidence)]
    cases = [
        Case(state, evidence, resolve(state.view.configs), topic, _jobs_of(state.view, evidence)) for state in states
    ]
    if not is_compacted(states[0].view.configs):
        policy = cases[0].configs["cleanup.policy"] or "empty"
        plain = reason_of(texts.PLAIN, topic, evidence, policy=policy)
        return [plain, *(each for case in cases for each in in_trouble(case))]
    reasons = list(_of_the_system(topic, evidence))
    for case in cases:
        found = [reason for rule in _RULES for reason in rule(case)]
        reasons += found or [case.reason(texts.CLEAN, cleaned_through=case.state.view.cleaned_through_offset)]
    return reasons


def _of_the_system(topic: str, evidence: Evidence) -> Iterator[Reason]:
    if not evidence.compactors:
        yield reason_of(texts.NO_COMPACTOR, topic, evidence)
    l0_files = sum(file.level == 0 for file in evidence.view.files) if evidence.view is not None else 0
    if evidence.stall_files and l0_files > evidence.stall_files:
        yield reason_of(texts.WRITE_STALL, topic, evidence, files=l0_files, limit=evidence.stall_files)


def _jobs_of(view: PartitionView, evidence: Evidence) -> Sequence[MergeJob]:
    """The jobs that dedupe the partition, hold one of its extents, or have a troubled L0 file with some of it."""
    l0_files = {one.file_id for one in evidence.troubled.get(view.partition_id, ()) if one.level == 0}
    extents = {extent.extent_id for extent in view.extents}
    files = {extent.file_id for extent in view.extents}
    return [
        job
        for job in evidence.jobs
        if view.partition_id in deduped_partitions(job)
        or not extents.isdisjoint(job.spec.get("extent_ids", ()))
        or not files.isdisjoint(job.spec.get("file_ids", ()))
        or not l0_files.isdisjoint(job.spec.get("l0_file_ids", ()))
    ]


# ---- rules: each looks at one partition and gives the reasons that it found


def _empty(case: Case) -> Iterator[Reason]:
    view = case.state.view
    if view.high_watermark == view.log_start_offset:
        yield case.reason(texts.EMPTY)


def _running(case: Case) -> Iterator[Reason]:
    now_ms = case.evidence.now_ms
    for job in case.jobs:
        about = {"job_id": job.job_id, "kind": job.kind}
        if job.state is JobState.RUNNING and job.progress.get("step") == WAITS_FOR_MEMORY:
            since = f" for {age_text(now_ms - job.started_ms)}" if job.started_ms is not None else ""
            memory = size_text(case.evidence.memory_bytes)
            yield case.reason(texts.WAITING_FOR_MEMORY, **about, since=since, memory=memory)
        elif job.state is JobState.RUNNING:
            yield case.reason(texts.RUNNING, job=job_text(job, now_ms))
        elif job.state is JobState.READY and rests(job.not_before_ms, now_ms):
            rest = age_text(job.not_before_ms - now_ms)
            yield case.reason(texts.RESTING, **about, rest=rest, error=job.error.rstrip("."))
        elif job.state is JobState.READY:
            tried = f" after {plural(job.attempts, 'attempt')}" if job.attempts else ""
            text = texts.WAITING_FOR_COMPACTOR if case.evidence.compactors else texts.WAITING_AND_NONE_RUNS
            yield case.reason(text, **about, tried=tried)


def _failed(case: Case) -> Iterator[Reason]:
    """The newest failure, unless `in_trouble` tells it."""
    told = {one.trouble for one in case.troubled}
    for job in case.jobs:
        if job.state is JobState.FAILED and job.error not in told:
            ago = ago_text(job, case.evidence.now_ms)
            yield case.reason(texts.FAILED, job_id=job.job_id, kind=job.kind, ago=ago, error=job.error.rstrip("."))
            break


def _asked_for(case: Case) -> Iterator[Reason]:
    view = case.state.view
    target = view.requested_through_offset
    if target is not None and view.cleaned_through_offset < target:
        then = "the planner takes it next"
        if case.is_all_held:
            then = "the rest is too young yet"
        elif case.troubled:
            then = "records that merges cannot read are in the way"
        elif _pass_note(case) is not None:
            then = "it is not planned yet, for the reason below"
        yield case.reason(texts.ASKED_FOR, target=target, cleaned_through=view.cleaned_through_offset, then=then)


def _in_l0(case: Case) -> Iterator[Reason]:
    state, options = case.state, case.evidence.options
    if state.l0_offsets and uncovered_offsets(case):
        yield case.reason(
            texts.IN_L0_AND_YOUNG if case.is_all_held else texts.IN_L0,
            count=plural(state.l0_offsets, "offset"),
            first=state.dirtiness.leveled_through_offset,
            wait=age_text(options.l0_wait_ms),
            wait_max=age_text(options.l0_wait_ms_max),
        )


def _held_back(case: Case) -> Iterator[Reason]:
    """By the minimum lag, or by an open transaction."""
    view, first = case.state.view, case.held_from
    if first is not None:
        lag = age_text(as_int(case.configs, "min.compaction.lag.ms"))
        count = plural(view.high_watermark - first, "offset")
        yield case.reason(texts.TOO_YOUNG, count=count, first=first, lag=lag)
    elif view.last_stable_offset < view.high_watermark:
        yield case.reason(texts.OPEN_TRANSACTION, first=view.last_stable_offset)


def _due(case: Case) -> Iterator[Reason]:
    """A pass that is due, or the reason why dirty records do not make one due yet."""
    state = case.state
    view, dirty, options = state.view, state.dirtiness, case.evidence.options
    if _pass_note(case) is not None:
        return  # `_not_planned` tells it
    if state.due:
        yield case.reason(texts.DUE, due=state.due)
    elif dirty.dirty_bytes and not dirty.is_over_ratio:
        size = size_text(dirty.dirty_bytes)
        yield case.reason(texts.BELOW_RATIO, ratio=dirty.ratio, ratio_min=dirty.ratio_min, dirty=size)
    elif dirty.dirty_bytes:
        cleaned_ms = view.last_cleaned_ms if view.last_cleaned_ms is not None else dirty.earliest_dirty_ms
        forced_left_ms = _left_ms(case, view.last_forced_ms, options.forced_interval_ms)
        dirty_left_ms = _left_ms(case, cleaned_ms, options.forced_dirty_wait_ms)
        text, left_ms = texts.IN_THE_WAY, 0
        if forced_left_ms > 0:
            text, left_ms = texts.FORCED_LATELY, forced_left_ms
        elif dirty.dirty_bytes < options.forced_dirty_bytes_min and dirty_left_ms > 0:
            text, left_ms = texts.FEW_DIRTY_BYTES, dirty_left_ms
        yield case.reason(
            text,
            ratio=dirty.ratio,
            dirty=size_text(dirty.dirty_bytes),
            dirty_min=size_text(options.forced_dirty_bytes_min),
            wait=age_text(options.forced_dirty_wait_ms),
            interval=age_text(options.forced_interval_ms),
            left=age_text(left_ms),
        )


def _left_ms(case: Case, since_ms: int | None, wait_ms: int) -> int:
    return 0 if since_ms is None else since_ms + wait_ms - case.evidence.now_ms


def _notes_of(case: Case) -> Sequence[Note]:
    """The planner's notes about the partition, or about a file that holds some of it.

    Without the notes about L0 files in trouble: `damage.py` names each such file. A note that L0 files wait for a place
    concerns every partition with records in L0.
    """
    plan = case.evidence.plan
    if plan is None:
        return ()
    view = case.state.view
    file_ids = frozenset(each.file_id for each in view.extents)
    found = [each for each in plan.notes_of(view.partition_id, file_ids) if each.rule is not MergeKind.LEVEL]
    if case.state.l0_offsets:
        found += [each for each in plan.notes if each.blocker is Blocker.L0_JOBS]
    return found


def _pass_note(case: Case) -> Note | None:
    """Why a pass over this partition alone is due and not planned."""
    partition_id = case.state.view.partition_id
    return next((each for each in _notes_of(case) if each.partition_id == partition_id), None)


def _not_planned(case: Case) -> Iterator[Reason]:
    limit = size_text(case.evidence.options.merge_bytes_max)
    for note in _notes_of(case):
        text, subject = texts.BLOCKED[note.blocker], f"is not planned: {note.text}"
        if note.blocker is Blocker.CONFIG:  # the planner's words begin with the partition's name
            subject = note.text.removeprefix(f"{case.topic}-{case.state.view.partition} ")
        elif note.blocker is Blocker.L0_JOBS:
            subject = f"has records in L0, where {note.text}"
        elif note.partition_id is None:
            text, subject = text._replace(brief=False), f"has records in files that wait for a merge: {note.text}"
        yield case.reason(text, subject=subject, limit=limit)


def _max_lag(case: Case) -> Iterator[Reason]:
    dirty = case.state.dirtiness
    if dirty.lag_ms_max < NO_LIMIT_MS and dirty.earliest_dirty_ms is not None and not case.state.due:
        left_ms = dirty.earliest_dirty_ms + dirty.lag_ms_max - case.evidence.now_ms
        if left_ms > 0:
            yield case.reason(texts.MAX_LAG, left=age_text(left_ms), lag=age_text(dirty.lag_ms_max))


def _deep(case: Case) -> Iterator[Reason]:
    passes = case.state.view.passes_needed
    if passes > 1:
        yield case.reason(texts.BUFFER_OVERFLOW, reads=passes + 1)


def _tombstones(case: Case) -> Iterator[Reason]:
    cleaned_through = case.state.view.cleaned_through_offset
    if any(each.has_tombstones and each.base_offset < cleaned_through for each in case.state.view.extents):
        wait = age_text(as_int(case.configs, "delete.retention.ms"))
        yield case.reason(texts.TOMBSTONES, cleaned_through=cleaned_through, wait=wait)


_RULES = (
    _empty,
    _running,
    _failed,
    in_trouble,
    flagged,
    unreadable,
    _asked_for,
    _in_l0,
    _held_back,
    _due,
    _not_planned,
    _max_lag,
    _deep,
    _tombstones,
)
"""In the order in which their reasons are told."""
