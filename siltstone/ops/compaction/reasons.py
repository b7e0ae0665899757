"""Why a topic is not compacted further, partition by partition, and what to do about it. Pure.

What is dirty and what is due is not judged here a second time: the planner's own functions say it, and its notes
(`compaction_notes.py`), so that what is shown is what will be done. What cannot be read is in `compaction_damage.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactor.merging.memory_gate import WAITS_FOR_MEMORY
from metadata.configs.topic import as_int, resolve
from metadata.contract.compaction import JobState, MergeJob, PartitionView
from metadata.rules.jobs import rests
from runtime.text import age_text, plural, size_text
from siltstone.ops.compaction.damage import flagged, in_trouble, uncovered_offsets, unreadable
from siltstone.ops.compaction.evidence import Case, Evidence, Reason
from siltstone.ops.compaction.notes import not_planned, pass_note
from siltstone.ops.compaction.report import PartitionState, deduped_partitions, is_compacted, job_text
from siltstone.ops.hint_options import CommandWords

NO_LIMIT_MS = 2**62
"""Lags above this mean "never" (Kafka's default of max.compaction.lag.ms is the largest long)."""


def explain(topic: str, states: Sequence[PartitionState], evidence: Evidence) -> Sequence[Reason]:
    """What keeps each partition from being compacted to its end, most telling first, the whole topic before its parts.

    A partition of which nothing is to be said (everything cleaned) gets one reason, `clean`.
    """
    if not states:
        return [Reason(code="no partitions", partition=None, says=f"{topic} has no partitions.")]
    if not is_compacted(states[0].view.configs):
        cases = _cases(topic, states, evidence)
        return [_plain(topic, states[0].view, evidence.words), *(each for case in cases for each in in_trouble(case))]
    reasons = list(_of_the_system(topic, evidence))
    for case in _cases(topic, states, evidence):
        found = [reason for rule in _RULES for reason in rule(case)]
        reasons += found or [_clean(case)]
    return reasons


def _cases(topic: str, states: Sequence[PartitionState], evidence: Evidence) -> Iterator[Case]:
    for state in states:
        yield Case(state, evidence, resolve(state.view.configs), topic, _jobs_of(state.view, evidence))


def _plain(topic: str, view: PartitionView, words: CommandWords) -> Reason:
    policy = resolve(view.configs)["cleanup.policy"] or "empty"
    return Reason(
        code="plain",
        partition=None,
        says=f"{topic} is not compacted: its cleanup.policy is {policy}. Every record stays until retention takes it.",
        remedy="none, if that is how it should be. To keep the latest record of each key only, and lose the others: "
        f"`siltstone topics alter {topic} --config cleanup.policy=compact{words.agents}`",
    )


def _of_the_system(topic: str, evidence: Evidence) -> Iterator[Reason]:
    if not evidence.compactors:
        yield Reason(
            code="no compactor",
            partition=None,
            says="No compactor is running: nothing is merged, deduped or deleted.",
            remedy=f"start one with `{evidence.words.compactor}`; "
            f"`siltstone compact {topic} --now{evidence.words.places}` runs one for its own time",
        )
    l0_files = sum(file.level == 0 for file in evidence.view.files) if evidence.view is not None else 0
    if evidence.stall_files and l0_files > evidence.stall_files:
        yield Reason(
            code="write stall",
            partition=None,
            says=f"{l0_files:,} L0 files are live, above l0.stall.files ({evidence.stall_files:,}): the compactors are "
            "behind with leveling, and producers are being slowed down for it.",
            remedy=f"start more compactors with `{evidence.words.compactor}`",
        )


def _jobs_of(view: PartitionView, evidence: Evidence) -> Sequence[MergeJob]:
    """Those whose stored spec names the partition, those that hold one of its extents, and those of L0 files in
    trouble that hold some of it."""
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


# Each rule looks at one partition and says nothing, or what it found.


def _empty(case: Case) -> Iterator[Reason]:
    view = case.state.view
    if view.high_watermark == view.log_start_offset:
        yield case.reason("empty", "holds no records.")


def _running(case: Case) -> Iterator[Reason]:
    for job in case.jobs:
        if job.state is JobState.RUNNING and job.progress.get("step") == WAITS_FOR_MEMORY:
            yield _waiting_for_memory(case, job)
        elif job.state is JobState.RUNNING:
            yield case.reason("running", f"is being merged: {job_text(job, case.evidence.now_ms)}.")
        elif job.state is JobState.READY and rests(job.not_before_ms, case.evidence.now_ms):
            rest = age_text(job.not_before_ms - case.evidence.now_ms)
            yield case.reason(
                "resting",
                f"is planned: job {job.job_id} ({job.kind}) was given back for trouble and rests for {rest} more: "
                f"{job.error.rstrip('.')}.",
                f"it is tried again by itself; `siltstone jobs show {job.job_id}{case.places}` tells more",
            )
        elif job.state is JobState.READY:
            tried = f" after {plural(job.attempts, 'attempt')}" if job.attempts else ""
            yield case.reason(
                "waiting for a compactor",
                f"is planned: job {job.job_id} ({job.kind}) waits for a compactor{tried}.",
                "" if case.evidence.compactors else f"start one with `{case.evidence.words.compactor}`",
            )


def _waiting_for_memory(case: Case, job: MergeJob) -> Reason:
    since = f" for {age_text(case.evidence.now_ms - job.started_ms)}" if job.started_ms is not None else ""
    return case.reason(
        "waiting for memory",
        f"is in job {job.job_id} ({job.kind}), which has been waiting{since} for room among the merges of its "
        f"compactor: compactor.memory.bytes is {size_text(case.evidence.memory_bytes)}.",
        "wait until the other merge there ends, or raise compactor.memory.bytes of the compactors",
    )


def _failed(case: Case) -> Iterator[Reason]:
    now_ms, told = case.evidence.now_ms, {one.trouble for one in case.troubled}
    for job in case.jobs:
        if job.state is JobState.FAILED and job.error not in told:
            ago = f" {age_text(now_ms - job.finished_ms)} ago" if job.finished_ms is not None else ""
            yield case.reason(
                "failed",
                f"was in job {job.job_id} ({job.kind}), which failed{ago}: {job.error.rstrip('.')}.",
                f"`siltstone jobs show {job.job_id}{case.places}` tells more; it is planned anew by itself",
            )
            break  # the newest says it


def _asked_for(case: Case) -> Iterator[Reason]:
    view = case.state.view
    target = view.requested_through_offset
    if target is not None and view.cleaned_through_offset < target:
        then = "the planner takes it next"
        if case.is_all_held:
            then = "the rest is too young yet"
        elif case.troubled:
            then = "what merges cannot read is in the way"
        elif pass_note(case) is not None:
            then = "it is not planned yet, for the reason below"
        yield case.reason(
            "asked for",
            f"is asked to be compacted up to offset {target}, and is cleaned through {view.cleaned_through_offset}; "
            f"{then}.",
        )


def _in_l0(case: Case) -> Iterator[Reason]:
    state, options = case.state, case.evidence.options
    if state.l0_offsets and uncovered_offsets(case):
        yield case.reason(
            "in L0",
            f"has {plural(state.l0_offsets, 'offset')} from {state.dirtiness.leveled_through_offset} on in L0 files, "
            f"where nothing is deduped. They go to L1 with {options.l0_files_min} files of "
            f"which the oldest has waited {age_text(options.l0_wait_ms)}, or when the oldest "
            f"has waited {age_text(options.l0_wait_ms_max)} (compaction.l0.wait.max.ms).",
            "wait; what is too young (below) is merged, and not deduped yet"
            if case.is_all_held
            else f"wait, or {case.now_command}",
        )


def _held_back(case: Case) -> Iterator[Reason]:
    """By the minimum lag, or by an open transaction."""
    view = case.state.view
    through = case.held_from
    if through is not None:
        lag_ms = as_int(case.configs, "min.compaction.lag.ms")
        yield case.reason(
            "too young",
            f"keeps its last {plural(view.high_watermark - through, 'offset')}, from offset {through} on, as they are: "
            f"there are some among them that are younger than min.compaction.lag.ms ({age_text(lag_ms)}).",
            f"wait, or lower it: `siltstone topics alter {case.topic} --config min.compaction.lag.ms=0"
            f"{case.evidence.words.agents}`",
        )
    elif view.last_stable_offset < view.high_watermark:
        yield case.reason(
            "open transaction",
            f"has an open transaction from offset {view.last_stable_offset} on; nothing at or above it is cleaned.",
            "find its producer: it must commit or abort, or its transaction.timeout.ms ends it",
        )


def _due(case: Case) -> Iterator[Reason]:
    state, now_ms = case.state, case.evidence.now_ms
    if state.due:
        if pass_note(case) is None:  # else that says it
            yield case.reason("due", f"is due: {state.due}. The planner takes it within seconds.")
        return
    dirty = state.dirtiness
    if not dirty.dirty_bytes or pass_note(case) is not None:
        return
    force = case.now_command
    if not dirty.is_over_ratio:
        yield case.reason(
            "below the dirty ratio",
            f"is {dirty.ratio:.2f} dirty ({size_text(dirty.dirty_bytes)}), not above min.cleanable.dirty.ratio "
            f"({dirty.ratio_min:.2f}): superseded records stay until more is written, or until the daily merge.",
            f"lower min.cleanable.dirty.ratio of {case.topic}, or {force}",
        )
        return
    options, forced_ms = case.evidence.options, state.view.last_forced_ms
    if forced_ms is not None and now_ms - forced_ms < options.forced_interval_ms:
        yield case.reason(
            "forced lately",
            f"is {dirty.ratio:.2f} dirty and was taken out of turn {age_text(now_ms - forced_ms)} ago; that happens "
            f"once in {age_text(options.forced_interval_ms)} at most (forced.interval.ms).",
            f"wait, or {force}, which does not wait for it",
        )
    elif dirty.dirty_bytes < options.forced_dirty_bytes_min:
        last_ms = state.view.last_cleaned_ms
        last = "has had no pass yet" if last_ms is None else f"had its last pass {age_text(now_ms - last_ms)} ago"
        yield case.reason(
            "few dirty bytes",
            f"is {dirty.ratio:.2f} dirty, but {size_text(dirty.dirty_bytes)} are few (a pass of its own is for "
            f"{size_text(options.forced_dirty_bytes_min)} (forced.dirty.bytes.min), or for less after "
            f"{age_text(options.forced_dirty_wait_ms)} (forced.dirty.wait.ms)), and it {last}. "
            "Merges of whole runs dedupe it too.",
            f"wait, or {force}",
        )
    else:
        yield case.reason(
            "in the way",
            f"is {dirty.ratio:.2f} dirty, but a pass from the log start cannot reach it: an L0 file, or an extent of a "
            "merge that is running, lies before it.",
            f"wait, or {force}",
        )


def _max_lag(case: Case) -> Iterator[Reason]:
    dirty = case.state.dirtiness
    if dirty.lag_ms_max < NO_LIMIT_MS and dirty.earliest_dirty_ms is not None and not case.state.due:
        left_ms = dirty.earliest_dirty_ms + dirty.lag_ms_max - case.evidence.now_ms
        if left_ms > 0:
            yield case.reason(
                "max lag",
                f"is compacted in {age_text(left_ms)} at the latest: then its oldest dirty records are "
                f"{age_text(dirty.lag_ms_max)} old (max.compaction.lag.ms).",
            )


def _deep(case: Case) -> Iterator[Reason]:
    passes = case.state.view.passes_needed
    if passes > 1:
        yield case.reason(
            "buffer overflow",
            f"had more keys than the dedupe buffer holds, so its last pass left a record per key for each filling. The "
            f"next pass is deep: it reads the partition {passes + 1} times and leaves one record per key.",
            f"wait, or {case.now_command}",
        )


def _tombstones(case: Case) -> Iterator[Reason]:
    state = case.state
    kept = [
        extent
        for extent in state.view.extents
        if extent.has_tombstones and extent.base_offset < state.view.cleaned_through_offset
    ]
    if kept:
        wait_ms = as_int(case.configs, "delete.retention.ms")
        yield case.reason(
            "tombstones",
            f"still holds tombstones below offset {state.view.cleaned_through_offset}. A tombstone stays for "
            f"delete.retention.ms ({age_text(wait_ms)}) after the pass that first kept it, then goes with the next "
            "pass from the log start; the values it deleted are gone already.",
            f"wait, or lower delete.retention.ms of {case.topic} if its readers are never away that long",
        )


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
    not_planned,
    _max_lag,
    _deep,
    _tombstones,
)


def _clean(case: Case) -> Reason:
    view = case.state.view
    return case.reason("clean", f"is compacted through offset {view.cleaned_through_offset}; there is nothing to do.")
