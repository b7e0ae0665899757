"""The numbers of a compactor that are no settings: constants in production; tests pass others to `Compactor`."""

from __future__ import annotations

from dataclasses import dataclass, field

from compactor.deletion.erasures import UPLOAD_AGE_MS
from compactor.planning.spec import PlanOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The times between rounds of the compactor's loops."""

    plan_interval_ms: int = 1_000
    """Between two runs of the planner, and between two attempts to claim a job. Idle loops wait longer
    (`compactor/loop.py`)."""
    janitor_interval_ms: int = 60_000
    """Between two deletions of dead files. They have waited for `gc.grace.ms`; a minute more costs next to nothing."""
    leftovers_interval_ms: int = 3_600_000
    """Between two listings of begun uploads, finished jobs and replaced parts of the metadata backup."""
    orphan_check_interval_ms: int = 4_000_000
    """Between two listings of the object store. Each costs a LIST request per 1,000 objects. With the loop's jitter
    (a tenth) there are never two in an hour."""
    retention_look_ms: int = 5_000
    """Between two looks at `log.retention.check.interval.ms`, if the setting is no shorter."""
    erase_interval_ms: int = 10_000
    """Between two looks at open erasures; up to five times as long while none is open (`compactor/loop.py`)."""
    upload_age_ms: int = UPLOAD_AGE_MS
    """Uploads as old as this, of writers that hold no job, are aborted when they hold an erasure back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    plan: PlanOptions = field(default_factory=PlanOptions)
    """The planner's numbers that are no settings; settings replace the others."""
    intervals: Intervals = field(default_factory=Intervals)
    in_thread: bool = True
    """Run kernels and the planner in threads. A simulation with an event loop of its own passes False."""
