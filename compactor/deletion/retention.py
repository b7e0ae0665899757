"""Retention, in rounds: whole extents go when they are too old or too many, and the log start moves.

The metadata store decides which extents expire and removes them, in one transaction a round and by its own clock. After
a crash between rounds, the next call continues.

Once an hour, it walks over the states of all producers, slice by slice, and drops those that were silent for too long:
no index tells which these are, because every commit would have to write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.contract.deletion import DeletionMetadata
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

ROUND_EXTENTS = 10_000
PRODUCERS_INTERVAL_MS = 3_600_000
ROUNDS_MAX = 1_000
"""Rounds of one call, so that other duties get their turn. The oldest extents go first, so none waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    extents: int
    bytes: int
    partitions: int
    """Moves of a log start; a partition counts once per round."""
    producers: int


class Retention:
    def __init__(
        self,
        *,
        metadata: DeletionMetadata,
        metrics: Metrics,
        clock: Clock,
        round_extents: int = ROUND_EXTENTS,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._round_extents = round_extents
        self._rounds_max = rounds_max
        self._producers_ms = float("-inf")
        """The monotonic time at which the last walk over the producers began."""
        self._producers_after: tuple[int, int] | None = None
        """Where a walk that an error ended goes on; None: at the beginning."""

    async def apply(self) -> Applied:
        """Runs rounds until one removes nothing, at most `rounds_max`. Raises MetadataUnavailableError."""
        extents = taken_bytes = partitions = 0
        for _ in range(self._rounds_max):
            expired = await self._metadata.expire(limit=self._round_extents)
            self._metrics.expired_extents_total.inc(expired.extents)
            self._metrics.expired_bytes_total.inc(expired.bytes)
            extents += expired.extents
            taken_bytes += expired.bytes
            partitions += expired.partitions
            if not expired.extents:  # a short round is no end: the store has bounds of its own
                break
        producers = await self._expire_producers()
        if extents or producers:
            _log.info(
                "retention applied", extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers
            )
        return Applied(extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers)

    async def _expire_producers(self) -> int:
        now_ms = self._clock.monotonic_ms()
        if self._producers_after is None and now_ms - self._producers_ms < PRODUCERS_INTERVAL_MS:
            return 0
        self._producers_ms = now_ms
        dropped = 0
        while True:
            looked = await self._metadata.expire_producers(after=self._producers_after)
            self._producers_after = looked.after
            self._metrics.expired_producers_total.inc(looked.producers)
            dropped += looked.producers
            if looked.after is None:
                return dropped
