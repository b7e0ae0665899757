"""Why the planner did not plan something that a rule asks for. Pure.

`siltstone topics explain` turns these notes into sentences; `compactor/planning/draft.py` collects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from compactor.planning.spec import MergeKind


def count_text(count: int, noun: str) -> str:
    """For reasons and notes: 2, "L0 file" -> "2 L0 files"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Blocker(Enum):
    """The thing that stands in the way of a job that a rule asks for.

    The value is the code of `siltstone topics explain`, whose texts are in `siltstone/ops/compaction/causes.py`.
    """

    JOBS = "no place for jobs"
    """No slot for a job that compactors run themselves."""
    HEAVY_JOBS = "no place for heavy jobs"
    """No slot for a job that Spark runs."""
    L0_JOBS = "no place for L0 jobs"
    """No slot for a job of L0 files."""
    FORCED_PASSES = "held by passes"
    """Forced passes hold extents of its files."""
    MERGE = "held by a merge"
    """A merge that runs, or that this plan starts, holds its records."""
    RESERVED = "kept free"
    """Its files are kept free for a merge of whole runs."""
    TROUBLE = "held by trouble"
    """A merge of its files failed."""
    SIZE = "too large"
    """It is larger than a merge may be."""
    CONFIG = "bad config"
    """A config of its topic cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why one thing is not planned although a rule asks for it. For people."""

    rule: MergeKind
    text: str
    blocker: Blocker
    partition_id: int | None = None
    file_ids: tuple[int, ...] = ()
    held_from: int | None = None
    """The first offset of the partition that another job holds; None when no job is in the way."""
