"""A full object store, as producers feel it: while it takes no file, produce is refused at once, with the reason.

A PUT that the store refuses for want of space is not tried again (`storage/wrappers/retrying.py`), so its file is given
up. Until ASK_AGAIN_MS have passed, produce is refused without a PUT; then the next file asks again. So writing resumes
by itself when there is space. Reads, heartbeats and small objects of the catalogue go on meanwhile.
"""

from __future__ import annotations

from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.objects import StoreFullError

_log = get_logger(__name__)

ASK_AGAIN_MS = 2_000.0
"""Clients try again at once; a file for each of their tries would keep the disk busy for nothing."""
SAFE = "acknowledged records are safe and can be read"


class FullStore:
    def __init__(self, runtime: Runtime) -> None:
        self._clock, self._metrics = runtime.clock, runtime.metrics
        self._reason = ""
        """Why the last PUT was refused; empty after one that succeeded."""
        self._refused_ms = float("-inf")

    @property
    def reason(self) -> str | None:
        """The reason for clients; None if the last PUT found space."""
        return f"disk full: {self._reason}; {SAFE}" if self._reason else None

    @property
    def refusal(self) -> str | None:
        """The reason why produce is refused now, without asking the store; None = it is not."""
        asks_again = self._clock.monotonic_ms() - self._refused_ms >= ASK_AGAIN_MS
        return None if asks_again else self.reason

    def refused(self, error: StoreFullError) -> None:
        if not self._reason:
            remedy = error.remedy or "free or add space"
            _log.error(
                "disk full: produce is refused until there is space", reason=error.message, safe=SAFE, remedy=remedy
            )
        self._reason = error.message
        self._metrics.store_full.set(1)
        self._refused_ms = self._clock.monotonic_ms()

    def stored(self) -> None:
        if self._reason:
            self._reason, self._refused_ms = "", float("-inf")
            self._metrics.store_full.set(0)
            _log.info("the object store has space again: produce is taken")
