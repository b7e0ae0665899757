"""Files rewritten for what is dead in them: to free the space, and because deleted bytes have a deadline. Pure.

A file leaves the store when its last extent dies. Until then the bytes of dead extents stay in it: of a deleted topic,
below a moved log start, or taken out by a forced pass. A file most of which is dead is rewritten for its space; a file
with anything dead for longer than the purge deadline is rewritten whatever its size and however soon it expires.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from compactor.planning.round import FileStatus, Hold, Round, count_text
from compactor.planning.spec import MergeKind
from metadata.contract.compaction import FileClass, FileView

PURGED_LEVELS = (1, 2)


def plan_overdue(state: Round) -> None:
    """Past the deadline: before everything else that wants the same files."""
    overdue = [each for each in state.files if each.level in PURGED_LEVELS and _is_overdue(state, each)]
    _plan(state, overdue, "bytes dead for longer than the purge deadline")


def plan_mostly_dead(state: Round) -> None:
    """Only for space: what expires soon is left to do so."""
    mostly_dead = [
        each
        for each in state.files
        if each.level in PURGED_LEVELS and _is_mostly_dead(state, each) and not state.is_expiring(each)
    ]
    _plan(state, mostly_dead, "mostly dead")


def _is_overdue(state: Round, file: FileView) -> bool:
    return file.oldest_dead_ms is not None and state.now_ms - file.oldest_dead_ms > state.options.purge_deadline_ms


def _is_mostly_dead(state: Round, file: FileView) -> bool:
    dead = file.size_bytes - file.live_bytes
    return (
        file.oldest_dead_ms is not None
        and dead > file.size_bytes * state.options.mostly_dead_fraction
        and dead >= state.options.mostly_dead_bytes_min
    )


def _plan(state: Round, files: Sequence[FileView], why: str) -> None:
    ready: dict[tuple[int, FileClass | None], list[FileView]] = defaultdict(list)
    for file in files:
        match state.status(file):
            case FileStatus.FREE | FileStatus.EXPIRING:
                ready[file.level, file.file_class].append(file)
            case FileStatus.PARTLY_BUSY:
                if (places := state.places(file.live_bytes)).merges:
                    places.keep_merge()
                    state.reserve([file])
                text = f"file {file.file_id}: {why}, held by a forced pass"
                state.note(MergeKind.PURGE, text, Hold.FORCED_PASSES, files=[file])
            case FileStatus.IN_TROUBLE:
                text = f"file {file.file_id}: {why}, but a merge of it failed"
                state.note(MergeKind.PURGE, text, Hold.TROUBLE, files=[file])
            case FileStatus.TAKEN:
                pass  # what it is input of rewrites it as well
    for (level, _), group in sorted(ready.items()):
        for batch in _batches(group, state.options.output_bytes):
            places = state.places(sum(each.live_bytes for each in batch))
            if not places.merges:
                text = f"{count_text(len(batch), 'file')}: {why}, all jobs{places.of} are taken"
                state.note(MergeKind.PURGE, text, places.hold, files=batch)
                continue
            reason = f"{count_text(len(batch), f'L{level} file')}: {why}"
            # An L1 file is not deduped before it goes to L2.
            state.add_merge(MergeKind.PURGE, batch, level=level, dedupe=level > 1, reason=reason)


def _batches(files: Sequence[FileView], bytes_max: int) -> Iterator[Sequence[FileView]]:
    """Small ones together, so that a rewrite does not leave crumbs; in their order."""
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
