"""The seam between heavy merges and Spark (or another system that runs tasks). Values and protocols only.

A submitter gets the URL of a plan and starts a driver; the driver runs every unit that has no manifest yet. The state
that a submitter reports is a hint; the manifests in the store are the truth. Two drivers at once do no harm: they do
units twice, and the first finished try of each unit counts.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple, Protocol

from runtime.errors import SiltstoneError, UnavailableError

WORDS_CHARS_MAX = 200
_FRAME = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more)")
"""A line of a JVM's stack trace."""


class Phase(StrEnum):
    PENDING = "pending"
    """Accepted; waits for capacity."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Failed, or was cancelled."""

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class SubmissionState(NamedTuple):
    phase: Phase
    detail: str = ""
    """For people: the last lines of the driver's log, or the cluster's message."""

    @property
    def last_words(self) -> str:
        """The driver's last line that is no stack frame, for people."""
        lines = [line.strip() for line in self.detail.splitlines() if line.strip() and not _FRAME.match(line)]
        return lines[-1][:WORDS_CHARS_MAX] if lines else ""


class SubmitError(SiltstoneError):
    """The cluster refuses, or the compactor's settings do not allow a request. A retry does not help."""


class SubmitUnavailableError(UnavailableError):
    """The cluster does not answer, or has no capacity. Try again later."""


class Submission(Protocol):
    """A submitted driver."""

    async def state(self) -> SubmissionState:
        """Raises SubmitUnavailableError."""
        ...

    async def cancel(self) -> None:
        """Asks the driver to end and frees local resources. No error if it has ended already."""
        ...

    async def let_go(self) -> None:
        """As `cancel`, but if the cluster honours tokens, the driver runs on for the compactor that uses its token."""
        ...


class Submitter(Protocol):
    @property
    def name(self) -> str:
        """The value of the setting `spark.submitter`."""
        ...

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> Submission:
        """Starts a driver for the plan at `plan_url`. The cluster ends it after `limit_ms`.

        `token` (at most 64 letters, digits and `-`) identifies the driver. If the cluster honours tokens, a second
        submission with the same token returns the first one, even after a restart of the compactor and after the driver
        has ended. Otherwise a second driver runs beside the first. Raises SubmitError and SubmitUnavailableError.
        """
        ...
