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
    """The thing that stands in the way of a job that a rule asks for."""

    JOBS = "as many jobs are live as may be"
    HEAVY_JOBS = "as many jobs are live on Spark as may be"
    L0_JOBS = "as many jobs of L0 files are live as may be"
    FORCED_PASSES = "forced passes hold extents of its files"
    MERGE = "a merge that runs, or that this plan starts, holds its records"
    RESERVED = "its files are kept free for a merge of whole runs"
    TROUBLE = "a merge of its files failed"
    SIZE = "it is larger than a merge may be"
    CONFIG = "a config of its topic cannot be read"


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
