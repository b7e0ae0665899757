"""Files rewritten without their dead bytes: to free space, and because deleted bytes have a deadline. Pure.

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


def plan_overdue(draft: PlanDraft) -> None:
    """Files whose dead bytes must go. Runs before every other rule that wants the same files."""
    overdue = [each for each in draft.view.files if each.level in PURGED_LEVELS and _is_overdue(draft, each)]
    _plan(draft, overdue, "dead bytes reach the purge deadline")


def plan_mostly_dead(draft: PlanDraft) -> None:
    """Files rewritten for their space alone, so files that expire soon are left to retention."""
    mostly_dead = [
        each
        for each in draft.view.files
        if each.level in PURGED_LEVELS and _is_mostly_dead(draft, each) and not draft.view.is_expiring(each)
    ]
    _plan(draft, mostly_dead, "mostly dead")


def _is_overdue(draft: PlanDraft, file: FileView) -> bool:
    return file.oldest_dead_ms is not None and draft.now_ms - file.oldest_dead_ms > rewrite_after_ms(draft.options)


def _is_mostly_dead(draft: PlanDraft, file: FileView) -> bool:
    dead = file.size_bytes - file.live_bytes
    return (
        file.oldest_dead_ms is not None
        and dead > file.size_bytes * draft.options.mostly_dead_fraction
        and dead >= draft.options.mostly_dead_bytes_min
    )


def _plan(draft: PlanDraft, files: Sequence[FileView], why: str) -> None:
    ready: dict[tuple[int, FileClass | None], list[FileView]] = defaultdict(list)
    for file in files:
        match draft.status(file):
            case FileStatus.FREE | FileStatus.EXPIRING:
                ready[file.level, file.file_class].append(file)
            case FileStatus.PARTLY_BUSY:
                if (slots := draft.slots.for_size(file.live_bytes)).merges:
                    # The slot is kept and the file reserved, so that the forced passes cannot follow each other in it
                    # without end.
                    slots.keep_merge()
                    draft.reserve([file])
                text = f"file {file.file_id}: {why}, held by a forced pass"
                draft.note(MergeKind.PURGE, text, Blocker.FORCED_PASSES, files=[file])
            case FileStatus.IN_TROUBLE:
                text = f"file {file.file_id}: {why}, but a merge of it failed"
                draft.note(MergeKind.PURGE, text, Blocker.TROUBLE, files=[file])
            case FileStatus.TAKEN:
                pass  # the job that holds it rewrites it as well
    for (level, _), group in sorted(ready.items()):
        for batch in _batches(group, draft.options.output_bytes):
            slots = draft.slots.for_size(sum(each.live_bytes for each in batch))
            if not slots.merges:
                text = f"{count_text(len(batch), 'file')}: {why}, all jobs{slots.engine_text} are taken"
                draft.note(MergeKind.PURGE, text, slots.blocker, files=batch)
                continue
            reason = f"{count_text(len(batch), f'L{level} file')}: {why}"
            # L1 files stay at L1, and dedupe begins at L2.
            draft.add_merge(MergeKind.PURGE, batch, level=level, dedupe=level > 1, reason=reason)


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
