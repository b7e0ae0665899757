"""A token bucket that may be overdrawn.

Each second adds the limit, up to what ten seconds bring: Kafka measures over windows of that length, so a client that
was silent may send that much at once. A request is never refused. It takes the bucket below zero, and the client waits
until the bucket is even again (KIP-219, KIP-599). What is owed is bounded by ten seconds too, unless the caller wants
it paid in full: a client behind a longer wait would take its pipelined requests for lost.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from security.quotas.precedence import Limit, Share

BURST_S: Final = 10
"""Kafka's `quota.window.num` 11 less the window in progress, of `quota.window.size.seconds` 1."""
SHARES_MAX: Final = 10_000
"""Clients choose their ids, so the least recently used share is forgotten above this many."""


class Bucket:
    __slots__ = ("_at_ms", "_per_second", "_tokens")

    def __init__(self, per_second: float, now_ms: float) -> None:
        self._per_second = per_second
        self._tokens = per_second * BURST_S
        self._at_ms = now_ms

    def take(self, amount: float, per_second: float, now_ms: float, owed_s_max: float = BURST_S) -> float:
        """Take `amount`; returns the ms until the bucket is even again, from 0 to `owed_s_max` seconds.

        A limit that changed counts from now on. `per_second` is above 0.
        """
        elapsed_s = max(0.0, now_ms - self._at_ms) / 1000
        most = per_second * BURST_S
        self._tokens = max(-per_second * owed_s_max, min(most, self._tokens + self._per_second * elapsed_s) - amount)
        self._per_second, self._at_ms = per_second, now_ms
        return max(0.0, -self._tokens / per_second * 1000)


class Buckets:
    """The buckets of one key."""

    def __init__(self, owed_s_max: float = BURST_S) -> None:
        self._owed_s_max = owed_s_max
        self._buckets: OrderedDict[Share, Bucket] = OrderedDict()

    def take(self, limit: Limit, amount: float, now_ms: float) -> float:
        """As `Bucket.take`, for the share that the limit names."""
        bucket = self._buckets.get(limit.share)
        if bucket is None:
            bucket = self._buckets[limit.share] = Bucket(limit.per_second, now_ms)
            if len(self._buckets) > SHARES_MAX:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(limit.share)
        return bucket.take(amount, limit.per_second, now_ms, self._owed_s_max)

    def __len__(self) -> int:
        return len(self._buckets)
