"""Files rewritten at their level: without the records of erased keys, and without their dead bytes. Pure.

A file that holds records of erased keys is rewritten as soon as its erasure begins. Merges of all other kinds take such
records along, so it must be a merge of this kind, and it comes before all others that want the file.

A file leaves the store when its last extent dies. Until then it keeps the bytes of its dead extents: those of a deleted
topic, those below a moved log start, and those that a forced pass took out. A file that is mostly dead is rewritten for
its space. A file whose dead bytes reach the purge deadline is rewritten whatever its size and however soon it expires,
early enough that the bytes are deleted by the deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from compactor.planning.assembly import rewrite_after_ms
from compactor.planning.draft import PlanDraft
from compactor.planning.notes import Blocker, count_text
from compactor.planning.spec import MergeKind
from compactor.planning.view import FileStatus
from metadata.contract.compactors import FileView
from metadata.contract.leveled import FileClass

PURGED_LEVELS = (1, 2)
_ERASED = "records of erased keys"


def plan_erasures(draft: PlanDraft) -> None:
    """Files with records of erased keys. Runs before every other rule that wants the same files: what these make of a
    file still holds the records."""
    erasing = draft.view.erasing_files
    due = [each for each in draft.view.files if erasing.get(each.file_id, draft.now_ms + 1) <= draft.now_ms]
    for file in (each for each in due if _gives_way(draft, each)):
        text = f"file {file.file_id}: {_ERASED}, but a merge of it failed, and others may take it before this one"
        draft.note(MergeKind.ERASE, text, Blocker.TROUBLE, files=[file])
    _plan(draft, MergeKind.ERASE, [each for each in due if not _gives_way(draft, each)], _ERASED)


def _gives_way(draft: PlanDraft, file: FileView) -> bool:
    """Whether the rest of a file after a failed merge is just over. A batch that cannot be read fails every erasing
    merge of its file and no other merge, so an erasure that came first each time would keep all others away."""
    return file.trouble_until_ms > 0 and 0 <= draft.now_ms - file.trouble_until_ms < draft.options.erase_pause_ms


def plan_overdue(draft: PlanDraft) -> None:
    """Files whose dead bytes must go. Of the rules that want the same files, only the erasures come before."""
    overdue = [each for each in draft.view.files if each.level in PURGED_LEVELS and _is_overdue(draft, each)]
    _plan(draft, MergeKind.PURGE, overdue, "dead bytes reach the purge deadline")


def plan_mostly_dead(draft: PlanDraft) -> None:
    """Files rewritten for their space alone, so files that expire soon are left to retention."""
    mostly_dead = [
        each
        for each in draft.view.files
        if each.level in PURGED_LEVELS and _is_mostly_dead(draft, each) and not draft.view.is_expiring(each)
    ]
    _plan(draft, MergeKind.PURGE, mostly_dead, "mostly dead")


def _is_overdue(draft: PlanDraft, file: FileView) -> bool:
    return file.oldest_dead_ms is not None and draft.now_ms - file.oldest_dead_ms > rewrite_after_ms(draft.options)


def _is_mostly_dead(draft: PlanDraft, file: FileView) -> bool:
    dead = file.size_bytes - file.live_bytes
    return (
        file.oldest_dead_ms is not None
        and dead > file.size_bytes * draft.options.mostly_dead_fraction
        and dead >= draft.options.mostly_dead_bytes_min
    )


def _plan(draft: PlanDraft, kind: MergeKind, files: Sequence[FileView], why: str) -> None:
    ready: dict[tuple[int, FileClass | None], list[FileView]] = defaultdict(list)
    for file in files:
        match draft.status(file):
            case FileStatus.FREE | FileStatus.EXPIRING:
                ready[file.level, file.file_class].append(file)
            case FileStatus.PARTLY_BUSY:
                if (slots := draft.slots.for_size(file.live_bytes, kind)).merges:
                    # The slot is kept and the file reserved, so that the forced passes cannot follow each other in it
                    # without end.
                    slots.keep_merge()
                    draft.reserve([file])
                text = f"file {file.file_id}: {why}, held by a forced pass"
                draft.note(kind, text, Blocker.FORCED_PASSES, files=[file])
            case FileStatus.IN_TROUBLE:
                text = f"file {file.file_id}: {why}, but a merge of it failed"
                draft.note(kind, text, Blocker.TROUBLE, files=[file])
            case FileStatus.TAKEN:
                # A job that holds it rewrites it without its dead bytes, but only a job of this kind erases.
                if kind is MergeKind.ERASE:
                    draft.note(kind, f"file {file.file_id}: {why}, held by a merge", Blocker.MERGE, files=[file])
    for (level, _), group in sorted(ready.items()):
        for batch in _batches(group, draft.options.output_bytes):
            slots = draft.slots.for_size(sum(each.live_bytes for each in batch), kind)
            if not slots.merges:
                text = f"{count_text(len(batch), 'file')}: {why}, all jobs{slots.engine_text} are taken"
                draft.note(kind, text, slots.blocker, files=batch)
                continue
            reason = f"{count_text(len(batch), f'L{level} file')}: {why}"
            # L1 files stay at L1, and dedupe begins at L2. An erasing merge copies all that it does not erase.
            dedupe = level > 1 and kind is MergeKind.PURGE
            draft.add_merge(kind, batch, level=level, dedupe=dedupe, reason=reason)


def _batches(files: Sequence[FileView], bytes_max: int) -> Iterator[Sequence[FileView]]:
    """Small files together, in their order, so that a rewrite does not leave many tiny files."""
    batch: list[FileView] = []
    size = 0
    for file in files:
        if batch and size + file.live_bytes > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.live_bytes
    if batch:
        yield batch
