"""The files of L0, L1 and L2 as `siltstone levels` shows them, by class and by run. Pure: from a CompactionView.

A *run* is the output of one merge: one file or several. Sizes are bytes of live files. Live bytes are those of live
extents; the rest of a file is dead until a merge rewrites the file, or its last extent dies. The live share is counted
of the *payload*, so a file without dead extents is 100 % live, whatever its index takes. For a file with dead extents
the size of its index is not known here, so the size of the whole file is used instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metadata.contract.compactors import CompactionView, FileView
from metadata.contract.leveled import FileClass
from metadata.rules.jobs import rests
from runtime.text import age_text, plural, size_text

RUNS_SHOWN = 12
"""Runs of one level and class in a picture; JSON has all of them."""
BAR_CELLS = 40
BAR_CELLS_MIN = 8
NOTES_CELLS = 56
"""Usual width of the text beside a bar."""
COLUMNS = BAR_CELLS + NOTES_CELLS
LIVE, DEAD = "█", "░"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The live files that one merge wrote."""

    run_id: int
    """The job's id."""
    files: int
    size_bytes: int
    live_bytes: int
    payload_bytes: int
    lo: int
    hi: int
    """The range of L0 file ids from which it was merged."""
    created_ms: int
    busy: bool
    """A live job has some of its files as input."""
    in_trouble: bool
    """A merge of it failed, and it is left alone for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelClass:
    """One level's files of one class; L0 has no class, and its files are one entry without runs."""

    level: int
    file_class: FileClass | None
    files: int
    size_bytes: int
    live_bytes: int
    payload_bytes: int
    lo: int
    hi: int
    oldest_ms: int
    busy_files: int
    runs: Sequence[Run]
    """In order of `lo`; none for L0."""

    @property
    def name(self) -> str:
        return f"L{self.level}" if self.file_class is None else f"L{self.level} {self.file_class.value}"


def levels_of(view: CompactionView) -> Sequence[LevelClass]:
    """L0 first, then L1 and L2, plain before compacted, without empty ones."""
    groups: dict[tuple[int, str], list[FileView]] = defaultdict(list)
    for file in view.files:
        groups[(file.level, "" if file.file_class is None else _CLASS_ORDER[file.file_class])].append(file)
    return [_level_class(files, view) for _, files in sorted(groups.items())]


_CLASS_ORDER: Mapping[FileClass, str] = {FileClass.PLAIN: "1", FileClass.COMPACTED: "2"}


def _level_class(files: Sequence[FileView], view: CompactionView) -> LevelClass:
    level = files[0].level
    runs: dict[int, list[FileView]] = defaultdict(list)
    for file in files if level else ():
        runs[file.run_id].append(file)
    return LevelClass(
        level=level,
        file_class=files[0].file_class,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        live_bytes=sum(file.live_bytes for file in files),
        payload_bytes=sum(map(payload_bytes_of, files)),
        lo=min(file.lo for file in files),
        hi=max(file.hi for file in files),
        oldest_ms=min(file.created_ms for file in files),
        busy_files=sum(file.file_id in view.busy_files for file in files),
        runs=sorted((_run(of_run, view) for of_run in runs.values()), key=lambda run: (run.lo, run.run_id)),
    )


def _run(files: Sequence[FileView], view: CompactionView) -> Run:
    return Run(
        run_id=files[0].run_id,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        live_bytes=sum(file.live_bytes for file in files),
        payload_bytes=sum(map(payload_bytes_of, files)),
        lo=min(file.lo for file in files),
        hi=max(file.hi for file in files),
        created_ms=min(file.created_ms for file in files),
        busy=any(file.file_id in view.busy_files for file in files),
        in_trouble=any(rests(file.trouble_until_ms, view.now_ms) for file in files),
    )


def payload_bytes_of(file: FileView) -> int:
    """The bytes of which `live_bytes` is a share."""
    return file.live_bytes if file.oldest_dead_ms is None else file.size_bytes


def levels_json(levels: Iterable[LevelClass]) -> list[dict[str, Any]]:
    return [
        {
            "level": each.level,
            "class": each.file_class.value if each.file_class else None,
            "files": each.files,
            "size_bytes": each.size_bytes,
            "live_bytes": each.live_bytes,
            "payload_bytes": each.payload_bytes,
            "lo": each.lo,
            "hi": each.hi,
            "oldest_ms": each.oldest_ms,
            "busy_files": each.busy_files,
            "runs": [
                {
                    "job_id": run.run_id,
                    "files": run.files,
                    "size_bytes": run.size_bytes,
                    "live_bytes": run.live_bytes,
                    "payload_bytes": run.payload_bytes,
                    "lo": run.lo,
                    "hi": run.hi,
                    "created_ms": run.created_ms,
                    "busy": run.busy,
                    "in_trouble": run.in_trouble,
                }
                for run in each.runs
            ],
        }
        for each in levels
    ]


# ---- the picture ---------------------------------------------------------------------------------------------------


def picture(levels: Sequence[LevelClass], now_ms: int, *, runs_shown: int = RUNS_SHOWN, columns: int = COLUMNS) -> str:
    """The levels as text: a heading for each level and class, a bar for each run, as long as its bytes.

    All bars share one scale, that of the largest run; the dead share of a bar is shaded. With more than `runs_shown`
    runs only the largest are shown, still in order of `lo`. Bars are shorter on a terminal with fewer `columns`.
    """
    if not levels:
        return "no live files"
    cells = max(BAR_CELLS_MIN, min(BAR_CELLS, columns - NOTES_CELLS))
    scale = max(max((run.size_bytes for run in each.runs), default=each.size_bytes) for each in levels)
    lines: list[str] = []
    for each in levels:
        lines += ["", _heading(each, now_ms)] if lines else [_heading(each, now_ms)]
        if not each.level:
            lines.append(f"  {bar(each.size_bytes, each.live_bytes / max(each.payload_bytes, 1), scale, cells)}")
            continue
        shown = sorted(sorted(each.runs, key=_largest_first)[:runs_shown], key=lambda run: (run.lo, run.run_id))
        width = len(str(max(run.run_id for run in shown)))
        lines += [_run_line(run, scale, width, cells) for run in shown]
        if len(each.runs) > len(shown):
            left = sum(run.size_bytes for run in each.runs) - sum(run.size_bytes for run in shown)
            lines.append(f"  and {plural(len(each.runs) - len(shown), 'smaller run')}, {size_text(left)}")
    return "\n".join(lines)


def bar(size_bytes: int, live_fraction: float, scale_bytes: int, cells: int = BAR_CELLS) -> str:
    """Filled for live bytes, shaded for dead ones. Any size but 0 gets at least one cell."""
    if not size_bytes:
        return ""
    drawn = max(1, round(size_bytes / max(scale_bytes, 1) * cells))
    live = min(drawn, max(1 if live_fraction else 0, round(live_fraction * drawn)))
    return LIVE * live + DEAD * (drawn - live)


def share(part: float, whole: float) -> str:
    """ "91 %", or "-" of nothing."""
    return f"{part / whole:.0%}".replace("%", " %") if whole else "-"


def _heading(each: LevelClass, now_ms: int) -> str:
    parts = [each.name, plural(each.files, "file"), size_text(each.size_bytes)]
    if each.level:
        parts.insert(1, plural(len(each.runs), "run"))
        parts.append(f"{share(each.live_bytes, each.payload_bytes)} live")
    parts.append(f"L0 ids {each.lo}..{each.hi}")
    parts.append(f"oldest {age_text(now_ms - each.oldest_ms)}")
    if each.busy_files:
        parts.append(f"{each.busy_files:,} being merged")
    return "  ".join(parts)


def _run_line(run: Run, scale_bytes: int, width: int, cells: int) -> str:
    drawn = bar(run.size_bytes, run.live_bytes / max(run.payload_bytes, 1), scale_bytes, cells)
    notes = [
        size_text(run.size_bytes),
        f"{share(run.live_bytes, run.payload_bytes)} live",
        f"lo..hi {run.lo}..{run.hi}",
    ]
    if run.files > 1:
        notes.insert(1, plural(run.files, "file"))
    notes += ["being merged"] if run.busy else []
    notes += ["left alone: a merge of it failed"] if run.in_trouble else []
    return f"  run {run.run_id:>{width}}  {drawn} {'  '.join(notes)}"


def _largest_first(run: Run) -> tuple[int, int]:
    return -run.size_bytes, run.lo
