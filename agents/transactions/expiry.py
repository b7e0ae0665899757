"""Forgets transactional ids that nobody used for `transactional.id.expiration.ms`, in one agent for all.

The agent that would coordinate an id named DUTY has the duty. While two agents disagree about it both do it, which
costs a little and does no harm.
"""

from __future__ import annotations

from agents.transactions.coordinator import TransactionCoordinator
from metadata.contract.errors import MetadataUnavailableError
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

DUTY = "\x00expiry of transactional ids"
"""A name that no id has."""
CHECK_INTERVAL_MS = 3_600_000
"""The default of Kafka's `transaction.remove.expired.transaction.cleanup.interval.ms`."""
JITTER_SHARE = 0.2
GONE_PER_CALL = 10_000
"""A call that forgets fewer has left nothing."""


class TransactionalIdExpiry:
    def __init__(self, *, coordinator: TransactionCoordinator, expiration_ms: int, runtime: Runtime) -> None:
        self._coordinator = coordinator
        self._expiration_ms = expiration_ms
        self._clock = runtime.clock
        self._ids = runtime.ids

    async def run_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(CHECK_INTERVAL_MS * (1 + JITTER_SHARE * (self._ids.jitter() - 0.5)))
            try:
                await self.expire()
            except MetadataUnavailableError as error:
                _log.warning("transactional ids not expired, the next round tries again", error=str(error))
            except Exception:
                _log.exception("transactional ids not expired, the next round tries again")

    async def expire(self) -> int:
        """One round, if the duty is ours. Returns how many ids are gone. Raises MetadataUnavailableError."""
        gone = 0
        # Asked again before each call: the duty may have moved while the last one ran.
        while self._coordinator.enabled and self._coordinator.owns(DUTY):
            some = await self._coordinator.metadata.expire_transactional_ids(expiration_ms=self._expiration_ms)
            gone += some
            if some < GONE_PER_CALL:
                break
        if gone:
            _log.info("transactional ids expired", ids=gone)
        return gone
