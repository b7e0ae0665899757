"""Why a topic is not compacted further, partition by partition, and the remedies. Pure.

The planner's own functions and notes decide here which records are dirty and which pass is due, so that the
explanation agrees with the next plan. The rules choose rows of `causes.py` and give their facts.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from compactor.merging.memory_gate import WAITS_FOR_MEMORY
from compactor.planning.dirtiness import config_int, horizon_due_ms, lag_pause_ms
from compactor.planning.notes import Blocker, Note
from metadata.configs.topic import as_list, resolve
from metadata.contract.jobs import JobState
from metadata.rules.jobs import OBJECT_MISSING, UNREADABLE, rests
from runtime.text import age_text, plural, size_text
from siltstone.ops.compaction.causes import BLOCKED, Cause
from siltstone.ops.compaction.evidence import (
    Evidence,
    PartitionState,
    Troubled,
    fraction_of,
    has_old_tombstones,
    is_compacted,
)
from siltstone.ops.remains import count_files, dead_below, remnant, remnants_text, sooner_text, stray

TROUBLED_SHOWN_MAX = 5
"""Files in trouble of one partition that get a sentence each; the others are counted."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A row of `causes.py`, filled in."""

    cause: Cause
    partition: int | None
    """None: the whole topic."""
    text: str
    """Follows "partition N ", unless it is about the whole topic."""
    remedy: str
    is_about_file: bool = False
    """The reason is about a file that holds some of the partition, not about the partition's own next pass."""

    @property
    def says(self) -> str:
        return self.text if self.partition is None else f"partition {self.partition} {self.text}"

    def as_json(self) -> dict[str, Any]:
        return {"code": self.cause.code, "partition": self.partition, "says": self.says, "remedy": self.remedy}


class _Filler(string.Formatter):
    """Adds formats: `age` of milliseconds, `size` of bytes, `phrase` without its full stop, `# file` for "2 files"."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("# "):
            return plural(value, format_spec[2:])
        return _FORMATS[format_spec](value) if format_spec in _FORMATS else format(value, format_spec)


_FORMATS: Mapping[str, Callable[[Any], str]] = {"age": age_text, "size": size_text, "phrase": lambda it: it.rstrip(".")}


def _filled(cause: Cause, evidence: Evidence, partition: int | None = None, **facts: Any) -> Reason:
    topic, hints = evidence.topic, evidence.hints
    now = f"`siltstone compact {topic} --now{hints.places}`"
    known = {"topic": topic, "hints": hints, "now": now, "options": evidence.options, "evidence": evidence, **facts}
    text, remedy = (_Filler().vformat(each, (), known) for each in (cause.says, cause.remedy))
    return Reason(cause, partition, text, remedy)


class _Case:
    """One partition, as the rules see it."""

    def __init__(self, state: PartitionState, evidence: Evidence) -> None:
        self.state, self.evidence = state, evidence
        self.view, self.dirty = state.view, state.dirtiness
        self.troubled = evidence.troubled.get(self.view.partition_id, ())
        self.jobs = evidence.jobs_of(self.view)
        young_l0_from = evidence.young_l0_from.get(self.view.partition_id)
        self.held_from = self.dirty.first_uncleanable_offset if self.dirty.held_by_lag else young_l0_from
        """The first offset that `min.compaction.lag.ms` keeps from being cleaned; None if there is none."""
        self.is_all_held = self.held_from is not None and self.held_from <= self.dirty.cleaned_through_offset
        """Whether all records that no pass has seen are too young to be cleaned."""

    def reason(self, cause: Cause, **facts: Any) -> Reason:
        facts |= {"state": self.state, "view": self.view, "dirty": self.dirty}
        return _filled(cause, self.evidence, self.view.partition, **facts)


def explain(states: Sequence[PartitionState], evidence: Evidence) -> Sequence[Reason]:
    """The reasons about the whole topic, then those of each partition."""
    cases = [_Case(state, evidence) for state in states]
    if not cases:
        return [_filled(Cause.NO_PARTITIONS, evidence)]
    configs = cases[0].view.configs
    if not is_compacted(configs):
        plain = _filled(Cause.PLAIN, evidence, policy=resolve(configs)["cleanup.policy"] or "empty")
        return [plain, *_of_erasures(evidence), *(each for case in cases for each in _in_trouble(case))]
    l0_files = sum(file.level == 0 and not file.is_inline for file in evidence.view.files)  # as agents count them
    is_stalled = 0 < evidence.stall_files < l0_files
    reasons = [] if evidence.compactors else [_filled(Cause.NO_COMPACTOR, evidence)]
    reasons += [_filled(Cause.WRITE_STALL, evidence, files=l0_files)] if is_stalled else []
    reasons += _of_erasures(evidence)
    for case in cases:
        reasons += list(_of_partition(case)) or [case.reason(Cause.CLEAN)]
        reasons += _of_removed(case)
    return reasons


def _of_erasures(evidence: Evidence) -> Iterator[Reason]:
    for each in evidence.erasures:
        late_ms = evidence.view.now_ms - each.deadline_ms
        if late_ms > 0:
            yield _filled(Cause.OVERDUE_ERASURE, evidence, erasure=each, late_ms=late_ms)
        else:
            yield _filled(Cause.ERASURE, evidence, erasure=each, left_ms=-late_ms)


def _of_partition(case: _Case) -> Iterator[Reason]:
    """In this order: of the reasons about the next pass, `report.py` shows the last."""
    view, dirty, state = case.view, case.dirty, case.state
    notes = _notes(case)
    if view.high_watermark == view.log_start_offset:
        yield case.reason(Cause.EMPTY)
    yield from _of_jobs(case)
    yield from _in_trouble(case)
    yield from _damaged(case)
    if view.requested_through_offset is not None and view.cleaned_through_offset < view.requested_through_offset:
        yield case.reason(Cause.ASKED_FOR)
    if state.l0_offsets and not _is_all_in_trouble(case):
        lag_wait = ", or half of max.compaction.lag.ms of a topic with records in it" if dirty.has_lag else ""
        in_l0 = case.reason(Cause.IN_L0, lag_wait=lag_wait)
        # `compact --now` does not help here: no record is old enough to be deduped.
        yield replace(in_l0, remedy="wait") if case.is_all_held else in_l0
    if case.held_from is not None:
        lag_ms, count = config_int(view, "min.compaction.lag.ms"), view.high_watermark - case.held_from
        yield case.reason(Cause.TOO_YOUNG, count=count, first=case.held_from, lag_ms=lag_ms)
    elif view.last_stable_offset < view.high_watermark:
        yield case.reason(Cause.OPEN_TRANSACTION)
    if all(each.partition_id != view.partition_id for each in notes):
        yield from _due(case)
    yield from (_not_planned(case, each) for each in notes)
    yield from _of_lag(case)
    if view.passes_needed > 1:
        yield case.reason(Cause.BUFFER_OVERFLOW, reads=view.passes_needed + 1)
    if has_old_tombstones(view):
        wait_ms = config_int(view, "delete.retention.ms")
        yield case.reason(Cause.TOMBSTONES, wait_ms=wait_ms, first=_first_may_go(case), goes=_tombstones_go(case))


def _of_lag(case: _Case) -> Iterator[Reason]:
    """`max.compaction.lag.ms` as long as it is ahead, and when it has passed, unless the pass that is due says so."""
    view, dirty, now_ms = case.view, case.dirty, case.evidence.view.now_ms
    l0_since_ms = case.evidence.l0_since_ms.get(view.partition_id)
    known = [each for each in (dirty.earliest_dirty_ms, l0_since_ms) if each is not None]
    if not dirty.has_lag or not known:
        return
    since_ms = case.evidence.ago_ms(min(known))
    # The planner counts what lies above L0 alone. A record that is stuck in L0 is past its lag all the same.
    is_l0_over = l0_since_ms is not None and now_ms - l0_since_ms > dirty.lag_ms_max and not case.is_all_held
    if since_ms < dirty.lag_ms_max and not case.state.due:
        yield case.reason(Cause.MAX_LAG, left_ms=dirty.lag_ms_max - since_ms)
    elif (dirty.is_over_lag(now_ms) or is_l0_over) and "max.compaction.lag.ms" not in case.state.due:
        pause_ms = lag_pause_ms(view, dirty, case.evidence.options)
        left_ms = pause_ms - case.evidence.ago_ms(view.last_forced_ms or 0)
        paused = f"The last pass began lately: the next one may begin in {age_text(left_ms)}."
        then = paused if left_ms > 0 else "A pass begins when nothing that is named here is in its way."
        if case.state.l0_offsets:
            then += f" {case.state.l0_offsets:,} of its offsets wait in L0 files, and go to L1 first."
        yield case.reason(Cause.PAST_MAX_LAG, since_ms=since_ms, then=then)


def _first_may_go(case: _Case) -> str:
    """Follows "still holds tombstones below offset 5"."""
    if case.dirty.horizon is None:
        return ""
    left_ms = case.dirty.horizon.at_ms - case.evidence.view.now_ms
    return f", the first of which may go in {age_text(left_ms)}" if left_ms > 0 else ", some of which may go now"


def _tombstones_go(case: _Case) -> str:
    """When a pass comes for the tombstones alone; follows "goes with the next pass from the log start"."""
    due_ms = horizon_due_ms(case.view, case.dirty, case.evidence.options)
    if due_ms is None:
        return ""
    left_ms = due_ms - case.evidence.view.now_ms
    when = f"in {age_text(left_ms)}" if left_ms > 0 else "now"
    once = age_text(case.evidence.options.horizon_interval_ms)
    return f", which comes {when} at the latest (for tombstones alone once in {once})"


def _of_removed(case: _Case) -> Iterator[Reason]:
    """Where the values lie that passes removed. Only what the files that are there allow is said to be gone."""
    view, evidence = case.view, case.evidence
    held = evidence.held.get(view.partition_id)
    if held is None:
        return
    strays = () if evidence.strays is None else evidence.strays.get(view.partition_id, ())
    remnants = [remnant(each, evidence.options) for each in dead_below(held, view.cleaned_through_offset)]
    remnants += map(stray, strays)
    if remnants:
        files = remnants_text(remnants, evidence.view.now_ms)
        sooner = sooner_text(remnants)
        wait = f"wait; {sooner}, and has more files rewritten" if sooner else "wait"
        yield case.reason(Cause.REMAINS, count=count_files(remnants), files=files, wait=wait)
    if why := _not_read(case):
        yield case.reason(Cause.MAY_REMAIN, why=why)
    elif not remnants and has_old_tombstones(view):
        of_what = "no file that the metadata know" if evidence.strays is None else "no object of the bucket"
        yield case.reason(Cause.GONE, of_what=of_what)


def _not_read(case: _Case) -> str:
    """Why a pass may have kept old values."""
    if any(each.cause in (Cause.FLAGGED, Cause.UNREADABLE_BATCHES) for each in _damaged(case)):
        return "it holds bytes that no merge can read"
    return "the last pass could not hold all keys at once" if case.view.passes_needed > 1 else ""


def _of_jobs(case: _Case) -> Iterator[Reason]:
    """Each live job, and the newest failure unless `_in_trouble` tells it."""
    now_ms = case.evidence.view.now_ms
    for job in case.jobs:
        since_ms, step = case.evidence.ago_ms(job.started_ms), job.progress.get("step")
        if job.state is JobState.RUNNING and step == WAITS_FOR_MEMORY:
            yield case.reason(Cause.WAITING_FOR_MEMORY, job=job, since_ms=since_ms)
        elif job.state is JobState.RUNNING:
            done = f"{fraction_of(job) * 100:.0f} %" + (f" ({step})" if step else "")
            yield case.reason(Cause.RUNNING, job=job, done=done, since_ms=since_ms)
        elif job.state is JobState.READY and rests(job.not_before_ms, now_ms):
            yield case.reason(Cause.RESTING, job=job, rest_ms=job.not_before_ms - now_ms)
        elif job.state is JobState.READY:
            tried = f" after {plural(job.attempts, 'attempt')}" if job.attempts else ""
            yield case.reason(Cause.WAITING_FOR_A_COMPACTOR, job=job, tried=tried)
    told = {each.file.trouble for each in case.troubled}
    failed = (each for each in case.jobs if each.state is JobState.FAILED and each.error not in told)
    if (job := next(failed, None)) is not None:
        yield case.reason(Cause.FAILED, job=job, since_ms=case.evidence.ago_ms(job.finished_ms))


def _due(case: _Case) -> Iterator[Reason]:
    """A pass that is due, or the reason why dirty records do not make one due yet."""
    view, dirty = case.view, case.dirty
    options = dirty.rules.over(case.evidence.options)
    cleaned_ms = max(view.last_cleaned_ms or 0, dirty.earliest_dirty_ms or 0)
    forced_left_ms = options.forced_interval_ms - case.evidence.ago_ms(view.last_forced_ms or 0)
    dirty_left_ms = options.forced_dirty_wait_ms - case.evidence.ago_ms(cleaned_ms)
    if case.state.due:
        yield case.reason(Cause.DUE)
    elif not dirty.dirty_bytes or dirty.is_over_lag(case.evidence.view.now_ms):
        return  # `_of_lag` tells what a partition past its lag waits for
    elif not dirty.is_over_ratio:
        yield case.reason(Cause.BELOW_THE_DIRTY_RATIO)
    elif forced_left_ms > 0:
        yield case.reason(Cause.FORCED_LATELY, left_ms=forced_left_ms, options=options)
    elif dirty.dirty_bytes < options.forced_dirty_bytes_min and dirty_left_ms > 0:
        yield case.reason(Cause.FEW_DIRTY_BYTES, left_ms=dirty_left_ms, options=options)
    else:
        yield case.reason(Cause.IN_THE_WAY)


def _notes(case: _Case) -> Sequence[Note]:
    """The planner's notes about the partition, or about a file that holds some of it. A note that L0 files wait for a
    place concerns every partition with records in L0."""
    plan, files = case.evidence.plan, frozenset(each.file_id for each in case.view.extents)
    of_l0 = [each for each in plan.notes if each.blocker is Blocker.L0_JOBS and case.state.l0_offsets]
    return [*plan.notes_of(case.view.partition_id, files), *of_l0]


def _not_planned(case: _Case, note: Note) -> Reason:
    is_about_file = note.partition_id is None and note.blocker is not Blocker.L0_JOBS
    subject = "has records in files that wait for a merge" if is_about_file else "is not planned"
    text = note.text.removeprefix(f"{case.evidence.topic}-{case.view.partition} ")
    found = case.reason(BLOCKED[note.blocker], subject=subject, note=text)
    return replace(found, is_about_file=is_about_file)


# ---- records that merges cannot read


def _in_trouble(case: _Case) -> Iterator[Reason]:
    """For topics of any policy: a topic that is not compacted has retention to lose."""
    now_ms = case.evidence.view.now_ms
    for one in case.troubled[:TROUBLED_SHOWN_MAX]:
        error, until_ms = one.file.trouble, one.file.trouble_until_ms
        job = next((each for each in case.jobs if each.state is JobState.FAILED and each.error == error), None)
        yield case.reason(
            Cause.OBJECT_LOST if OBJECT_MISSING in error else Cause.FILE_IN_TROUBLE,
            one=one,
            error=error,
            failed="" if job is None else f"job {job.job_id} ({job.kind}) failed on it: ",
            retry=f"in {age_text(until_ms - now_ms)}" if rests(until_ms, now_ms) else "now",
            stops=_stopped(case, one),
            first_kept=one.last_offset + 1,
        )
    if len(case.troubled) > TROUBLED_SHOWN_MAX:
        yield case.reason(Cause.MORE_IN_TROUBLE, left=len(case.troubled) - TROUBLED_SHOWN_MAX)


def _stopped(case: _Case, one: Troubled) -> str:
    policy = as_list(resolve(case.view.configs), "cleanup.policy")
    stops = ["its records are not merged"]
    if "compact" in policy:
        stops.append("nothing from there on is cleaned")
    if one.file.level == 0 and "delete" in policy:
        stops.append(f"retention stops there (the log start is {case.view.log_start_offset})")
    return ", ".join(stops)


def _is_all_in_trouble(case: _Case) -> bool:
    """Whether every offset in L0 lies in a file in trouble."""
    start = case.view.log_start_offset
    parts = [*case.view.extents, *(each for each in case.troubled if each.file.level == 0)]
    covered = sum(each.last_offset + 1 - max(each.base_offset, start) for each in parts)
    return covered >= case.view.high_watermark - start


def _damaged(case: _Case) -> Iterator[Reason]:
    """Flagged extents, and batches that could not be read by the merges that wrote the present files.

    Only the results of merges tell about unreadable batches: the metadata keep the row of a merge that met some for as
    long as a file lives that this merge wrote (`metadata/rules/jobs.py`). So the rows tell the present state.
    """
    view = case.view
    flagged = [extent for extent in view.extents if extent.flagged_reason is not None]
    if flagged:
        yield case.reason(Cause.FLAGGED, count=len(flagged), one=flagged[0])
    runs = {file.file_id: file.run_id for file in case.evidence.view.files}
    writers = {runs.get(extent.file_id) for extent in view.extents}
    met = [
        (row, job)
        for job in case.evidence.unreadable_jobs
        for row in cast(Sequence[dict[str, Any]], job.result[UNREADABLE])
        if job.job_id in writers and row["partition_id"] == view.partition_id
        # retention may have deleted a single batch; of several it may have left some
        if row["batches"] > 1 or row["first_offset"] >= view.log_start_offset
    ]
    if met:
        first, job = min(met, key=lambda each: each[0]["first_offset"])
        key = next(
            (each.key for each in view.extents if each.last_offset >= first["first_offset"]), view.extents[-1].key
        )
        count, ago_ms = sum(row["batches"] for row, _ in met), case.evidence.ago_ms(job.finished_ms)
        yield case.reason(Cause.UNREADABLE_BATCHES, count=count, first=first, job=job, since_ms=ago_ms, key=key)
