"""How long a merge job and its inputs rest after trouble, when a lease holds, and the errors of lost jobs and of inputs
that cannot be taken. Pure; both metadata stores use it.

When a compactor gives a job back because of trouble with a store, the job rests, each time for longer, and compactors
claim other jobs meanwhile. After several times the job fails. The planner then leaves the unreadable files alone and
plans around them. So an unreadable object delays only its own merge.

No rest is longer than `REST_MS_MAX`. A rest that seems longer began before the store's clock went back, and counts as
over. In the same way, a lease that seems to end later than any lease can counts as over; if its holder is alive, the
next heartbeat restores the lease. `LEASE_SLACK` makes sure that a small step back of the clock ends no lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metadata.contract.jobs import InputsBusyError, JobLostError

EXHAUSTED_RETRY_MS, EXHAUSTED_AGAIN_RETRY_MS, AGAIN_WITHIN_MS = 60_000, 600_000, 3_600_000
"""After a job failed because all its holders vanished: how long the planner leaves its inputs alone, how long those
inputs that were in trouble before, and how recent that earlier trouble must be."""
REFUSED_RETRY_MS = 60_000
"""How long the planner leaves the inputs of a refused commit alone."""
GIVE_BACKS_MAX = 10
"""Give-backs with trouble per job: the last one fails the job."""
GIVE_BACK_REST_MS, GIVE_BACK_REST_MS_MAX = 1_000, 60_000
"""The first and the longest rest of a job that was given back with trouble."""
UNREADABLE_RETRY_MS, UNWRITTEN_RETRY_MS = 600_000, 60_000
"""After the last give-back: how long the planner leaves the unreadable files alone, or all inputs when no file is to
blame."""
UNREADABLE = "unreadable"
"""The key of a job's result that lists batches in its outputs whose records cannot be read. The row of such a job stays
while a file that it wrote lives."""
OBJECT_MISSING = "is not in the object store"
"""Part of the error of a merge whose input object is missing. The error is stored with the job and with the file, and
`siltstone topics explain` tells a lost object by this part."""
PAST_LIMIT = "past its time limit: the horizons that it stamped are no longer valid"
STEP_CHARS_MAX = 500
"""Characters of the last step in the error of a job past its limit."""
REST_MS_MAX = 3_600_000
"""The longest rest that a caller may request: one hour."""


INPUTS_NAMED_MAX = 5
LEASE_SLACK = 2
"""A lease holds while it seems at most this many times as long as a lease can be."""


def give_back_rest_ms(give_backs: int) -> int:
    """The rest of a job after `give_backs` (at least 1) give-backs with trouble: 1 s, 2 s, 4 s, ... 60 s."""
    # Bound the shift, so that no count makes a huge number; the longest rest is reached long before.
    return min(GIVE_BACK_REST_MS << min(give_backs - 1, 16), GIVE_BACK_REST_MS_MAX)


def rests(until_ms: int, now_ms: int) -> bool:
    """Whether a rest that ends at `until_ms` still runs."""
    return now_ms < until_ms <= now_ms + REST_MS_MAX


def holds(until_ms: int | None, now_ms: int, lease_ms: int) -> bool:
    """Whether a lease of `lease_ms` that ends at `until_ms` (None: it was ended) still runs."""
    return until_ms is not None and now_ms < until_ms <= now_ms + LEASE_SLACK * lease_ms


def past_limit(progress: Mapping[str, object] | None) -> str:
    """The error of a job past its time limit. It names the last step, which often shows the reason, for example a Spark
    cluster that never started."""
    step = "" if progress is None else str(progress.get("step", ""))
    return PAST_LIMIT + (f"; its last step: {step[:STEP_CHARS_MAX]}" if step else "")


def job_lost(job_id: int, epoch: int) -> JobLostError:
    return JobLostError(f"job {job_id} is no longer held under epoch {epoch}")


def job_late(job_id: int) -> JobLostError:
    """For the holder of a job past its time limit; the job has failed."""
    return JobLostError(f"job {job_id}: {PAST_LIMIT}")


def given_up(attempts: int) -> str:
    """The error of a job whose holders all vanished."""
    return f"given up: {attempts} compactors took this job and vanished"


def inputs_not_live(ids: Iterable[int]) -> InputsBusyError:
    """`ids`: of extents or of files. The error names at most INPUTS_NAMED_MAX of them."""
    return InputsBusyError(f"some of the wanted inputs are not live: {sorted(ids)[:INPUTS_NAMED_MAX]}")


def inputs_held() -> InputsBusyError:
    return InputsBusyError("another live job holds one of these inputs")
