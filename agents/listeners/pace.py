"""How fast connections are accepted: a token bucket. Pure.

Above the rate clients wait in the socket's backlog; nobody is turned away. `BURST_S` seconds' worth may come at once,
because the clients of an agent that stops do so, and so does everybody when the first agent starts.
"""

from __future__ import annotations

BURST_S = 10


class TokenBucket:
    """`per_second` tokens a second, and at most BURST_S times as many in store."""

    def __init__(self, per_second: float, now_ms: float) -> None:
        self._per_ms = per_second / 1000
        self._most = self._tokens = max(1.0, per_second * BURST_S)
        self._counted_ms = now_ms

    def wait_ms(self, now_ms: float) -> float:
        """How long until there is a token; 0: there is one."""
        passed_ms = max(0.0, now_ms - self._counted_ms)
        self._counted_ms += passed_ms
        self._tokens = min(self._most, self._tokens + passed_ms * self._per_ms)
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self._per_ms

    def take(self) -> None:
        self._tokens -= 1
