"""Records that merges cannot read: files in trouble, flagged extents, unreadable batches. Pure.

Only the results of merges tell about unreadable batches: the metadata keep the row of a merge that met some for as long
as a file lives that this merge wrote (`metadata/rules/jobs.py`). So the rows tell the present state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from metadata.configs.topic import as_list
from metadata.contract.jobs import JobState, MergeJob
from metadata.rules.jobs import UNREADABLE
from runtime.text import plural
from siltstone.ops.compaction import texts
from siltstone.ops.compaction.evidence import Case, Reason, ago_text, job_name
from siltstone.ops.compaction.trouble import Troubled, retry_text

TROUBLED_SHOWN_MAX = 5
"""Files of one partition that get a sentence each; the others are counted."""


# ---- files in trouble


def in_trouble(case: Case) -> Iterator[Reason]:
    """For topics of any policy: a topic that is not compacted has retention to lose."""
    found = case.troubled
    for one in found[:TROUBLED_SHOWN_MAX]:
        others = plural(one.partitions - 1, "other partition")
        yield case.reason(
            texts.OBJECT_LOST if one.is_lost else texts.FILE_IN_TROUBLE,
            one=one,
            said=_failure(case, one),
            error=one.trouble.rstrip(".") or "the error is not known",
            retry=retry_text(one, case.evidence.now_ms),
            stops=", ".join(_stopped(case, one)),
            first_kept=one.last_offset + 1,
            others=f", and those of the {others} in that file up to their last there" if one.partitions > 1 else "",
        )
    if len(found) > TROUBLED_SHOWN_MAX:
        yield case.reason(texts.MORE_IN_TROUBLE, left=plural(len(found) - TROUBLED_SHOWN_MAX, "more place"))


def _failure(case: Case, one: Troubled) -> str:
    """ "job 14 (level) failed on it 2m00s ago: "; empty if no job in sight failed with this error."""
    failed = next((job for job in case.jobs if job.state is JobState.FAILED and job.error == one.trouble), None)
    return "" if failed is None else f"{job_name(failed)} failed on it{ago_text(failed, case.evidence.now_ms)}: "


def _stopped(case: Case, one: Troubled) -> Iterator[str]:
    policy = as_list(case.configs, "cleanup.policy")
    yield "its records are not merged"
    if "compact" in policy:
        yield "nothing from there on is cleaned"
    if one.level == 0 and "delete" in policy:
        yield f"retention stops there (the log start is {case.state.view.log_start_offset})"


def uncovered_offsets(case: Case) -> int:
    """Offsets in L0 files that are not in trouble."""
    view = case.state.view
    start = view.log_start_offset
    covered = sum(each.last_offset + 1 - max(each.base_offset, start) for each in view.extents)
    lost = sum(each.last_offset + 1 - max(each.base_offset, start) for each in case.troubled if each.level == 0)
    return max(0, view.high_watermark - start - covered - lost)


# ---- flagged extents


def flagged(case: Case) -> Iterator[Reason]:
    found = [extent for extent in case.state.view.extents if extent.flagged_reason is not None]
    if found:
        yield case.reason(texts.FLAGGED, count=plural(len(found), "extent"), one=found[0])


# ---- unreadable batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """The report of one merge about one partition."""

    job: MergeJob
    batches: int
    first_offset: int
    reason: str


def unreadable(case: Case) -> Iterator[Reason]:
    """Only the reports of merges that wrote the present extents count; the earliest known one tells since when."""
    view = case.state.view
    known = [
        one
        for job in case.evidence.unreadable_jobs
        for one in _reports(job, view.partition_id)
        # retention may have deleted a single batch; of several it may have left some
        if one.batches > 1 or one.first_offset >= view.log_start_offset
    ]
    writers = _writers(case)
    present = [one for one in known if one.job.job_id in writers]
    if not present:
        return
    first = min(present, key=lambda one: one.first_offset)
    since = min(known, key=lambda one: one.job.job_id).job
    key = next(
        (each.key for each in view.extents if each.base_offset <= first.first_offset <= each.last_offset),
        view.extents[-1].key,
    )
    yield case.reason(
        texts.UNREADABLE,
        count=plural(sum(one.batches for one in present), "batch"),
        first=first.first_offset,
        log_start=view.log_start_offset,
        error=first.reason.rstrip("."),
        job_id=since.job_id,
        kind=since.kind,
        ago=ago_text(since, case.evidence.now_ms),
        key=key,
    )


def _reports(job: MergeJob, partition_id: int) -> Iterator[Unreadable]:
    """Skips rows in the form of another release."""
    rows = job.result.get(UNREADABLE)
    for row in cast(Sequence[Any], rows) if isinstance(rows, list) else ():
        match row:
            case {"partition_id": int(of), "batches": int(batches), "first_offset": int(first), **rest}:
                if of == partition_id:
                    yield Unreadable(job=job, batches=batches, first_offset=first, reason=str(rest.get("reason", "")))
            case _:
                continue


def _writers(case: Case) -> frozenset[int]:
    """Ids of the jobs that wrote the files in which the partition has live extents."""
    view = case.evidence.view
    runs = {file.file_id: file.run_id for file in view.files} if view is not None else {}
    return frozenset(runs.get(extent.file_id, -1) for extent in case.state.view.extents)
