"""Shares limits with the other agents, so that a client has its quota once in the cluster and not once at each agent.

With every beat the agent sums up what clients ask of it, reports that, and reads what the others have reported, in one
call; then it fills its buckets by its own part of each limit (`security/quotas/sharing.py`). The call is apart from the
beat that extends the lease, which must neither wait for it nor fail by it. While no quota is set, nothing is called.

If a call fails, the parts stand, as what the others know of us does. After a lease nothing that was known holds: the
agent takes an even part of each limit. One that has never heard of others, as under a role of Postgres without the
right, measures by itself. Demands of an agent that died count until its lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agents.quotas.throttle import Throttle
from agents.yielding import LoopYielder
from metadata.contract.leases import BEAT_MS, LEASE_MS, WriterLease
from runtime.logging import get_logger
from runtime.runtime import Runtime
from security.quotas.bucket import Bucket
from security.quotas.sharing import busiest, number_of, part_of

_log = get_logger(__name__)

SHARES_PER_TURN = 500
"""The shares of one turn of the event loop: some milliseconds."""
ELAPSED_S_MIN = 0.5
"""A first beat may come as soon as a quota is set: a rate over less than this says nothing."""


class Demands(Protocol):
    """The part of `metadata.security.contract.SecurityMetadata` that sharing needs."""

    async def exchange_demands(
        self, lease: WriterLease, demands: Mapping[int, float]
    ) -> Sequence[Mapping[int, float]]: ...


class QuotaSharing:
    def __init__(
        self,
        throttle: Throttle,
        *,
        metadata: Demands,
        lease: Callable[[], WriterLease],
        secret: Callable[[], bytes],
        runtime: Runtime,
    ) -> None:
        """`secret`: that of the cluster, known once started."""
        self._throttle = throttle
        self._metadata = metadata
        self._lease = lease
        self._secret = secret
        self._clock = runtime.clock
        self._agents = 1
        """All that share, this one too, as last heard."""
        self._heard_ms = float("-inf")
        self._summed_ms = runtime.clock.monotonic_ms()
        self._fails = False
        self._quotas_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._throttle.shared:
            self._task = asyncio.create_task(self._run(), name="quota sharing")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def quotas_changed(self) -> None:
        self._quotas_changed.set()

    async def _run(self) -> None:
        while True:
            self._quotas_changed.clear()
            if not self._throttle.shares_now:
                await self._quotas_changed.wait()
                self._summed_ms = self._clock.monotonic_ms()
                continue
            await self.beat()
            await self._clock.sleep_ms(BEAT_MS)

    async def beat(self) -> None:
        """Report, and take the part of each limit that the others leave."""
        try:
            await self._share()
        except Exception as error:
            # Once for all beats that fail: while the store is away, others say so often enough.
            if not self._fails:
                _log.warning("quotas are not shared with the other agents now", error=str(error))
            self._fails = True
            self._may_lapse()
        else:
            if self._fails:
                _log.info("quotas are shared with the other agents again")
            self._fails = False

    async def _share(self) -> None:
        """Raises what the store raises."""
        sent_ms = self._clock.monotonic_ms()
        buckets = await self._sum_up(sent_ms)
        demands = {number: bucket.demand for number, bucket in buckets.items()}
        others = await self._metadata.exchange_demands(self._lease(), busiest(demands))
        self._agents, self._heard_ms = 1 + len(others), sent_ms
        for key in self._throttle.shared:
            self._throttle.buckets[key].part = 1 / self._agents
        async for number, bucket in LoopYielder(SHARES_PER_TURN).through(buckets.items()):
            theirs = [demands[number] for demands in others if number in demands]
            bucket.divide(part_of(bucket.demand, theirs, self._agents), self._clock.monotonic_ms())
        self._throttle.ease()

    async def _sum_up(self, now_ms: float) -> Mapping[int, Bucket]:
        elapsed_s = max(ELAPSED_S_MIN, (now_ms - self._summed_ms) / 1000)
        self._summed_ms = now_ms
        found: dict[int, Bucket] = {}
        turns = LoopYielder(SHARES_PER_TURN)
        for key in self._throttle.shared:
            async for share, bucket in turns.through(self._throttle.buckets[key].beat(elapsed_s, now_ms)):
                if bucket.number is None:
                    bucket.number = number_of(key, share, self._secret())
                found[bucket.number] = bucket
        return found

    def _may_lapse(self) -> None:
        """The store does not answer."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._heard_ms > LEASE_MS:
            for key in self._throttle.shared:
                self._throttle.buckets[key].divide_evenly(self._agents, now_ms)
            self._throttle.ease()
