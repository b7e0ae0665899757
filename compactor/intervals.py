"""How often a compactor's loops come round, where no setting says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Constants in production; tests pass shorter ones to `Compactor`."""

    plan_interval_ms: int = 1_000
    """Between two looks for something to merge. An idle loop comes round more rarely (`compactor/loop.py`)."""
    janitor_interval_ms: int = 60_000
    """Between two deletions of dead files. They have waited for `gc.grace.ms`; a minute more costs next to nothing."""
    orphan_check_interval_ms: int = 900_000
    """Between two listings of the object store. Each costs a LIST request per 1,000 objects."""
