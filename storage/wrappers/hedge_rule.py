"""When a request deserves a second one, and how many there may be. Pure: latencies are arguments.

Latencies are kept for each class of sizes, because 8 MiB take longer than 64 KiB. Each class holds the last
`SAMPLES` of them, so the estimate follows a store that becomes slower or faster, and memory is bounded.
"""

from __future__ import annotations

from collections import deque

SAMPLES = 256
"""The latencies that a class remembers."""
SAMPLES_MIN = 64
"""The fewest latencies that are an estimate."""
REFRESH = 16
"""The latencies between two estimates: sorting 256 for each would cost more than it tells."""
QUANTILE = 0.96
"""A little past the 95th percentile: 4 % of the requests come to it, so `SHARE` of them usually suffices."""
SHARE = 0.05
"""Second requests for each first one, at most."""
BURST = 10.0
"""Second requests that may be saved up."""
BYTES_MAX = 16 * 1024 * 1024
"""The bytes of second requests in flight, at most: readers' budgets of memory count a GET once."""
CLASS_ENDS = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""The largest size of each class but the last, in bytes."""


class LatencyEstimate:
    """The latencies of one class."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=SAMPLES)
        self._new = 0
        self.late_ms: float | None = None
        """The time after which a request is late. None: too little is known."""

    def add(self, latency_ms: float) -> None:
        self._latest.append(latency_ms)
        self._new += 1
        if self._new >= (REFRESH if self.late_ms is not None else SAMPLES_MIN):
            self._new = 0
            self.late_ms = sorted(self._latest)[int(len(self._latest) * QUANTILE)]


class HedgeRule:
    def __init__(self) -> None:
        self._classes = tuple(LatencyEstimate() for _ in range(len(CLASS_ENDS) + 1))
        self._tokens = 0.0
        self._bytes_in_flight = 0

    def begin(self, size_bytes: int) -> LatencyEstimate:
        """Count a request. Returns the estimate for its size, which takes its latency."""
        self._tokens = min(self._tokens + SHARE, BURST)
        return self._classes[size_class(size_bytes)]

    def take(self, size_bytes: int) -> bool:
        """Whether a second request may be sent now; `give_back` follows its end."""
        if self._tokens < 1 or self._bytes_in_flight + size_bytes > BYTES_MAX:
            return False
        self._tokens -= 1
        self._bytes_in_flight += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self._bytes_in_flight -= size_bytes


def size_class(size_bytes: int) -> int:
    """The number of the class, from 0."""
    return next((number for number, end in enumerate(CLASS_ENDS) if size_bytes <= end), len(CLASS_ENDS))
