"""Who runs the units of a heavy merge: the seam to Spark, or to whatever else runs tasks. Values and protocols only.

A submitter is told where the plan lies and starts a driver; the driver runs every unit that has no manifest yet. What
a submitter says of its driver is a hint: the truth is which manifests are in the store. Nothing rests on there being
one driver: units that two drivers run are done twice, and the first finished try of each counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from runtime.errors import SiltstoneError, UnavailableError


class Phase(StrEnum):
    PENDING = "pending"
    """Accepted; it waits for room."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Ended badly, or was cancelled."""

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class SubmissionState(NamedTuple):
    phase: Phase
    detail: str = ""
    """For people: the last lines of the driver's log, or the cluster's own words."""


class SubmitError(SiltstoneError):
    """The cluster cannot be asked as we are set up, or refuses: asking again does not help."""


class SubmitUnavailableError(UnavailableError):
    """The cluster does not answer, or has no room. Ask again later."""


class Submission(Protocol):
    """A driver that was asked for."""

    async def state(self) -> SubmissionState:
        """Raises SubmitUnavailableError."""
        ...

    async def cancel(self) -> None:
        """Ask it to end, and let go of what we hold of it. No error when it is over already."""
        ...

    async def let_go(self) -> None:
        """As `cancel`, but where asking by its token gives this same driver to another, it runs on for him."""
        ...


class Submitter(Protocol):
    @property
    def name(self) -> str:
        """As the setting `spark.submitter` has it."""
        ...

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> Submission:
        """Start a driver for the plan at `plan_url`, to be ended by the cluster after `limit_ms`.

        `token` (at most 64 letters, digits and `-`) is the same whenever the same driver is meant: where the cluster
        honours it, asking twice gives the one submission, also after a restart of the compactor, and also when that
        driver is over. Where it does not, a second driver runs beside the first. Raises SubmitError and
        SubmitUnavailableError.
        """
        ...
