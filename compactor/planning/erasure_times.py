"""When an erasure can be done at the earliest, and when merges for its sake alone begin. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compactor.planning.assembly import limit_ms
from compactor.planning.spec import PlanOptions

JANITOR_ROUND_MS = 60_000
"""Between two rounds of the janitor."""
SLACK_MS = 10_000
"""For planning, claims and the last listing."""


class TimePart(NamedTuple):
    """A part of the time from a request to its end."""

    what: str
    took_ms: int
    """At most, while compactors run and nothing holds the erasure back."""


def time_parts(options: PlanOptions, *, wait_ms: int, rest_ms: int | None) -> Sequence[TimePart]:
    """The parts, none of them empty. `wait_ms`, `rest_ms`: as in `NewErasure`; None: no tombstone goes."""
    limit = limit_ms(options, options.output_bytes)
    parts = [
        TimePart("min.compaction.lag.ms", wait_ms),
        TimePart("the wait of L0 files", options.l0_wait_ms_max),
        TimePart("the merge of L0 files", limit),
        TimePart("the rewrite of files", limit),
    ]
    if rest_ms is not None:
        parts += [TimePart("delete.retention.ms", rest_ms), TimePart("the rewrite without tombstones", limit)]
    parts += [
        TimePart("gc.grace.ms", options.grace_ms),
        TimePart("the janitor's round", JANITOR_ROUND_MS),
        TimePart("the last check", SLACK_MS),
    ]
    return [each for each in parts if each.took_ms]


def earliest_ms(parts: Sequence[TimePart]) -> int:
    """The shortest deadline that can be kept, from the request on."""
    return sum(each.took_ms for each in parts)


def begin_after_ms(deadline_ms: int, parts: Sequence[TimePart]) -> int:
    """How long the erasure profits from rewrites that happen anyway: half of the time that it can spare."""
    return max(0, deadline_ms - earliest_ms(parts)) // 2
