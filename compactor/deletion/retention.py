"""Retention, in rounds: whole extents go when they are too old or too many, and the log start moves.

The metadata store decides which extents expire and removes them, in one transaction a round and by its own clock. After
a crash between rounds, the next call continues.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.contract.deletion import DeletionMetadata
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

ROUND_EXTENTS = 10_000
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
        round_extents: int = ROUND_EXTENTS,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._round_extents = round_extents
        self._rounds_max = rounds_max

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
        producers = await self._metadata.expire_producers()
        self._metrics.expired_producers_total.inc(producers)
        if extents or producers:
            _log.info(
                "retention applied", extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers
            )
        return Applied(extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers)
