"""A token bucket that may be overdrawn.

Each second adds the limit, up to what ten seconds bring: Kafka measures over windows of that length, so a client that
was silent may send that much at once. A request is never refused. It takes the bucket below zero, and the client waits
until the bucket is even again (KIP-219, KIP-599). What is owed is bounded by ten seconds too, unless the caller wants
it paid in full: a client behind a longer wait would take its pipelined requests for lost.

Where agents share the limits (`security/quotas/sharing.py`), each fills its buckets with its part of them. The tokens
stay as they are when a part grows: a client that goes from agent to agent must not find a full bucket at each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from security.quotas.precedence import Limit, Share
from security.quotas.sharing import demand_after

BURST_S: Final = 10
"""Kafka's `quota.window.num` 11 less the window in progress, of `quota.window.size.seconds` 1."""
PER_SECOND_MIN: Final = 1e-9
"""A smaller limit counts as this one: one in thirty years. A part of it could not be told from 0."""
SHARES_MAX: Final = 10_000
"""Clients choose their ids, so the least recently used share is forgotten above this many."""


class Bucket:
    __slots__ = ("_at_ms", "_limit", "_taken", "_tokens", "_was_short", "demand", "is_active", "number", "part")

    def __init__(self, per_second: float, now_ms: float, part: float = 1.0) -> None:
        self._limit = max(per_second, PER_SECOND_MIN)
        self._tokens = self._limit * part * BURST_S
        self._at_ms = now_ms
        self._taken = 0.0
        """Since the last beat."""
        self._was_short = False
        """Somebody had to wait since the last beat."""
        self.part = part
        """The part of the limit that the other agents leave to this one."""
        self.demand = 0.0
        self.is_active = False
        self.number: int | None = None
        """Its name in reports, once it was reported."""

    def take(self, amount: float, per_second: float, now_ms: float, owed_s_max: float = BURST_S) -> float:
        """Take `amount`; returns the ms until the bucket is even again, from 0 to `owed_s_max` seconds.

        A limit that changed counts from now on. `per_second` is the whole limit, above 0.
        """
        self._fill(now_ms)
        self._limit = max(per_second, PER_SECOND_MIN)
        ours = self._limit * self.part
        self._tokens = max(-ours * owed_s_max, min(ours * BURST_S, self._tokens) - amount)
        self._taken += amount
        if self._tokens >= 0:
            return 0.0
        self._was_short = True
        return -self._tokens / ours * 1000

    def wait_ms(self, now_ms: float) -> float:
        """Until the bucket is even again."""
        self._fill(now_ms)
        return max(0.0, -self._tokens / (self._limit * self.part) * 1000)

    def beat(self, elapsed_s: float, now_ms: float) -> None:
        """Sum up the demand since the last beat."""
        self._fill(now_ms)
        is_short = self._was_short or self._tokens < 0
        self.demand = demand_after(self.demand, self._taken / (self._limit * elapsed_s), is_short=is_short)
        self._taken, self._was_short = 0.0, False

    def divide(self, part: float, now_ms: float) -> None:
        """This agent has another part of the limit from now on."""
        self._fill(now_ms)
        self.part = part

    def _fill(self, now_ms: float) -> None:
        # Up to any height: what is above ten seconds' worth is cut when somebody takes of it, by the limit of then.
        self._tokens += self._limit * self.part * max(0.0, now_ms - self._at_ms) / 1000
        self._at_ms = now_ms


class Buckets:
    """The buckets of one key."""

    def __init__(self, owed_s_max: float = BURST_S, *, counts_demand: bool = False) -> None:
        self._owed_s_max = owed_s_max
        self._counts_demand = counts_demand
        self._buckets: OrderedDict[Share, Bucket] = OrderedDict()
        self._active: dict[Share, Bucket] = {}
        """Those with a demand, or of which something was taken since the last beat."""
        self.part = 1.0
        """The part of the limit of a share of which the other agents have said nothing yet."""

    def take(self, limit: Limit, amount: float, now_ms: float) -> float:
        """As `Bucket.take`, for the share that the limit names."""
        bucket = self._buckets.get(limit.share)
        if bucket is None:
            bucket = self._buckets[limit.share] = Bucket(limit.per_second, now_ms, self.part)
            if len(self._buckets) > SHARES_MAX:
                forgotten, _ = self._buckets.popitem(last=False)
                self._active.pop(forgotten, None)
        else:
            self._buckets.move_to_end(limit.share)
        if self._counts_demand and not bucket.is_active:
            bucket.is_active = True
            bucket.divide(self.part, now_ms)
            self._active[limit.share] = bucket
        return bucket.take(amount, limit.per_second, now_ms, self._owed_s_max)

    def of(self, share: Share) -> Bucket:
        """The bucket of a share that has taken something."""
        return self._buckets[share]

    def beat(self, elapsed_s: float, now_ms: float) -> Iterator[tuple[Share, Bucket]]:
        """Sum up the demand of each share since the last beat. Gives those that have any."""
        for share, bucket in list(self._active.items()):
            bucket.beat(elapsed_s, now_ms)
            if bucket.demand:
                yield share, bucket
            else:
                bucket.is_active = False
                # Not another one of that share: this walk takes several turns, and the share may have been forgotten
                # and come back.
                if self._active.get(share) is bucket:
                    del self._active[share]

    def divide_evenly(self, agents: int, now_ms: float) -> None:
        """Nothing is known of the demands at other agents."""
        self.part = 1 / agents
        for bucket in self._active.values():
            bucket.divide(self.part, now_ms)

    def __len__(self) -> int:
        return len(self._buckets)
