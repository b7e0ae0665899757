"""Whether a neighbour is asked: one that failed or was late is left alone for a while, then tried once. Pure.

Without this rule, a frozen neighbour would cost every read of a file that it owns the wait for an answer.
"""

from __future__ import annotations

SHUT_MS = 3_000.0
"""How long a neighbour is not asked after a failure: longer than a beat, within which one that stopped in good order
leaves the list of agents. It doubles with each failed trial."""
SHUT_MS_MAX = 30_000.0


class Circuit:
    """Times are those of one monotonic clock, in ms."""

    __slots__ = ("_failed_ms", "_failures", "_trial_ms")

    def __init__(self) -> None:
        self._failures = 0
        self._failed_ms = 0.0
        self._trial_ms: float | None = None
        """When the one trial began that is under way."""

    def may_ask(self, now_ms: float) -> bool:
        """If True, the caller asks, and reports `worked`, `failed` or `gave_up`."""
        if not self._failures:
            return True
        if now_ms < self._failed_ms + self._shut_ms or self._trial_ms is not None:
            return False
        self._trial_ms = now_ms
        return True

    def worked(self) -> None:
        """It answered; `busy` is an answer too."""
        self._failures = 0
        self._trial_ms = None

    def gave_up(self) -> None:
        """The caller went away before it knew."""
        self._trial_ms = None

    def failed(self, asked_ms: float, now_ms: float) -> None:
        """It did not answer, or not in time, or wrongly, a request of `asked_ms`."""
        # Requests that were under way together fail together: that is one failure.
        if self._failures and asked_ms <= self._failed_ms:
            return
        self._failures += 1
        self._failed_ms = now_ms
        self._trial_ms = None

    @property
    def _shut_ms(self) -> float:
        return min(SHUT_MS * 2 ** min(self._failures - 1, 10), SHUT_MS_MAX)
