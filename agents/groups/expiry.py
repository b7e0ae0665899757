"""Deletes committed offsets that are past their retention (KIP-211), in one agent for all.

The agent that owns the name DUTY, as it would own a group, has the duty. While two agents disagree about the owner both
do it, which costs a little and does no harm: the metadata store decides, by its own clock, which offsets go.
"""

from __future__ import annotations

from agents.groups.coordinator import GroupCoordinator
from metadata.contract.errors import MetadataUnavailableError
from metadata.groups.contract import GroupMetadata
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

DUTY = "\x00offset expiry"
"""A name that no group has."""
GONE_PER_CALL = 10_000
"""A call that deletes fewer offsets and groups together has left nothing."""
CHECK_INTERVAL_MS = 600_000
"""Time between two rounds, and how long an empty group without offsets stays: the default of Kafka's
`offsets.retention.check.interval.ms`."""
JITTER_SHARE = 0.2


class OffsetExpiry:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        metadata: GroupMetadata,
        retention_ms: int,
        runtime: Runtime,
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._retention_ms = retention_ms
        self._clock = runtime.clock
        self._ids = runtime.ids

    async def run_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(CHECK_INTERVAL_MS * (1 + JITTER_SHARE * (self._ids.jitter() - 0.5)))
            try:
                await self.expire()
            except MetadataUnavailableError as error:
                _log.warning("offsets not expired, the next round tries again", error=str(error))
            except Exception:
                _log.exception("offsets not expired, the next round tries again")

    async def expire(self) -> None:
        """One round, if the duty is ours. Raises MetadataUnavailableError."""
        # Asked again before each call: the duty may have moved while the last one ran.
        while self._coordinator.owns(DUTY):
            gone = await self._metadata.expire_groups(
                offsets_retention_ms=self._retention_ms, idle_group_ms=CHECK_INTERVAL_MS
            )
            if gone.offsets or gone.groups:
                _log.info("expired", offsets=gone.offsets, groups=gone.groups)
            if gone.offsets + gone.groups < GONE_PER_CALL:
                return
