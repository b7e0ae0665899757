"""What of a partition merges cannot read, and what can be done about it: files in trouble, flagged extents, unreadable
batches. Rules of an explanation. Pure.

Unreadable batches are known from the results of merges alone: the metadata keep the row of a merge that met some as
long as a file lives that it wrote (`metadata/rules/jobs.py`), so what those rows say is what lies there now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from metadata.configs.topic import as_list
from metadata.contract.compaction import JobState, MergeJob
from metadata.rules.jobs import UNREADABLE
from runtime.text import age_text, plural
from siltstone.ops.compaction.evidence import Case, Reason
from siltstone.ops.compaction.trouble import Troubled, retry_text

TROUBLED_SHOWN_MAX = 5
"""Files of one partition; the rest is counted."""


# ---- files in trouble


def in_trouble(case: Case) -> Iterator[Reason]:
    """For topics of any policy: a plain one has retention to lose."""
    found = case.troubled
    for one in found[:TROUBLED_SHOWN_MAX]:
        code = "object lost" if one.is_lost else "file in trouble"
        yield case.reason(code, _trouble_says(case, one), _trouble_remedy(case, one))
    if len(found) > TROUBLED_SHOWN_MAX:
        left = plural(len(found) - TROUBLED_SHOWN_MAX, "more place")
        yield case.reason("file in trouble", f"has records in {left} that merges fail to read, behind these.")


def _trouble_says(case: Case, one: Troubled) -> str:
    error = one.trouble.rstrip(".") or "the error is not known"
    now_ms = case.evidence.now_ms
    failed = next((job for job in case.jobs if job.state is JobState.FAILED and job.error == one.trouble), None)
    said = "" if failed is None else f"job {failed.job_id} ({failed.kind}) failed on it{ago_text(failed, now_ms)}: "
    policy = as_list(case.configs, "cleanup.policy")
    stops = ["they are not merged"]
    if "compact" in policy:
        stops.append("nothing from there on is cleaned")
    if one.level == 0 and "delete" in policy:
        stops.append(f"retention stops there (the log start is {case.state.view.log_start_offset})")
    return (
        f"has {one.offsets} in {one.what} ({one.key}): {said}{error}. It {retry_text(one, now_ms)}; until a "
        f"merge can read it, {', '.join(stops)}."
    )


def _trouble_remedy(case: Case, one: Troubled) -> str:
    fsck = f"`siltstone fsck{case.places}`"
    if not one.is_lost:
        return f"look at `siltstone jobs list --state failed{case.places}`, and check the object with {fsck}"
    others = ""
    if one.partitions > 1:
        others = (
            f", and those of the {plural(one.partitions - 1, 'other partition')} in that file up to their last there"
        )
    return (
        f"{fsck} shows what is missing (FILE-1); put the object back under its key, byte for byte (an older version in "
        f"the bucket, a copy). If it is gone for good, so are its records: delete those below offset "
        f"{one.last_offset + 1} (DeleteRecords, as `kafka-delete-records.sh` sends){others}"
    )


def uncovered_offsets(case: Case) -> int:
    """Offsets that lie in L0 files which are not in trouble."""
    view = case.state.view
    start = view.log_start_offset
    covered = sum(each.last_offset + 1 - max(each.base_offset, start) for each in view.extents)
    lost = sum(each.last_offset + 1 - max(each.base_offset, start) for each in case.troubled if each.level == 0)
    return max(0, view.high_watermark - start - covered - lost)


# ---- flagged extents


def flagged(case: Case) -> Iterator[Reason]:
    found = [extent for extent in case.state.view.extents if extent.flagged_reason is not None]
    if found:
        first = found[0]
        yield case.reason(
            "flagged",
            f"has {plural(len(found), 'extent')} with bytes that are no sound batches; merges copy them as they are, "
            f"nothing in them is deduped. The first: offsets {first.base_offset} to {first.last_offset} of file "
            f"{first.file_id}: {first.flagged_reason}.",
            f"look at it with `siltstone file inspect {first.key} --batches{case.places}`, and write "
            "anew what you need of it",
        )


# ---- unreadable batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What one merge said of one partition."""

    job: MergeJob
    batches: int
    first_offset: int
    reason: str


def unreadable(case: Case) -> Iterator[Reason]:
    """By the merges that wrote what the partition consists of now."""
    view = case.state.view
    told = [one for job in case.evidence.unreadable_jobs for one in _told(job, view.partition_id)]
    writers = _writers(case)
    told = [one for one in told if _may_be_there(one, view.log_start_offset)]
    present = [one for one in told if one.job.job_id in writers]
    if not present:
        return
    batches = sum(one.batches for one in present)
    first = min(present, key=lambda one: one.first_offset)
    since = min(told, key=lambda one: one.job.job_id).job
    key = next(
        (each.key for each in view.extents if each.base_offset <= first.first_offset <= each.last_offset),
        view.extents[-1].key,
    )
    job = f"job {since.job_id} ({since.kind})"
    ago = ago_text(since, case.evidence.now_ms)
    where = f"the first at offset {first.first_offset}"
    if first.first_offset < view.log_start_offset:
        where = f"of which those below the log start ({view.log_start_offset}) are deleted since; the first was at "
        where += f"offset {first.first_offset}"
    yield case.reason(
        "unreadable batches",
        f"has {batches:,} {'batch' if batches == 1 else 'batches'} whose records cannot be read, {where}: "
        f"{first.reason.rstrip('.')}. Known since {job}{ago}. Merges leave them as they are; consumers are given what "
        "the producer sent, and fail or skip there as they would with Kafka. They may hide an old value of any key, so "
        "tombstones from the first on stay.",
        f"look with `siltstone file inspect {key} --batches{case.places}`, and find the producer that writes them; a "
        "consumer that fails there can seek behind them. To be rid of them, copy the rest to another topic",
    )


def _told(job: MergeJob, partition_id: int) -> Iterator[Unreadable]:
    """Raises nothing for a result of another release: what does not read is left out."""
    rows = job.result.get(UNREADABLE)
    for row in cast(Sequence[Any], rows) if isinstance(rows, list) else ():
        match row:
            case {"partition_id": int(of), "batches": int(batches), "first_offset": int(first), **rest}:
                if of == partition_id:
                    said = str(rest.get("reason", ""))
                    yield Unreadable(job=job, batches=batches, first_offset=first, reason=said)
            case _:
                continue


def _writers(case: Case) -> frozenset[int]:
    """Ids of the jobs that wrote the files in which the partition has live extents."""
    view = case.evidence.view
    runs = {file.file_id: file.run_id for file in view.files} if view is not None else {}
    return frozenset(runs.get(extent.file_id, -1) for extent in case.state.view.extents)


def ago_text(job: MergeJob, now_ms: int) -> str:
    """ " 2m00s ago", since it ended; empty where that is not known."""
    return "" if job.finished_ms is None else f" {age_text(now_ms - job.finished_ms)} ago"


def _may_be_there(one: Unreadable, log_start_offset: int) -> bool:
    return one.batches > 1 or one.first_offset >= log_start_offset
