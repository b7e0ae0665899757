"""How long a merge job and its inputs rest after trouble, and when a lease holds. Pure; both metadata stores use it.

A job that is given back because a store is in trouble rests for longer every time, and others are claimed meanwhile; at
last it is failed and the files that could not be read are left alone, so that the planner plans around them. So one
object that cannot be read holds up nothing but itself.

No rest is longer than `REST_MS_MAX`: one that seems to be was begun before the store's clock went back, and is over. So
is a lease that seems to end later than any can; its holder, if it lives, has it again with its next beat. A small step
back takes no lease from anybody: that is what `LEASE_SLACK` is for.
"""

from __future__ import annotations

from collections.abc import Mapping

EXHAUSTED_RETRY_MS, EXHAUSTED_AGAIN_RETRY_MS, AGAIN_WITHIN_MS = 60_000, 600_000, 3_600_000
"""How long the inputs of a job whose holders all vanished are left alone, and those of them that were in trouble within
the last hour already."""
REFUSED_RETRY_MS = 60_000
"""How long the inputs of a refused commit are left alone."""
GIVE_BACKS_MAX = 10
"""For trouble; with the last of them the job is failed."""
GIVE_BACK_REST_MS, GIVE_BACK_REST_MS_MAX = 1_000, 60_000
UNREADABLE_RETRY_MS, UNWRITTEN_RETRY_MS = 600_000, 60_000
"""How long files are left alone that could not be read so often, and all inputs when none of them is to blame."""
UNREADABLE = "unreadable"
"""In a job's result: the batches in its outputs whose records cannot be read. The row of such a job is kept as long as
a file lives that it wrote."""
PAST_LIMIT = "past its time limit: the horizons it stamped do not hold any more"
STEP_CHARS_MAX = 500
REST_MS_MAX = 3_600_000
"""Nobody may ask for a longer one."""


LEASE_SLACK = 2
"""A lease may seem to be this many times as long as it can be."""


def give_back_rest_ms(give_backs: int) -> int:
    """Of a job that was given back so many times, at least once, for trouble: 1 s, 2 s, 4 s, ... 60 s."""
    return min(GIVE_BACK_REST_MS << min(give_backs - 1, 16), GIVE_BACK_REST_MS_MAX)


def rests(until_ms: int, now_ms: int) -> bool:
    """Whether a rest that ends at `until_ms` is not over."""
    return now_ms < until_ms <= now_ms + REST_MS_MAX


def holds(until_ms: int | None, now_ms: int, lease_ms: int) -> bool:
    """Whether a lease of `lease_ms` that ends at `until_ms` (None: was ended) is not over."""
    return until_ms is not None and now_ms < until_ms <= now_ms + LEASE_SLACK * lease_ms


def past_limit(progress: Mapping[str, object] | None) -> str:
    """The error of a job whose time is over: what it was at tells why, a cluster that never came up for one."""
    step = "" if progress is None else str(progress.get("step", ""))
    return PAST_LIMIT + (f"; it was at: {step[:STEP_CHARS_MAX]}" if step else "")
