"""What is due and not planned, and what stands in its way: the planner's own notes as sentences. Rules of an
explanation. Pure.

Where a setting stands in the way, it is named with its value as this command has it, and said to be one of the
compactors'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactor.planning.notes import Blocker, Note
from compactor.planning.spec import MergeKind
from metadata.contract.compaction import JobState, MergeJob
from runtime.text import plural, size_text
from siltstone.ops.compaction.evidence import Case, Reason
from siltstone.ops.compaction.waits import numbers_text
from siltstone.processes.spark_note import HOW_TO_ADD_SPARK

CODES = {
    Blocker.JOBS: "no place for jobs",
    Blocker.HEAVY_JOBS: "no place for heavy jobs",
    Blocker.L0_JOBS: "no place for L0 jobs",
    Blocker.FORCED_PASSES: "held by passes",
    Blocker.MERGE: "held by a merge",
    Blocker.RESERVED: "kept free",
    Blocker.TROUBLE: "held by trouble",
    Blocker.SIZE: "too large",
    Blocker.CONFIG: "bad config",
}


def notes_of(case: Case) -> Sequence[Note]:
    """Those that concern the partition, or a file that holds some of it.

    That L0 files are left alone for trouble is said of each of them elsewhere. That they wait for a place concerns
    whoever has records in L0.
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


def pass_note(case: Case) -> Note | None:
    """Why a pass over this partition alone is due and not planned."""
    partition_id = case.state.view.partition_id
    return next((each for each in notes_of(case) if each.partition_id == partition_id), None)


def not_planned(case: Case) -> Iterator[Reason]:
    for note in notes_of(case):
        why, remedy = _why(case, note)
        says = f"{_subject(case, note)}{': ' if why else ''}{why}"
        yield case.reason(CODES[note.blocker], f"{says}.", remedy)


def _subject(case: Case, note: Note) -> str:
    if note.blocker is Blocker.CONFIG:  # begins with the partition's name
        return note.text.removeprefix(f"{case.topic}-{case.state.view.partition} ")
    if note.partition_id is not None:
        return f"is not planned: {note.text}"
    if note.blocker is Blocker.L0_JOBS:
        return f"has records in L0, where {note.text}"
    return f"has records in files that wait for a merge: {note.text}"


def _why(case: Case, note: Note) -> tuple[str, str]:
    """What goes on from the planner's words, and what to do."""
    options, words = case.evidence.options, case.evidence.words
    match note.blocker:
        case Blocker.JOBS | Blocker.HEAVY_JOBS:
            is_heavy = note.blocker is Blocker.HEAVY_JOBS
            if note.rule is MergeKind.FORCED and _passes(case, is_heavy=is_heavy) >= options.forced_jobs_max:
                most = f"at most {options.forced_jobs_max} passes over one partition are planned at once"
                return most, f"wait until one ends; with more compactors they run sooner: `{words.compactor}`"
            if is_heavy:
                says = f"compactor.heavy.jobs.max is {options.heavy_jobs_max}, and so many run on Spark or wait for it"
                return says, f"`siltstone jobs list{words.places}` shows what they do"
            return f"compactor.jobs.max is {options.jobs_max}", _more_places(case, "compactor.jobs.max")
        case Blocker.L0_JOBS:
            return f"compactor.l0.jobs.max is {options.l0_jobs_max}", _more_places(case, "compactor.l0.jobs.max")
        case Blocker.FORCED_PASSES:
            held = _jobs_text(each for each in case.evidence.jobs if each.kind == MergeKind.FORCED)
            return held, f"wait until they end: `siltstone jobs list --state running{words.places}`"
        case Blocker.MERGE:
            holders = list(_holders(case, note))
            if not holders:
                return "a merge that runs, or is planned at the same time, has them", "wait"
            show = f"`siltstone jobs show {holders[0].job_id}{words.places}`"
            return f"{_jobs_text(holders)} {'has' if len(holders) == 1 else 'have'} them", f"wait until it ends: {show}"
        case Blocker.RESERVED:
            return (
                "their files are kept free for a merge of whole runs, which waits for passes that hold some of them",
                "wait",
            )
        case Blocker.TROUBLE:
            jobs = f"`siltstone jobs list --state failed{words.places}`"
            return "", f"{jobs} says why, `siltstone fsck{words.places}` what is damaged"
        case Blocker.SIZE:
            most = size_text(options.merge_bytes_max)
            says = f"compaction.merge.bytes.max is {most}; its superseded records and tombstones stay"
            return says, f"raise compaction.merge.bytes.max of the compactors, or give them Spark: {HOW_TO_ADD_SPARK}"
        case Blocker.CONFIG:
            return "", f"set it anew: `siltstone topics alter {case.topic} --config NAME=VALUE{words.agents}`"


def _passes(case: Case, *, is_heavy: bool) -> int:
    """Passes over one partition that are live, or planned beside what the note is about; on Spark or here."""
    view, plan = case.evidence.view, case.evidence.plan
    sizes = list(view.live_jobs.get(MergeKind.FORCED, ())) if view is not None else []
    sizes += [each.input_bytes for each in (plan.specs if plan is not None else ()) if each.kind is MergeKind.FORCED]
    return sum(case.evidence.options.is_heavy(size) is is_heavy for size in sizes)


def _more_places(case: Case, setting: str) -> str:
    ready = sum(each.state is JobState.READY for each in case.evidence.jobs)
    if ready:
        wait = "waits" if ready == 1 else "wait"
        return (
            f"{plural(ready, 'planned job')} {wait} for a compactor: start more with `{case.evidence.words.compactor}`"
        )
    return f"wait, or raise {setting} of the compactors and start more: `{case.evidence.words.compactor}`"


def _holders(case: Case, note: Note) -> Iterator[MergeJob]:
    """Live jobs that have the extent at which the pass would end."""
    view = case.state.view
    at = note.held_from if note.held_from is not None else view.log_start_offset
    extent = next((each for each in view.extents if each.last_offset >= at), None)
    for job in case.evidence.jobs:
        if extent is None or job.state not in (JobState.READY, JobState.RUNNING):
            continue
        if extent.extent_id in job.spec.get("extent_ids", ()) or extent.file_id in job.spec.get("file_ids", ()):
            yield job


def _jobs_text(jobs: Iterator[MergeJob] | Sequence[MergeJob]) -> str:
    """ "job 12 (merge)", "jobs 12-14"; empty for none."""
    found = list(jobs)
    if len(found) == 1:
        return f"job {found[0].job_id} ({found[0].kind})"
    return f"jobs {numbers_text(each.job_id for each in found)}" if found else ""
